"""Operators at their first call: libraries set themselves up there, and kernels are loaded. Later calls lack it."""

from __future__ import annotations

import numpy as np

from augment.arrays.intervals import Intervals, clip, union
from augment.arrays.ordering import distinct, group_bounds, is_among, numbered, sums
from augment.arrays.statistics import grouped_medians
from augment.arrays.types import NO_INDEX, Bools, Int64s
from augment.core.context import derived
from augment.core.trace import Category, Trace
from augment.diagnosis.waiting import waiting_calls
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.host.call_stacks import innermost
from augment.facts.host.queued_tasks import operators_around

FAR_LONGER = 4  #: a first call so many times as long as later ones does more than launch
LEAST_USUAL = 2  #: operators that tell how long one of their name usually takes
LEAST_NS = 200_000  #: a first call that takes less than this beyond the usual is ordinary


def at_first_calls(trace: Trace, rows: Int64s) -> Bools:
    """Which slices ``rows`` lie within the first call in the recording of the innermost operator around them, and that
    operator is called again afterwards; a call within a call of the same name is not another one."""
    events = trace.events
    operators = events.slices_of(Category.CPU_OP)
    around = innermost(trace, rows, (Category.CPU_OP,))
    names = events.name[operators]
    first, last = np.full((2, len(trace.strings)), -1)
    first[names[::-1]], last[names] = operators[::-1], operators
    name = events.name[np.maximum(around, 0)]
    row = first[name]
    end = events.ts[row] + events.dur[row]
    within = (events.track[rows] == events.track[row]) & (events.ts[rows] >= events.ts[row])
    within &= events.ts[rows] + events.dur[rows] <= end
    again: Bools = (around >= 0) & within & (events.ts[last[name]] >= end)
    return again


@derived(until="diagnosis")
def cold_operators(trace: Trace) -> Int64s:
    """The operators, ascending rows, that launch a kernel for the first time in the recording, and therefore take long:
    more than :data:`FAR_LONGER` times the median of those of their name that launch only kernels launched before.

    The driver loads a kernel when it is first launched, and libraries choose an algorithm for each new shape. Where no
    operator of the name launches only what was launched before, nothing is usual, and none is far longer. Waiting for
    the device does not count.
    """
    work, events = gpu_work(trace), trace.events
    place = np.flatnonzero((work.launch != NO_INDEX) & (events.category[work.row] == Category.KERNEL))
    place = place[np.argsort(events.ts[work.launch[place]], kind="stable")]
    operator = operators_around(trace, work.launch[place])
    place, operator = place[operator >= 0], operator[operator >= 0]
    kernel = events.name[work.row[place]]
    first = np.full(len(trace.strings), -1, np.int64)
    first[kernel[::-1]] = np.arange(len(kernel))[::-1]
    new, launching = distinct(operator[first[first >= 0]]), distinct(operator)
    is_new, worked = is_among(launching, new), _time_without_waits(trace, launching)
    names, which = numbered(events.name[launching[~is_new]])
    bounds = group_bounds(which, len(names))
    enough = np.diff(bounds) >= LEAST_USUAL
    usual_of_name = np.full(len(trace.strings), np.inf)  # none takes longer
    usual_of_name[names[enough]] = np.floor(grouped_medians(worked[~is_new], which, bounds)[enough])
    took, usual = worked[is_new], usual_of_name[events.name[new]]
    cold: Int64s = new[(took > FAR_LONGER * usual) & (took - usual >= LEAST_NS)]
    return cold


def _time_without_waits(trace: Trace, rows: Int64s) -> Int64s:
    """The duration of each of ``rows`` without the waiting calls within, ns."""
    events, calls = trace.events, waiting_calls(trace)
    took: Int64s = events.dur[rows].copy()
    for track in distinct(events.track[calls]).tolist():
        waits = calls[events.track[calls] == track]
        of_track = np.flatnonzero(events.track[rows] == track)
        spans = Intervals(events.ts[rows[of_track]], events.ts[rows[of_track]] + took[of_track])
        which, _, parts = clip(spans, union(events.ts[waits], events.ts[waits] + events.dur[waits]))
        took[of_track] -= sums(which, parts.end - parts.start, len(of_track))
    return took


def cold_times(trace: Trace, track: int) -> Intervals:
    """When a thread is in :func:`cold_operators`, without overlaps."""
    rows = cold_operators(trace)
    rows = rows[trace.events.track[rows] == track]
    return union(trace.events.ts[rows], trace.events.ts[rows] + trace.events.dur[rows])
