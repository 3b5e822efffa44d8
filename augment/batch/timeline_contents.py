"""What a merged timeline contains: as much of a job as a browser holds, the job's own tracks, and what to show first
(the late rank and the rank that waits most, a step in the middle)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from augment.batch.conversion import BROWSER_TEXT_BYTES
from augment.core.text import ranges_text
from augment.errors import UsageError
from augment.writers.perfetto.several import FirstView

if TYPE_CHECKING:
    from augment.job.answer import Answer

#: the names of the groups of the tracks of a job (that of its verdict, which is drawn on it), and of roles that work
#: together
JOB, ROLES = "Job diagnosis", "Roles"
_RANKS = 3  #: with pinned tracks
_UNJOINED = 6  #: traces that nothing joins, whose devices are pinned
_SHORTEST_NS = 10_000  #: of a window to show
_DEVICE = r"( device \S+)?"  #: pattern of what tells tracks of several devices of a rank apart
EVER = (-(1 << 61), 1 << 61)

Window = tuple[int, int]


class Extent(Struct, frozen=True):
    """The size of a rank: the length of its text, and the numbers of its steps."""

    label: str
    text_bytes: int
    steps: tuple[int, ...]

    def part(self, steps: tuple[int, int] | None) -> int:
        """Estimated bytes of text in ``steps``, as if all steps were of equal size."""
        if steps is None:
            return self.text_bytes
        inside = sum(steps[0] <= number <= steps[1] for number in self.steps)
        return self.text_bytes * inside // max(len(self.steps), 1)


class BrowserFit(Struct, frozen=True):
    """The part of a job to write: indexes of the ranks, the range of steps (None: all), and what is left out."""

    ranks: tuple[int, ...]
    steps: tuple[int, int] | None
    left_out: str = ""


def fit(
    extents: Sequence[Extent],
    steps: tuple[int, int] | None,
    *,
    fixed_ranks: bool = False,
    limit: int | None = BROWSER_TEXT_BYTES,
) -> BrowserFit:
    """Choose what a browser can hold: all of the job, else the last steps of all ranks, else fewer ranks.

    Args:
        extents: the sizes of all ranks, in order.
        steps: the first and last step requested; none of these is left out.
        fixed_ranks: keep all ranks.
        limit: bytes of text that fit; None: write everything.

    Raises:
        UsageError: no rank has any of ``steps``.
    """
    ranks = tuple(at for at, extent in enumerate(extents) if steps is None or extent.part(steps))
    if not ranks:
        if not steps:
            raise UsageError("no rank")
        first, last = steps
        wanted = f"step {first}" if first == last else f"any step of {first} to {last}"
        raise UsageError(f"--steps: no rank has {wanted}")
    missing = [extents[at].label for at in range(len(extents)) if at not in ranks]
    without = f"without {', '.join(missing)}: no such step" if missing else ""
    size = sum(extents[at].part(steps) for at in ranks)
    if limit is None or size <= limit:
        return BrowserFit(ranks, steps, without)
    chosen = steps if steps else _last_steps([extents[at] for at in ranks], limit)
    kept = ranks if fixed_ranks else _spread(extents, ranks, chosen, limit)
    return BrowserFit(kept, chosen, _left_out(extents, ranks, BrowserFit(kept, chosen), steps, (size, limit)))


def _last_steps(extents: Sequence[Extent], limit: int) -> tuple[int, int] | None:
    """The largest range of last common steps that fits, at least one step; None if the ranks share no step."""
    common = set.intersection(*(set(extent.steps) for extent in extents))
    if not common:
        return None
    sizes = Counter[int]()
    for extent in extents:
        for number in extent.steps:
            # rounded up: no part is larger than its sum
            sizes[number] += -(-extent.text_bytes // len(extent.steps))
    first = last = max(common)
    inside = 0
    for number in sorted((number for number in sizes if number <= last), reverse=True):
        inside += sizes[number]
        if inside > limit:
            break
        first = number if number in common else first
    return first, last


def _spread(
    extents: Sequence[Extent], ranks: Sequence[int], steps: tuple[int, int] | None, limit: int
) -> tuple[int, ...]:
    """As many of ``ranks`` as fit, evenly spaced, with the first; at least one."""
    sizes = {at: extents[at].part(steps) for at in ranks}
    for count in range(len(ranks), 1, -1):
        kept = tuple(ranks[index * len(ranks) // count] for index in range(count))
        if sum(sizes[at] for at in kept) <= limit:
            return kept
    return tuple(ranks[:1])


def _left_out(
    extents: Sequence[Extent],
    ranks: Sequence[int],
    kept: BrowserFit,
    steps: tuple[int, int] | None,
    size: tuple[int, int],
) -> str:
    """One line that says what is left out, and why."""
    what = []
    if kept.steps != steps and kept.steps is not None:
        numbers = sorted({number for at in ranks for number in extents[at].steps})
        left = [number for number in numbers if not kept.steps[0] <= number <= kept.steps[1]]
        if left:
            what.append(f"steps {ranges_text(left)}")
    if left_ranks := [extents[at].label for at in ranks if at not in kept.ranks]:
        ranks_left = [label.removeprefix("rank ") for label in left_ranks]
        numbered = all(number.isdecimal() for number in ranks_left)
        what.append(f"ranks {ranges_text(sorted(map(int, ranks_left)))}" if numbered else ", ".join(left_ranks))
    room = f"{size[0] / 1e9:.1f} GB of text are more than the {size[1] / 1e9:.1f} GB that a browser holds"
    if not what:
        return f"{room}: augment query opens the file"
    return f"{room}, left out: {' and '.join(what)} (--all includes them)"


def window_of(answer: Answer, members: Sequence[int], steps: Window | None) -> Window:
    """The time of these ``steps`` of ``members`` on the job's clock, ns; all time for no steps."""
    windows = list(_windows(answer, members).items()) if steps else []
    inside = [window for number, window in windows if steps and steps[0] <= number <= steps[1]]
    return (min(start for start, _ in inside), max(end for _, end in inside)) if inside else EVER


def first_view(
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
    # The ranks that the verdict names, else the one that others wait for longest; then the one that waits longest.
    # Where the hosts of all ranks are slow alike, those of which the device waits longest for its host
    of_rank = {answer.summaries[member].rank: member for member in members}
    late = [of_rank[row.rank] for row in answer.verdict.rows if row.rank is not None and row.rank in of_rank]
    alike = not late and any(row.cause == "shared" for row in answer.verdict.rows)
    if not late and not alike:
        arrived_last = answer.matched.member[answer.parted.late]
        charged = np.bincount(arrived_last, answer.parted.lead_ns, len(answer.summaries))[list(members)]
        late = [members[int(charged.argmax())]] if len(members) else []
    waited = np.bincount(answer.matched.member, answer.parted.wait_ns, len(answer.summaries))[list(members)]
    waiting = [members[int(waited.argmax())]] if len(members) and not alike else []
    if alike:
        hosts = [answer.summaries[member].states.waits(None) for member in members]
        by_host = {member: int((gaps.end - gaps.start).sum()) for member, gaps in zip(members, hosts, strict=True)}
        members.sort(key=lambda member: -by_host[member])
    shown = list(dict.fromkeys([*late[: _RANKS - 1], *waiting, *members]))[:_RANKS]
    pins = [*tracks, *(pin for member in shown for pin in _pins(answer, member, labels[member]))]
    # The time of a step in the middle, of usual length, on the job's clock; None without steps
    windows = [
        window
        for number, window in sorted(_windows(answer, members).items())
        if not steps or steps[0] <= number <= steps[1]
    ]
    if not windows:
        middle = None
    else:
        length = np.array([end - start for start, end in windows])
        usual = np.flatnonzero((length >= np.median(length) / 2) & (length <= 2 * np.median(length)))
        start, end = windows[int(usual[len(usual) // 2])]
        middle = (start, end) if end - start > _SHORTEST_NS else None
    window = (middle[0] + shift_ns, middle[1] + shift_ns) if middle else None
    expanded = [] if alike else [labels[member] for member in shown[:1]]  # what is pinned is not repeated below
    return FirstView(pins, window, expanded)


def view_of_unjoined(labels: Sequence[str], tracks: Sequence[str] = ()) -> FirstView:
    """What to show first of traces that nothing joins: ``tracks``, what is wrong with each, what its devices did."""
    names = [_escaped(label) for label in labels]
    pins = [*tracks, *(f"Diagnosis {name}" for name in names[:_RANKS]), *(f"Steps {name}" for name in names[:1])]
    pins += [f"GPU state{_DEVICE} {name}" for name in names[:_UNJOINED]]
    return FirstView(pins, None, list(labels[:1]))


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


def _windows(answer: Answer, members: Sequence[int]) -> dict[int, Window]:
    """The time of each numbered step, from the first of these ranks to begin to the last to end, on the job's clock."""
    windows: dict[int, Window] = {}
    for member in members:
        summary, clock = answer.summaries[member], answer.clocks[member]
        if not clock.comparable:
            continue
        start, end = (clock.to_common(summary.step_column(name)) for name in ("start", "end"))
        for number, begin, finish in np.column_stack((summary.step_column("number"), start, end)).tolist():
            before = windows.get(number, (begin, finish))
            windows[number] = min(before[0], begin), max(before[1], finish)
    return {number: window for number, window in windows.items() if number >= 0}
