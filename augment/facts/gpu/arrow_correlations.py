"""The correlation of GPU work without args: the id of the arrow that leads to it.

Before PyTorch 2.4, Kineto wrote no args for AMD's kernels and copies, but an ``ac2g`` flow from each launch to its
work. The flow's id is the correlation. ``output_json.cpp`` writes each end directly after the slice that it belongs to.

Ascend's ``trace_view`` has arrows ``HostToDevice`` from within a call of the runtime to the start of each piece of work
that it launched. There, the correlation is the number of the call.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from augment.arrays.ordering import distinct
from augment.arrays.types import Int32s, Int64s
from augment.core.context import derived
from augment.core.trace import NO_CORRELATION, Category, Trace

_ASCEND_CALL = "AscendCL@"  #: how the calls of its runtime begin


def correlations_of(trace: Trace, rows: Int64s) -> Int64s:
    """The correlation of each of ``rows``, int64. If no row has one, the ids of their arrows."""
    correlation = trace.events.correlation[rows]
    if (correlation != NO_CORRELATION).any():
        return correlation
    return _by_calls(trace, rows) if _is_of_ascend(trace) else _by_arrows(trace, rows)


def launch_moments(trace: Trace, rows: Int64s, launch: Int64s) -> Int64s:
    """When each of ``rows`` of GPU work was launched by its call ``launch`` (a row), int64 ns: where the arrow begins
    within the call if the trace has one (a call of Ascend's launches several kernels), else the start of the call."""
    moments: Int64s = trace.events.ts[launch]
    if _is_of_ascend(trace):
        arrows = _arrows_of_calls(trace)
        arrow = _arrow_to(trace, rows)
        known = np.flatnonzero(arrow >= 0)
        known = known[arrows.call[arrow[known]] == launch[known]]
        moments[known] = arrows.begin[arrow[known]]
    return moments


@derived
def _is_of_ascend(trace: Trace) -> bool:
    return any(name.startswith(_ASCEND_CALL) for name in trace.strings)


def _by_arrows(trace: Trace, rows: Int64s) -> Int64s:
    """The id of the arrow after each slice in the file, if time and thread agree; else ``NO_CORRELATION``."""
    events, flows = trace.events, trace.events.flow_id
    correlations = np.full(len(rows), NO_CORRELATION, np.int64)
    arrow, number = flows.rows[:], flows.values[:]
    chosen = (events.category[arrow] == Category.AC2G) & (number > 0)
    arrow, number = arrow[chosen], number[chosen]
    if not len(arrow) or not len(rows):
        return correlations
    in_file = np.argsort(events.offset[rows])
    place = np.searchsorted(events.offset[rows[in_file]], events.offset[arrow], side="right") - 1
    before = in_file[np.maximum(place, 0)]
    threads: dict[object, int] = {}
    thread = np.array([threads.setdefault((track.pid, track.tid), len(threads)) for track in trace.tracks], np.int32)
    matches = (place >= 0) & (events.ts[rows[before]] == events.ts[arrow])
    matches &= thread[events.track[rows[before]]] == thread[events.track[arrow]]
    correlations[before[matches]] = number[matches]
    return correlations


def _by_calls(trace: Trace, rows: Int64s) -> Int64s:
    """The number of the call that launched each of ``rows``, or that each is; else ``NO_CORRELATION``."""
    arrows, arrow = _arrows_of_calls(trace), _arrow_to(trace, rows)
    correlations = np.full(len(rows), NO_CORRELATION, np.int64)
    correlations[arrow >= 0] = arrows.call[arrow[arrow >= 0]] + 1
    is_call = np.isin(rows, arrows.call)
    correlations[is_call] = rows[is_call] + 1
    return correlations


def _arrow_to(trace: Trace, rows: Int64s) -> Int64s:
    """The place of the arrow that ends at the start of each of ``rows``, in :class:`_Arrows`; -1 for none."""
    arrows = _arrows_of_calls(trace)
    arrow = np.full(len(rows), -1, np.int64)
    key = arrows.thread_of[trace.events.track[rows]].astype(np.int64)
    order = np.lexsort((arrows.end, arrows.to))
    for number in distinct(key).tolist():
        index, ends = np.flatnonzero(key == number), order[arrows.to[order] == number]
        following = np.searchsorted(arrows.end[ends], trace.events.ts[rows[index]])
        known = following < len(ends)
        known[known] = arrows.end[ends[following[known]]] == trace.events.ts[rows[index[known]]]
        arrow[index[known]] = ends[following[known]]
    return arrow


class _Arrows(Struct, frozen=True):
    """The arrows from calls, equal-length int64 columns: the row of the ``call`` (the outermost on its thread), when
    the arrow begins and ends (ns), and the number of the thread that it leads ``to``. ``thread_of``: the number of the
    thread of each track."""

    call: Int64s
    begin: Int64s
    end: Int64s
    to: Int64s
    thread_of: Int32s


@derived
def _arrows_of_calls(trace: Trace) -> _Arrows:
    """The arrows that begin within a call of the runtime."""
    events = trace.events
    threads: dict[object, int] = {}
    thread = np.array([threads.setdefault((track.pid, track.tid), len(threads)) for track in trace.tracks], np.int32)
    arrows = np.flatnonzero((events.category == Category.AC2G) & np.isin(events.phase, (ord("s"), ord("f"))))
    ids = events.flow_id.at(arrows, NO_CORRELATION)
    begins, ends = (arrows[events.phase[arrows] == ord(phase)] for phase in "sf")
    begin_ids, end_ids = (ids[events.phase[arrows] == ord(phase)] for phase in "sf")
    order = np.argsort(begin_ids, kind="stable")
    nearest = np.minimum(np.searchsorted(begin_ids[order], end_ids), max(len(order) - 1, 0))
    met = begin_ids[order[nearest]] == end_ids if len(order) else np.zeros(len(ends), np.bool_)
    begins, ends = begins[order[nearest[met]]], ends[met]
    call = np.full(len(begins), NO_CORRELATION, np.int64)
    runtime = events.slices_of(Category.CUDA_RUNTIME)
    for number in distinct(thread[events.track[begins]]).tolist():
        index = np.flatnonzero(thread[events.track[begins]] == number)
        rows = runtime[thread[events.track[runtime]] == number]
        reach = np.maximum.accumulate(events.end[rows]) if len(rows) else rows
        rows = rows[np.append(True, events.ts[rows[1:]] >= reach[:-1])[: len(rows)]]
        last = np.searchsorted(events.ts[rows], events.ts[begins[index]], side="right") - 1
        inside = last >= 0
        inside[inside] = events.end[rows[last[inside]]] >= events.ts[begins[index[inside]]]
        call[index[inside]] = rows[last[inside]]
    known = call != NO_CORRELATION
    begins, ends = begins[known], ends[known]
    to = thread[events.track[ends]].astype(np.int64)
    return _Arrows(call[known], events.ts[begins], events.ts[ends], to, thread)
