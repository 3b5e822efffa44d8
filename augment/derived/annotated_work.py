"""Which of the user's annotations each piece of GPU work belongs to."""

from __future__ import annotations

import numpy as np

from augment.derived.call_stacks import NO_ROW, innermost
from augment.derived.gpu_work import gpu_work
from augment.derived.occupancy import innermost as timeline_of
from augment.derived.ordering import each
from augment.trace import Bools, Category, Int64s, Trace

STEP = "ProfilerStep"


def annotations_of_work(trace: Trace, *, include_steps: bool) -> Int64s:
    """The row of the leaf annotation of each place of ``gpu_work``, int64; :data:`NO_ROW` where there is none.

    It is the innermost ``gpu_user_annotation`` of the stream in which the work begins; where there is none, the
    innermost annotation of the host that encloses its launch.
    """
    work = gpu_work(trace)
    named = None if include_steps else np.array([not name.startswith(STEP) for name in trace.strings], np.bool_)
    found = _on_the_gpu(trace, named)
    rest = np.flatnonzero((found == NO_ROW) & (work.launch != NO_ROW))
    found[rest] = innermost(trace, work.launch[rest], (Category.USER_ANNOTATION,), named)
    return found


def _on_the_gpu(trace: Trace, named: Bools | None) -> Int64s:
    work, events = gpu_work(trace), trace.events
    found = np.full(len(work), NO_ROW, np.int64)
    rows = events.slices_of(Category.GPU_USER_ANNOTATION)
    if named is not None:
        rows = rows[named[events.name[rows]]]
    number = {(one.rank, one.device, one.stream): index for index, one in enumerate(work.streams)}
    none = len(number)
    stream_of = np.array([number.get((one.rank, one.device, one.stream), none) for one in trace.tracks], np.int32)
    for index, own in each(stream_of[events.track[rows]], none + 1):
        if index == none:
            continue
        stream, on_stream = work.streams[index], rows[own]
        timeline = timeline_of(on_stream, events.ts[on_stream], events.ts[on_stream] + events.dur[on_stream])
        if not len(timeline.row):
            continue
        ts = work.ts[stream.places]
        last = np.maximum(np.searchsorted(timeline.start, ts, side="right") - 1, 0)
        inside = (timeline.start[last] <= ts) & (ts < timeline.end[last])
        found[stream.places] = np.where(inside, timeline.row[last], NO_ROW)
    return found
