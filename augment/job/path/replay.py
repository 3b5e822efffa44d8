"""Replays a job from its ranks' collectives: how long it would take if something were otherwise.

Each rank does its own work from the end of a collective that it had to wait for (its anchor) until it comes to the next
(a bucket of gradients: until they are computed), which begins once the one before it on its stream has ended. A
collective moves data from the arrival of its last rank on, for as long as it did. It holds a rank up until it ends,
unless the rank has own work until later. Unchanged, the replay gives the recorded times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from augment.arrays import NO_INDEX, Bools, Int64s, MemberIndexes
from augment.job.path.progress import Stretches, WorkProgress
from augment.job.ranks import EARLIER, Parts, RankSummary
from augment.kernels.native import native


class Replay(Struct, frozen=True):
    """What a replay needs; ``moving`` and ``order`` are by collective, ``lag`` by part: see :func:`replay_of`."""

    progress: WorkProgress
    order: Int64s
    moving: Int64s
    lag: Int64s
    members: MemberIndexes

    def time_ns(
        self,
        *,
        shift: TimeChange | None = None,
        moving: Int64s | None = None,
        hidden: Bools | None = None,
        is_steady: bool = True,
    ) -> int:
        """The time of the steps if they go on: from the last rank's begin to the last one's finish.

        A rank that is ahead begins its next step before the others do, and waits for them in it. So the first step
        begins as the last one leaves the ranks.

        Args:
            shift: changes of own work.
            moving: for how long each collective moves data, if not as recorded.
            hidden: collectives that no rank waits for, because they are done when their data are needed.
            is_steady: else the ranks begin as recorded.
        """
        progress, matched = self.progress, self.progress.matched
        local, overlap, tail = progress.local, progress.overlap, progress.tail
        if shift is not None:
            local, overlap, tail = changed(progress, shift)
        first = np.append(matched.first, len(matched.instance)).astype(np.int64)
        times = self.moving if moving is None else moving
        waited = np.ones(len(times), np.int64) if hidden is None else (~hidden).astype(np.int64)
        anchors = progress.anchor, progress.holder, progress.before

        def finish_of(begin: Int64s) -> Int64s:
            resume, done = progress.end.copy(), progress.end.copy()
            base = begin[matched.member]
            native("critical.play")(
                self.order, first, *anchors, base, local, overlap, times, self.lag, waited, resume, done
            )
            return self._finish(begin, resume, tail)

        begin = progress.common_begin
        last_begin = begin[self.members].max()
        if is_steady:
            finish = finish_of(begin)
            begin = last_begin + finish - finish[self.members].max()
        return int(finish_of(begin)[self.members].max() - last_begin)

    def _finish(self, begin: Int64s, resume: Int64s, tail: Int64s) -> Int64s:
        """When each member is done, ns."""
        anchor = self.progress.tail_anchor
        finish: Int64s = np.where(anchor == NO_INDEX, begin, resume[anchor]) + tail
        return finish

    @property
    def recorded_ns(self) -> int:
        """The recorded time."""
        begin = self.progress.common_begin
        finish = self._finish(begin, self.progress.end, self.progress.tail)
        return int(finish[self.members].max() - begin[self.members].max())


class TimeChange(Protocol):
    """Own work that takes longer or shorter."""

    def members(self) -> list[int]:
        """The members whose work changes."""

    def later(self, progress: WorkProgress, member: int) -> Later:
        """By how much later a member does its own work, if it waits for nobody."""


class Later(NamedTuple):
    """By how much later a member is somewhere, ns. Columns, parallel to its rows: after its anchor, after its holder,
    where it comes to the collective, and where it begins to wait for it. After the last holder; at the begin and the
    finish of its steps."""

    anchored: Int64s
    held: Int64s
    came: Int64s
    stopped: Int64s
    last: int
    begin: int
    finish: int

    @staticmethod
    def by_moments(progress: WorkProgress, member: int, until: Callable[[Int64s], Int64s]) -> Later:
        """Of a change by so much ``until`` each moment of the member's own clock."""
        rows, last, stopped = progress.matched.rows_of(member), int(progress.tail_anchor[member]), progress.stopped
        anchor, holder = progress.anchor[rows], progress.holder[rows]
        edges = np.array([progress.begin[member], progress.finish[member]])
        moments = (stopped[anchor], stopped[holder], progress.came[rows], stopped[rows], stopped[[last]], edges)
        later = until(np.concatenate(moments))  # at once, as this reads the table of states
        anchored, held, came, begun, at_last, (begin, finish) = np.split(later, np.cumsum([*map(len, moments)])[:-1])
        return Later(anchored, held, came, begun, int(at_last[0]), int(begin), int(finish))


class Shift(Struct, frozen=True):
    """Stretches of own work that take so much longer (``by``, ns, negative: less), parallel to ``stretches``.

    Within a stretch, as before a send to the next stage of a pipeline, the change is spread over the time in which the
    rank did what changes: ``causes``, parts of a stretch and how much of the change is due to each (parallel, too).
    Without ``causes`` all of it comes at the end.
    """

    stretches: Stretches
    by: Int64s
    causes: Mapping[tuple[str, ...], Int64s] = field(default_factory=dict)
    summaries: Sequence[RankSummary] = ()

    def members(self) -> list[int]:
        """See :class:`TimeChange`."""
        members: list[int] = np.unique(self.stretches.member[self.by != 0]).tolist()
        return members

    def later(self, progress: WorkProgress, member: int) -> Later:
        """See :class:`TimeChange`."""
        return Later.by_moments(progress, member, partial(self.until, member))

    def until(self, member: int, moments: Int64s) -> Int64s:
        """By how much later each moment of a member's own clock is reached, ns: by the changes of the stretches that
        end by then."""
        start, stop = np.searchsorted(self.stretches.member, (member, member + 1))
        total = np.append(0, np.cumsum(self.by[start:stop]))
        ended = np.searchsorted(self.stretches.ts[start:stop], moments, side="right")
        late: Int64s = total[ended]
        inside = np.flatnonzero((ended < stop - start) & (self.by[np.minimum(start + ended, stop - 1)] != 0))
        if self.causes and len(inside):
            row = start + ended[inside]
            late[inside] += np.rint(self.by[row] * self._share(member, row, moments[inside])).astype(np.int64)
        return late

    def _share(self, member: int, row: Int64s, moments: Int64s) -> npt.NDArray[np.float64]:
        """The share of the change of each stretch in ``row`` that has come by a moment within it."""
        whole = Parts(*(part[row] for part in self.stretches.parts))
        since = self.stretches.ts[row] - sum(whole, np.zeros(len(row), np.int64))
        until = self.summaries[member].states.parts(np.minimum(since, moments), moments)
        come, due = np.zeros(len(row)), np.zeros(len(row))
        for names, values in self.causes.items():
            weight = np.maximum(values[row], 0)
            come += weight * np.minimum(until.of(names) / np.maximum(whole.of(names), 1), 1.0)
            due += weight
        return come / np.maximum(due, 1)


class Scale(Struct, frozen=True):
    """The computing of members takes so many times as long: ``factor`` by member."""

    summaries: Sequence[RankSummary]
    factor: Mapping[int, float]

    def members(self) -> list[int]:
        """See :class:`TimeChange`."""
        return list(self.factor)

    def later(self, progress: WorkProgress, member: int) -> Later:
        """See :class:`TimeChange`."""
        summary = self.summaries[member]

        def until(moments: Int64s) -> Int64s:
            begin = np.full(len(moments), summary.step_column("start")[0])
            computed = summary.states.parts(begin, moments).compute
            late: Int64s = np.rint(computed * (self.factor[member] - 1)).astype(np.int64)
            return late

        return Later.by_moments(progress, member, until)


class Fixed(Struct, frozen=True):
    """Findings of rules that are fixed, by what they cost from one collective to the next on each of their members:
    ``rule`` by member. See :class:`augment.diagnosis.ranking.Advance`."""

    summaries: Sequence[RankSummary]
    rule: Mapping[int, str]

    def members(self) -> list[int]:
        """See :class:`TimeChange`."""
        return list(self.rule)

    def later(self, progress: WorkProgress, member: int) -> Later:
        """See :class:`TimeChange`: after a collective as much earlier as at its begin."""
        summary, matched, rows = self.summaries[member], progress.matched, progress.matched.rows_of(member)

        def earlier(table: str, name: str) -> Int64s:
            column = summary.table_column(table, f"{self.rule[member]} {name}")
            assert column is not None
            return column

        begins, ready, stopped = (earlier("earlier", name)[matched.place[rows]] for name in EARLIER)
        start, end = (earlier("steps earlier", name) for name in ("start", "end"))
        begin = int(start[np.searchsorted(summary.step_column("start"), progress.begin[member])])
        finish = int(end[np.searchsorted(summary.step_column("end"), progress.finish[member])])
        of_row = np.zeros(len(matched.instance) + 1, np.int64)
        of_row[rows], of_row[NO_INDEX] = begins, begin
        anchor, holder, last = progress.anchor[rows], progress.holder[rows], progress.tail_anchor[member]
        held = np.where(holder == NO_INDEX, progress.begin[member], matched.end[holder])
        queued, by_work = progress.came[rows] < matched.ts[rows], progress.came[rows] > held
        came = np.where(queued, np.where(by_work, ready, of_row[holder]), begins)
        return Later(-of_row[anchor], -of_row[holder], -came, -stopped, -int(of_row[last]), -begin, -finish)


def changed(progress: WorkProgress, change: TimeChange) -> tuple[Int64s, Int64s, Int64s]:
    """The columns ``local``, ``overlap`` and ``tail`` of ``progress`` after a change."""
    matched = progress.matched
    columns = progress.local.copy(), progress.overlap.copy(), progress.tail.copy()
    local, overlap, tail = columns
    for member in change.members():
        rows, last, later = matched.rows_of(member), int(progress.tail_anchor[member]), change.later(progress, member)
        anchor, holder = progress.anchor[rows], progress.holder[rows]
        by_stream = (anchor != holder) & (progress.came[rows] >= matched.ts[rows])  # no work lies between the two
        local[rows] += np.where(by_stream, 0, later.came - np.where(anchor == NO_INDEX, later.begin, later.anchored))
        overlap[rows] += later.stopped - np.where(holder == NO_INDEX, later.begin, later.held)
        tail[member] += later.finish - (later.begin if last == NO_INDEX else later.last)
    # a change cannot take more than there is
    given = progress.local, progress.overlap, progress.tail
    local, overlap, tail = (
        np.maximum(column, np.minimum(before, 0)) for column, before in zip(columns, given, strict=True)
    )
    return local, overlap, tail


def replay_of(progress: WorkProgress) -> Replay | None:
    """The replay of a job; None if no collectives join ranks.

    A collective ends when the last of its ranks does. It moves data from the last arrival; ``lag`` is by how much a
    part ended earlier.
    """
    matched = progress.matched
    if not len(matched):
        return None
    done = np.maximum.reduceat(progress.end, matched.first)
    arrival = np.maximum.reduceat(progress.start, matched.first)
    moving = np.maximum(done - arrival, 0)
    lag = progress.end - (arrival + moving)[matched.instance]
    order = np.argsort(done, kind="stable").astype(np.int64)
    return Replay(progress, order, moving, lag, np.unique(matched.member))
