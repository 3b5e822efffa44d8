"""Whether a recording holds what causes rest on: what is missing looks like waiting."""

from __future__ import annotations

import re

import numpy as np

from augment import arrays, facts
from augment.core import LAUNCHES, Category, Trace, derived
from augment.diagnosis import captures, first_calls, judging

LEAST_PIECES = 16  #: launches, or pieces of GPU work, of a run that can be judged; fewer are an excerpt
MOST_LOST = 0.05  #: share of the launches that may lack their kernel; whole recordings lose none
MOST_IN_GRAPHS = 0.05  #: share of the steps in which a device may idle within graphs
HOLE_NS = 20_000  #: idle time within a graph that counts: its work begins 1 to 10 µs after what it waits for
LATE_GRAPH_NS = 1_000_000  #: no graph begins so long after its launch has returned, on an idle device
MOST_UNLAUNCHED = 0.5  #: share of the GPU's work that may lack its launch
MOST_LATE = 0.10  #: share of the time that may pass between the launch of the first work and its begin
LEAST_AGAIN = 3  #: later starts that are late; fewer are chance
MIGRATES = re.compile(r"^(?:Memcpy Unified |\[Unified Memory Memcpy)")  #: migrating pages of managed memory, by Nsight
_WAITS_OF_STREAMS = re.compile(r"StreamWait|LaunchHostFunc|StreamAddCallback")  #: calls that make a stream wait
_COPIES = re.compile("Mem(?:cpy|set)")
_KERNEL = re.compile(r"^(?:cuda|cu|hip)\w*(?:LaunchKernel|LaunchCooperativeKernel)|^urEnqueue\w*KernelLaunch")


def is_doubtful(trace: Trace) -> bool:
    """Whether so much is missing, or of the start of the process, that no cause is more than possible."""
    lost = lost_ratio(trace) > MOST_LOST or idle_ratio_in_graphs(trace) > MOST_IN_GRAPHS
    lost = lost or is_excerpt(trace) or held_up(trace) is not None
    cold = first_calls.cold_start(trace) is not None
    return lost or cold or trace.partial is not None or facts.source.lacks_causes(trace.source.metadata)


@derived
def late_device(trace: Trace) -> int | None:
    """The number of the device that is idle for longest before the first work of a stream, although it was launched;
    None if that is short."""
    late_ns = [arrays.total(each) for each in judging.late_beginnings(trace)]
    longest = max(range(len(late_ns)), key=late_ns.__getitem__, default=-1)
    least = MOST_LATE * judging.measure(trace).length_ns * judging.measure(trace).count
    return longest if longest >= 0 and late_ns[longest] >= max(least, 1) else None


@derived(until="diagnosis")
def late_starts(trace: Trace) -> list[arrays.Intervals]:
    """For each device, the time from the end of a launch to the begin of its work, in the steady steps, where nothing
    in the file explains why the device did not begin: no recorded device worked meanwhile, the call launched no graph
    and loaded no kernel, the stream was not told to wait, and no work before it is missing. It was idle before the call
    returned, so that nothing else was queued; or, from then on, a kernel was next in a stream whose waits the file
    would show. Delays below :data:`HELD_NS`, and the first work of streams, are left out."""
    work, events = facts.gpu.work(trace), trace.events
    first = work.launch[[stream.start for stream in work.streams]]
    known = np.flatnonzero(work.launch != arrays.NO_INDEX)
    calls, before = work.launch[known], work.launch[np.maximum(known - 1, 0)]
    orders = events.slices_of(*LAUNCHES)
    orders = orders[facts.names.matching(trace, _WAITS_OF_STREAMS)[events.name[orders]]]
    kernels = events.category[work.row[known]] == Category.KERNEL
    queued = arrays.distinct(calls[kernels & (len(orders) > 0 or len(work.streams) == 1)])
    lost = facts.gpu.calls(trace).row
    lost = np.append(kernel_launches(trace), lost[facts.names.matching(trace, _COPIES)[events.name[lost]]])
    orders = np.sort(events.ts[np.append(orders, lost[~arrays.is_among(lost, arrays.distinct(calls))])])
    graphs = facts.names.matching(trace, facts.names.GRAPH_LAUNCH)  # not all of their nodes are recorded
    waits = np.searchsorted(orders, events.ts[calls]) > np.searchsorted(orders, events.ts[before])
    waits |= (before == arrays.NO_INDEX) | graphs[events.name[before]] | graphs[events.name[calls]]
    loads = arrays.is_among(facts.host.operators_around(trace, calls), first_calls.cold_operators(trace))
    excused = arrays.distinct(np.concatenate((first, calls[waits | loads], first_calls.loading_calls(trace))))
    busy = arrays.union(work.ts, np.maximum(work.end, work.ts))
    late = []
    for idle in judging.idle_in_steps(trace):
        chosen = (
            (idle.category == facts.waits.GapCategory.OTHER)
            & (idle.launch != arrays.NO_INDEX)
            & ~arrays.is_among(idle.launch, excused)
        )
        launch, begin, end = idle.launch[chosen], idle.start[chosen], idle.end[chosen]
        start = np.maximum(events.ts[launch] + events.dur[launch], begin)
        held = (start > begin) | arrays.is_among(launch, queued)
        held &= end - start >= judging.HELD_NS
        held &= np.equal(*arrays.touched(start, np.maximum(start, end), busy))
        late.append(arrays.Intervals(start[held], end[held]))
    return late


@derived
def held_up(trace: Trace) -> arrays.Intervals | None:
    """When a device begins launched work late, if it does so again and again, not only at first: then no earlier work
    is missing, but something that is not in the file holds it up, such as another process. Where all work begins late,
    clocks may differ; and a kernel that is loaded begins late."""
    work, device = facts.gpu.work(trace), late_device(trace)
    late_ns = [arrays.total(each) for each in late_starts(trace)]
    least = max(MOST_LATE * judging.measure(trace).length_ns * judging.measure(trace).count, 1)
    if device is None and late_ns and max(late_ns) >= least:
        known = work.where(work.launch != arrays.NO_INDEX)
        lag = work.ts[known] - facts.waits.launch_end(trace, known)
        device = late_ns.index(max(late_ns)) if lag.min() < judging.HELD_NS else None
    if device is None:
        return None
    first, again = judging.late_beginnings(trace)[device], late_starts(trace)[device]
    if len(again.start) < LEAST_AGAIN or arrays.total(again) < arrays.total(first):
        return None
    return arrays.union(np.append(first.start, again.start), np.append(first.end, again.end))


@derived
def lost_ratio(trace: Trace) -> float:
    """The share of the kernels launched outside of captures that are not in the recording; 0 without GPU work."""
    calls = kernel_launches(trace)
    if not len(facts.gpu.work(trace)) or not len(calls):
        return 0.0
    return float(np.mean(~arrays.is_among(calls, arrays.distinct(facts.gpu.work(trace).launch))))


@derived(until="diagnosis")
def idle_in_graphs(trace: Trace) -> arrays.Intervals:
    """When the device that does so for longest idles in the steady steps between two pieces of work of one graph, for
    :data:`HOLE_NS` and longer at a time: work of a graph waits for nothing but other work of it. And before the first
    piece of a graph, for :data:`LATE_GRAPH_NS` and longer, where its launch had returned: if much of graphs is lost
    within them, so is what they begin with."""
    work, graphs = facts.gpu.work(trace), facts.names.matching(trace, facts.names.GRAPH_LAUNCH)
    most = arrays.Intervals(np.empty(0, np.int64), np.empty(0, np.int64))
    for idle in judging.idle_in_steps(trace):
        held = np.flatnonzero((idle.launch != arrays.NO_INDEX) & (idle.end - idle.start >= HOLE_NS))
        held = held[graphs[trace.events.name[idle.launch[held]]]]
        launches = arrays.distinct(idle.launch[held])
        of_graphs = np.flatnonzero(arrays.is_among(work.launch, launches))
        first = np.full(len(launches), np.iinfo(np.int64).max)
        np.minimum.at(first, np.searchsorted(launches, work.launch[of_graphs]), work.ts[of_graphs])
        is_within = first[np.searchsorted(launches, idle.launch[held])] < idle.start[held]
        is_late = trace.events.end[idle.launch[held]] <= idle.start[held]
        within_ns, whole = int((idle.end - idle.start)[held[is_within]].sum()), judging.measure(trace)
        if whole.ratio(within_ns / whole.count) > MOST_IN_GRAPHS:  # it loses work
            is_within |= is_late & (idle.end - idle.start >= LATE_GRAPH_NS)[held]
        held = held[is_within]
        most = max(most, arrays.Intervals(idle.start[held], idle.end[held]), key=arrays.total)
    return most


def idle_ratio_in_graphs(trace: Trace) -> float:
    """The share of the steady steps that :func:`idle_in_graphs` takes."""
    whole = judging.measure(trace)
    return whole.ratio(arrays.total(idle_in_graphs(trace)) / whole.count)


def ends_early(trace: Trace) -> bool:
    """Whether the kernels that are not in the recording are those launched last: it ended before the device ran them.

    Kernels are recorded when they have run, and a profiler that stops does not wait for the device.
    """
    calls, events = kernel_launches(trace), trace.events
    present = arrays.is_among(calls, arrays.distinct(facts.gpu.work(trace).launch))
    moments = events.ts[calls]
    return bool(present.any() and (~present).any() and moments[~present].min() >= moments[present].max())


def is_excerpt(trace: Trace) -> bool:
    """Whether there is GPU work, but less than of any run that can be judged: neither because it was lost, nor because
    a graph's capture only writes launches down."""
    launching = facts.names.matching(trace, _KERNEL).take(trace.events.name[facts.gpu.calls(trace).row])
    return 0 < len(facts.gpu.work(trace)) < LEAST_PIECES and int(np.count_nonzero(launching)) < LEAST_PIECES


def unlaunched_ratio(trace: Trace) -> float:
    """The share of the GPU's work without a launch, apart from what was launched before the recording, and from page
    migrations, which nobody launches."""
    work = facts.gpu.work(trace)
    unlaunched = (work.launch == arrays.NO_INDEX) & ~facts.gpu.before_recording(trace)
    return share_of_work(trace, unlaunched & ~facts.names.matching(trace, MIGRATES)[trace.events.name[work.row]])


def share_of_work(trace: Trace, chosen: arrays.Bools) -> float:
    """The share of the time of the GPU's work that the ``chosen`` pieces have, a mask over ``gpu_work``."""
    work = facts.gpu.work(trace)
    dur = (work.end - work.ts).clip(0)
    return float(dur[chosen].sum() / max(int(dur.sum()), 1))


@derived(until="diagnosis")
def kernel_launches(trace: Trace) -> arrays.EventRows:
    """The rows of the calls that launch kernels, each once, without those that a graph's capture only writes down."""
    rows = arrays.ordered(facts.gpu.calls(trace).row)
    named: arrays.Bools = facts.names.matching(trace, _KERNEL)
    rows = rows[named.take(trace.events.name[rows])]
    spans = captures.captures(trace)
    whole = arrays.union(spans.start, spans.end)
    moments = np.stack((whole.start, whole.end), axis=1).ravel()
    ts = trace.events.ts[rows]
    inside = np.searchsorted(moments, ts, side="right") % 2 == 1
    outside: arrays.EventRows = rows[~inside]
    return outside
