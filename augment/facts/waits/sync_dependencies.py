"""The calls that wait for a device, or for PyTorch's queue on Ascend, and streams that wait for an event."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from augment.arrays import (
    NO_INDEX,
    EventRow,
    EventRows,
    Int32s,
    Intervals,
    Places,
    WorkIndex,
    distinct,
    each,
    is_among,
    is_any,
)
from augment.core import LAUNCHES, Category, Diagnostic, Identity, Trace, derived
from augment.facts import gpu, host, names, source
from augment.facts.host.queued_tasks import QueuedTasks, queued_tasks
from augment.facts.waits.dependencies import (
    CallWaits,
    DependencyKind,
    dependencies_of,
    joined_waits,
    last_launched_before,
    launched_by,
    no_waits,
)

#: matches names of waiting calls: of CUDA, HIP, Level Zero and others; of SYCL's adapters; of Cambricon
_WAITS = re.compile(r"Synchronize|^(?:ur|pi)(?:QueueFinish|Events?Wait)$|^cnrt(?:QueueSync|SyncDevice|NotifierWait)")
#: give memory back to the driver, which waits until the device is done (on CUDA and HIP; ``…Async`` does not wait)
_FREES = re.compile(r"^(?:cuda|hip)Free$|^cuMemFree(?:_v2)?$")
_COPIES, _RETURNS = re.compile("emcpy"), re.compile("Async")  #: calls that copy, and those that do not wait for it
CLOCKS_NS = 20_000  #: by so much a call may seem to return before the copy ends that it waits for: two clocks


class SyncCalls(Struct, frozen=True):
    """Calls that wait for a device."""

    row: EventRows  #: the calls whose name says that they wait, from any thread, then the ``cuda_sync`` slices
    general: Places  #: indexes of all of ``row`` but ``cuda_sync`` slices on a stream; others concern a device


@derived
def sync_calls(trace: Trace) -> SyncCalls:
    """The calls of the host that wait for a device.

    And every ``cuda_sync`` slice.
    """
    events = trace.events
    waits = names.matching(trace, _WAITS)
    calls = events.slices_of(*LAUNCHES)
    calls = calls[waits[events.name[calls]]] if len(calls) else calls
    syncs = events.slices_of(Category.CUDA_SYNC)
    streams = (track.stream for track in trace.tracks)  # -1 stands for none, also in Kineto's unsigned form
    named = [isinstance(each, str) or (isinstance(each, int) and 0 <= each < 2**32 - 1) for each in streams]
    on_stream = np.array(named, np.bool_)
    of_device = np.flatnonzero(~on_stream[events.track[syncs]]) if len(syncs) else np.empty(0, np.intp)
    return SyncCalls(np.concatenate((calls, syncs)), np.concatenate((np.arange(len(calls)), len(calls) + of_device)))


@derived
def freeing_calls(trace: Trace) -> EventRows:
    """The rows of calls that give memory back to the driver. They wait for the device, and then do work of their own:
    whoever asks must look whether a call mostly waited."""
    calls = trace.events.slices_of(*LAUNCHES)
    return calls[names.matching(trace, _FREES)[trace.events.name[calls]]] if len(calls) else calls


_EVENT = "Event Sync"
_STREAM_WAITS = "Stream Wait Event"


class _Scope(Struct, frozen=True):
    """What a call may have waited for: the work of a device (None: any) and stream (None: any) that was launched before
    ``before`` ns. ``certain``: whether the trace records that it waited."""

    device: Identity
    stream: Identity
    before: int
    certain: bool


def synchronizations(trace: Trace) -> CallWaits:
    """Calls that wait for work, copies that wait for themselves, and streams that wait for another's event."""
    calls, scopes = _calls(trace)
    frees = freeing_calls(trace)
    scopes_of_frees = [_Scope(None, None, int(begun), False) for begun in trace.events.ts[frees]]
    waits = [_waiting_calls(trace, calls, scopes), _waiting_calls(trace, frees, scopes_of_frees, mostly=True)]
    # The dependencies of copying calls on their copies: a call that returned after its copy ended waited for it
    work, events = gpu.work(trace), trace.events
    copies = work.where((events.category[work.row] == Category.GPU_MEMCPY) & (work.launch != NO_INDEX))
    call = work.launch[copies]
    is_copy = names.matching(trace, _COPIES)
    waits_always = is_copy & ~names.matching(trace, _RETURNS)  # hipMemcpyWithStream, cudaMemcpy
    returned = events.ts[call] + events.dur[call]
    slack = np.where(waits_always[events.name[call]], CLOCKS_NS, 0)
    waited = (work.end[copies] <= returned + slack) & (work.ts[copies] >= events.ts[call])
    if len(copies):
        waited &= is_copy[events.name[call]]
    copies, call, returned = copies[waited], call[waited], returned[waited]
    # A short copy that even begins after its call, by the clocks: the call waited for the work before it on its stream
    after = (work.ts[copies] > returned) & ~is_any(copies, [stream.start for stream in work.streams])
    copies = np.where(after, copies - 1, copies)
    edges = dependencies_of(
        DependencyKind.SYNC, work.row[copies], call, from_work=copies, to_at=(events.track[call], returned)
    )
    blocking_copies = CallWaits(edges, events.track[call], events.ts[call], returned)
    return joined_waits([waiting_streams(trace), *waits, blocking_copies])


def _waiting_calls(trace: Trace, calls: EventRows, scopes: list[_Scope], mostly: bool = False) -> CallWaits:
    """For each call that waits, the dependency on the last work to end of what it may have waited for. Of calls that do
    other things, too, those that ``mostly`` waited: for more than half of their time."""
    if not len(calls):
        return joined_waits([])
    work, events = gpu.work(trace), trace.events
    begun, returned = events.ts[calls], events.ts[calls] + events.dur[calls]
    # the place of the last work to end in each scope, for calls that returned then; NO_INDEX if there is none. Of
    # calls that are not known to have waited, only work counts that had ended when they returned.
    before = np.array([scope.before for scope in scopes], np.int64)
    certain = np.array([scope.certain for scope in scopes], np.bool_)
    best = np.full(len(scopes), NO_INDEX, WorkIndex)
    where = {key: code for code, key in enumerate({(scope.device, scope.stream): None for scope in scopes})}
    code = np.array([where[scope.device, scope.stream] for scope in scopes], np.intp)
    asking = dict(zip(where, (calls for _, calls in each(code, len(where))), strict=True))
    for stream in work.streams:
        keys = {(of, on) for of in (None, stream.device) for on in (None, stream.stream)} & asking.keys()
        if not keys:
            continue
        asked = np.concatenate([asking[key] for key in keys])
        last = last_launched_before(trace, stream.places, before[asked])
        begun_by = np.searchsorted(work.ts[stream.places], returned[asked], side="right")
        ended_by = np.searchsorted(np.maximum.accumulate(work.end[stream.places]), returned[asked], side="right")
        last = np.minimum(last, stream.start - 1 + np.where(certain[asked], begun_by, ended_by))
        fits = last >= stream.start
        asked, last = asked[fits], last[fits]
        better = (best[asked] < 0) | (work.end[last] > work.end[best[asked]])
        best[asked[better]] = last[better]
    known = best >= 0
    if mostly:
        known &= 2 * (np.append(work.end, 0)[best] - begun) > returned - begun
    early = int((work.end[best[known]] > returned[known]).sum())
    message = "calls return before the work that they waited for has ended, by the clocks"
    calls, best, begun, returned = calls[known], best[known], begun[known], returned[known]
    track = events.track[calls]
    return CallWaits(
        dependencies_of(DependencyKind.SYNC, work.row[best], calls, from_work=best, to_at=(track, returned)),
        track,
        begun,
        returned,
        (Diagnostic("wait_before_end", early, message),) if early else (),
    )


def _calls(trace: Trace) -> tuple[EventRows, list[_Scope]]:
    """The calls of the host that wait, ascending, and what each may have waited for.

    A ``cuda_sync`` slice with the call's correlation gives the scope. Without one, only the call's name is known.
    """
    events = trace.events
    rows = sync_calls(trace).row
    on_host = is_any(events.category[rows], LAUNCHES)
    call_of = gpu.calls(trace).of(events.correlation[rows[~on_host]])
    slices = rows[~on_host]
    kinds = trace.names_of(slices)
    scopes: dict[int, _Scope] = {}
    events_told = _Events(trace, slices) if _EVENT in kinds else None
    first = {(each.device, each.stream): int(launched_by(trace)[each.start]) for each in gpu.work(trace).streams}
    for index, (kind, call) in enumerate(zip(kinds, call_of.tolist(), strict=True)):
        if call == NO_INDEX or kind == _STREAM_WAITS:
            continue
        track = trace.tracks[events.track[slices[index]]]
        scope = _Scope(track.device, None, int(events.ts[call]), True)
        if kind == _EVENT and events_told:
            stream, recorded = events_told.stream[index], events_told.recorded[index]
            scope = _of_event(trace, track.device, stream, recorded, call, first.get((track.device, stream)))
        elif kind == "Stream Sync":
            scope = _Scope(track.device, track.stream, int(events.ts[call]), True)
        scopes[call] = scope
    for call in rows[on_host].tolist():
        scopes.setdefault(call, _Scope(None, None, int(events.ts[call]), False))
    calls = sorted(scopes)
    return np.array(calls, EventRow), [scopes[call] for call in calls]


def _of_event(
    trace: Trace, device: Identity, stream: int, recorded: int | None, call: int, first: int | None
) -> _Scope:
    """The work launched on a stream before the event was recorded there, its ``first`` one at that time. A query may
    return while that work runs. Without any it may be that of others: the default stream waits for them."""
    called = int(trace.events.ts[call])
    before = called if recorded is None else recorded
    if stream < 0 or first is None or first >= before:
        return _Scope(device, None, before, False)
    waits = "Synchronize" in trace.strings[int(trace.events.name[call])]
    return _Scope(device, stream, before, waits and recorded is not None)


class _Events:
    """For ``cuda_sync`` slices: the event's ``stream`` (-1 unknown) and when it was ``recorded`` (ns; None unknown)."""

    def __init__(self, trace: Trace, slices: EventRows) -> None:
        args = source.args(trace)
        record = args.ints("wait_on_cuda_event_record_corr_id").at(slices, -1)
        row = np.where(record >= 0, gpu.calls(trace).of(record), NO_INDEX)
        self.stream = args.ints("wait_on_stream").at(slices, -1).tolist()
        self.recorded = [None if event == NO_INDEX else int(trace.events.ts[event]) for event in row.tolist()]


@derived(until="idle time")
def waiting_streams(trace: Trace) -> CallWaits:
    """The dependencies of streams on events: work launched after the wait follows the last work before the event."""
    work, events = gpu.work(trace), trace.events
    slices = events.slices_of(Category.CUDA_SYNC)
    slices = slices[[name == _STREAM_WAITS for name in trace.names_of(slices)]] if len(slices) else slices
    call = gpu.calls(trace).of(events.correlation[slices])
    places_of = {(stream.device, stream.stream): stream.places for stream in work.streams}
    pairs: list[tuple[int, int]] = []
    broken = 0
    told_of = _Events(trace, slices) if len(slices) else None
    columns = (slices.tolist(), call.tolist(), events.track[slices].tolist())
    for index, (row, waits, number) in enumerate(zip(*columns, strict=True)):
        track = trace.tracks[number]
        waiting = places_of.get((track.device, track.stream))
        awaited = places_of.get((track.device, told_of.stream[index])) if told_of else None
        if told_of is None or waiting is None or awaited is None:
            continue
        recorded_ns = int(events.ts[row if waits == NO_INDEX else waits])
        recorded = told_of.recorded[index]
        start = waiting.start + int(np.searchsorted(launched_by(trace)[waiting], recorded_ns, side="left"))
        moment = np.array([recorded_ns if recorded is None else recorded], np.int64)
        (before,) = last_launched_before(trace, awaited, moment).tolist()
        if start == waiting.stop or before == NO_INDEX:
            continue
        if work.end[before] <= work.ts[start]:
            pairs.append((before, start))
        elif recorded is not None:
            broken += 1
    message = "pieces of GPU work begin before the event that their stream waits for, by the clocks"
    diagnostics = (Diagnostic("start_before_event", broken, message),) if broken else ()
    last, first = np.array(pairs, np.intp).reshape(-1, 2).T
    edges = dependencies_of(DependencyKind.WAIT_EVENT, work.row[last], work.row[first], from_work=last, to_work=first)
    return no_waits(edges, diagnostics)


def unrecorded_waits(trace: Trace, tracks: Sequence[int], least: int, just: float) -> tuple[Int32s, Intervals]:
    """Where threads of ``tracks`` wait for a device and no call says so: in one slice, or none, for ``least`` ns or
    more, in which no thread launches anything, until a device has done all that was launched there, to within the share
    ``just`` of that time."""
    work, events, segments = gpu.work(trace), trace.events, host.host_segments(trace)
    launched = distinct(events.ts[work.launch[work.launch != NO_INDEX]])
    spans = [segments.of(track) for track in tracks]
    long = [span.start + np.flatnonzero(np.diff(segments.ts[span]) >= least) for span in spans]
    track = np.repeat(np.array(tracks, np.int32), [len(places) for places in long])
    places = np.concatenate([np.empty(0, np.intp), *long])
    start, end, row = segments.ts[places], segments.ts[places + 1], segments.row[places]
    quiet = np.searchsorted(launched, start) == np.searchsorted(launched, end)
    quiet[row != NO_INDEX] &= ~is_any(events.category[row[row != NO_INDEX]], LAUNCHES)
    track, start, end = track[quiet], start[quiet], end[quiet]
    done = np.repeat(start[None], len(work.devices), axis=0)  # by device
    number = {device.device: place for place, device in enumerate(work.devices)}
    for stream in work.streams if len(start) else ():
        last = last_launched_before(trace, stream.places, start)
        ends = np.append(start.min(), np.maximum.accumulate(work.end[stream.places]))
        of_device = done[number[stream.device]]
        np.maximum(of_device, ends[np.maximum(last - stream.start, -1) + 1], out=of_device)
    is_then = ((done > start) & (np.abs(end - done) <= just * (end - start))).any(axis=0)
    return track[is_then], Intervals(start[is_then], end[is_then])


# What threads wait for at the queue on which PyTorch for Ascend puts operators.
#
# Before a thread waits for a device, it waits until the queue is empty (``MakeSureQueueEmpty`` in ``NPUQueue.cpp``), of
# which the trace has no slice.


def task_queues(trace: Trace) -> CallWaits:
    """A thread waits for its next task until that has been put on the queue; threads that wait for a device wait first
    until all tasks put so far are done."""
    tasks = queued_tasks(trace)
    if not len(tasks):
        return joined_waits([])
    events = trace.events
    begin, end, track = events.ts[tasks.taken], events.end[tasks.taken], events.track[tasks.taken]
    there = dependencies_of(
        DependencyKind.HANDOVER,
        tasks.put,
        tasks.taken,
        from_at=(events.track[tasks.put], np.minimum(events.end[tasks.put], begin)),
        to_at=(track, begin),
    )
    order = np.argsort(track, kind="stable")
    before, after = order[:-1], order[1:]
    waits = (track[before] == track[after]) & (end[before] < begin[after])
    of_next = CallWaits(there, track[after[waits]], end[before[waits]], begin[after[waits]])
    return joined_waits([of_next, _emptied(trace, tasks)])


def _emptied(trace: Trace, tasks: QueuedTasks) -> CallWaits:
    """Before a call that waits for a device, a thread waits until all tasks put so far are done, if they were done
    between its last change and the call. With several queues, it is unknown for which it waits."""
    events = trace.events
    queues = distinct(events.track[tasks.taken])
    calls = np.sort(sync_calls(trace).row)
    calls = calls[np.isin(events.category[calls], LAUNCHES) & ~is_among(events.track[calls], queues)]
    if len(queues) != 1 or not len(calls):
        return joined_waits([])
    put = np.maximum.accumulate(events.end[tasks.put])
    done = np.maximum.accumulate(events.end[tasks.taken])
    count = np.searchsorted(put, events.ts[calls], side="right")
    calls, count = calls[count > 0], count[count > 0]
    # when the innermost slice of each thread last changed before the call
    segments, begun, at = host.host_segments(trace), events.ts[calls], done[count - 1]
    for number, index in each(events.track[calls], len(trace.tracks)):
        ts = segments.ts[segments.of(number)]
        place = np.searchsorted(ts, events.ts[calls[index]]) - 1
        begun[index] = np.where(place >= 0, ts[np.maximum(place, 0)], begun[index])
    waited = (begun < at) & (at <= events.ts[calls])
    calls, begun, at, last = calls[waited], begun[waited], at[waited], tasks.taken[count[waited] - 1]
    track = events.track[calls]
    then = dependencies_of(DependencyKind.HANDOVER, last, calls, from_at=(events.track[last], at), to_at=(track, at))
    return CallWaits(then, track, begun, at)
