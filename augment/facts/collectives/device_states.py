"""What a rank's devices do at each moment: one state of :class:`State` at a time, from the recording's begin."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from msgspec import Struct

from augment.arrays import intervals
from augment.arrays.intervals import Intervals
from augment.arrays.ordering import distinct
from augment.arrays.types import NO_INDEX, Bools, Bytes, Int64s, Places
from augment.core.annotations import Texts
from augment.core.context import derived
from augment.core.trace import GPU_WORK, LAUNCHES, Category, Trace
from augment.facts.collectives.rank_progress import running_types
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.gpu.type_coverage import COMMUNICATION, COMPUTATION
from augment.facts.host.occupancy import occupants
from augment.facts.waits.gap_causes import launch_end

MOST_GAPS = 1000  #: the longest waits for the host whose cause is determined
_RECORDED = (Category.CPU_OP, Category.USER_ANNOTATION, Category.PYTHON_FUNCTION, *LAUNCHES, *GPU_WORK)


class State(IntEnum):
    """What the devices of a rank do. Of several at once the first counts: idle is a rank all of whose devices are.

    ``HOST``: idle, and the work that ends the gap is not launched yet. ``QUEUED``: idle, and it is launched.
    ``UNKNOWN``: idle, and its launch was not recorded, or no more work follows.
    """

    COMPUTE = 0
    COMMUNICATION = 1
    MEMORY = 2
    HOST = 3
    QUEUED = 4
    UNKNOWN = 5


class DeviceStates(Struct, frozen=True):
    """From ``ts[i]`` (int64 ns, strictly ascending) until ``ts[i + 1]`` the rank is in ``state[i]`` (uint8).

    ``ts`` has one entry more than ``state``: the end of the last work. It begins with the first recorded event.
    """

    ts: Int64s
    state: Bytes


class HostGaps(Struct, frozen=True):
    """The longest waits for the host, disjoint, ascending: ``start`` and ``end``, int64 ns, on the devices' timeline.

    ``doing``: what the launching thread did most of that time, its innermost operator or annotation; ``inside``
    (bool): whether that is an operator. No name where the thread was in none for most of the time.
    """

    start: Int64s
    end: Int64s
    doing: Texts
    inside: Bools


@derived(until="summary")
def device_states(trace: Trace) -> DeviceStates:
    """The states of the rank; empty without GPU work, unless the host does collectives: then its operators compute."""
    types_ts, mask = running_types(trace)
    if not len(types_ts):
        return DeviceStates(np.empty(0, np.int64), np.empty(0, np.uint8))
    gaps, launched, known = _gaps(trace)
    begin = gaps.start[:1] if len(gaps.start) and gaps.start[0] < types_ts[0] else types_ts[:0]
    splits = launched[(launched > gaps.start) & (launched < gaps.end)]
    ts = distinct(np.concatenate((begin, types_ts, splits)))
    place = np.searchsorted(types_ts, ts, side="right") - 1
    running = np.where(place >= 0, mask[place], 0)
    state = np.select(
        (running & COMPUTATION != 0, running & COMMUNICATION != 0, running != 0),
        (State.COMPUTE, State.COMMUNICATION, State.MEMORY),
        State.UNKNOWN,
    )
    if len(gaps.start):
        gap = np.searchsorted(gaps.start, ts, side="right") - 1
        waiting = (running == 0) & (gap >= 0) & known[gap]
        state[waiting] = np.where(ts < launched[gap], State.HOST, State.QUEUED)[waiting]
    return DeviceStates(ts, state[:-1].astype(np.uint8))


def host_gaps(trace: Trace, main_track: int) -> HostGaps:
    """At most :data:`MOST_GAPS` waits for the host, the longest. Without devices it is that of ``main_track``."""
    if not len(running_types(trace)[0]):
        none = np.empty(0, np.int64)
        return HostGaps(none, none, Texts(none.astype(np.int32), ()), none.astype(np.bool_))
    gaps, launched, known = _gaps(trace)
    end = np.minimum(launched, gaps.end)
    waiting = np.flatnonzero(known & (end > gaps.start))
    longest = waiting[np.argsort(-(end - gaps.start)[waiting], kind="stable")[:MOST_GAPS]]
    chosen = np.sort(longest)
    start, end = gaps.start[chosen], end[chosen]
    thread = np.full(len(chosen), main_track, np.int32)
    if len(gpu_work(trace)):
        thread = trace.events.track[gpu_work(trace).launch[_ending(trace, gaps.end[chosen])]]
    name, _, row, inside_ns = occupants(trace, (Category.CPU_OP, Category.USER_ANNOTATION), start, end, thread)
    name = np.where(2 * inside_ns >= end - start, name, -1).astype(np.int32)
    is_operator = (row >= 0) & (trace.events.category[row] == Category.CPU_OP)
    return HostGaps(start, end, Texts(name, trace.strings), is_operator)


def _gaps(trace: Trace) -> tuple[Intervals, Int64s, Bools]:
    """When all devices are idle, from the first event to the last work; the end of the launch of the work that ends
    each gap, and whether that is known."""
    ts, mask = running_types(trace)
    idle = intervals.where(ts, np.append(mask[:-1] == 0, False))
    rows = trace.events.slices_of(*_RECORDED)
    begin = min(int(trace.events.ts[rows].min()), int(ts[0]))
    if begin < ts[0]:
        idle = Intervals(np.append(begin, idle.start), np.append(ts[0], idle.end))
    if not len(gpu_work(trace)):
        return idle, idle.end, np.ones(len(idle.end), np.bool_)
    following = _ending(trace, idle.end)
    return idle, launch_end(trace, following), gpu_work(trace).launch[following] != NO_INDEX


def _ending(trace: Trace, moments: Int64s) -> Places:
    """The places of the first GPU work that starts at or after each of ``moments``."""
    work = gpu_work(trace)
    order = np.argsort(work.ts, kind="stable")
    place = np.searchsorted(work.ts[order], moments, side="left")
    return order[np.minimum(place, len(order) - 1)]
