"""Draws a comparison on the timeline of the test: changes, deletions, and the cumulative difference.

The track ``Diff vs LABEL`` under each thread has a slice over each call whose time differs from its partner's, or that
has none; the track under each device (or stream, where work overlaps) has one over each such piece of GPU work. The
slice has the name of the call or work after a sign for the kind of change.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from augment.annotations import Annotation, SliceTrack, Texts
from augment.arrays.ordering import each
from augment.arrays.types import Int64s
from augment.comparison.core import Pair
from augment.comparison.deleted import deleted
from augment.comparison.drift import counters
from augment.comparison.marks import (
    LEFT_OUT,
    Change,
    Marks,
    delta_args,
    lanes,
    marked,
    texts_at,
    tracks_of,
)
from augment.comparison.sequences import ALONE
from augment.comparison.threshold import Threshold, threshold
from augment.derived.gpu.gpu_work import Device, gpu_work
from augment.findings import AugmentedTrace, Findings
from augment.trace import Trace

_LEGEND = "▲ takes longer than in the control, ▼ shorter, + is new"


def drawn(pair: Pair, label: str, min_delta_ns: int | None = None) -> AugmentedTrace:
    """The test of a pair of ranks, with the differences from the control as annotations.

    Args:
        pair: the compared ranks.
        label: the name of the control.
        min_delta_ns: leave out smaller differences; with 0 every call and piece of work of the steps is drawn. None:
            draw those that make up 1 % of a step, alone or with all of their name.
    """
    name, least = f"Diff vs {label}", threshold(pair, min_delta_ns)
    annotations: list[Annotation] = [
        *_calls(pair, name, least),
        *_work(pair, name, least),
        *deleted(pair, name, least),
        *counters(pair, name),
    ]
    return AugmentedTrace(pair.test.trace, {"diff": Findings((), annotations)})


def _calls(pair: Pair, name: str, least: Threshold) -> Iterator[SliceTrack]:
    """The tracks of the threads."""
    calls, before = pair.test.calls, pair.control.calls
    partner = pair.alignment.call_of_test
    alone = partner == ALONE
    control_ns, control_gpu_ns = (
        np.where(alone, LEFT_OUT, _at(column, partner)) for column in (before.cpu_ns, before.gpu_ns)
    )
    delta = calls.cpu_ns - np.where(alone, 0, control_ns)
    delta_gpu = calls.gpu_ns - np.where(alone, 0, control_gpu_ns)
    larger = np.where(abs(delta_gpu) > abs(delta), delta_gpu, delta)
    chosen = np.flatnonzero((calls.step >= 0) & least.calls(calls.name, larger))
    trace = pair.test.trace
    row = calls.row[chosen]
    on_gpu = (abs(delta_gpu) > abs(delta))[chosen] & ~alone[chosen]
    strings = list(trace.strings)
    named = Texts(
        (trace.events.name[row] + len(strings) * on_gpu).astype(np.int32),
        [*strings, *(f"{text} (GPU)" for text in strings)],
    )
    marks = marked(
        trace.events.ts[row],
        calls.cpu_ns[chosen],
        _change(larger[chosen], alone[chosen]),
        named,
        {
            **delta_args(control_ns[chosen], delta[chosen]),
            "gpu_ns": calls.gpu_ns[chosen],
            **delta_args(control_gpu_ns[chosen], delta_gpu[chosen], "gpu_"),
        },
    )
    description = f"{_LEGEND}; (GPU): the GPU work that the call launched, not the call itself"
    for thread, members in each(calls.thread[chosen], len(trace.tracks)):
        yield from tracks_of(marks.take(members), name, thread, description)


def _work(pair: Pair, name: str, least: Threshold) -> Iterator[SliceTrack]:
    """The tracks of the devices."""
    work, before, gpu = pair.test.work, pair.control.work, gpu_work(pair.test.trace)
    partner = pair.alignment.work_of_test
    alone = partner == ALONE
    control_ns = np.where(alone, LEFT_OUT, _at(before.ns, partner))
    delta = work.ns - np.where(alone, 0, control_ns)
    chosen = np.flatnonzero((work.step >= 0) & least.work(work.name, delta))
    trace, other = pair.test.trace, pair.control.trace
    renamed = np.where(pair.alignment.renamed, _at(before.row, partner), LEFT_OUT)[chosen]
    marks = marked(
        gpu.ts[chosen],
        work.ns[chosen],
        _change(delta[chosen], alone[chosen]),
        texts_at(work.row[chosen], trace.events.name, trace.strings),
        {
            **delta_args(control_ns[chosen], delta[chosen]),
            "operator": texts_at(_caller(pair)[chosen], trace.events.name, trace.strings),
            "control_name": texts_at(renamed, other.events.name, other.strings),
        },
    )
    for device in gpu.devices:
        yield from _of_device(pair.test.trace, device, chosen, marks, name)


def _of_device(trace: Trace, device: Device, chosen: Int64s, marks: Marks, name: str) -> Iterator[SliceTrack]:
    """One track, or one per stream where slices would overlap."""
    first, last = np.searchsorted(chosen, (device.start, device.stop)).tolist()
    whole = marks.take(np.arange(first, last))
    order = np.lexsort((-whole.dur, whole.ts))
    if not lanes(whole.ts[order], whole.dur[order]).any():
        yield from tracks_of(whole, name, device.track, _LEGEND)
        return
    for stream in gpu_work(trace).streams:
        if device.start <= stream.start < device.stop:
            first, last = np.searchsorted(chosen, (stream.start, stream.stop)).tolist()
            part = marks.take(np.arange(first, last))
            yield from tracks_of(part, f"{name} stream {stream.stream}", stream.track, _LEGEND)


def _change(delta: Int64s, alone: Int64s) -> Int64s:
    kind = np.where(delta > 0, Change.INCREASED, np.where(delta < 0, Change.DECREASED, Change.UNCHANGED))
    changed: Int64s = np.where(alone, Change.ADDED, kind).astype(np.int64)
    return changed


def _caller(pair: Pair) -> Int64s:
    """The row of the call that launched each piece of the test's work, or -1."""
    return np.append(pair.test.calls.row, LEFT_OUT)[pair.test.work.call]


def _at(column: Int64s, places: Int64s) -> Int64s:
    """The values at ``places``; -1 stands for none and yields an arbitrary value."""
    return np.append(column, LEFT_OUT)[places]
