"""Replays a job from its ranks' collectives: how long it would take if something were otherwise.

Each rank does its own work from the end of a collective that it had to wait for (its anchor) until it comes to the next
(a bucket of gradients: until they are computed), which begins once the one before it on its stream has ended. A
collective moves data from the arrival of its last rank on, for as long as it did. It holds a rank up until it ends,
unless the rank has own work until later. Unchanged, the replay gives the recorded times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from augment.arrays import NO_INDEX, Bools, Int64s, MemberIndexes
from augment.job.path.progress import Stretches, WorkProgress
from augment.job.ranks import Parts, RankSummary
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

    def until(self, member: int, moments: Int64s) -> Int64s:
        """By how much later each moment of a member's own clock is reached, ns, if it waits for nobody."""


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

    def until(self, member: int, moments: Int64s) -> Int64s:
        """See :class:`TimeChange`: the changes of the stretches that end by then."""
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

    def until(self, member: int, moments: Int64s) -> Int64s:
        """See :class:`TimeChange`."""
        summary = self.summaries[member]
        begin = np.full(len(moments), summary.step_column("start")[0])
        computed = summary.states.parts(begin, moments).compute
        late: Int64s = np.rint(computed * (self.factor[member] - 1)).astype(np.int64)
        return late


def changed(progress: WorkProgress, change: TimeChange) -> tuple[Int64s, Int64s, Int64s]:
    """The columns ``local``, ``overlap`` and ``tail`` of ``progress`` after a change."""
    matched, stopped = progress.matched, progress.stopped
    columns = progress.local.copy(), progress.overlap.copy(), progress.tail.copy()
    local, overlap, tail = columns
    for member in change.members():
        rows, last = matched.rows_of(member), int(progress.tail_anchor[member])
        anchor, holder = progress.anchor[rows], progress.holder[rows]
        moments = (stopped[anchor], stopped[holder], progress.came[rows], stopped[rows], stopped[[last]])
        edges = np.array([progress.begin[member], progress.finish[member]])
        later = change.until(member, np.concatenate((*moments, edges)))  # at once, as this reads the table of states
        parts = np.split(later, np.cumsum([len(each) for each in moments]))
        anchored, held, begun, ended, at_last, (at_begin, at_end) = parts
        by_stream = (anchor != holder) & (progress.came[rows] >= matched.ts[rows])  # no work lies between the two
        local[rows] += np.where(by_stream, 0, begun - np.where(anchor == NO_INDEX, at_begin, anchored))
        overlap[rows] += ended - np.where(holder == NO_INDEX, at_begin, held)
        tail[member] += int(at_end - (at_begin if last == NO_INDEX else at_last[0]))
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
