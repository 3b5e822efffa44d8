"""Draws a comparison on the timeline of the test: changes, deletions, and the cumulative difference.

The track ``Δ host`` under each thread has a slice over each call whose time differs from its partner's, or that has
none. Each device has two rows in its group ``Diff vs LABEL``: what is slower or new, and what is faster or gone. A
slice has the name of the call or work after a sign for the kind of change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from augment.arrays.ordering import each
from augment.arrays.types import NO_INDEX, Int64s
from augment.compare.core import Pair
from augment.compare.deleted import deleted_calls, deleted_work
from augment.compare.drift import counter_of_main_thread, counters_of_devices
from augment.compare.marks import (
    FASTER,
    LEFT_OUT,
    SAME,
    SLOWER,
    Change,
    Marks,
    Rows,
    delta_args,
    joined,
    marked,
    texts_at,
    tracks_of,
)
from augment.compare.threshold import Threshold, threshold
from augment.core.annotations import Annotation, SliceTrack, Texts
from augment.core.findings import AugmentedTrace, Findings
from augment.facts.critical.handovers import main_track
from augment.facts.gpu.gpu_work import Device, GpuWork, gpu_work

VERDICT = "Diagnosis"  #: the track that says what the comparison found
_LEGEND = "▲ takes longer than in the control, ▼ shorter, + is new"
_ROWS = {
    SLOWER: (Change.INCREASED, Change.ADDED),
    FASTER: (Change.DECREASED, Change.DELETED),
    SAME: (Change.UNCHANGED,),
}
_LEGENDS = {
    SLOWER: "▲ takes longer than in the control, + is new",
    FASTER: "▼ takes less time than in the control, − is gone, where it would have been",
    SAME: "takes the same time",
}


def drawn(pair: Pair, label: str, min_delta_ns: int | None = None, verdict: Sequence[str] = ()) -> AugmentedTrace:
    """The test of a pair of ranks, with the differences from the control as annotations.

    Args:
        pair: the compared ranks.
        label: the name of the control.
        min_delta_ns: leave out smaller differences; with 0 every call and piece of work of the steps is drawn. None:
            draw those that make up 1 % of a step, alone or with all of their name.
        verdict: its sentences are drawn over the compared steps.
    """
    rows, least = Rows(label), threshold(pair, min_delta_ns)
    annotations: list[Annotation] = [
        *_verdict(pair, label, verdict),
        *_work(pair, rows, least),
        *counters_of_devices(pair, rows),
        *_calls(pair, rows, least),
        *deleted_calls(pair, rows, least),
        *counter_of_main_thread(pair, rows),
    ]
    return AugmentedTrace(pair.test.trace, {"diff": Findings((), annotations)})


def _verdict(pair: Pair, label: str, sentences: Sequence[str]) -> Iterator[SliceTrack]:
    """The track that says what the comparison found."""
    trace, steps = pair.test.trace, pair.test.steps
    main = main_track(trace)
    if not sentences or not len(steps) or not trace.tracks:
        return
    start, end = int(steps.begin[0]), int(max(steps.end[-1], steps.finish[-1]))
    yield SliceTrack(
        analysis="diff",
        name=VERDICT,
        under=max(main, 0),
        ts=np.array([start], np.int64),
        dur=np.array([max(end - start, 1)], np.int64),
        names=Texts(np.zeros(1, np.int32), [" ".join(sentences)]),
        description=f"what the comparison with {label} found",
        of_process=True,
    )


def _calls(pair: Pair, rows: Rows, least: Threshold) -> Iterator[SliceTrack]:
    """The tracks of the threads."""
    calls, before = pair.test.calls, pair.control.calls
    partner = pair.alignment.call_of_test
    alone = partner == NO_INDEX
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
    legend = f"compared with {rows.label}: {_LEGEND}"
    description = f"{legend}; (GPU): the GPU work that the call launched, not the call itself"
    for thread, members in each(calls.thread[chosen], len(trace.tracks)):
        yield from tracks_of(marks.take(members), rows.of_host(), thread, description)


def _work(pair: Pair, rows: Rows, least: Threshold) -> Iterator[SliceTrack]:
    """The tracks of the devices."""
    work, before, gpu = pair.test.work, pair.control.work, gpu_work(pair.test.trace)
    partner = pair.alignment.work_of_test
    alone = partner == NO_INDEX
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
            "stream": _streams(gpu)[chosen],
            "control_name": texts_at(renamed, other.events.name, other.strings),
        },
    )
    gone = deleted_work(pair, least)
    for place, device in enumerate(gpu.devices):
        first, last = np.searchsorted(chosen, (device.start, device.stop)).tolist()
        parts = [marks.take(np.arange(first, last)), *gone.get(place, [])]
        yield from _of_device(device, joined(parts), rows)


def _of_device(device: Device, marks: Marks, rows: Rows) -> Iterator[SliceTrack]:
    """A row for what takes longer and one for what takes less; where several streams work, a row has several lines."""
    for row, changes in _ROWS.items():
        places = np.flatnonzero(np.isin(marks.change, changes))
        legend = f"compared with {rows.label}: {_LEGENDS[row]}"
        yield from tracks_of(marks.take(places), rows.of_device(device.device, row), device.track, legend)


def _change(delta: Int64s, alone: Int64s) -> Int64s:
    kind = np.where(delta > 0, Change.INCREASED, np.where(delta < 0, Change.DECREASED, Change.UNCHANGED))
    changed: Int64s = np.where(alone, Change.ADDED, kind).astype(np.int64)
    return changed


def _streams(gpu: GpuWork) -> Int64s:
    """The number of each piece's stream; absent where it has none."""
    numbers = [stream.stream if isinstance(stream.stream, int) else LEFT_OUT for stream in gpu.streams]
    return np.repeat(np.array(numbers, np.int64), [stream.stop - stream.start for stream in gpu.streams])


def _caller(pair: Pair) -> Int64s:
    """The row of the call that launched each piece of the test's work, or -1."""
    return np.append(pair.test.calls.row, LEFT_OUT)[pair.test.work.call]


def _at(column: Int64s, places: Int64s) -> Int64s:
    """The values at ``places``; -1 stands for none and yields an arbitrary value."""
    return np.append(column, LEFT_OUT)[places]
