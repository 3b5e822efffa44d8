"""The critical path through the ranks of a job: what determined, at each moment, when the job was done.

It is followed backwards from the end. On a rank, time belongs to that rank back to the end of the last collective that
it had to wait for. That collective moved data since its last rank arrived; before that arrival, the path is on the rank
that arrived last; and so on, back to where a rank began. So the path is on one rank at each moment, and its pieces add
up to its length.

A rank had to wait for a collective that held it up (``held_up`` of ``rank_progress.py``), or that directly precedes, on
its stream, the collective at whose start the path reached the rank. Only kinds that no rank can finish before all ranks
have begun are used, and sends with their receives; and only where the clocks of all ranks are comparable. Where a rank
waited no longer than the uncertainty of the clocks, the late rank is unknown, and the path stays on the waiting rank.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Annotated

import numpy as np
from msgspec import Struct

from augment.arrays import NO_INDEX, Bools, Int64s, MemberIndex, MemberIndexes, Places, combinations, each, sums
from augment.core import Diagnostic, Findings, column
from augment.facts.collectives.rank_progress import Spent
from augment.job.collectives import Waits
from augment.job.matching import Matched
from augment.job.matching.clocks import Clock, common_times
from augment.job.ranks import SPENT, RankSummary


class Path(Struct, frozen=True):
    """Equal-length columns, one row per piece, ascending in time: each piece begins where the previous one ends.

    ``member`` is the rank of the piece; ``start`` and ``end`` are int64 ns on the job's clock, ``own_start`` and
    ``own_end`` on the rank's. ``step`` is the step's number, -1 without steps. ``part`` is the row in :class:`Matched`
    of a collective that moves data, and ``late`` the row of the part that arrived last; it belongs to another rank
    where the path came from there. Both are -1 for local work, which is the sum of ``compute_ns``,
    ``communication_ns``, ``memory_ns`` (see :class:`Spent`) and ``idle_ns``.
    """

    member: MemberIndexes
    start: Int64s
    end: Int64s
    own_start: Int64s
    own_end: Int64s
    step: Int64s
    part: Int64s
    late: Int64s
    compute_ns: Int64s
    communication_ns: Int64s
    memory_ns: Int64s
    idle_ns: Int64s

    def __len__(self) -> int:
        return len(self.member)

    @property
    def dur(self) -> Int64s:
        """Durations on the job's clock, int64 ns."""
        return self.end - self.start

    def is_transfer(self) -> Bools:
        """Whether each piece is a transfer."""
        return self.part >= 0


class _Piece(Struct, frozen=True):
    """A piece during the search: from a moment of member ``origin`` to one of ``member``, as indexes of moments."""

    member: int
    origin: int
    begin: int
    finish: int
    part: int = NO_INDEX
    late: int = NO_INDEX


def path_of(matched: Matched, parted: Waits, clocks: Sequence[Clock], summaries: Sequence[RankSummary]) -> Path | str:
    """The path, or the reason why there is none."""
    usable = [member for member, clock in enumerate(clocks) if clock.comparable and len(summaries[member].steps["end"])]
    if len(usable) < 2:
        return "no two ranks have comparable clocks"
    links = _Links(matched, parted, clocks, usable)
    # whether all ranks recorded the same steps, each once
    numbers = [summaries[member].step_column("number") for member in usable]
    ascending = bool((np.diff(numbers[0]) > 0).all() and numbers[0][0] >= 0)
    by_steps = ascending and all(np.array_equal(of_rank, numbers[0]) for of_rank in numbers)
    ranks = {member: _Rank(member, summaries[member], clocks[member], links, by_steps) for member in usable}
    pieces = list(_backwards(ranks, links))[::-1]
    return _columns(pieces, ranks) if pieces else "no rank recorded any time"


class _Links:
    """Where, and when, the path continues from each part of a collective; ``valid`` marks parts that it may pass."""

    def __init__(self, matched: Matched, parted: Waits, clocks: Sequence[Clock], usable: Sequence[int]) -> None:
        self.matched = matched
        self.start, self.end, margin = common_times(matched, clocks)
        comparable = np.zeros(len(clocks), np.bool_)
        comparable[usable] = True
        instance = matched.instance
        rows = np.arange(len(instance))
        tells = matched.is_synchronous() | matched.is_pair()
        known = np.logical_and.reduceat(comparable[matched.member], matched.first) & tells
        wrong = np.maximum.reduceat(margin, matched.first)[instance]
        late = parted.late[instance]
        handed = (late != rows) & (parted.wait_ns > wrong) & (self.start[late] < self.end)
        self.late = np.where(handed, late, rows)
        self.valid = known[instance] & (self.start[self.late] < self.end)


class _Rank:
    """One rank: its moments are the starts and ends of its collectives, then of its steps."""

    def __init__(self, member: int, summary: RankSummary, clock: Clock, links: _Links, by_steps: bool) -> None:
        self.member, self.clock, self._summary, self._links = member, clock, summary, links
        # without common steps: the first start and the last end
        self._begins = slice(None if by_steps else 1)
        self._ends = slice(None if by_steps else -1, None)
        self.number = summary.step_column("number") if by_steps else np.array([NO_INDEX])
        start, self.step_end = summary.step_column("start")[self._begins], summary.step_column("end")[self._ends]
        self.count = len(summary.column("ts"))
        self.first = 2 * self.count  #: the moment at which its first step begins ...
        self.last = self.first + 2 * len(self.step_end) - 1  #: ... and its last ends
        self.from_ns, self.until_ns = (
            int(clock.to_common(own_time)[0]) for own_time in (start[:1], self.step_end[-1:])
        )

    def _at_moments(self, ts: str, end: str, begins: str, ends: str) -> Int64s:
        """The values of these columns at the starts and ends of collectives and of steps."""
        summary = self._summary
        steps = summary.step_column(begins)[self._begins], summary.step_column(ends)[self._ends]
        return np.concatenate((summary.column(ts), summary.column(end), *steps))

    @cached_property
    def local(self) -> Int64s:
        """The moments on the rank's own clock."""
        return self._at_moments("ts", "end", "start", "end")

    @cached_property
    def common(self) -> Int64s:
        """The moments on the job's clock."""
        return self.clock.to_common(self.local)

    @cached_property
    def spent(self) -> Spent:
        """The time spent on each kind of work before each moment."""
        names = zip(SPENT["ts"], SPENT["end"], SPENT["start"], SPENT["end"], strict=True)
        return Spent(*(self._at_moments(*column_names) for column_names in names))

    @cached_property
    def _row(self) -> Int64s:
        """The row in :class:`Matched` of each collective; -1 for unmatched ones. The last element serves index -1."""
        rows = self._links.matched.rows_of(self.member)
        rows = rows[self._links.valid[rows]]
        row = np.full(self.count + 1, NO_INDEX, np.int64)
        row[self._links.matched.place[rows]] = rows
        return row

    @cached_property
    def _holding(self) -> tuple[list[int], list[int]]:
        """The ends of the collectives that held the rank up, ascending, on the job's clock; and their rows."""
        rows = self._row[:-1][self._summary.column("held") != 0]
        rows = rows[rows != NO_INDEX]
        end = self._links.end[rows]
        order = np.argsort(end, kind="stable")
        return end[order].tolist(), rows[order].tolist()

    def waited_for(self, moment: int, part: int) -> int:
        """The row of the last collective before ``moment``, on the job's clock, that the rank waited for; -1 if none.

        ``part`` is the row of the collective that starts at the moment, or -1.
        """
        if part != NO_INDEX:
            before = int(self._row[self._summary.column("follows")[self._links.matched.place[part]]])
            if before != NO_INDEX and self._links.end[before] <= moment:
                return before
        ends, rows = self._holding
        place = bisect_right(ends, moment)
        return rows[place - 1] if place else NO_INDEX

    def cuts(self, begin: int, finish: int) -> list[int]:
        """The moments between two others at which steps of the rank end, ascending."""
        low = np.searchsorted(self.step_end, self.local[begin], side="right")
        high = np.searchsorted(self.step_end, self.local[finish], side="left")
        return [self.first + len(self.step_end) + int(place) for place in range(low, high)]

    def step_of(self, moment: Int64s) -> Int64s:
        """The number of the first step that ends at or after ``moment``, on the rank's own clock."""
        place = np.searchsorted(self.step_end, moment, side="left")
        return self.number[np.minimum(place, len(self.number) - 1)]


def _backwards(ranks: dict[int, _Rank], links: _Links) -> Iterator[_Piece]:
    """The pieces, from the last to the first."""
    rank = max(ranks.values(), key=lambda rank: rank.until_ns)
    moment, now, part = rank.last, rank.until_ns, NO_INDEX
    while now > rank.from_ns:
        row = rank.waited_for(now, part)
        begins = row == NO_INDEX or links.end[row] <= rank.from_ns
        since = rank.first if begins else rank.count + int(links.matched.place[row])
        for cut in [*reversed(rank.cuts(since, moment)), since]:
            if rank.local[cut] < rank.local[moment]:
                yield _Piece(rank.member, rank.member, cut, moment)
                moment = cut
        if begins:
            return
        part = int(links.late[row])
        origin, begin = int(links.matched.member[part]), int(links.matched.place[part])
        yield _Piece(rank.member, origin, begin, since, row, part)
        rank, moment, now = ranks[origin], begin, int(links.start[part])


def _columns(pieces: Sequence[_Piece], ranks: dict[int, _Rank]) -> Path:
    names = ("member", "origin", "begin", "finish", "part", "late")
    member, origin, begin, finish, part, late = (
        np.array([getattr(piece, name) for piece in pieces], np.int64) for name in names
    )
    local = part == NO_INDEX
    start, end, own_start, own_end, step = (np.zeros(len(pieces), np.int64) for _ in range(5))
    drift = np.zeros(len(pieces))
    spent = np.zeros((len(Spent._fields), len(pieces)), np.int64)
    count = int(max(member.max(initial=-1), origin.max(initial=-1))) + 1
    left, reached, none = dict(each(origin, count)), dict(each(member, count)), np.empty(0, np.intp)
    for index in sorted(left.keys() | reached.keys()):
        rank, departed, arrived = ranks[index], left.get(index, none), reached.get(index, none)
        start[departed], own_start[departed] = rank.common[begin[departed]], rank.local[begin[departed]]
        end[arrived], own_end[arrived] = rank.common[finish[arrived]], rank.local[finish[arrived]]
        step[arrived], drift[arrived] = rank.step_of(own_end[arrived]), rank.clock.drift
        work = arrived[local[arrived]]
        spent[:, work] = [values[finish[work]] - values[begin[work]] for values in rank.spent]
    over = origin != member
    own_start[over] = (own_end - (end - start) - np.rint(drift * (end - start)).astype(np.int64))[over]
    times = np.vstack((spent, np.where(local, own_end - own_start, 0) - spent.sum(axis=0)))
    # clock drift makes the rank's time differ from the job's; the difference goes to the piece's largest component
    times[times.argmax(axis=0), np.arange(len(pieces))] += np.where(local, end - start, 0) - times.sum(axis=0)
    step = np.minimum.accumulate(step[::-1])[::-1]
    return Path(member.astype(MemberIndex, copy=False), start, end, own_start, own_end, step, part, late, *times)


# The composition of the job's critical path by step and rank, and its handovers between ranks.


MOST_HANDOVERS = 1000  #: rows, those with the longest waits
_TIMES = ("compute_ns", "communication_ns", "memory_ns", "idle_ns")


class Row(Struct, frozen=True):
    """The part of the path on one rank, in one step or in total."""

    step: Annotated[int | None, column("The number of the step; null for the whole path.")]
    rank: Annotated[int | None, column("The rank.")]
    trace: Annotated[str, column("The name of its trace.")]
    path_ns: Annotated[
        int, column("Time that the path is on the rank, on the job's clock: the sum of the next five columns.", "ns")
    ]
    compute_ns: Annotated[int, column("The rank's device computes.", "ns")]
    communication_ns: Annotated[
        int, column("The device communicates without computing, other than in transfer_ns.", "ns")
    ]
    memory_ns: Annotated[int, column("The device copies, and nothing else runs.", "ns")]
    idle_ns: Annotated[int, column("Nothing runs on the device.", "ns")]
    transfer_ns: Annotated[
        int, column("Collectives that the rank had to wait for move data: all their ranks have arrived.", "ns")
    ]
    path_ratio: Annotated[float | None, column("The rank's share of path_ns of all ranks in the step.", "ratio")]
    visit_count: Annotated[int, column("How often the path reaches the rank.", "count")]
    uncertainty_ns: Annotated[
        int, column("The uncertainty of the rank's clock, and so of when the path comes and goes.", "ns")
    ]


class HandoverRow(Struct, frozen=True):
    """Collectives of one kind and process group in which the path moves from one rank to another."""

    group: Annotated[str, column("The name of the process group; empty if the traces do not name it.")]
    kind: Annotated[str, column("The kind of collective.")]
    late_rank: Annotated[
        int | None, column("The rank that the others waited for: the path is on it before the collective.")
    ]
    late_trace: Annotated[str, column("The name of its trace.")]
    waiting_rank: Annotated[int | None, column("The rank that the path is on after the collective.")]
    waiting_trace: Annotated[str, column("The name of its trace.")]
    count: Annotated[int, column("The number of such collectives.", "count")]
    wait_ns: Annotated[int, column("How long the waiting rank waited in these collectives.", "ns")]
    lead_ns: Annotated[int, column("By how much the late rank arrived after the last but one.", "ns")]
    transfer_ns: Annotated[int, column("Time of the path in these collectives.", "ns")]


def figures(path: Path, clocks: Sequence[Clock], summaries: Sequence[RankSummary]) -> Iterator[Row]:
    """The rows by step, ascending, then those of the whole path; within each the longest first."""
    if (path.step >= 0).any():
        steps, first = np.unique(path.step, return_index=True)  # path.step is ascending
        for step, pieces in zip(steps.tolist(), np.split(np.arange(len(path)), first[1:]), strict=True):
            yield from _rows(path, pieces, step, clocks, summaries)
    yield from _rows(path, np.arange(len(path)), None, clocks, summaries)


def handovers(path: Path, matched: Matched, parted: Waits, summaries: Sequence[RankSummary]) -> Findings:
    """The rows with the longest waits first; at most :data:`MOST_HANDOVERS`."""
    over = np.flatnonzero(is_handover(path))
    part, late = path.part[over], path.late[over]
    instance = matched.instance[part]
    values, which = combinations(
        matched.group[instance], matched.kind[instance], matched.member[late], matched.member[part]
    )
    count = len(values[0])
    wait, lead, transfer = (
        sums(which, of, count) for of in (parted.wait_ns[part], parted.lead_ns[instance], path.dur[over])
    )
    often = np.bincount(which, minlength=count)
    order = np.argsort(-wait, kind="stable")
    rows = []
    for place in order[:MOST_HANDOVERS].tolist():
        group, kind, first, second = (int(column[place]) for column in values)
        rows.append(
            HandoverRow(
                group=matched.groups[group].name,
                kind=matched.kinds[kind],
                late_rank=summaries[first].rank,
                late_trace=summaries[first].name,
                waiting_rank=summaries[second].rank,
                waiting_trace=summaries[second].name,
                count=int(often[place]),
                wait_ns=int(wait[place]),
                lead_ns=int(lead[place]),
                transfer_ns=int(transfer[place]),
            )
        )
    beyond = count - len(rows)
    why = "handovers of the critical path beyond the limit, those with the shortest waits; left out"
    return Findings(rows, diagnostics=[Diagnostic("handovers_beyond_limit", beyond, why)] if beyond else [])


def is_handover(path: Path) -> Bools:
    """The transfers at whose start the path comes from another rank."""
    over: Bools = path.part != path.late
    return over


def _rows(
    path: Path, pieces: Places, step: int | None, clocks: Sequence[Clock], summaries: Sequence[RankSummary]
) -> Iterator[Row]:
    member, dur = path.member[pieces], path.dur[pieces]
    whole = int(dur.sum())
    came = np.ones(len(pieces), np.bool_)
    came[1:] = member[1:] != member[:-1]
    (members,), which = combinations(member)
    times = {name: sums(which, getattr(path, name)[pieces], len(members)) for name in _TIMES}
    times["transfer_ns"] = sums(which, np.where(path.is_transfer()[pieces], dur, 0), len(members))
    visits = np.bincount(which[came], minlength=len(members))
    for place in np.argsort(-sum(times.values()), kind="stable").tolist():
        index = int(members[place])
        parts = {name: int(values[place]) for name, values in times.items()}
        yield Row(
            step=step,
            rank=summaries[index].rank,
            trace=summaries[index].name,
            path_ns=sum(parts.values()),
            **parts,
            path_ratio=sum(parts.values()) / whole if whole else None,
            visit_count=int(visits[place]),
            uncertainty_ns=clocks[index].uncertainty_ns,
        )
