"""Splits each collective into waiting for a late rank and moving data.

With comparable clocks, a collective moves data from the arrival of its last rank to its end; the wait of a rank is the
time before that, at most its whole duration. Durations decide instead where clocks are not comparable, where their
uncertainty exceeds the moving time, or where a rank would end before the last has arrived: the shortest duration is
then the moving time, and its rank is the one that arrived last. Either way ``wait + transfer = duration`` on each rank.

Sent data may be under way before it is received: where clocks show that one of send and receive ended before the other
had begun, neither waited.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from augment.arrays import Bools, Int64s
from augment.job.matching.clocks import Clock
from augment.job.matching.matching import Matched


class Waits(Struct, frozen=True):
    """Columns parallel to those of :class:`Matched`, int64 ns.

    For each part: ``wait_ns`` and ``transfer_ns``, which sum to its duration. For each collective: ``moving_ns``, from
    the last arrival to the end; ``late``, the row of the part that arrived last; ``lead_ns``, by how much it arrived
    after the one before it; ``by_arrival``, whether clocks decided and not durations.
    """

    wait_ns: Int64s
    transfer_ns: Int64s
    moving_ns: Int64s
    late: Int64s
    lead_ns: Int64s
    by_arrival: Bools


def waits(matched: Matched, clocks: Sequence[Clock]) -> Waits:
    """Split the time of every collective."""
    if not len(matched):
        none = np.empty(0, np.int64)
        return Waits(none, none, none, none, none, np.empty(0, np.bool_))
    first, instance = matched.first, matched.instance
    start, end, margin = common_times(matched, clocks)
    dur = matched.end - matched.ts
    arrival, done = np.maximum.reduceat(start, first), np.maximum.reduceat(end, first)
    wrong = np.maximum.reduceat(margin, first)
    comparable = np.array([clock.comparable for clock in clocks], np.bool_)[matched.member]
    causal = end + margin >= arrival[instance]
    known, together = (np.logical_and.reduceat(flags, first) for flags in (comparable, causal))
    buffered = matched.is_pair() & known & ~together
    by_arrival = known & together & (wrong < done - arrival)
    shortest = np.minimum.reduceat(dur, first)
    waited = np.where(by_arrival[instance], np.clip(arrival[instance] - start, 0, dur), dur - shortest[instance])
    lateness = np.where((by_arrival | buffered)[instance], start, -dur)
    # The row of each collective's last part to arrive, and its delay after the one before it
    order = np.lexsort((-matched.member, lateness, matched.instance))
    last = np.append(matched.first[1:], len(order)) - 1  # the order changes only within each collective
    late, lead = order[last], lateness[order[last]] - lateness[order[last - 1]]
    moving = np.where(by_arrival, done - arrival, shortest)
    waited, lead = np.where(buffered[instance], 0, waited), np.where(buffered, 0, lead)
    return Waits(waited, dur - waited, moving, late, lead, by_arrival | buffered)


def apart(matched: Matched, clocks: Sequence[Clock]) -> Bools:
    """Collectives without named group that cannot be one: by the clocks, a rank ends before another begins, or only an
    impossible drift would let a rank take part."""
    if not len(matched):
        return np.empty(0, np.bool_)
    start, end, margin = common_times(matched, clocks)
    comparable = np.array([clock.comparable for clock in clocks], np.bool_)[matched.member]
    arrival = np.maximum.reduceat(start, matched.first)[matched.instance]
    broken = np.logical_or.reduceat(end + margin < arrival, matched.first)
    mismatched = np.array([clock.mismatched for clock in clocks], np.bool_)[matched.member]
    some, every = np.logical_or.reduceat(mismatched, matched.first), np.logical_and.reduceat(mismatched, matched.first)
    separate = broken & matched.is_synchronous() & np.logical_and.reduceat(comparable, matched.first)
    wrong: Bools = matched.is_unnamed() & (separate | (some & ~every))
    return wrong


def common_times(matched: Matched, clocks: Sequence[Clock]) -> tuple[Int64s, Int64s, Int64s]:
    """Starts and ends on the common clock, and their uncertainty."""
    start, end = matched.ts.copy(), matched.end.copy()
    for member, clock in enumerate(clocks):
        rows = matched.rows_of(member)
        start[rows], end[rows] = clock.to_common(start[rows]), clock.to_common(end[rows])
    return start, end, np.array([clock.uncertainty_ns for clock in clocks], np.int64)[matched.member]
