"""The progress of a rank over time, and the collectives that it had to wait for. The job's critical path uses both."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from augment.arrays import intervals
from augment.arrays.intervals import Masks
from augment.arrays.types import NO_INDEX, Bools, Int64s
from augment.core.context import derived
from augment.core.trace import Trace
from augment.facts.collectives.host_collectives import host_types
from augment.facts.collectives.instances import collectives
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.gpu.type_coverage import COMMUNICATION, COMPUTATION, MEMORY, type_coverage
from augment.facts.names.kernel_types import KernelType
from augment.facts.waits.sync_calls import freeing_calls, sync_calls

SOON_NS = 20_000  #: work that begins so soon after the end of a collective may have waited for it


class Spent(NamedTuple):
    """GPU time before each of some moments, int64 ns; the rest of the time until then is idle.

    ``communication_ns`` is exposed communication, ``memory_ns`` is exposed copies. For a rank with several devices, a
    moment counts if any device works.
    """

    compute_ns: Int64s
    communication_ns: Int64s
    memory_ns: Int64s


def spent_before(trace: Trace, moments: Int64s) -> Spent:
    """The :class:`Spent` before each of ``moments``; 0 before the first work."""
    ts, mask = running_types(trace)

    def time(any_of: int, none_of: int) -> Int64s:
        return intervals.held_before(ts, (mask & any_of != 0) & (mask & none_of == 0), moments)

    return Spent(time(COMPUTATION, 0), time(COMMUNICATION, COMPUTATION), time(MEMORY, COMPUTATION | COMMUNICATION))


def held_up(trace: Trace) -> Bools:
    """Which of ``collectives`` the rank had to wait for, because it continued when they ended.

    Two conditions must hold. The device computed nothing just before the end. And soon after the end it began other
    work that had been launched by then (or whose launch is unknown), or a call of the host returned that waited for the
    device, or no other work followed.
    """
    work, collective = gpu_work(trace), collectives(trace)
    held = np.ones(len(collective), np.bool_)
    for coverage in type_coverage(trace):
        index = np.flatnonzero((collective.place >= coverage.device.start) & (collective.place < coverage.device.stop))
        end = collective.end[index]
        before = np.searchsorted(coverage.ts, end, side="left") - 1  # -1: no earlier work with a duration
        computing = np.append(coverage.mask, 0)[before] & COMPUTATION != 0
        other = work.by_time[coverage.device.places]
        other = other[work.type[other] != KernelType.COMMUNICATION]
        following = np.searchsorted(work.ts[other], end, side="left")
        last = following == len(other)
        after = np.append(other, 0)[following]
        launch = work.launch[after]
        launched = (launch == NO_INDEX) | (trace.events.ts[launch] < end)
        held[index] = ~computing & (last | launched & (work.ts[after] - end <= SOON_NS) | _host_waited(trace, end))
    return held


def follows(trace: Trace) -> Int64s:
    """The one of ``collectives`` that each had to wait for, because it was the next on its stream; :data:`NO_INDEX` if
    it did not."""
    work, collective = gpu_work(trace), collectives(trace)
    if not len(collective):
        return np.empty(0, np.int64)
    number = np.full(len(work), NO_INDEX, np.int64)
    number[collective.place] = np.arange(len(collective))
    first = np.zeros(len(work), np.bool_)
    first[[stream.start for stream in work.streams]] = True
    before = collective.place - 1
    free = work.end[before]
    launch = work.launch[collective.place]
    launched = (launch == NO_INDEX) | (trace.events.ts[launch] < free)
    next_to = ~first[collective.place] & launched & (collective.ts >= free) & (collective.ts - free <= SOON_NS)
    return np.where(next_to, number[before], NO_INDEX)


@derived(until="summary")
def running_types(trace: Trace) -> tuple[Int64s, Masks]:
    """The types of work that run on any device, over time: see :class:`TypeCoverage`. Of a rank without devices whose
    host does its collectives, those of the host."""
    each = type_coverage(trace)
    if not each:
        return host_types(trace)
    if len(each) == 1:
        return each[0].ts, each[0].mask
    unions = []
    for kernel_type in (COMPUTATION, COMMUNICATION, MEMORY):
        parts = [device.intervals_of(any_of=kernel_type) for device in each]
        start, end = (
            np.concatenate([part[side] for part in parts]) if parts else np.empty(0, np.int64) for side in (0, 1)
        )
        unions.append(intervals.union(start, end))
    return intervals.coverage(unions)


def _host_waited(trace: Trace, moments: Int64s) -> Bools:
    """Whether the host was in a call that waits for a device, and continued soon after; or in one that gives memory
    back, and had waited there for more than half of its time."""
    calls = sync_calls(trace)
    row = calls.row[calls.general]
    ts, end = trace.events.ts[row], trace.events.end[row]
    order = np.argsort(end, kind="stable")
    first = np.searchsorted(end[order], moments, side="left")
    returned = first < len(order)
    call = np.append(order, 0)[first]
    waited: Bools = returned & (np.append(ts, 0)[call] < moments) & (np.append(end, 0)[call] - moments <= SOON_NS)
    return waited | _in_frees(trace, moments)


def _in_frees(trace: Trace, moments: Int64s) -> Bools:
    """Whether each of ``moments`` lies in the second half of a call that gives memory back."""
    rows = freeing_calls(trace)
    if not len(rows):
        return np.zeros(len(moments), np.bool_)
    ts, end = trace.events.ts[rows], trace.events.end[rows]
    order = np.argsort(ts, kind="stable")
    call = order[np.maximum(np.searchsorted(ts[order], moments, side="right") - 1, 0)]
    inside: Bools = (moments <= end[call]) & (2 * (moments - ts[call]) > end[call] - ts[call])
    return inside
