"""What of each collective was waiting for a late rank, and what was moving data.

With clocks that can be compared, a collective moves data from when the last rank has arrived until the last is done;
a rank's wait is what comes before that, at most all of its time. Where they cannot, or where what they may be wrong by
is longer than the moving would be, or a rank would be done before the last has arrived, the shortest of the ranks'
durations is the moving, and the rank with it arrived last. Either way ``wait + transfer = duration`` on each rank.

What is sent may be on its way before it is received: where clocks tell that one of the two was done before the other
had begun, neither waited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from augment.arrays.types import Bools, Int64s
from augment.job.alignment import Clock
from augment.job.matching import Matched


@dataclass(frozen=True, slots=True)
class Waits:
    """Columns beside those of :class:`Matched`, int64 ns.

    Of each part ``wait_ns`` and ``transfer_ns``, which sum to its duration. Of each collective ``moving_ns``, from the
    last arrival to the end; ``late`` the row of the part that arrived last, and ``lead_ns`` by how much after the one
    before it; ``by_arrival`` whether clocks told, not durations.
    """

    wait_ns: Int64s
    transfer_ns: Int64s
    moving_ns: Int64s
    late: Int64s
    lead_ns: Int64s
    by_arrival: Bools


def waits(matched: Matched, clocks: Sequence[Clock]) -> Waits:
    """Part the time of every collective."""
    if not len(matched):
        none = np.empty(0, np.int64)
        return Waits(none, none, none, none, none, np.empty(0, np.bool_))
    first, instance = matched.first, matched.instance
    start, end, margin = common_times(matched, clocks)
    dur = matched.end - matched.ts
    arrival, done = np.maximum.reduceat(start, first), np.maximum.reduceat(end, first)
    wrong = np.maximum.reduceat(margin, first)
    comparable = np.array([one.comparable for one in clocks], np.bool_)[matched.member]
    causal = end + margin >= arrival[instance]
    known, together = (np.logical_and.reduceat(one, first) for one in (comparable, causal))
    buffered = matched.is_pair() & known & ~together
    by_arrival = known & together & (wrong < done - arrival)
    shortest = np.minimum.reduceat(dur, first)
    waited = np.where(by_arrival[instance], np.clip(arrival[instance] - start, 0, dur), dur - shortest[instance])
    lateness = np.where((by_arrival | buffered)[instance], start, -dur)
    late, lead = _last(lateness, matched)
    moving = np.where(by_arrival, done - arrival, shortest)
    waited, lead = np.where(buffered[instance], 0, waited), np.where(buffered, 0, lead)
    return Waits(waited, dur - waited, moving, late, lead, by_arrival | buffered)


def apart(matched: Matched, clocks: Sequence[Clock]) -> Bools:
    """Collectives of no told group that cannot be one: by the clocks a rank is done before another has begun."""
    if not len(matched):
        return np.empty(0, np.bool_)
    start, end, margin = common_times(matched, clocks)
    comparable = np.array([one.comparable for one in clocks], np.bool_)[matched.member]
    arrival = np.maximum.reduceat(start, matched.first)[matched.instance]
    broken = np.logical_or.reduceat(end + margin < arrival, matched.first)
    untold = np.array([not one.identity for one in matched.groups], np.bool_)[matched.group]
    found: Bools = broken & untold & matched.is_synchronous() & np.logical_and.reduceat(comparable, matched.first)
    return found


def common_times(matched: Matched, clocks: Sequence[Clock]) -> tuple[Int64s, Int64s, Int64s]:
    """Starts and ends on the common clock, and what they may be wrong by."""
    start, end = matched.ts.copy(), matched.end.copy()
    for member, clock in enumerate(clocks):
        own = matched.rows_of(member)
        start[own], end[own] = clock.to_common(start[own]), clock.to_common(end[own])
    return start, end, np.array([one.uncertainty_ns for one in clocks], np.int64)[matched.member]


def _last(lateness: Int64s, matched: Matched) -> tuple[Int64s, Int64s]:
    """The row of each collective's last to arrive, and its distance from the one before it."""
    order = np.lexsort((-matched.member, lateness, matched.instance))
    last = np.append(matched.first[1:], len(order)) - 1  # each collective keeps its rows: only their order changes
    return order[last], lateness[order[last]] - lateness[order[last - 1]]
