"""The user annotation that each piece of GPU work belongs to."""

from __future__ import annotations

import numpy as np

from augment.arrays.ordering import grouped, settled
from augment.arrays.types import NO_INDEX, Bools, Int64s
from augment.core.trace import Category, Diagnostic, Trace
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.host.call_stacks import crossed, crossing_diagnostics
from augment.facts.host.enclosing import innermost
from augment.facts.host.occupancy import timelines
from augment.facts.names.matching import STEP, starting


def annotations_of_work(trace: Trace, *, include_steps: bool) -> Int64s:
    """The row of the leaf annotation of each piece of ``gpu_work``, int64; :data:`NO_INDEX` where there is none.

    The leaf is the innermost ``gpu_user_annotation`` of the stream in which the work begins. If there is none, it is
    the innermost annotation of the host that encloses its launch. The innermost is the one that began last, whether
    annotations nest or cross.
    """
    work = gpu_work(trace)
    named = None if include_steps else ~starting(trace, STEP)
    rows = _on_the_gpu(trace, named)
    rest = np.flatnonzero((rows == NO_INDEX) & (work.launch != NO_INDEX))
    rows[rest] = innermost(trace, work.launch[rest], (Category.USER_ANNOTATION,), named)
    return rows


def annotation_diagnostics(trace: Trace) -> list[Diagnostic]:
    """Counts slices of the host that cross, and annotations of the devices that cross."""
    events = trace.events
    rows = events.slices_of(Category.GPU_USER_ANNOTATION)
    rows = rows[grouped(events.track[rows], len(trace.tracks))]
    ts, track = events.ts[rows], events.track[rows]
    end = ts + events.dur[rows]
    if (outer_first := settled((ts[1:] == ts[:-1]) & (track[1:] == track[:-1]), -end)) is not None:
        end = end[outer_first]
    count = int(np.count_nonzero(crossed(ts, end, track)))
    message = (
        "annotations of a stream end before an annotation that began in them (the later one counts as the innermost)"
    )
    diagnostics = [Diagnostic("gpu_annotations_cross", count, message)] if count else []
    return [*crossing_diagnostics(trace), *diagnostics]


def _on_the_gpu(trace: Trace, named: Bools | None) -> Int64s:
    work, events = gpu_work(trace), trace.events
    result = np.full(len(work), NO_INDEX, np.int64)
    rows = events.slices_of(Category.GPU_USER_ANNOTATION)
    if named is not None:
        rows = rows[named[events.name[rows]]]
    number = {(stream.rank, stream.device, stream.stream): index for index, stream in enumerate(work.streams)}
    none = len(number)
    stream_of = np.array([number.get((row.rank, row.device, row.stream), none) for row in trace.tracks], np.int32)
    rows = rows[grouped(stream_of[events.track[rows]], none + 1)]
    group = stream_of[events.track[rows]]
    line, bounds = timelines(rows, events.ts[rows], events.ts[rows] + events.dur[rows], group, none + 1)
    for index in np.flatnonzero(np.diff(bounds[:-1])).tolist():
        part = slice(*bounds[index : index + 2])
        start, end, row = line.start[part], line.end[part], line.row[part]
        places = work.streams[index].places
        ts = work.ts[places]
        last = np.maximum(np.searchsorted(start, ts, side="right") - 1, 0)
        inside = (start[last] <= ts) & (ts < end[last])
        result[places] = np.where(inside, row[last], NO_INDEX)
    return result
