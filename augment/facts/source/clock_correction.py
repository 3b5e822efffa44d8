"""Moves a trace and its annotations onto another clock."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from augment.arrays.types import Int64s
from augment.core.annotations import Annotation, CounterTrack, Ends, Flows, InstantTrack, SliceTrack
from augment.core.attachments import MemoryChanges
from augment.core.findings import AugmentedTrace, Outcome
from augment.core.trace import Trace

Clock = Callable[[Int64s], Int64s]  #: maps times on a trace's clock to another clock, int64 ns; never descending


def on_clock(augmented: AugmentedTrace, clock: Clock) -> AugmentedTrace:
    """The trace and its annotations with all times on another clock, and durations as measured by it.

    The start and the end of a slice are mapped separately, so slices stay nested.
    """
    tracks: dict[int, SliceTrack] = {}
    outcomes = {name: _outcome(outcome, clock, tracks) for name, outcome in augmented.outcomes.items()}
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
    moved = [replace(changes, ts=np.where(changes.ts < 0, changes.ts, clock(changes.ts)))] if changes else []
    return trace.changed(*moved, events=replace(events, ts=ts, dur=dur))


def _outcome(outcome: Outcome, clock: Clock, tracks: dict[int, SliceTrack]) -> Outcome:
    if not outcome.annotations:
        return outcome
    return replace(outcome, annotations=[_annotation(annotation, clock, tracks) for annotation in outcome.annotations])


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
            return _counter(annotation, clock(annotation.ts))
        case InstantTrack():
            return replace(annotation, ts=clock(annotation.ts))
        case Flows():
            return replace(annotation, out=_ends(annotation.out, tracks), into=_ends(annotation.into, tracks))


def _counter(counter: CounterTrack, ts: Int64s) -> CounterTrack:
    """The counter on the other clock. If several points map to one moment, the last stays, because a counter's times
    ascend strictly.
    """
    last = np.ones(len(ts), np.bool_)
    last[:-1] = ts[1:] != ts[:-1]
    return replace(counter, ts=ts[last], values=counter.values[last])


def _ends(ends: Ends, tracks: dict[int, SliceTrack]) -> Ends:
    return ends if ends.track is None else Ends(ends.rows, tracks[id(ends.track)])
