"""Does the host do something long that is no launching?

A stretch of 1 ms and more in which a thread that launches work is in one operator, or in no operator at all: garbage
collection, logging, checkpoints, tokenizing, work on the CPU, waiting for a lock. Fetching batches, calls of the
runtime, and compilation have rules of their own. The prediction takes these stretches out of the steps. A function
that waits (``sleep``, ``poll``, ``recv``) is no cause: without steps the run may be a server without requests, and the
finding is merely possible. Without steps, an operator that takes long at its first call alone sets a library up. An
operator that launches a kernel for the first time, and takes more than four times as long as others of its name, loads
that kernel or chooses an algorithm: all its time counts here, also in shorter stretches.

**What to do**: record with ``with_stack=True`` to see the lines. Move the work out of the step or to another thread;
``gc.freeze()`` after start-up, or ``gc.disable()`` and ``gc.collect()`` every so many steps.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from augment.arrays.intervals import Intervals, touched
from augment.arrays.ordering import distinct
from augment.arrays.types import Bools, Int64s
from augment.derived.critical.critical_graph import critical_graph
from augment.derived.critical.critical_path import BoundBy, host_kinds
from augment.derived.critical.handovers import main_track
from augment.derived.gpu.gpu_work import gpu_work
from augment.derived.host.host_segments import host_segments
from augment.derived.names.matching import starting
from augment.diagnosis.first_calls import at_first_calls, cold_times
from augment.diagnosis.judging import judged
from augment.diagnosis.measure import host_cut, measure, saved_by_host, within_steps
from augment.diagnosis.rule import Answer, Fine, NotApplicable, Spans
from augment.diagnosis.rules.recompilation import compiles
from augment.diagnosis.wording import listed, of_a_step, short, shorter, time
from augment.trace import Category, Trace, derived

NAME = "host_gaps"
LONG_NS = 1_000_000  #: an uninterrupted stretch of the host that is longer is another matter than launching
UNNAMED = "no recorded operator"
#: functions that wait for something outside of the process, or for another thread
_WAITING = re.compile(
    r"\b(?:sleep|select|e?poll|recv\w*|accept|acquire|wait\w*|kqueue|get_nowait|zmq_\w+)\b|queue\.py.*\bget\b"
)
_WAITS = (
    "The host waits here for something that is not in the trace: requests, other processes, a lock or a timer. If the "
    "run is meant to be busy, look at what it waits for"
)
_FIRST = (
    "These operators take so long at their first call in the recording, not later: libraries set themselves up and "
    "kernels are loaded. Run some steps before the recording begins (a warmup in the profiler's schedule)"
)
_OF_OPERATORS = (
    "Move this out of the step or to another thread; in operators of the model itself it is Python, the dispatcher or "
    "the compiler's guards (with_stack=True shows which): fewer and larger operators, or CUDA graphs"
)
_UNKNOWN = (
    "Record with with_stack=True to see what it is: garbage collection (record_python_gc_info), logging, checkpoints, "
    "work on the CPU, or waiting for requests or other processes"
)
_COMMUNICATION = ("nccl:", "gloo:", "mpi:", "c10d::")  #: waiting for other ranks


@derived  # launch_bound asks, too
def check(trace: Trace) -> Answer:
    """Predict steps without these stretches."""
    if not len(gpu_work(trace)):
        return NotApplicable("no GPU work was recorded that the host could hold up")
    spans = _stretches(trace)
    which, parts = within_steps(trace, spans.start, spans.end)
    if not len(which):
        return NotApplicable("the host does nothing long but launching")
    track = np.where(spans.row >= 0, trace.events.track[spans.row], main_track(trace)).astype(np.int32)
    cut = host_cut(trace, track, spans.start, spans.end)
    saved = saved_by_host(trace, cut)
    names = _names(trace, spans.row[which], parts.end - parts.start)
    longest = int((parts.end - parts.start).max())
    named, waits = names[0] != UNNAMED, _WAITING.search(names[0]) is not None
    unknown = measure(trace).unit == "recording"  # a server without requests waits, too
    return judged(
        trace,
        saved,
        fine=Fine(f"long stretches of the host would save {of_a_step(trace, saved)} (the longest {time(longest)})"),
        title=f"The host spends up to {time(longest)} at a time in {listed(names)} without launching; otherwise "
        + shorter(trace, saved),
        advice=_WAITS
        if waits
        else _FIRST
        if unknown and _at_first(trace, spans)
        else _OF_OPERATORS
        if named
        else _UNKNOWN,
        spans=Spans(parts.start, parts.end, spans.row[which]),
        confidence="high" if named and not waits else "low" if waits and unknown else "medium",
        cut=cut,
    )


def _at_first(trace: Trace, spans: Spans) -> bool:
    """Whether most of the time of the stretches is in operators at their first call, which are called again, or in
    those that launch a kernel for the first time."""
    again = at_first_calls(trace, spans.row)
    for track in distinct(trace.events.track[spans.row[spans.row >= 0]]).tolist():
        of_track = np.flatnonzero((spans.row >= 0) & (trace.events.track[spans.row] == track))
        again[of_track] |= _within(cold_times(trace, track), spans.start[of_track], spans.end[of_track])
    time_of = spans.end - spans.start
    return bool(2 * time_of[again].sum() > time_of.sum())


def _within(times: Intervals, start: Int64s, end: Int64s) -> Bools:
    """Whether each stretch, which crosses no limit of ``times``, is in one of them."""
    first, stop = touched(start, end, times)
    inside: Bools = (stop > first) & (end > start)
    return inside


def _stretches(trace: Trace) -> Spans:
    """The long stretches of the launching threads, and all within operators that launch a kernel for the first time
    and take long for it; of other threads than the main one only those in a slice."""
    segments, lanes, main = host_segments(trace), distinct(critical_graph(trace).lane), main_track(trace)
    parts = [(np.empty(0, np.int64),) * 3]
    for lane in lanes[lanes >= 0].tolist():
        part = segments.of(lane)
        ts, row = segments.ts[part], segments.row[part][:-1].astype(np.int64)
        long = (np.diff(ts) >= LONG_NS) | _within(cold_times(trace, lane), ts[:-1], ts[1:])
        chosen = long & _other_work(trace, row) & ((row >= 0) | (lane == main))
        chosen[chosen] = ~_elsewhere(trace, lane, ts[:-1][chosen], ts[1:][chosen], row[chosen])
        parts.append((ts[:-1][chosen], ts[1:][chosen], row[chosen]))
    return Spans(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _elsewhere(trace: Trace, lane: int, start: Int64s, end: Int64s, row: Int64s) -> Bools:
    """Whether operators of other threads stretch over half of each stretch that is in no operator: then it waits for
    them, as the main thread does for the backward pass."""
    events = trace.events
    rows = events.slices_of(Category.CPU_OP)
    rows = rows[events.track[rows] != lane]
    ts = events.ts[rows]
    first, stop = np.searchsorted(ts, start, side="left"), np.searchsorted(ts, end, side="left")
    some = stop > first
    spread = np.zeros(len(start), np.int64)
    spread[some] = ts[stop[some] - 1] - ts[first[some]]
    idle = (row < 0) | (events.category[row] != Category.CPU_OP)
    elsewhere: Bools = idle & (2 * spread > end - start)
    return elsewhere


def _other_work(trace: Trace, row: Int64s) -> Bools:
    """Whether the time in each row, innermost on its thread, is neither of the runtime, nor of a loader or compiler."""
    kind = host_kinds(trace, row)
    other: Bools = (kind == BoundBy.CPU_OPERATOR) | (kind == BoundBy.OUTSIDE_OPERATORS)
    named = compiles(trace) | starting(trace, *_COMMUNICATION)
    other &= ~((row >= 0) & named[trace.events.name[row]])
    return other


def _names(trace: Trace, rows: Int64s, ns: Int64s) -> list[str]:
    """What the stretches are in, longest first. A step is no name; some profilers record it as an operator."""
    spent: Counter[str] = Counter()
    for row, part in zip(rows.tolist(), ns.tolist(), strict=True):
        name = trace.strings[trace.events.name[row]] if row >= 0 else UNNAMED
        spent[UNNAMED if name.startswith("ProfilerStep#") else short(name)] += part
    return [name for name, _ in spent.most_common()]
