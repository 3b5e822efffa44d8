"""The own work of each rank between its collectives, apart from waiting for others.

On a rank, time is own work except while its device only communicates: it then waits for others, or data move. So the
own work needs no common clock. The *anchor* of a collective is the last
one before its start that the rank had to wait for, on any stream, or just before it on its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from augment.arrays import NO_INDEX, Bools, Int64s, MemberIndexes, beyond_others, combinations, intervals, run_starts
from augment.facts.collectives.rank_progress import SOON_NS
from augment.job.matching import Clock, Matched
from augment.job.ranks import SPENT, Parts, RankSummary

LAST = -2  #: what a stretch begins with that ends the steps
ROUNDING_NS = 1000  #: recorded times are rounded to a microsecond at worst


class WorkProgress(Struct, frozen=True):
    """Own work by part of a collective: int64 columns, ns, parallel to the rows of ``matched``; clocks are own ones.

    ``matched`` are the collectives that tell of waits, on ranks with comparable clocks. ``start`` and ``end``: on the
    job's clock. ``anchor``: the row of the anchor, -1 for none. ``local``: from the anchor's end (else the rank's
    begin, which may be later) to the start. ``holder``: the last collective before the start that the rank had to wait
    for, -1 for none; another one than the anchor if the collective only waited for its stream. ``overlap``: own work
    from the holder's end to ``stopped``, when the rank began to wait for this one. ``before``: the row of the
    collective before it on its stream, -1 for none. ``came``: when the rank had come to it by its own work, on its own
    clock: the start, or the moment from which it only waited for the collective before it on its stream. By member:
    ``begin`` and ``finish`` of the ``steps`` by which the job is judged; ``common_begin``, on the job's clock;
    ``tail_anchor`` and ``tail``, the last anchor and the time from there to the finish.
    """

    matched: Matched
    start: Int64s
    end: Int64s
    anchor: Int64s
    holder: Int64s
    local: Int64s
    overlap: Int64s
    stopped: Int64s
    begin: Int64s
    finish: Int64s
    common_begin: Int64s
    tail_anchor: Int64s
    tail: Int64s
    before: Int64s
    came: Int64s
    steps: CommonSteps

    @property
    def step_count(self) -> int:
        """The number of steps; 0 if no step is common to all ranks."""
        return len(self.steps.numbers)


class CommonSteps(Struct, frozen=True):
    """The ``numbers`` of the steps by which a job and its ranks are judged, int64, ascending: those that all ranks
    recorded, but for the first ``left_out`` ones, which most ranks leave out of their own diagnosis, as they warm up or
    as earlier work hides a part of them. ``numbers`` is empty where no step is common to all."""

    numbers: Int64s
    left_out: int


class Stretches(Struct, frozen=True):
    """Own work between the moments at which a rank comes to its collectives: equal-length columns by member, then time.

    ``row``: the row in ``matched`` of the collective at the end of the stretch. ``before``: a code of what is at its
    start: equal for the n-th collective of equal kind, size and sort of group in a step; -1 for the first step's begin.
    The last stretch of a rank's steps is from the collective ``row`` to their end, and ``before`` is :data:`LAST`.
    ``until``: the same code of the collective ``row``.
    ``ts``: its end on the rank's clock. ``own_ns``: its length less the time of communication alone. ``parts``: what
    all of it consists of.
    """

    member: MemberIndexes
    row: Int64s
    before: Int64s
    until: Int64s
    ts: Int64s
    own_ns: Int64s
    parts: Parts


def progress_of(matched: Matched, clocks: Sequence[Clock], summaries: Sequence[RankSummary]) -> WorkProgress:
    """The progress of the ranks with comparable clocks."""
    usable = np.array(
        [clock.comparable and len(summary.steps["end"]) > 0 for clock, summary in zip(clocks, summaries, strict=True)]
    )
    steps = common_steps([summary for summary, is_usable in zip(summaries, usable.tolist(), strict=True) if is_usable])
    # by member, when the first of the steps begins and the last ends; without steps, those of the whole recording
    begin, finish = np.zeros((2, len(summaries)), np.int64)
    for member in np.flatnonzero(usable).tolist():
        numbers = summaries[member].step_column("number")
        places = np.flatnonzero(np.isin(numbers, steps.numbers)) if len(steps.numbers) else np.arange(len(numbers))
        begin[member] = summaries[member].step_column("start")[places[0]]
        finish[member] = summaries[member].step_column("end")[places[-1]]
    inside = (matched.end > begin[matched.member]) & (matched.ts < finish[matched.member])
    tells = (matched.is_synchronous() | matched.is_pair()) & np.logical_and.reduceat(
        usable[matched.member], matched.first
    )
    matched = matched.take(tells & np.logical_or.reduceat(inside, matched.first))
    rows, members = len(matched.instance), len(summaries)
    start, end, anchor = np.zeros(rows, np.int64), np.zeros(rows, np.int64), np.full(rows, NO_INDEX, np.int64)
    holder, before, came = anchor.copy(), anchor.copy(), matched.ts.copy()
    local, overlap = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    stopped = np.clip(matched.end - matched.exposed_ns, matched.ts, matched.end)
    common_begin = np.zeros(members, np.int64)
    tail_anchor, tail = np.full(members, NO_INDEX, np.int64), np.zeros(members, np.int64)
    for member in np.flatnonzero(usable).tolist():
        summary, clock, chosen = summaries[member], clocks[member], matched.rows_of(member)
        common_begin[member] = clock.to_common(begin[member : member + 1])[0]
        start[chosen], end[chosen] = clock.to_common(matched.ts[chosen]), clock.to_common(matched.end[chosen])
        anchors, holders, last = _anchors(matched, summary, chosen, int(finish[member]))
        # the collective before each of them on its stream
        stream = summary.column("stream")[matched.place[chosen]]
        order = np.lexsort((matched.ts[chosen], stream))
        same = stream[order[1:]] == stream[order[:-1]]
        before[chosen[order[1:]]] = np.where(same, chosen[order[:-1]], NO_INDEX)
        # The last collective to end before each of a member's ``rows`` that the rank had to wait for, of those launched
        # before it: a row that is late as its stream was busy did not wait for what came later. ``holder`` is the last
        # of all
        launched = summary.table_column("collectives", "launched")
        if launched is None:
            waited_for = holders
        else:
            launch = launched[matched.place[chosen]]
            holding = np.unique(holders[holders != NO_INDEX])
            holding = holding[np.argsort(matched.end[holding], kind="stable")]
            launch_of = np.append(launched[matched.place[holding]], NO_INDEX)
            place = (
                np.searchsorted(matched.end[holding], np.where(holders == NO_INDEX, -1, matched.end[holders]), "right")
                - 1
            )
            late = np.flatnonzero((place >= 0) & (launch_of[place] > launch))
            while len(late):
                place[late] -= 1
                late = late[launch_of[place[late]] > launch[late]]
            waited_for = np.append(holding, NO_INDEX)[place]
        came[chosen] = _came(matched, summary, chosen, before[chosen], waited_for)
        anchors = np.where(came[chosen] < matched.ts[chosen], waited_for, anchors)
        anchor[chosen], holder[chosen] = anchors, holders
        local[chosen] = came[chosen] - np.where(anchors == NO_INDEX, begin[member], matched.end[anchors])
        since = np.where(holders == NO_INDEX, begin[member], matched.end[holders])
        # the time until then without that in which the device only was in the matched collectives
        _, _, alone = intervals.clip(
            intervals.union(matched.ts[chosen], matched.end[chosen]), summary.states.communicating()
        )
        ts = np.column_stack((alone.start, alone.end)).ravel()
        is_alone = np.arange(len(ts)) % 2 == 0
        until = stopped[chosen]  # what was launched earlier may have stopped before ``since``
        waited = intervals.held_before(ts, is_alone, until) - intervals.held_before(ts, is_alone, since)
        overlap[chosen] = until - since - np.maximum(waited, 0)
        tail_anchor[member] = last
        tail[member] = finish[member] - (begin[member] if last == NO_INDEX else matched.end[last])
    anchors_found = anchor, holder, local, overlap, stopped
    return WorkProgress(
        matched, start, end, *anchors_found, begin, finish, common_begin, tail_anchor, tail, before, came, steps
    )


def common_steps(summaries: Sequence[RankSummary]) -> CommonSteps:
    """The steps by which ranks are judged together."""
    each = [summary.step_column("number") for summary in summaries]
    known = [numbers[numbers >= 0] for numbers in each]
    shared = np.array(sorted(set.intersection(*(set(of.tolist()) for of in known))) if known else [], np.int64)
    steady = [numbers[summary.step_column("steady") != 0] for numbers, summary in zip(each, summaries, strict=True)]
    votes = np.sum([np.isin(shared, of) for of in steady], axis=0) if len(shared) else np.zeros(1, np.int64)
    left_out = int((2 * votes >= len(summaries)).argmax())  # none if most ranks judge none of them
    return CommonSteps(shared[left_out:], left_out)


def _came(matched: Matched, summary: RankSummary, rows: Int64s, before: Int64s, holder: Int64s) -> Int64s:
    """When the rank had come to each of its ``rows``. One that begins just after the one before it on its stream may
    have waited for that alone: DDP and FSDP let a collective wait for what had been launched on the main stream before
    it."""
    ts, place = matched.ts[rows], matched.place[rows]
    ready, launched = (summary.table_column("collectives", name) for name in ("ready", "launched"))
    if ready is None or launched is None:
        return ts
    held = np.where(holder == NO_INDEX, NO_INDEX, matched.end[holder])
    reached = np.maximum(np.maximum(ready[place], launched[place]), held)
    known = (before != NO_INDEX) & (ready[place] != NO_INDEX) & (launched[place] != NO_INDEX)
    free = matched.end[before]
    waited = known & (free > reached) & (free <= ts + ROUNDING_NS) & (ts - free <= SOON_NS) & (ts - reached > SOON_NS)
    return np.where(waited, reached, ts)


def _anchors(matched: Matched, summary: RankSummary, rows: Int64s, finish: int) -> tuple[Int64s, Int64s, int]:
    """The anchor and the holder of each of a member's ``rows``, and the holder of its finish."""
    row_of = np.full(len(summary.column("ts")) + 1, NO_INDEX, np.int64)
    row_of[matched.place[rows]] = rows
    holding = rows[summary.column("held")[matched.place[rows]] != 0]
    holding = holding[np.argsort(matched.end[holding], kind="stable")]
    ends = matched.end[holding]
    place = np.searchsorted(ends, matched.ts[rows] + ROUNDING_NS, side="right") - 1
    anchors = np.where(place >= 0, np.append(holding, NO_INDEX)[place], NO_INDEX)
    anchors[anchors == rows] = NO_INDEX
    holders = anchors.copy()
    follows = row_of[summary.column("follows")[matched.place[rows]]]
    for before, possible in ((follows, follows != NO_INDEX), _just_before(matched, summary, rows)):
        near = possible & (matched.end[before] <= matched.ts[rows] + ROUNDING_NS)
        near &= (anchors == NO_INDEX) | (matched.end[before] > matched.end[anchors])
        anchors = np.where(near, before, anchors)
    anchors[anchors == rows] = NO_INDEX
    last = int(np.searchsorted(ends, finish, side="right")) - 1
    return anchors, holders, int(holding[last]) if last >= 0 else NO_INDEX


def _just_before(matched: Matched, summary: RankSummary, rows: Int64s) -> tuple[Int64s, Bools]:
    """The last collective to end before each of ``rows`` starts, on any stream; and whether that may have waited for
    it: it began soon after, and the device computed neither at the end of that collective nor since."""
    order = rows[np.argsort(matched.end[rows], kind="stable")]
    place = np.searchsorted(matched.end[order], matched.ts[rows] + ROUNDING_NS, side="right") - 1
    before = order[np.maximum(place, 0)]
    (at_start,), (at_end,) = SPENT["ts"][:1], SPENT["end"][:1]
    since = summary.column(at_start)[matched.place[rows]] - summary.column(at_end)[matched.place[before]]
    soon = matched.ts[rows] - matched.end[before] <= SOON_NS
    possible: Bools = (place >= 0) & soon & (since <= ROUNDING_NS) & (matched.exposed_ns[before] > 0)
    return before, possible


def stretches(progress: WorkProgress, summaries: Sequence[RankSummary]) -> Stretches:
    """The stretches of all members. Of collectives alone, as sends part them differently on different ranks."""
    matched = progress.matched
    together = ~matched.is_pair()[matched.instance] if len(matched) else np.empty(0, np.bool_)
    # A number for each collective: equal for equal step, kind, bytes; description, origin and size of the group
    labels: dict[tuple[str, str, int], int] = {}
    of_group = np.array(
        [labels.setdefault((group.description, group.origin, group.size), len(labels)) for group in matched.groups],
        np.int64,
    )
    if not len(matched):
        sort = np.empty(0, np.int64)
    else:
        sort = combinations(of_group[matched.group], matched.kind, matched.bytes, matched.step)[1]
    # How many of its sort came before each collective in its group, also before a rank's recording began
    earlier = _numbered(combinations(matched.group, sort)[1]) & ORDINALS if len(sort) else sort
    size, used = len(matched.instance) + len(summaries), 0
    member_of = np.empty(size, matched.member.dtype)
    row, begins, untils, ends, own_ns = np.empty((5, size), np.int64)
    parts = np.zeros((len(Parts._fields), size), np.int64)  # which takes no memory where nothing is written
    for member, summary in enumerate(summaries):
        rows = matched.rows_of(member)
        if not len(rows):
            continue
        rows_ = rows[together[rows]]
        rows_ = rows_[np.argsort(progress.came[rows_], kind="stable")]
        # The order in which the host launched rows, which are in the order of time: equal on ranks that run one
        # program, whichever stream is first. The order of time where a launch is unknown.
        launched = summary.table_column("collectives", "launched")
        if launched is None or (launched[matched.place[rows_]] == NO_INDEX).any():
            as_launched = np.arange(len(rows_))
        else:
            as_launched = np.argsort(launched[matched.place[rows_]], kind="stable")
        rows_ = rows_[as_launched]
        ts = np.maximum.accumulate(progress.came[rows_])
        begin = int(progress.begin[member])  # work launched earlier may run until then, and communicate
        is_after = progress.came[rows_] >= begin
        rows_, ts = rows_[is_after], ts[is_after]
        since = np.minimum(np.concatenate(([begin], np.maximum(ts, begin)))[:-1], ts)
        spent = summary.states.parts(since, ts)
        instance = matched.instance[rows_]
        _, first, which = np.unique(sort[instance], return_index=True, return_inverse=True)
        until = _numbered(sort[instance]) + earlier[instance[first]][which]
        before = np.concatenate(([NO_INDEX], until))[:-1]
        before[since <= begin] = NO_INDEX  # it counts from there, as on ranks whose recording has nothing earlier
        if progress.step_count and len(ts) and progress.finish[member] > ts[-1]:
            finish = progress.finish[[member]]
            tail = summary.states.parts(ts[-1:], finish)
            spent = Parts(*(np.append(part, last) for part, last in zip(spent, tail, strict=True)))
            since, ts = np.append(since, ts[-1]), np.append(ts, finish)
            rows_, before, until = np.append(rows_, rows_[-1]), np.append(before, LAST), np.append(until, until[-1])
        place = slice(used, used + len(rows_))
        member_of[place], row[place], begins[place], untils[place], ends[place] = member, rows_, before, until, ts
        own_ns[place] = ts - since - spent.communication
        for part, ns in zip(parts, spent, strict=True):
            if ns.any():
                part[place] = ns
        used = place.stop
    row, begins, untils, ends, own_ns = (each[:used] for each in (row, begins, untils, ends, own_ns))
    return Stretches(member_of[:used], row, begins, untils, ends, own_ns, Parts(*parts[:, :used]))


ORDINALS = (1 << 32) - 1  #: the bits of a code that count


def _numbered(sort: Int64s) -> Int64s:
    """A code for each of a rank's collectives, in order: its sort, and how many of that sort came before."""
    order = np.argsort(sort, kind="stable")
    starts = run_starts(sort[order])
    ordinal = np.empty(len(sort), np.int64)
    ordinal[order] = np.arange(len(sort)) - np.repeat(starts, np.diff(np.append(starts, len(sort))))
    return sort << 32 | ordinal


def beside_peers(stretches: Stretches, values: Int64s, at: Int64s) -> tuple[Int64s, Bools]:
    """By how much each stretch's value exceeds the median of its peers'; and whether it has peers.

    Peers are the stretches of other ranks that are equal in ``at`` and in ``before``. Without peers the excess is 0.
    """
    order = np.lexsort((values, stretches.before, at))
    same = np.zeros(len(order), np.bool_)
    same[1:] = (np.diff(at[order]) == 0) & (np.diff(stretches.before[order]) == 0)
    excess, has_peers = np.zeros(len(order), np.int64), np.zeros(len(order), np.bool_)
    excess[order], has_peers[order] = beyond_others(values[order], np.flatnonzero(~same))
    return excess, has_peers
