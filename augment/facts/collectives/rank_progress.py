"""The progress of a rank over time, the collectives that it had to wait for, and what its devices do at each moment.

The job's critical path uses both.
"""

from __future__ import annotations

import math
import re
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from augment import arrays
from augment.core import GPU_WORK, LAUNCHES, Category, Texts, Trace, Where, derived
from augment.facts import gpu, host, names, steps, waits
from augment.facts.collectives.collective_kernels import Group, collectives
from augment.facts.gpu.device_activity import COMMUNICATION, COMPUTATION, MEMORY, type_coverage
from augment.facts.host.occupancy import occupants
from augment.facts.waits.sync_dependencies import freeing_calls, sync_calls

SOON_NS = 20_000  #: work that begins so soon after the end of a collective may have waited for it


class Spent(NamedTuple):
    """GPU time before each of some moments, int64 ns; the rest of the time until then is idle.

    ``communication_ns`` is exposed communication, ``memory_ns`` is exposed copies. For a rank with several devices, a
    moment counts if any device works.
    """

    compute_ns: arrays.Int64s
    communication_ns: arrays.Int64s
    memory_ns: arrays.Int64s


def spent_before(trace: Trace, moments: arrays.Int64s) -> Spent:
    """The :class:`Spent` before each of ``moments``; 0 before the first work."""
    ts, mask = running_types(trace)

    def time(any_of: int, none_of: int) -> arrays.Int64s:
        return arrays.intervals.held_before(ts, (mask & any_of != 0) & (mask & none_of == 0), moments)

    return Spent(time(COMPUTATION, 0), time(COMMUNICATION, COMPUTATION), time(MEMORY, COMPUTATION | COMMUNICATION))


def held_up(trace: Trace) -> arrays.Bools:
    """Which of ``collectives`` the rank had to wait for, because it continued when they ended.

    Two conditions must hold. The device computed nothing just before the end. And soon after the end it began other
    work that had been launched by then (or whose launch is unknown), or a call of the host returned that waited for the
    device, or no other work followed.
    """
    work, collective = gpu.work(trace), collectives(trace)
    held = np.ones(len(collective), np.bool_)
    for coverage in type_coverage(trace):
        index = np.flatnonzero((collective.place >= coverage.device.start) & (collective.place < coverage.device.stop))
        end = collective.end[index]
        before = np.searchsorted(coverage.ts, end, side="left") - 1  # -1: no earlier work with a duration
        computing = np.append(coverage.mask, 0)[before] & COMPUTATION != 0
        other = work.by_time[coverage.device.places]
        other = other[work.type[other] != names.KernelType.COMMUNICATION]
        following = np.searchsorted(work.ts[other], end, side="left")
        last = following == len(other)
        after = np.append(other, 0)[following]
        launch = work.launch[after]
        launched = (launch == arrays.NO_INDEX) | (trace.events.ts[launch] < end)
        held[index] = ~computing & (last | launched & (work.ts[after] - end <= SOON_NS) | _host_waited(trace, end))
    return held


def follows(trace: Trace) -> arrays.Int64s:
    """The one of ``collectives`` that each had to wait for, because it was the next on its stream; :data:`NO_INDEX` if
    it did not."""
    work, collective = gpu.work(trace), collectives(trace)
    if not len(collective):
        return np.empty(0, np.int64)
    number = np.full(len(work), arrays.NO_INDEX, np.int64)
    number[collective.place] = np.arange(len(collective))
    first = np.zeros(len(work), np.bool_)
    first[[stream.start for stream in work.streams]] = True
    before = collective.place - 1
    free = work.end[before]
    launch = work.launch[collective.place]
    launched = (launch == arrays.NO_INDEX) | (trace.events.ts[launch] < free)
    next_to = ~first[collective.place] & launched & (collective.ts >= free) & (collective.ts - free <= SOON_NS)
    return np.where(next_to, number[before], arrays.NO_INDEX)


@derived(until="summary")
def running_types(trace: Trace) -> tuple[arrays.Int64s, arrays.Masks]:
    """The types of work that run on any device, over time: see :class:`TypeCoverage`. Of a rank without devices whose
    host does its collectives, those of the host."""
    each = type_coverage(trace)
    if not each:
        every = host_collectives(trace)
        operators = host_operators(trace) if len(every) else arrays.Intervals(every.ts, every.end)
        none = arrays.Intervals(every.ts[:0], every.end[:0])
        return arrays.intervals.coverage([operators, arrays.intervals.union(every.ts, every.end), none])
    if len(each) == 1:
        return each[0].ts, each[0].mask
    unions = []
    for kernel_type in (COMPUTATION, COMMUNICATION, MEMORY):
        parts = [device.intervals_of(any_of=kernel_type) for device in each]
        start, end = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
        unions.append(arrays.intervals.union(start, end))
    return arrays.intervals.coverage(unions)


def _host_waited(trace: Trace, moments: arrays.Int64s) -> arrays.Bools:
    """Whether the host was in a call that waits for a device, and continued soon after; or in one that gives memory
    back, and had waited there for more than half of its time."""
    calls = sync_calls(trace)
    row = calls.row[calls.general]
    ts, end = trace.events.ts[row], trace.events.end[row]
    order = np.argsort(end, kind="stable")
    first = np.searchsorted(end[order], moments, side="left")
    returned = first < len(order)
    call = np.append(order, 0)[first]
    waited: arrays.Bools = (
        returned & (np.append(ts, 0)[call] < moments) & (np.append(end, 0)[call] - moments <= SOON_NS)
    )
    rows = freeing_calls(trace)
    if not len(rows):
        return waited
    ts, end = trace.events.ts[rows], trace.events.end[rows]
    order = np.argsort(ts, kind="stable")
    call = order[np.maximum(np.searchsorted(ts[order], moments, side="right") - 1, 0)]
    return waited | ((moments <= end[call]) & (2 * (moments - ts[call]) > end[call] - ts[call]))


# Collectives that the host does itself, as gloo does: those of a rank without GPU work.
#
# PyTorch annotates each on the thread of the backend that does it (``gloo:all_reduce``): it begins when the rank takes
# it up, and ends when all ranks are done. So does an operator that exchanges tensors through the memory of the machine
# (``_C::shm_allreduce`` of vLLM, ``sgl-kernel::shm_allreduce`` of SGLang). The process group is not recorded; it is
# known where all groups of several ranks are of the same ranks.


_BACKENDS = ("gloo:", "mpi:")
_IN_MEMORY = re.compile(r"^[\w-]+::shm_(?:all_?(?:reduce|gather|to_?all)|reduce_?scatter|broadcast|barrier)\w*$")
#: operators that hand collectives over, or wait for them
_HANDING_OVER = ("c10d::", "_c10d_functional::")
#: operators in which the host does not compute
_NO_WORK = (*_BACKENDS, *_HANDING_OVER, "enumerate(DataLoader)", "ProfilerStep")


class HostCollectives(Struct, frozen=True):
    """Equal-length columns, ascending ``ts``; empty for a rank with GPU work. :data:`NO_VALUE`: not recorded."""

    row: arrays.EventRows  #: the annotation
    ts: arrays.Int64s  #: ns
    end: arrays.Int64s  #: ns
    kind: Texts  #: such as AllReduce
    bytes: arrays.Int64s  #: as nccl-tests counts them
    step: arrays.Int64s  #: its number
    exposed_ns: arrays.Int64s  #: the part of the duration in which the host runs no other operator
    group: Group  #: that of all

    def __len__(self) -> int:
        return len(self.row)


@derived
def host_collectives(trace: Trace) -> HostCollectives:
    """The collectives of a rank without GPU work."""
    events = trace.events
    row = events.slices_of()
    if not len(gpu.work(trace)):
        row = events.slices_of(Category.USER_ANNOTATION, Category.CPU_OP)
        row = row[(names.starting(trace, *_BACKENDS) | names.matching(trace, _IN_MEMORY))[events.name[row]]]
        inner = np.zeros(len(row), np.bool_)  # the same under a name of the dispatcher and of the library
        for track in arrays.distinct(events.track[row]).tolist():
            of_track = np.flatnonzero(events.track[row] == track)
            end = events.end[row[of_track]]
            inner[of_track[1:]] = end[1:] <= np.maximum.accumulate(end)[:-1]
        row = row[~inner]
    called = [trace.strings[code].partition(":")[2] for code in events.name[row].tolist()]
    kinds = dict.fromkeys(names.kind_of(name) for name in called) or {names.OTHER: None}
    codes = np.array([list(kinds).index(names.kind_of(name)) for name in called], np.int32)
    ts, end = events.ts[row], events.ts[row] + np.maximum(events.dur[row], 0)
    number = np.append(steps.recorded(trace).number, arrays.NO_VALUE)
    operators = host_operators(trace) if len(row) else arrays.Intervals(ts, end)
    exposed = end - ts
    which, _, computing = arrays.intervals.clip(arrays.Intervals(ts, end), operators)
    np.subtract.at(exposed, which, computing.end - computing.start)
    # The process group of the rank where all that its trace lists are of the same ranks; else one without a name
    listed = trace.source.distributed_info.get("pg_config")
    every = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    every = [each for each in every if not isinstance(each.get("ranks"), list) or len(each["ranks"]) > 1] or every
    only_group = Group()
    if every and all(each.get("ranks") == every[0].get("ranks") for each in every):
        name, about, ranks = (every[0].get(key) for key in ("pg_name", "pg_desc", "ranks"))
        if isinstance(ranks, list) and all(isinstance(rank, int) for rank in ranks):
            only_group = Group(str(name or ""), str(about or ""), str(ranks), size=len(ranks))
    return HostCollectives(
        row=row,
        ts=ts,
        end=end,
        kind=Texts(codes, tuple(kinds)),
        bytes=np.array([*map(_bytes, trace.args_of(row), called)], np.int64),
        step=number[steps.recorded(trace).at(ts)],
        exposed_ns=exposed,
        group=only_group,
    )


@derived
def host_operators(trace: Trace) -> arrays.Intervals:
    """When any thread of the host runs an operator that neither communicates nor waits, or what Inductor compiled:
    disjoint, ascending."""
    events = trace.events
    rows = events.slices_of(Category.CPU_OP, Category.USER_ANNOTATION)
    name, is_operator = events.name[rows], events.category[rows] == Category.CPU_OP
    shared = names.matching(trace, _IN_MEMORY)
    waiting = rows[is_operator & (names.starting(trace, *_HANDING_OVER) | shared)[name]]
    rows = rows[
        (is_operator & ~(names.starting(trace, *_NO_WORK) | shared)[name]) | names.starting(trace, names.COMPILED)[name]
    ]
    parts = []
    # what encloses an operator that waits does not compute then
    for track in arrays.distinct(events.track[rows]).tolist():
        spans = (
            arrays.intervals.union(events.ts[chosen], events.end[chosen])
            for chosen in (each[events.track[each] == track] for each in (rows, waiting))
        )
        parts.append(arrays.intervals.subtract(*spans))
    start, end = (np.concatenate([events.ts[:0], *(part[side] for part in parts)]) for side in (0, 1))
    return arrays.intervals.union(start, end)


def _bytes(args: dict[str, Any], name: str) -> int:
    """The bytes of the tensors in the args of an annotation; of an operator with ``name``, those of the largest."""
    dims, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list) or not dims or len(dims) != len(types):
        return arrays.NO_VALUE
    sizes = []
    for shape, kind in zip(dims, types, strict=True):
        width = names.element_bytes(kind) if isinstance(kind, str) else None
        if name.startswith(":") and shape == [] and width is None:
            continue  # a number, or nothing
        if width is None or not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
            return arrays.NO_VALUE
        sizes.append(width * math.prod(shape))
    if name.startswith(":") and (not sizes or (names.kind_of(name) == names.ALL_GATHER and len(sizes) < 2)):
        return arrays.NO_VALUE  # what is received is not among the tensors
    total = max(sizes) if name.startswith(":") else sum(sizes)
    return total if 0 <= total < 1 << 63 else arrays.NO_VALUE


# What a rank's devices do at each moment: one state of :class:`State` at a time, from the recording's begin.


MOST_GAPS = 1000  #: the longest waits for the host whose cause is determined
_WHERE: tuple[Where, ...] = ("no_operator", "annotation", "operator", "call", "memory")
_NOTHING, _ANNOTATION, _OPERATOR, _CALL, _MEMORY = range(len(_WHERE))
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


class RankStates(Struct, frozen=True):
    """From ``ts[i]`` (int64 ns, strictly ascending) until ``ts[i + 1]`` the rank is in ``state[i]`` (uint8).

    ``ts`` has one entry more than ``state``: the end of the last work. It begins with the first recorded event.
    """

    ts: arrays.Int64s
    state: arrays.Bytes


class HostWaits(Struct, frozen=True):
    """The longest waits for the host, disjoint, ascending: ``start`` and ``end``, int64 ns, on the devices' timeline.

    ``doing`` (int32): what the launching thread did most of that time, an index into ``doings``, each a name and where
    it stands; -1 where the thread was in nothing recorded for most of the time.
    """

    start: arrays.Int64s
    end: arrays.Int64s
    doing: arrays.Int32s
    doings: list[tuple[str, Where]]


@derived(until="summary")
def device_states(trace: Trace) -> RankStates:
    """The states of the rank; empty without GPU work, unless the host does collectives: then its operators compute."""
    types_ts, mask = running_types(trace)
    if not len(types_ts):
        return RankStates(np.empty(0, np.int64), np.empty(0, np.uint8))
    gaps, launched, known = _gaps(trace)
    begin = gaps.start[:1] if len(gaps.start) and gaps.start[0] < types_ts[0] else types_ts[:0]
    splits = launched[(launched > gaps.start) & (launched < gaps.end)]
    ts = arrays.distinct(np.concatenate((begin, types_ts, splits)))
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
    return RankStates(ts, state[:-1].astype(np.uint8))


def host_gaps(trace: Trace, main_track: int) -> HostWaits:
    """At most :data:`MOST_GAPS` waits for the host, the longest. Without devices it is that of ``main_track``. Of a
    thread that is in several things at once, calls for memory count first, then a long call, then the innermost
    operator or annotation that has most of the wait."""
    if not len(running_types(trace)[0]):
        none = np.empty(0, np.int64)
        return HostWaits(none, none, none.astype(np.int32), [])
    gaps, launched, known = _gaps(trace)
    end = np.minimum(launched, gaps.end)
    waiting = np.flatnonzero(known & (end > gaps.start))
    longest = waiting[np.argsort(-(end - gaps.start)[waiting], kind="stable")[:MOST_GAPS]]
    chosen = np.sort(longest)
    start, end = gaps.start[chosen], end[chosen]
    thread = np.full(len(chosen), main_track, np.int32)
    if len(gpu.work(trace)):
        thread = trace.events.track[gpu.work(trace).launch[_ending(trace, gaps.end[chosen])]]
    in_slices = (Category.CPU_OP, Category.USER_ANNOTATION)
    name, name_ns, row, inside_ns = occupants(trace, in_slices, start, end, thread)
    # In slices of many names, none with most of a wait: the innermost around the longest that holds most of it
    stacks, of_slices = host.stacks(trace), host.is_of(trace, in_slices, ~names.starting(trace, names.STEP))
    left = np.flatnonzero((2 * inside_ns >= end - start) & (2 * name_ns < end - start))
    around = stacks.parent[stacks.place_of[row[left]]]
    while len(left := left[around >= 0]):  # one round per level of nesting
        around = around[around >= 0]
        over = stacks.row[around]
        held = np.minimum(trace.events.end[over], end[left]) - np.maximum(trace.events.ts[over], start[left])
        holds = of_slices[around] & (2 * held >= (end - start)[left])
        row[left[holds]], name[left[holds]] = over[holds], trace.events.name[over[holds]]
        left, around = left[~holds], stacks.parent[around[~holds]]
    where = np.where(2 * inside_ns < end - start, _NOTHING, _ANNOTATION)
    where[(where == _ANNOTATION) & (trace.events.category[row] == Category.CPU_OP)] = _OPERATOR
    call, call_ns, row, _ = occupants(trace, LAUNCHES, start, end, thread)
    single = (2 * call_ns >= end - start) & (trace.events.dur[row] >= names.LONG_CALL_NS)
    single &= ~names.matching(trace, names.OTHER_CALLS)[call]
    where, name = np.where(single, _CALL, where), np.where(single, call, name)
    for_memory = names.matching(trace, names.CALLS_FOR_MEMORY)
    calls = trace.events.slices_of(*LAUNCHES)
    calls = calls[for_memory[trace.events.name[calls]]]
    for lane in arrays.distinct(thread).tolist():
        of_lane, asked = calls[trace.events.track[calls] == lane], np.flatnonzero(thread == lane)
        spans = arrays.intervals.union(trace.events.ts[of_lane], trace.events.end[of_lane])
        which, _, parts = arrays.intervals.clip(arrays.Intervals(start[asked], end[asked]), spans)
        asks = 2 * arrays.sums(which, parts.end - parts.start, len(asked)) >= (end - start)[asked]
        where[asked[asks]] = _MEMORY
    name = np.where((where == _NOTHING) | (where == _MEMORY), arrays.NO_INDEX, name)
    (kinds, codes), doing = arrays.combinations(where, name)
    asking = next((trace.strings[code] for code in np.flatnonzero(for_memory).tolist()), "")
    driver = "hip" if asking.startswith("hip") else "cuda"
    doings = [
        (f"{driver}Malloc, {driver}Free and the like" if kind == _MEMORY else trace.strings[code], _WHERE[kind])
        for kind, code in zip(kinds.tolist(), codes.tolist(), strict=True)
        if kind != _NOTHING
    ]
    return HostWaits(start, end, (doing - (len(kinds) - len(doings))).astype(np.int32), doings)


def _gaps(trace: Trace) -> tuple[arrays.Intervals, arrays.Int64s, arrays.Bools]:
    """When all devices are idle, from the first event to the last work; the end of the launch of the work that ends
    each gap, and whether that is known."""
    ts, mask = running_types(trace)
    idle = arrays.intervals.where(ts, np.append(mask[:-1] == 0, False))
    rows = trace.events.slices_of(*_RECORDED)
    begin = min(int(trace.events.ts[rows].min()), int(ts[0]))
    if begin < ts[0]:
        idle = arrays.Intervals(np.append(begin, idle.start), np.append(ts[0], idle.end))
    if not len(gpu.work(trace)):
        return idle, idle.end, np.ones(len(idle.end), np.bool_)
    following = _ending(trace, idle.end)
    return idle, waits.launch_end(trace, following), gpu.work(trace).launch[following] != arrays.NO_INDEX


def _ending(trace: Trace, moments: arrays.Int64s) -> arrays.WorkIndexes:
    """The places of the first GPU work that starts at or after each of ``moments``."""
    work = gpu.work(trace)
    order = np.argsort(work.ts, kind="stable").astype(work.by_time.dtype, copy=False)
    place = np.searchsorted(work.ts[order], moments, side="left")
    return order[np.minimum(place, len(order) - 1)]
