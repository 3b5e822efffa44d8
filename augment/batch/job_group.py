"""What a merged timeline shows of the job as a whole, and what to show first: the job's tracks, the late rank and the
rank that waits most, a step in the middle."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from augment.arrays.types import Int64s
from augment.writers.perfetto.several import FirstView

if TYPE_CHECKING:
    from augment.job.answer import Answer

NAME = "Job"
_RANKS = 3  #: with pinned tracks
_SHORTEST_NS = 10_000  #: of a window to show
_DEVICE = r"( device \S+)?"  #: pattern of what tells tracks of several devices of a rank apart
_EVER = (-(1 << 61), 1 << 61)

Window = tuple[int, int]


def window_of(answer: Answer, members: Sequence[int], steps: Window | None) -> Window:
    """The time of these ``steps`` of ``members`` on the job's clock, ns; all time for no steps."""
    windows = list(_windows(answer, members).items()) if steps else []
    inside = [window for number, window in windows if steps and steps[0] <= number <= steps[1]]
    return (min(start for start, _ in inside), max(end for _, end in inside)) if inside else _EVER


def description(answer: Answer) -> str:
    """The verdict, for the mark behind the group's name."""
    return " ".join(answer.verdict.text)


def view(
    answer: Answer, labels: Mapping[int, str], tracks: Sequence[str], steps: Window | None, shift_ns: int
) -> FirstView:
    """What to show first.

    Args:
        answer: of the job.
        labels: the names of the ranks in the file, by member.
        tracks: the names of the job's tracks.
        steps: the first and last step in the file; None: all.
        shift_ns: what the file's times are ahead of the job's.
    """
    members = list(labels)
    shown = _worth_seeing(answer, members)
    pins = [*tracks, *(pin for member in shown for pin in _pins(answer, member, labels[member]))]
    middle = _middle_step(answer, members, steps)
    window = (middle[0] + shift_ns, middle[1] + shift_ns) if middle else None
    return FirstView(pins, window, [NAME, *(labels[member] for member in shown[:1])])


def _pins(answer: Answer, member: int, label: str) -> list[str]:
    """Patterns of the tracks of a rank that are pinned: its device, and the stream on which it waits longest."""
    matched, parted, summary = answer.matched, answer.parted, answer.summaries[member]
    rows = matched.rows_of(member)
    together = rows[~matched.is_pair()[matched.instance[rows]]]
    rows = together if len(together) else rows
    stream, count = summary.column("stream")[matched.place[rows]], max(len(summary.streams), 1)
    waited = np.bincount(stream, parted.wait_ns[rows], minlength=count)
    busiest = int(np.lexsort((np.bincount(stream, minlength=count), waited))[-1])  # a late rank may never wait
    tracks = ["GPU state"]
    if len(rows):
        tracks.append(f"Wait and transfer stream {_escaped(summary.streams[busiest].name)}")
    return [f"{track}{_DEVICE} {_escaped(label)}" for track in tracks]


def _escaped(name: str) -> str:
    return re.escape(name).replace(r"\ ", " ")


def _worth_seeing(answer: Answer, members: Sequence[int]) -> list[int]:
    """The ranks that the verdict names, else the one that others wait for longest; then the one that waits longest."""
    of_rank = {answer.summaries[member].rank: member for member in members}
    late = [of_rank[row.rank] for row in answer.verdict.rows if row.rank is not None and row.rank in of_rank]
    if not late:
        arrived_last = answer.matched.member[answer.parted.late]
        charged = np.bincount(arrived_last, answer.parted.lead_ns, len(answer.summaries))[list(members)]
        late = [members[int(charged.argmax())]] if len(members) else []
    waited = np.bincount(answer.matched.member, answer.parted.wait_ns, len(answer.summaries))[list(members)]
    waiting = [members[int(waited.argmax())]] if len(members) else []
    return list(dict.fromkeys([*late[: _RANKS - 1], *waiting, *members]))[:_RANKS]


def _middle_step(answer: Answer, members: Sequence[int], steps: Window | None) -> Window | None:
    """The time of a step in the middle, of usual length, on the job's clock; None without steps."""
    windows = [
        window
        for number, window in sorted(_windows(answer, members).items())
        if not steps or steps[0] <= number <= steps[1]
    ]
    if not windows:
        return None
    length = np.array([end - start for start, end in windows])
    usual = np.flatnonzero((length >= np.median(length) / 2) & (length <= 2 * np.median(length)))
    start, end = windows[int(usual[len(usual) // 2])]
    return (start, end) if end - start > _SHORTEST_NS else None


def _windows(answer: Answer, members: Sequence[int]) -> dict[int, Window]:
    """The time of each numbered step, from the first of these ranks to begin to the last to end, on the job's clock."""
    windows: dict[int, Window] = {}
    for member in members:
        summary, clock = answer.summaries[member], answer.clocks[member]
        if not clock.comparable:
            continue
        start, end = (clock.to_common(summary.step_column(name)) for name in ("start", "end"))
        for number, begin, finish in _rows(summary.step_column("number"), start, end):
            before = windows.get(number, (begin, finish))
            windows[number] = min(before[0], begin), max(before[1], finish)
    return {number: window for number, window in windows.items() if number >= 0}


def _rows(*columns: Int64s) -> list[list[int]]:
    return np.column_stack(columns).tolist()  # type: ignore[no-any-return]
