"""Calls in which the host stands: those that wait for a device, and the first of each operator. Libraries set
themselves up there, and kernels are loaded; later calls lack it.
"""

from __future__ import annotations

import math
import re

import numpy as np
from msgspec import Struct

from augment import arrays, facts
from augment.core import LAUNCHES, Category, Trace, derived
from augment.diagnosis.captures import FAR_LONGER
from augment.diagnosis.judging import idle_ns, measure, rows_in_steps, within_steps
from augment.diagnosis.rule import Spans
from augment.facts.waits.sync_dependencies import freeing_calls


@derived(until="diagnosis")
def waiting_calls(trace: Trace) -> arrays.EventRows:
    """The rows of the calls that waited, ascending, without those that waited for work of before the recording alone: a
    profiling script that synchronizes before it measures; and without those that, without steps, waited for its last
    work, behind which nothing comes. Calls that give memory back have a rule of their own; those that only ask whether
    work is done, as a watchdog does, wait for nothing; those in which a profiler is stopped wait for it."""
    graph = facts.critical.graph(trace)
    calls = arrays.distinct(graph.to_row[graph.kind == facts.waits.DependencyKind.SYNC].astype(np.int64))
    calls = calls[calls >= 0]
    calls = calls[~arrays.is_among(calls, freeing_calls(trace))]
    calls = calls[~facts.names.matching(trace, _ASKS)[trace.events.name[calls]]]
    stopping = facts.names.matching(trace, _STOPS)
    calls = calls[facts.host.innermost(trace, calls, LAUNCHES, stopping) < 0]
    launch = facts.gpu.work(trace).launch
    launch = launch[launch != arrays.NO_INDEX]
    if len(launch):  # what returned before the first recorded launch waited for earlier work alone
        calls = calls[trace.events.ts[calls] + trace.events.dur[calls] > trace.events.ts[launch].min()]
    if measure(trace).unit == "recording":
        calls = calls[trace.events.ts[calls] + trace.events.dur[calls] < measure(trace).windows.end.max(initial=0)]
    return rows_in_steps(trace, calls)


CONTEXT_NS = 100_000_000  #: no call before the first launch takes so long but to create the device's context,
CONTEXT_BY_MEMORY_NS = 1_000_000_000  #: or so long where it gives back, or asks for, memory
MOST_CHANCE = 1e-3  #: that slow operators are first launches by chance
FEW_PIECES = 16  #: of GPU work: fewer repeat nothing
_WORKS = re.compile(r"Graph|Synchronize|Memcpy|Memset|Query|StreamWait|ElapsedTime|Module|Library|aclop")
_STOPS = re.compile(r"ProfilerStop")
_ASKS = re.compile(r"Query")
_MEMORY = re.compile(r"Malloc|Free|Alloc|Mem(?:Create|Map|Host)|Host(?:Register|Unregister)")
#: what CUPTI lists with the profiler's overhead, but the driver does with or without one
DRIVERS_OWN = re.compile(r"(?i)(?:function|module) loading|driver (?:jit )?compiler|command buffer full")
_LOADS = re.compile(r"(?i)(?:function|module) loading")
_LOADING = re.compile(r"^cu\w*(?:(?:Module|Library)Load|GetFunction|LibraryGetKernel)")  #: calls that do nothing else
LEAST_USUAL = 2  #: operators that tell how long one of their name usually takes
LEAST_NS = 200_000  #: a first call that takes less than this beyond the usual is ordinary


def at_first_calls(trace: Trace, rows: arrays.EventRows) -> arrays.Bools:
    """Which slices ``rows`` lie within the first call in the recording of the innermost operator around them, and that
    operator is called again afterwards; a call within a call of the same name is not another one."""
    events = trace.events
    operators = events.slices_of(Category.CPU_OP)
    around = facts.host.innermost(trace, rows, (Category.CPU_OP,))
    names = events.name[operators]
    first, last = np.full((2, len(trace.strings)), -1)
    first[names[::-1]], last[names] = operators[::-1], operators
    name = events.name[np.maximum(around, 0)]
    row = first[name]
    end = events.ts[row] + events.dur[row]
    within = (events.track[rows] == events.track[row]) & (events.ts[rows] >= events.ts[row])
    within &= events.ts[rows] + events.dur[rows] <= end
    again: arrays.Bools = (around >= 0) & within & (events.ts[last[name]] >= end)
    return again


class LaunchingOperators(Struct, frozen=True):
    """The innermost operators that launch kernels, if it is known how long those of their name usually take: the median
    of at least :data:`LEAST_USUAL` of them that launch only kernels launched before. Equal-length columns.

    ``row``, ascending, into the event table; ``first``: it launches a kernel for the first time in the recording;
    ``slow``: it takes far longer than usual, without waits for the device.
    """

    row: arrays.EventRows
    first: arrays.Bools
    slow: arrays.Bools


@derived(until="diagnosis")
def launching_operators(trace: Trace) -> LaunchingOperators:
    """The operators, beside what is usual."""
    work, events = facts.gpu.work(trace), trace.events
    place = np.flatnonzero((work.launch != arrays.NO_INDEX) & (events.category[work.row] == Category.KERNEL))
    place = place[np.argsort(events.ts[work.launch[place]], kind="stable")]
    operator = facts.host.operators_around(trace, work.launch[place])
    place, operator = place[operator >= 0], operator[operator >= 0]
    kernel = events.name[work.row[place]]
    first = np.full(len(trace.strings), -1, np.int64)
    first[kernel[::-1]] = np.arange(len(kernel))[::-1]
    new, row = arrays.distinct(operator[first[first >= 0]]), arrays.distinct(operator)
    is_new = arrays.is_among(row, new)
    # the duration of each without the waiting calls within
    calls, worked = waiting_calls(trace), events.dur[row].copy()
    for track in arrays.distinct(events.track[calls]).tolist():
        waits = calls[events.track[calls] == track]
        of_track = np.flatnonzero(events.track[row] == track)
        spans = arrays.Intervals(events.ts[row[of_track]], events.ts[row[of_track]] + worked[of_track])
        part_of, _, parts = arrays.clip(spans, arrays.union(events.ts[waits], events.ts[waits] + events.dur[waits]))
        worked[of_track] -= arrays.sums(part_of, parts.end - parts.start, len(of_track))
    names, which = arrays.numbered(events.name[row[~is_new]])
    bounds = arrays.group_bounds(which, len(names))
    enough = np.diff(bounds) >= LEAST_USUAL
    usual_of_name = np.full(len(trace.strings), arrays.NO_INDEX, np.int64)
    usual_of_name[names[enough]] = np.floor(arrays.grouped_medians(worked[~is_new], which, bounds)[enough])
    usual = usual_of_name[events.name[row]]
    known, slow = usual != arrays.NO_INDEX, (worked > FAR_LONGER * usual) & (worked - usual >= LEAST_NS)
    return LaunchingOperators(row[known], is_new[known], slow[known])


@derived(until="diagnosis")
def cold_operators(trace: Trace) -> arrays.EventRows:
    """The operators, ascending rows, that launch a kernel for the first time in the recording, and therefore take long:
    more than :data:`FAR_LONGER` times as long as usual.

    The driver loads a kernel when it is first launched, and libraries choose an algorithm for each new shape.
    """
    operators = launching_operators(trace)
    rows: arrays.EventRows = operators.row[operators.first & operators.slow]
    return rows


@derived(until="diagnosis")
def loading_calls(trace: Trace) -> arrays.EventRows:
    """The calls, ascending rows, that load a module: the launches in which the devices idle for long, at least one of
    them the first of its kernel in the recording, and never for a tenth of that in one of a kernel that was launched
    before, which a shared device or a host that gets no CPU would hold up, too. Or the driver says that it loads.
    Without steps also calls that do nothing else, as at the start of a process."""
    work, events = facts.gpu.work(trace), trace.events
    place = np.flatnonzero((work.launch != arrays.NO_INDEX) & (events.category[work.row] == Category.KERNEL))
    place = place[~facts.names.matching(trace, _WORKS)[events.name[work.launch[place]]]]
    place = place[np.argsort(events.ts[work.launch[place]], kind="stable")]
    calls, first = work.launch[place], np.zeros(len(place), np.bool_)
    number = {pid: number for number, pid in enumerate(dict.fromkeys(track.pid for track in trace.tracks))}
    process = np.array([number[track.pid] for track in trace.tracks], np.int64)
    of_process = np.stack((events.name[work.row[place]], process[events.track[calls]]))  # each loads it for itself
    first[np.unique(of_process, axis=1, return_index=True)[1]] = True
    idle = idle_ns(trace, Spans.of(trace, calls))
    known = int(idle[~first].max(initial=0))
    far = int(idle[first].max(initial=0)) >= 10 * known
    loads = events.slices_of(Category.OVERHEAD)
    loads = loads[facts.names.matching(trace, _LOADS)[events.name[loads]]]
    alone = events.slices_of(*LAUNCHES) if measure(trace).unit == "recording" else loads[:0]
    alone = alone[facts.names.matching(trace, _LOADING)[events.name[alone]]]
    began = np.sort(events.ts[np.append(loads, alone)])  # by time: CUPTI has overhead on a track of its own
    loading = np.searchsorted(began, events.ts[calls] + events.dur[calls]) > np.searchsorted(began, events.ts[calls])
    loading &= idle > LEAST_NS
    far |= len(alone) > 0
    return arrays.distinct(np.append(calls[loading | (first & (idle > max(known, LEAST_NS)) & far)], alone))


class ColdStart(Struct, frozen=True):
    """That a recording shows the start of a process rather than its run. ``spans``: the time of :func:`cold_operators`
    in the steps that are judged, and of :func:`loading_calls` in no such operator; ``context``: the row of the call
    that created the device's context, or -1."""

    spans: Spans
    context: int


@derived(until="diagnosis")
def cold_start(trace: Trace) -> ColdStart | None:
    """Whether most of the judged time passes, with idle devices, in operators that load kernels; or a context is
    created, and there is too little work for anything to be usual.

    It takes evidence that these operators are slow because they are the first: a context that is created in the
    recording, or that chance would hardly make first launches of so many of the slow ones; or launches that load a
    module, where no later step is there to tell.
    """
    context, rows, events = _context_creation(trace), cold_operators(trace), trace.events
    loads, by_chance = loading_calls(trace), _chance(launching_operators(trace)) >= MOST_CHANCE
    longest_ns = int(idle_ns(trace, Spans.of(trace, loads)).max(initial=0))
    if measure(trace).count > 1 or (by_chance and longest_ns < CONTEXT_NS):
        loads = loads[:0]  # later steps tell, or it is no module
    rows = arrays.distinct(np.append(rows, loads[~arrays.is_among(facts.host.operators_around(trace, loads), rows)]))
    which, parts = within_steps(trace, events.ts[rows], events.ts[rows] + events.dur[rows])
    spans, whole = Spans(parts.start, parts.end, rows[which]), arrays.union(parts.start, parts.end)
    pause = Spans(whole.start, whole.end, np.full(len(whole.start), arrays.NO_INDEX, np.int64))
    most = 2 * int(idle_ns(trace, pause).sum()) > measure(trace).length_ns * measure(trace).count
    if most and (context != arrays.NO_INDEX or len(loads) or not by_chance):
        return ColdStart(spans, context)
    few = 0 < len(facts.gpu.work(trace)) < FEW_PIECES
    return ColdStart(spans, context) if context != arrays.NO_INDEX and few else None


def _chance(operators: LaunchingOperators) -> float:
    """How likely as many slow operators launch something for the first time as do, or more, if what makes them slow
    struck any alike."""
    slow, hits = int(operators.slow.sum()), int((operators.slow & operators.first).sum())
    share = float(operators.first.mean()) if len(operators.row) else 1.0
    if share in (0.0, 1.0):
        return 1.0
    ways = (math.lgamma(slow + 1) - math.lgamma(n + 1) - math.lgamma(slow - n + 1) for n in range(hits, slow + 1))
    terms = zip(ways, range(hits, slow + 1), strict=True)
    return sum(math.exp(way + n * math.log(share) + (slow - n) * math.log1p(-share)) for way, n in terms)


def _context_creation(trace: Trace) -> int:
    """The row of the longest call of the runtime that returns before anything is launched or runs on a device, and
    takes as long as only the device's context does; -1 if there is none."""
    work, events = facts.gpu.work(trace), trace.events
    launch = work.launch[work.launch != arrays.NO_INDEX]
    if not len(launch):
        return arrays.NO_INDEX
    first = min(int(events.ts[launch].min()), int(work.ts.min()))
    calls = events.slices_of(*LAUNCHES)
    calls = calls[(events.ts[calls] + events.dur[calls] <= first) & (events.dur[calls] >= CONTEXT_NS)]
    calls = calls[~facts.names.matching(trace, _WORKS)[events.name[calls]]]
    memory = facts.names.matching(trace, _MEMORY)[events.name[calls]]
    calls = calls[~memory | (events.dur[calls] >= CONTEXT_BY_MEMORY_NS)]
    return int(calls[events.dur[calls].argmax()]) if len(calls) else arrays.NO_INDEX


def cold_times(trace: Trace, track: int) -> arrays.Intervals:
    """When a thread is in :func:`cold_operators`, without overlaps."""
    rows = cold_operators(trace)
    rows = rows[trace.events.track[rows] == track]
    return arrays.union(trace.events.ts[rows], trace.events.ts[rows] + trace.events.dur[rows])
