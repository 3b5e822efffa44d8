"""Files of several ranks: the rank of each track of a merged one, and a trace moved onto another rank's clock.

Tools that merge traces give each rank separate processes. They write the rank into the arg ``rank`` of all events
(TraceLens' TraceFusion) or before the process id: ``[TP03] 4242`` (SGLang's merger; with one kind of parallelism it is
the rank).
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from augment.arrays import NO_VALUE, Int64s, distinct, each
from augment.core import (
    Annotation,
    AugmentedTrace,
    CounterTrack,
    Ends,
    Flows,
    Identity,
    InstantTrack,
    MemoryChanges,
    MemorySnapshot,
    RequestSpans,
    SliceTrack,
    Trace,
    derived,
)

_LOOKED_AT = 3  #: events of a process that must agree
_MOST_PROCESSES = 20_000
_HEADER = ("distributedInfo", "deviceProperties", "schemaVersion")  #: members that Kineto writes for a single rank
_IN_PID = re.compile(r"\[(?:TP|DP|PP|EP)-?(\d{1,9})\]")


def may_be_merged(trace: Trace) -> bool:
    """Whether the file may be merged: process ids name ranks, or the profiler's own header is absent. To be sure, the
    args must be read from the text, which takes a pass.
    """
    header = trace.source.metadata
    is_stated = any(isinstance(track.pid, str) and _IN_PID.match(track.pid) for track in trace.tracks)
    return is_stated or header.keys().isdisjoint(_HEADER) or ("recorder" in header and "distributedInfo" not in header)


@derived
def rank_of_track(trace: Trace) -> Int64s:
    """The rank of each track; -1 where unknown.

    All -1 unless the file tells of at least two ranks.
    """
    pids: dict[Identity, int] = {}
    process = np.array([pids.setdefault(track.pid, len(pids)) for track in trace.tracks], np.int64)
    ranks = np.full(len(pids), NO_VALUE, np.int64)
    if 1 < len(pids) <= _MOST_PROCESSES:
        for pid, number in pids.items():
            stated = _IN_PID.match(pid) if isinstance(pid, str) else None
            ranks[number] = int(stated[1]) if stated else NO_VALUE
        if (ranks < 0).all():
            # by the args of the first events of each process
            of = process[trace.events.track[:]]
            samples = [(number, rows[:_LOOKED_AT]) for number, rows in each(of, len(pids))]
            chosen = np.concatenate([np.empty(0, np.int64), *(rows for _, rows in samples)])
            given: dict[int, set[object]] = {}
            for row, args in zip(chosen.tolist(), trace.args_of(chosen), strict=True):
                given.setdefault(int(of[row]), set()).add(args.get("rank"))
            for number, values in given.items():
                rank = values.pop() if len(values) == 1 else None
                if isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < 1 << 31:
                    ranks[number] = rank
    if len(distinct(ranks[ranks >= 0])) < 2:
        return np.full(len(trace.tracks), NO_VALUE, np.int64)
    return ranks[process] if len(pids) else np.empty(0, np.int64)


# Moves a trace and its annotations onto another clock.


Clock = Callable[[Int64s], Int64s]  #: maps times on a trace's clock to another clock, int64 ns; never descending


def on_clock(augmented: AugmentedTrace, clock: Clock) -> AugmentedTrace:
    """The trace and its annotations with all times on another clock, and durations as measured by it.

    The start and the end of a slice are mapped separately, so slices stay nested.
    """
    tracks: dict[int, SliceTrack] = {}
    outcomes = {
        name: outcome
        if not outcome.annotations
        else replace(outcome, annotations=[_annotation(each, clock, tracks) for each in outcome.annotations])
        for name, outcome in augmented.outcomes.items()
    }
    window = augmented.window
    if window is not None:
        window = replace(window, start_ns=int(clock(np.array([window.start_ns]))[0]))
    return AugmentedTrace(trace_on_clock(augmented.trace, clock), outcomes, window)


def trace_on_clock(trace: Trace, clock: Clock) -> Trace:
    """The trace alone with all times on another clock."""
    events = trace.events
    ts = clock(events.ts)
    # negative durations are repaired by writers and stay unchanged here
    dur = events.dur[:]
    dur = np.where(dur > 0, clock(events.ts + np.maximum(dur, 0)) - ts, dur)
    changes = trace.context.attached(MemoryChanges)
    moved: list[object] = (
        [replace(changes, ts=np.where(changes.ts < 0, changes.ts, clock(changes.ts)))] if changes else []
    )
    snapshot = trace.context.attached(MemorySnapshot)
    if snapshot is not None and snapshot.has_times:
        on_it = clock(snapshot.action_ts), clock(snapshot.mark_ts)
        moved.append(replace(snapshot, action_ts=on_it[0], mark_ts=on_it[1]))
    spans = trace.context.attached(RequestSpans)
    if spans is not None:
        moved.append(replace(spans, moments=clock(spans.moments.ravel()).reshape(spans.moments.shape)))
    return trace.changed(*moved, events=replace(events, ts=ts, dur=dur))


def _annotation(annotation: Annotation, clock: Clock, tracks: dict[int, SliceTrack]) -> Annotation:
    """The annotation on the other clock. ``tracks`` holds the tracks moved so far, by the ``id`` of the original: flows
    refer to them.
    """
    match annotation:
        case SliceTrack():
            ts = clock(annotation.ts)
            moved = tracks[id(annotation)] = replace(annotation, ts=ts, dur=clock(annotation.ts + annotation.dur) - ts)
            return moved
        case CounterTrack():
            ts = clock(annotation.ts)
            last = np.append(ts[1:] != ts[:-1], True)[: len(ts)]  # a counter's times ascend strictly
            return replace(annotation, ts=ts[last], values=annotation.values[last])
        case InstantTrack():
            return replace(annotation, ts=clock(annotation.ts))
        case Flows():
            return replace(annotation, out=_ends(annotation.out, tracks), into=_ends(annotation.into, tracks))


def _ends(ends: Ends, tracks: dict[int, SliceTrack]) -> Ends:
    return ends if ends.track is None else Ends(ends.rows, tracks[id(ends.track)])
