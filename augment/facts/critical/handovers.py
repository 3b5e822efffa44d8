"""Where one thread of the host waits for another. PyTorch runs the backward pass on a separate thread."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from augment.arrays import NO_INDEX, EventRow, Int64s, Places, combinations, distinct
from augment.core import LAUNCHES, Category, Trace, derived
from augment.facts import gpu, host, names, steps
from augment.facts.host.queued_tasks import queued_tasks
from augment.facts.waits.dependencies import CallWaits, DependencyKind, dependencies_of, joined_waits
from augment.facts.waits.sync_dependencies import sync_calls

PAUSE_NS = 1_000_000  #: nothing recorded of a thread for so long: it waits
ROUNDING_NS = 2  #: by so much times in µs are off that another program wrote as floating-point numbers
_BACKWARD = re.compile(r"^(?:\w+Backward[0-9]*|torch::autograd::\w+)\Z")  #: autograd's functions


class _Bursts(Struct, frozen=True):
    """The periods in which a thread worked while another was in one segment: ``start`` and ``end`` (int64 ns), and the
    ``segment`` of the other thread (a place in ``host_segments``)."""

    start: Int64s
    end: Int64s
    segment: Places


@derived
def main_track(trace: Trace) -> int:
    """The track of the main thread: that of the steps, else of the most launches, else of the most operators.

    Threads that work for another are chosen last; one with steps, or that another works for, is none of these, although
    it may execute a few of autograd's functions itself. Where no operators were recorded, the thread with the most
    launches may be that of the backward pass. -1 without threads.
    """
    events = trace.events
    driving = (steps.recorded(trace).row, events.slices_of(*LAUNCHES), events.slices_of(Category.CPU_OP))
    on_thread = [np.bincount(events.track[rows], minlength=len(trace.tracks)) for rows in driving]
    by_flow = _masters_by_flow(trace)
    working = {*by_flow, *_autograd_threads(trace), *_queue_threads(trace)}
    working -= {master for master in by_flow.values() if master not in by_flow} | {
        *np.flatnonzero(on_thread[0]).tolist()
    }
    for counts in on_thread:
        free = counts.copy()
        free[list(working)] = 0
        if free.any():
            return int(free.argmax())
    return next((int(counts.argmax()) for counts in on_thread if counts.any()), NO_INDEX)


@derived(until="diagnosis")
def launching_tracks(trace: Trace) -> list[int]:
    """The tracks of the threads that launch work or ask another to do so, of the backward pass and the main thread."""
    launch, main = gpu.work(trace).launch, main_track(trace)
    rows = np.append(launch[launch != NO_INDEX], queued_tasks(trace).put)
    tracks = {*distinct(trace.events.track[rows]).tolist(), *_autograd_threads(trace), *_masters_by_flow(trace), main}
    return sorted(tracks - {NO_INDEX})


def handovers(trace: Trace) -> CallWaits:
    """The handovers from the main thread to the backward thread and back, and from the main thread to thread starts.

    A thread works for another if a ``fwdbwd`` flow leads to it from there, or if it executes autograd's functions (then
    for the main thread). While it works and the other thread stays in one segment, the other waits for it.
    """
    main = main_track(trace)
    if main == NO_INDEX:
        return joined_waits([])
    # the tracks of threads that work for another, each with the track of that other thread
    every = dict.fromkeys(_autograd_threads(trace), main) | _masters_by_flow(trace)
    masters = {to: by for to, by in every.items() if to != by and every.get(by) != to}
    segments = host.host_segments(trace)
    parts = []
    executing = _queue_threads(trace)
    for track in np.flatnonzero(np.diff(segments.bounds)).tolist():
        if track != main and track not in executing:
            bursts = _bursts(trace, track, masters[track]) if track in masters else None
            if bursts is not None and len(bursts.start):
                parts.append(_handed_over(trace, track, masters[track], bursts))
            if bursts is None or not len(bursts.start) or bursts.start[0] > segments.ts[segments.bounds[track]]:
                parts.append(_start(trace, track, main))
    return joined_waits(parts)


def _queue_threads(trace: Trace) -> list[int]:
    """The tracks of threads that execute tasks from a queue; ``task_queues`` knows what they wait for."""
    return [int(track) for track in distinct(trace.events.track[queued_tasks(trace).taken])]


@derived
def _masters_by_flow(trace: Trace) -> dict[int, int]:
    """The thread from which most ``fwdbwd`` flows lead to a thread, by track."""
    events = trace.events
    flows = events.flow_id.rows[:]
    flows = flows[events.category[flows] == Category.FWDBWD]
    ids, phase, track = events.flow_id.at(flows, 0), events.phase[flows], events.track[flows]
    begins, ends = np.flatnonzero(phase == ord("s")), np.flatnonzero(phase == ord("f"))
    begins = begins[np.argsort(ids[begins], kind="stable")]
    if not len(begins):
        return {}
    begin = begins[np.minimum(np.searchsorted(ids[begins], ids[ends]), len(begins) - 1)]
    crosses = (ids[begin] == ids[ends]) & (track[begin] != track[ends])
    (to, by), which = combinations(track[ends[crosses]], track[begin[crosses]])
    votes = np.bincount(which, minlength=len(to))
    order = np.argsort(votes, kind="stable").tolist()  # the last one, with most votes, stays
    return {int(to[place]): int(by[place]) for place in order}


@derived
def _autograd_threads(trace: Trace) -> list[int]:
    """The tracks on which autograd's functions are executed: ``autograd::engine::…``, before PyTorch 1.9 functions such
    as ``AddmmBackward``."""
    events = trace.events
    executes = names.starting(trace, "autograd::engine::")
    if not executes.any():
        executes = names.matching(trace, _BACKWARD)
    rows = events.slices_of(Category.CPU_OP)
    counts = np.bincount(events.track[rows[executes[events.name[rows]]]], minlength=1)
    return [int(track) for track in np.flatnonzero(counts)]


def _bursts(trace: Trace, track: int, master: int) -> _Bursts:
    """The work of ``track`` within single segments of ``master``, from its outermost slices."""
    stacks, events, segments = host.stacks(trace), trace.events, host.host_segments(trace)
    slices = slice(*host.thread_bounds(trace)[track : track + 2])
    rows = stacks.row[slices][stacks.parent[slices] < 0]
    start, end = events.ts[rows], events.ts[rows] + events.dur[rows]
    piece = segments.of(master)
    ts = segments.ts[piece]
    if not len(ts):  # no slice of the master was recorded
        return _Bursts(start[:0], end[:0], start[:0])
    within = np.searchsorted(ts, start + ROUNDING_NS, side="right") - 1
    inside = (within >= 0) & (within < len(ts) - 1)
    inside &= end <= ts[np.minimum(within + 1, len(ts) - 1)] + ROUNDING_NS
    within = within[inside]
    start, end = np.maximum(start[inside], ts[within]), np.minimum(end[inside], ts[within + 1])
    first = np.flatnonzero(np.diff(within, prepend=-1))
    if not len(first):
        return _Bursts(start, end, within)
    return _Bursts(start[first], np.maximum.reduceat(end, first), piece.start + within[first])


def _handed_over(trace: Trace, track: int, master: int, bursts: _Bursts) -> CallWaits:
    """The master waits during its segment; the other thread waits from the end of a burst to the start of the next."""
    segments, count = host.host_segments(trace), len(bursts.start)
    tracks, masters = np.full(count, track, np.int32), np.full(count, master, np.int32)
    unknown = np.full(count, -1, EventRow)
    begun, resumed = segments.ts[bursts.segment], segments.ts[bursts.segment + 1]
    there = dependencies_of(
        DependencyKind.HANDOVER, unknown, unknown, from_at=(masters, begun), to_at=(tracks, bursts.start)
    )
    back = dependencies_of(
        DependencyKind.HANDOVER, unknown, unknown, from_at=(tracks, bursts.end), to_at=(masters, resumed)
    )
    return joined_waits(
        [CallWaits(there, masters, begun, resumed), CallWaits(back, tracks[1:], bursts.end[:-1], bursts.start[1:])]
    )


def _start(trace: Trace, track: int, main: int) -> CallWaits:
    """Without further evidence, the start of a thread depends on the main thread's progress until then; of one that
    only copies, also each that follows a pause: it fetches ahead, until that is enough. While the main thread waits for
    a device it makes none: what counts then is that it began to wait."""
    segments = host.host_segments(trace)
    piece, main_piece = segments.of(track), segments.of(main)
    begin, idle = segments.ts[piece], segments.row[piece][:-1] < 0
    pause = np.flatnonzero(idle & (np.diff(begin) >= PAUSE_NS) & _only_copies(trace, track))
    reach = segments.ts[main_piece][[0, -1]]
    place = np.append(0, pause + 1)
    place = place[(reach[0] <= begin[place]) & (begin[place] <= reach[1])]
    ts, pause = begin[place], place[place > 0] - 1
    at = main_piece.start + np.searchsorted(segments.ts[main_piece], ts, side="right") - 1
    waits = np.isin(segments.row[at], sync_calls(trace).row)
    unknown, tracks = np.full(len(ts), -1, EventRow), np.full(len(ts), track, np.int32)
    start = dependencies_of(
        DependencyKind.HANDOVER,
        unknown,
        unknown,
        from_at=(np.full(len(ts), main, np.int32), np.where(waits, segments.ts[at], ts)),
        to_at=(tracks, ts),
    )
    return joined_waits([CallWaits(start, tracks[: len(pause)], begin[pause], begin[pause + 1])])


def _only_copies(trace: Trace, track: int) -> bool:
    """Whether a thread launches work, and none of it is a kernel."""
    work, events = gpu.work(trace), trace.events
    launched = work.row[(work.launch != NO_INDEX) & (events.track[work.launch] == track)]
    return len(launched) > 0 and not (events.category[launched] == Category.KERNEL).any()
