"""Dependencies between calls on the host and work on the devices.

A dependency means that *to* could not continue before *from* was fulfilled. Each side is either a piece of GPU work
(``*_work``, a place in ``gpu_work``) or a moment of a thread (``*_track``, ``*_ts``). Of work, *to* stands for its
start, *from* for its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from augment.arrays import NO_INDEX, Bools, Bytes, EventRows, Int32s, Int64s, Places, WorkIndex, WorkIndexes, where_in
from augment.core import Diagnostic, Trace, derived
from augment.facts import gpu, host

UNEXPLAINED_NS = 30_000  #: a start that comes so much later than all its known prerequisites needs another explanation
CANDIDATES = 16  #: so many works that ended before a late start are examined
ROOM_NS = 10_000  #: so soon after work has started, a launch returns that waited for its place
FUZZ_NS = 5_000  #: clock error: work may appear to start so much before the end of what it waits for


class DependencyKind(IntEnum):
    """The kind of a dependency. Of two that were fulfilled at one moment, the one of the lesser kind decided."""

    THREAD = 0  #: a thread goes from one moment to the next
    WAIT_EVENT = 1  #: a stream waits for an event of another stream
    SYNC = 2  #: a call waits for GPU work
    STREAM = 3  #: work waits for the work before it on its stream
    LAUNCH = 4  #: work waits for its launch
    FULL_QUEUE = 5  #: a launch waits until a full queue has room, which is when work in it starts
    HANDOVER = 6  #: a thread starts or continues after another thread has reached a point
    INFERRED = 7  #: a late start is attributed to work of another stream that has just ended
    OPEN = 8  #: no known prerequisite: the recording's start or end


class Dependencies(Struct, frozen=True):
    """Equal-length columns: ``kind`` (uint8, a :class:`DependencyKind`), the two sides, and the events that an arrow
    would join, ``from_row`` and ``to_row`` (int64, into the event table; -1 unknown)."""

    kind: Bytes
    from_work: WorkIndexes
    from_track: Int32s
    from_ts: Int64s
    to_work: WorkIndexes
    to_track: Int32s
    to_ts: Int64s
    from_row: EventRows
    to_row: EventRows

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, chosen: Bools | Places) -> Dependencies:
        """The dependencies at ``places``."""
        return Dependencies(*(getattr(self, name)[chosen] for name in _COLUMNS))


_COLUMNS = tuple(Dependencies.__struct_fields__)
_DTYPES = (np.uint8, np.intp, np.int32, np.int64, np.intp, np.int32, np.int64, np.int64, np.int64)


class CallWaits(Struct, frozen=True):
    """Dependencies, the periods in which a thread only waited (``track``, ``start``, ``end``), and diagnostics."""

    dependencies: Dependencies
    track: Int32s
    start: Int64s
    end: Int64s
    diagnostics: tuple[Diagnostic, ...] = ()


def dependencies_of(
    kind: DependencyKind,
    from_row: EventRows,
    to_row: EventRows,
    *,
    from_work: WorkIndexes | None = None,
    from_at: tuple[Int32s, Int64s] | None = None,
    to_work: WorkIndexes | None = None,
    to_at: tuple[Int32s, Int64s] | None = None,
) -> Dependencies:
    """Dependencies of one kind. Each side is given as work or as a moment of a thread."""
    count = len(from_row)
    # one value, repeated without using memory
    no_work = np.broadcast_to(np.intp(NO_INDEX), count)
    nowhere: tuple[Int32s, Int64s] = np.broadcast_to(np.int32(-1), count), np.broadcast_to(np.int64(0), count)
    return Dependencies(
        np.full(count, kind, np.uint8),
        no_work if from_work is None else from_work,
        *(from_at or nowhere),
        no_work if to_work is None else to_work,
        *(to_at or nowhere),
        from_row,
        to_row,
    )


def joined(parts: Sequence[Dependencies]) -> Dependencies:
    """All of ``parts``."""
    columns = (
        np.concatenate([np.empty(0, dtype), *(getattr(part, name) for part in parts)])
        for name, dtype in zip(_COLUMNS, _DTYPES, strict=True)
    )
    return Dependencies(*columns)


def joined_waits(parts: Sequence[CallWaits]) -> CallWaits:
    """All of ``parts``."""
    return CallWaits(
        joined([part.dependencies for part in parts]),
        np.concatenate([np.empty(0, np.int32), *(part.track for part in parts)]),
        np.concatenate([np.empty(0, np.int64), *(part.start for part in parts)]),
        np.concatenate([np.empty(0, np.int64), *(part.end for part in parts)]),
        tuple(diagnostic for part in parts for diagnostic in part.diagnostics),
    )


@derived(until="critical path")
def launched_at(trace: Trace) -> Int64s:
    """When each piece of GPU work was launched, int64 ns: the start of its call, or its moment within the call if that
    is recorded. It is the work's own start if that is earlier by the clocks, or if the launch is unknown."""
    work = gpu.work(trace)
    if not len(trace.events):
        return work.ts
    called = np.where(work.launch != NO_INDEX, gpu.launch_moments(trace, work.row, work.launch), work.ts)
    return np.minimum(called, work.ts)


@derived(until="critical path")
def launched_by(trace: Trace) -> Int64s:
    """When each piece of GPU work and all before it on its stream were launched, int64 ns, ascending on a stream. Work
    without a known launch counts as launched with the work before it."""
    at = np.where(gpu.work(trace).launch != NO_INDEX, launched_at(trace), np.iinfo(np.int64).min)
    for stream in gpu.work(trace).streams:
        np.maximum.accumulate(at[stream.places], out=at[stream.places])
    return at


def launches_of_work(trace: Trace) -> CallWaits:
    """Work waits for its launch, except if it began, by the clocks, before the first event of the launching thread."""
    work, events, segments = gpu.work(trace), trace.events, host.host_segments(trace)
    places = work.where(work.launch != NO_INDEX)
    call = work.launch[places]
    at = launched_at(trace)[places]
    early = int((events.ts[call] > at).sum())
    missing = len(work) - len(places)
    possible = at >= segments.ts[segments.bounds[events.track[call]]] if len(call) else np.ones(0, np.bool_)
    places, call, at = places[possible], call[possible], at[possible]
    edges = dependencies_of(
        DependencyKind.LAUNCH, call, work.row[places], from_at=(events.track[call], at), to_work=places
    )
    diagnostics = (
        Diagnostic("gpu_work_without_launch", missing, "pieces of GPU work have no known launch"),
        Diagnostic(
            "launch_after_kernel",
            early,
            "launches begin after the work that they launch (moved to the start of the work)",
        ),
    )
    return no_waits(edges, tuple(diagnostic for diagnostic in diagnostics if diagnostic.count))


def order_on_streams(trace: Trace) -> CallWaits:
    """Work waits for the work before it on its stream, and for the last to end of all work before it there."""
    work = gpu.work(trace)
    later = np.ones(len(work), np.bool_)
    later[[stream.start for stream in work.streams]] = False
    places = work.where(later)
    last = last_to_end(trace)[places - 1]
    other = last != places - 1
    before = np.concatenate((places - 1, last[other])).astype(WorkIndex, copy=False)
    places = np.concatenate((places, places[other]))
    return no_waits(
        dependencies_of(DependencyKind.STREAM, work.row[before], work.row[places], from_work=before, to_work=places)
    )


@derived(until="critical path")
def last_to_end(trace: Trace) -> WorkIndexes:
    """For each piece of GPU work: of it and all work before it on its stream, the place of the last to end."""
    work = gpu.work(trace)
    last = np.arange(len(work), dtype=WorkIndex)
    for stream in work.streams:
        end = work.end[stream.places]
        held = np.where(end == np.maximum.accumulate(end), last[stream.places], 0)
        last[stream.places] = np.maximum.accumulate(held)
    return last


def full_queues(trace: Trace, full_queue: int = 1024) -> CallWaits:
    """A launch onto a full queue returns when work that waited there has started.

    What waits there is known at least: event records and the like, which also take places, are in no trace. So a queue
    of half the length is full where a call lasts long and returns as soon as work starts.
    """
    work, events = gpu.work(trace), trace.events
    parts: list[tuple[WorkIndexes, WorkIndexes]] = []
    for stream in work.streams:
        if stream.stop - stream.start <= full_queue // 2:
            continue
        places = np.arange(stream.start, stream.stop, dtype=WorkIndex)
        places = places[work.launch[places] != NO_INDEX]
        call = work.launch[places]
        begun, returned = events.ts[call], events.ts[call] + events.dur[call]
        waiting = places - stream.start - where_in(work.ts[stream.places], begun, side="right")
        started = (stream.start + where_in(work.ts[stream.places], returned, side="right") - 1).astype(WorkIndex)
        at_once = (returned - begun >= UNEXPLAINED_NS) & (returned - work.ts[started] <= ROOM_NS)
        blocked = (waiting >= full_queue - 1) | ((waiting >= full_queue // 2) & at_once)
        blocked &= (started >= stream.start) & (started < places) & (work.ts[started] > begun)
        parts.append((places[blocked], started[blocked]))
    if not parts:
        return no_waits(joined([]))
    places, started = (np.concatenate(column) for column in zip(*parts, strict=True))
    call = work.launch[places]
    returned = events.ts[call] + events.dur[call]
    dependencies = dependencies_of(
        DependencyKind.FULL_QUEUE, work.row[started], call, from_work=started, to_at=(events.track[call], returned)
    )
    return CallWaits(dependencies, events.track[call], events.ts[call], returned)


def unexplained_starts(trace: Trace, known: Int64s) -> CallWaits:
    """Dependencies inferred for work that starts long after its known prerequisites, when another stream's work ends.

    Few traces record which stream waits for which. Often the times show it: the waiting work starts when the other
    work has ended (by the clocks of recent devices, a microsecond or two before). Of several ends, the last of work
    that was launched earlier counts: nothing waits for an event that is recorded later. If work of two streams ended at
    about the same time (a gather of parameters beside a reduce-scatter of gradients), it is the work of that stream
    after which other work of the waiting stream starts, alone. Only if there is none, the work may have waited for room
    on the device, which work launched later can occupy, too.

    Args:
        trace: the trace of the work.
        known: int64 ns: when the last known prerequisite of each piece of work was fulfilled.
    """
    work = gpu.work(trace)
    parts: list[tuple[WorkIndexes, WorkIndexes]] = []
    stream = np.repeat(np.arange(len(work.streams)), [each.stop - each.start for each in work.streams])
    for device in work.devices:
        places = np.arange(device.start, device.stop, dtype=WorkIndex)
        late = places[work.ts[places] - known[places] > UNEXPLAINED_NS]
        by_end = places[np.argsort(work.end[places], kind="stable")]
        ending = np.searchsorted(work.end[by_end], work.ts[late] + FUZZ_NS, side="right") - 1
        # The work that each ``late`` work waited for, among the last to end, from ``ending`` in ``by_end`` backwards;
        # ``NO_INDEX`` where none ended between the known prerequisites and the start
        launched = launched_at(trace)
        since = np.maximum(known[late], work.ts[late] - UNEXPLAINED_NS)
        earlier, rival, room = np.full((3, len(late)), NO_INDEX, np.intp)
        for back in range(CANDIDATES):
            other = by_end[np.maximum(ending - back, 0)]
            fits = (ending >= back) & (work.end[other] > since) & (work.ts[other] < work.ts[late])
            in_time = work.end[other] <= work.ts[late]
            before = (work.launch[other] == NO_INDEX) | (launched[other] <= launched[late])
            beside = (stream[other] != stream[earlier]) & (work.end[other] >= work.end[earlier] - FUZZ_NS)
            rival = np.where(fits & before & beside & (earlier != NO_INDEX) & (rival == NO_INDEX), other, rival)
            earlier = np.where(fits & before & (earlier == NO_INDEX), other, earlier)
            room = np.where(fits & ((room == NO_INDEX) | (in_time & (work.end[room] > work.ts[late]))), other, room)
        alone = (earlier != NO_INDEX) & (rival == NO_INDEX)
        pair, as_rival = (stream[each] * len(work.streams) + stream[late] for each in (earlier, rival))
        seen = np.bincount(pair[alone], minlength=len(work.streams) ** 2)
        earlier = np.where((rival != NO_INDEX) & (seen[as_rival] > seen[pair]), rival, earlier)
        cause = np.where(earlier != NO_INDEX, earlier, room)
        parts.append((cause[cause != NO_INDEX], late[cause != NO_INDEX]))
    if not parts:
        return no_waits(joined([]))
    cause, late = (np.concatenate(column) for column in zip(*parts, strict=True))
    inferred = dependencies_of(DependencyKind.INFERRED, work.row[cause], work.row[late], from_work=cause, to_work=late)
    return no_waits(inferred)


def last_launched_before(trace: Trace, stream: slice, moments: Int64s) -> Places:
    """The last place of a stream such that all work up to it was launched before each moment; -1 for none."""
    count = np.searchsorted(launched_by(trace)[stream], moments, side="left")
    return np.where(count > 0, stream.start + count - 1, NO_INDEX)


def no_waits(dependencies: Dependencies, diagnostics: tuple[Diagnostic, ...] = ()) -> CallWaits:
    """``CallWaits`` without periods in which a thread waited."""
    empty = np.empty(0, np.int64)
    return CallWaits(dependencies, np.empty(0, np.int32), empty, empty, diagnostics)


LONGEST_NS = 30_000  #: the longest possible latency; work that starts later waited for something else
_LAUNCHES = 256  #: among so many launches, at least one finds its stream idle, unless the host is ahead of the device


@derived(until="critical path")
def launch_latencies(trace: Trace) -> Int64s:
    """The latency of the launch of each piece of GPU work, int64 ns, at most :data:`LONGEST_NS`, also if it is unknown.

    It is the least time from a launch to its work among the 256 launches that begin with its own. The fastest of these
    found its stream idle. If the host is ahead of the device, none did, and each took longer than the bound. Only
    launches nearby count, because clocks drift. Only later launches count, so that what was recorded before a launch
    does not change its latency.
    """
    work = gpu.work(trace)
    launched = np.flatnonzero(work.launch != NO_INDEX)
    at = launched_at(trace)[launched]
    order = np.argsort(at, kind="stable")
    lag = (work.ts[launched] - at)[order]
    lag[lag <= 0] = LONGEST_NS  # by the clocks the work came first: no information
    least = np.minimum(lag, LONGEST_NS, out=lag)
    reach = 1
    while reach < _LAUNCHES:
        np.minimum(least[:-reach], least[reach:], out=least[:-reach])
        reach *= 2
    least[-_LAUNCHES:] = least[-_LAUNCHES:][:1]
    latencies = np.full(len(work), LONGEST_NS, np.int64)
    latencies[launched[order]] = least
    return latencies


def slow_launches(trace: Trace, launches: CallWaits, known: Int64s, inferred: CallWaits) -> CallWaits:
    """``launches``, with those that took long moved to the moment at which they handed over their work.

    An ordinary call hands its work over at once, so its start counts as the launch. But a call may hold the work back:
    it creates a context, loads a kernel, or waits for a lock. Then the work starts late although nothing else kept it,
    and the time until then is time of the call, without which the work would have started as much earlier. The moment
    is a launch latency before the work starts, but at most the return of the call.

    A call counts as such if it takes longer than the longest latency, and its work starts more than
    ``UNEXPLAINED_NS`` after all prerequisites that are known, and not because of another stream.

    Args:
        trace: the trace of the work.
        launches: what ``launches_of_work`` returned.
        known: int64 ns: when the last known prerequisite of each piece of work was fulfilled.
        inferred: what ``unexplained_starts`` returned.
    """
    work, events, edges = gpu.work(trace), trace.events, launches.dependencies
    explained = np.zeros(len(work), np.bool_)
    explained[inferred.dependencies.to_work] = True
    place, call = edges.to_work, edges.from_row
    slow = (events.dur[call] > LONGEST_NS) & (work.ts[place] - known[place] > UNEXPLAINED_NS) & ~explained[place]
    returned = events.ts[call] + events.dur[call]
    handed = np.minimum(returned, work.ts[place] - launch_latencies(trace)[place])
    moment = np.where(slow, np.maximum(edges.from_ts, handed), edges.from_ts)
    return replace(launches, dependencies=replace(edges, from_ts=moment))
