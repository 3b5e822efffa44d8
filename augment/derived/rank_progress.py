"""How far a rank was at each moment, and which collectives it had to wait for: what its job's path is told by."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from augment import intervals
from augment.derived.collectives import collectives
from augment.derived.gpu_work import gpu_work
from augment.derived.launches import NO_ROW
from augment.derived.sync_calls import sync_calls
from augment.derived.type_coverage import COMMUNICATION, COMPUTATION, MEMORY, type_coverage
from augment.intervals import Masks
from augment.trace import Bools, Int64s, Trace, derived

NEXT_WITHIN_NS = 10_000  #: work that begins so soon after the one before it on its stream, and was launched, is next
NONE = -1


class Spent(NamedTuple):
    """GPU time before each of some moments, int64 ns; what is left of the time up to there is idle.

    ``communication_ns`` is that in which nothing is computed, ``memory_ns`` that of copies in which nothing else runs.
    Of a rank with several devices: in which any of them does it.
    """

    compute_ns: Int64s
    communication_ns: Int64s
    memory_ns: Int64s


def spent_before(trace: Trace, moments: Int64s) -> Spent:
    """See :class:`Spent`; none before the first work."""
    ts, mask = _coverage(trace)

    def time(any_of: int, none_of: int) -> Int64s:
        return intervals.held_before(ts, (mask & any_of != 0) & (mask & none_of == 0), moments)

    return Spent(time(COMPUTATION, 0), time(COMMUNICATION, COMPUTATION), time(MEMORY, COMPUTATION | COMMUNICATION))


def held_up(trace: Trace) -> Bools:
    """Which of ``collectives`` the rank had to wait for: it went on when they ended.

    Nothing was computed on the device just before, and what began next had been launched by then, or the host was
    waiting for the device. Where a launch is not known it is taken for done.
    """
    work, found = gpu_work(trace), collectives(trace)
    held = np.ones(len(found), np.bool_)
    for one in type_coverage(trace):
        own = np.flatnonzero((found.place >= one.device.start) & (found.place < one.device.stop))
        end = found.end[own]
        computing = one.mask[np.searchsorted(one.ts, end, side="left") - 1] & COMPUTATION != 0
        by_time = work.by_time[one.device.places]
        following = np.searchsorted(work.ts[by_time], end, side="left")
        last = following == len(by_time)
        launch = work.launch[by_time[np.minimum(following, len(by_time) - 1)]]
        queued = last | (launch == NO_ROW) | (trace.events.ts[launch] < end)
        held[own] = ~computing & (queued | _host_waits(trace, end))
    return held


def follows(trace: Trace) -> Int64s:
    """The one of ``collectives`` that each had to wait for on its stream, as it was next; :data:`NONE` where it was
    not."""
    work, found = gpu_work(trace), collectives(trace)
    if not len(found):
        return np.empty(0, np.int64)
    number = np.full(len(work), NONE, np.int64)
    number[found.place] = np.arange(len(found))
    first = np.zeros(len(work), np.bool_)
    first[[one.start for one in work.streams]] = True
    before = found.place - 1
    free = work.end[before]
    launch = work.launch[found.place]
    launched = (launch == NO_ROW) | (trace.events.ts[launch] < free)
    next_to = ~first[found.place] & launched & (found.ts >= free) & (found.ts - free <= NEXT_WITHIN_NS)
    return np.where(next_to, number[before], NONE)


@derived
def _coverage(trace: Trace) -> tuple[Int64s, Masks]:
    """When which types of work run on any device."""
    each = type_coverage(trace)
    if len(each) == 1:
        return each[0].ts, each[0].mask
    unions = []
    for one in (COMPUTATION, COMMUNICATION, MEMORY):
        parts = [device.intervals_of(any_of=one) for device in each]
        start, end = (np.concatenate([part[side] for part in parts]) if parts else np.empty(0, np.int64)
                      for side in (0, 1))  # fmt: skip
        unions.append(intervals.union(start, end))
    return intervals.coverage(unions)


def _host_waits(trace: Trace, moments: Int64s) -> Bools:
    """Whether the host is in a call that waits for a device."""
    calls = sync_calls(trace)
    row = calls.row[calls.general]
    ts, end = trace.events.ts[row], trace.events.end[row]
    order = np.argsort(ts, kind="stable")
    reach = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(end[order])))
    waits: Bools = reach[np.searchsorted(ts[order], moments, side="left")] >= moments
    return waits
