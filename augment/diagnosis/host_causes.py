"""Who owns which stretch of the host's time: each cause of a late host but launching itself, decided here once.

Rules say what their cause is; `launch_bound` leaves those stretches out. A new cause is a function here, in
:data:`CAUSES`, and a rule.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from augment import arrays
from augment.arrays.intervals import Intervals, clip, expand, subtract, touched, union, where
from augment.core import COMPLETE, LAUNCHES, ON_DEVICE, Category, Trace, derived
from augment.core.attachments import WORKERS
from augment.diagnosis import judging
from augment.diagnosis.captures import captured_in, captures, compilations, compiles
from augment.diagnosis.first_calls import DRIVERS_OWN, cold_start, cold_times, waiting_calls
from augment.diagnosis.recording_completeness import kernel_launches
from augment.diagnosis.rule import NOWHERE, WARNING_RATIO, Spans
from augment.diagnosis.standstills import MOST_AROUND, elsewhere, standstills
from augment.facts import critical, gpu, host, names, waits

RETURN_NS = 100_000  #: so soon after the work that it waits for a call returns
LONG_NS = 1_000_000  #: an uninterrupted stretch of the host that is longer is another matter than launching
TAKING = 64  #: launches of a kernel, which taking a batch that is there costs a host at most: recorded ones 7 to 12
MEMORY_NS = 100_000_000  #: a request for memory that takes longer, with idle devices, is something else: a context
IDLE_RATIO = 0.5  #: least share of a call in which the devices idle, unless they idle for :data:`LONG_CALL_NS`
_COLLECTING = re.compile(
    r"^(?:Python )?GC$|^gc[.:]|^<built-in (?:function|method) collect(?: of module object)?\b|\bgc\.collect\b"
)
_OF_WORKERS = re.compile(WORKERS)
_POLLS = re.compile(r"^(?:cuda|cu|hip)(?:Event|Stream)Query|^urEventGetInfo")
_COMMUNICATION = ("nccl:", "gloo:", "mpi:", "c10d::")  #: waiting for other ranks


class Cause(Struct, frozen=True):
    """What holds the host up: the slices, the cut that takes them out of the steady steps, and what that saves."""

    spans: Spans
    cut: critical.Cut
    saved_ns: int  #: per step
    inferred: bool = False  #: most of the slices only surround what holds the host up


@derived
def fetching(trace: Trace) -> Cause | None:
    """Fetches of batches, but those that only take from workers what is there: their time is the host's own."""
    rows = judging.fetches_in_steps(trace)
    of_workers = names.matching(trace, _OF_WORKERS)[trace.events.name[rows]]
    if of_workers.any() and len(launches := kernel_launches(trace)):
        rows = rows[~of_workers | (trace.events.dur[rows] > TAKING * arrays.median(trace.events.dur[launches]))]
    return _of_slices(trace, rows)


@derived
def workers_pace_ns(trace: Trace) -> int:
    """How long the workers of loaders need for the batches of a step; 0 where less than half of the steps wait for one.
    Such a fetch ends at a moment of the clock: two in a row that wait are as far apart as workers need for a batch."""
    cause, whole = fetching(trace), judging.measure(trace)
    rows = judging.fetches_in_steps(trace)
    rows = rows[names.matching(trace, _OF_WORKERS)[trace.events.name[rows]]]
    waits = arrays.is_among(rows, cause.spans.row if cause else rows[:0])
    steps = arrays.distinct(whole.windows.of_host(trace.events.ts[rows[waits]]))
    apart = np.diff(trace.events.end[rows])[waits[1:] & waits[:-1]]
    return int(apart.mean() * len(rows) / whole.count) if len(apart) and 2 * len(steps) >= whole.count else 0


@derived(until="diagnosis")
def beside_workers_ns(trace: Trace) -> int | None:
    """The most per step that anything but quicker batches saves, where their pace decides how long steps are, by enough
    to be grave: if anything else takes less time, the host waits as much longer. None: it does not."""
    cause, whole, pace_ns = fetching(trace), judging.measure(trace), workers_pace_ns(trace)
    if cause is None or whole.ratio(cause.saved_ns) < WARNING_RATIO or not pace_ns:
        return None
    return max(whole.length_ns - pace_ns, 0)


@derived
def allocating(trace: Trace) -> Cause | None:
    """Calls that ask the driver for memory, and wait while they do."""
    calls = trace.events.slices_of(*LAUNCHES)
    rows = judging.rows_in_steps(trace, calls[names.matching(trace, names.CALLS_FOR_MEMORY)[trace.events.name[calls]]])
    rows = _of_no_cold_start(trace, rows[~arrays.is_among(rows, single_calls(trace))])  # those create the context
    if not len(rows):
        return None
    spans = Spans.of(trace, rows)
    cut = critical.joined(
        [judging.host_cut(trace, trace.events.track[rows], spans.start, spans.end), critical.without_waits(trace, rows)]
    )
    return Cause(spans, cut, judging.saved_a_step(trace, cut))


@derived
def calling(trace: Trace) -> Cause | None:
    """Single calls of the runtime while devices idle."""
    return _of_slices(trace, single_calls(trace))


@derived
def stalling(trace: Trace) -> Cause | None:
    """Long stretches of the launching threads that are no launching, and long handovers between them."""
    (spans, _), (handed, edges) = _stretches(trace), _long_handovers(trace)
    track = np.where(spans.row >= 0, trace.events.track[spans.row], critical.main_track(trace)).astype(np.int32)
    which, parts = judging.within_steps(trace, handed.start, handed.end)
    cut = critical.joined(
        [judging.host_cut(trace, track, spans.start, spans.end), critical.Cut(edges[which], parts.end - parts.start)]
    )
    whole = Spans.joined([spans, handed])
    if not len(judging.within_steps(trace, whole.start, whole.end)[0]):
        return None
    inferred = 2 * (handed.end - handed.start).sum() > (whole.end - whole.start).sum()
    return Cause(whole, cut, judging.saved_by_host(trace, cut), bool(inferred))


@derived
def may_lack_requests(trace: Trace) -> bool:
    """Whether the host may be that of a server without requests: it stalls in nothing that was recorded, and neither
    steps nor lines of Python are recorded, nor anything of a training."""
    cause, known = stalling(trace), names.starting(trace, "autograd::", "Optimizer.").any()
    known |= (trace.events.category == Category.PYTHON_FUNCTION).any()
    return (
        judging.measure(trace).unit == "recording"
        and cause is not None
        and not known
        and bool((cause.spans.row < 0).all())
    )


@derived
def starving(trace: Trace) -> Cause | None:
    """Standstills of threads that get no CPU."""
    spans = standstills(trace)
    if not len(spans):
        return None
    track = np.where(spans.row >= 0, trace.events.track[spans.row], critical.main_track(trace)).astype(np.int32)
    return _of_spans(trace, spans, track)


@derived
def collecting(trace: Trace) -> Cause | None:
    """Collections of Python's garbage, on the main thread where they are on one that launches nothing."""
    rows = _collections(trace)
    if not len(rows):
        return None
    track = trace.events.track[rows]
    track = np.where(np.isin(track, critical.launching_tracks(trace)), track, critical.main_track(trace)).astype(
        np.int32
    )
    return _of_spans(trace, Spans.of(trace, rows), track)


@derived
def compiling(trace: Trace) -> Cause | None:
    """Work of the compiler in steady steps; without steps it cannot be said whether it goes on."""
    rows = compilations(trace)
    if not len(rows) or judging.measure(trace).unit == "recording":
        return None
    spans = Spans.of(trace, judging.rows_in_steps(trace, rows))
    return _of_spans(trace, spans, trace.events.track[spans.row])


@derived
def capturing(trace: Trace) -> Cause | None:
    """Captures and instantiations of graphs, and the long stretches that belong to them."""
    spans = Spans.joined([captures(trace), _stretches(trace)[1]])
    if not len(judging.within_steps(trace, spans.start, spans.end)[0]):
        return None
    return _of_spans(trace, spans, trace.events.track[spans.row])


@derived
def loading(trace: Trace) -> Cause | None:
    """The operators that load kernels, in a recording that is a cold start."""
    start = cold_start(trace)
    if start is None or not len(start.spans):
        return None
    return _of_spans(trace, start.spans, trace.events.track[start.spans.row])


CAUSES = (fetching, allocating, calling, starving, collecting, stalling, compiling, capturing, loading)


@derived
def profiler_slices(trace: Trace) -> arrays.EventRows:
    """The rows of the profiler's own work, not the driver's, that holds up the threads that launch: on them, or, of a
    thread that is not known (0), while devices idle and these threads begin, end and await nothing."""
    events, segments = trace.events, host.host_segments(trace)
    rows = events.slices_of(Category.OVERHEAD)
    rows = rows[~names.matching(trace, DRIVERS_OWN)[events.name[rows]]]
    lanes = critical.launching_tracks(trace)
    there = np.isin(events.track[rows], lanes)
    spans = Spans.of(trace, rows)
    unknown = np.array([track.tid in (0, "0") for track in trace.tracks], np.bool_)
    still = ~there & unknown[events.track[rows]] & (2 * judging.idle_ns(trace, spans) > spans.end - spans.start)
    for lane in lanes:
        part = segments.of(lane)
        ts, row = segments.ts[part], segments.row[part].astype(np.int64)
        first, stop = np.searchsorted(ts, spans.start, side="right"), np.searchsorted(ts, spans.end, side="left")
        still &= (first >= stop) & ~arrays.is_among(row[np.maximum(first - 1, 0)], waiting_calls(trace))
    chosen: arrays.EventRows = rows[there | still]
    return chosen


@derived(until="diagnosis")
def owned_times(trace: Trace) -> dict[int, Intervals]:
    """For each thread with any, when it does what another rule names; disjoint."""
    spans = Spans.joined([cause.spans for cause in (find(trace) for find in CAUSES) if cause is not None])
    track = np.where(spans.row >= 0, trace.events.track[spans.row], critical.main_track(trace))
    return {
        lane: union(spans.start[places], spans.end[places]) for lane, places in arrays.each(track, len(trace.tracks))
    }


def _of_slices(trace: Trace, rows: arrays.EventRows) -> Cause | None:
    return _of_spans(trace, Spans.of(trace, rows), trace.events.track[rows]) if len(rows) else None


def _of_spans(trace: Trace, spans: Spans, track: arrays.Int32s) -> Cause:
    cut = judging.host_cut(trace, track, spans.start, spans.end)
    return Cause(spans, cut, judging.saved_by_host(trace, cut))


@derived(until="diagnosis")
def single_calls(trace: Trace) -> arrays.EventRows:
    """The rows of single long calls of the runtime in steady steps, during which devices idle; of calls within each
    other, the outermost."""
    events = trace.events
    rows = judging.rows_in_steps(trace, events.slices_of(*LAUNCHES))
    rows = rows[events.dur[rows] >= names.LONG_CALL_NS]
    named = events.name[rows]
    rows = rows[~names.matching(trace, names.OTHER_CALLS)[named]]
    rows = rows[
        ~arrays.is_among(rows, waiting_calls(trace)) & ~arrays.is_among(rows, arrays.distinct(standstills(trace).row))
    ]
    memory = names.matching(trace, names.CALLS_FOR_MEMORY)[events.name[rows]]
    rows = rows[~memory | ((events.dur[rows] >= MEMORY_NS) & (judging.measure(trace).unit == "recording"))]
    rows = rows[host.outermost(trace, rows, LAUNCHES) == rows]
    rows = _of_no_cold_start(trace, rows)
    chosen: arrays.EventRows = rows[
        judging.idle_ns(trace, Spans.of(trace, rows)) >= np.minimum(IDLE_RATIO * events.dur[rows], names.LONG_CALL_NS)
    ]
    return chosen


def _of_no_cold_start(trace: Trace, rows: arrays.EventRows) -> arrays.EventRows:
    """Those of ``rows``, calls, that do not belong to the loading of a cold start."""
    start, ts = cold_start(trace), trace.events.ts[rows]
    return rows if start is None else rows[~inside_of(union(start.spans.start, start.spans.end), ts, ts + 1)]


@derived(until="diagnosis")
def _collections(trace: Trace) -> arrays.EventRows:
    """The rows of collections in steady steps; of those within each other, the outermost."""
    events = trace.events
    named = names.matching(trace, _COLLECTING)
    rows = events.where((events.phase == COMPLETE) & named.take(events.name[:]) & (events.dur > 0))
    rows = rows[~arrays.is_any(events.category[rows], (*ON_DEVICE, Category.CPU_OP))]
    rows = judging.rows_in_steps(trace, rows)
    end = events.ts[rows] + events.dur[rows]
    inside = np.zeros(len(rows), np.bool_)
    inside[1:] = end[1:] <= np.maximum.accumulate(end)[:-1]
    kept: arrays.EventRows = rows[~inside]
    return kept


def inside_of(times: Intervals, start: arrays.Int64s, end: arrays.Int64s) -> arrays.Bools:
    """Whether each stretch, which crosses no limit of ``times``, is in one of them."""
    first, stop = touched(start, end, times)
    inside: arrays.Bools = (stop > first) & (end > start)
    return inside


@derived(until="diagnosis")
def _stretches(trace: Trace) -> tuple[Spans, Spans]:
    """The long stretches of the launching threads, also of many frames of Python, and all within operators that launch
    a kernel for the first time and take long for it, which in a cold start have a rule of their own; of other threads
    than the main one only those in a slice. Apart, those of :func:`captured_in`."""
    segments, main = host.host_segments(trace), critical.main_track(trace)
    others, still = Spans.of(trace, np.append(profiler_slices(trace), _collections(trace))), standstills(trace)
    waited = judging.unrecorded_waits(trace)[1]
    other_times = union(np.append(others.start, waited.start), np.append(others.end, waited.end))
    parts = list[Spans]()
    for lane in critical.launching_tracks(trace):
        part = segments.of(lane)
        ts, row = segments.ts[part], segments.row[part][:-1].astype(arrays.EventRow)
        cold = inside_of(cold_times(trace, lane), ts[:-1], ts[1:])
        long = (np.diff(ts) >= LONG_NS) & ~cold if cold_start(trace) else (np.diff(ts) >= LONG_NS) | cold
        long &= ~arrays.is_among(ts[:-1], still.start)
        spans = Spans.joined([Spans(ts[:-1], ts[1:], row).take(long), _runs_of_frames(trace, lane, ts, row)])
        known = Spans.joined([spans, still])
        spans = Spans.joined([spans, _quiet_operators(trace, lane, union(known.start, known.end))])
        if not len(spans):
            continue
        spans = spans.take(_other_work(trace, spans.row) & ((spans.row >= 0) | (lane == main)))
        which, _, owned = clip(Intervals(spans.start, spans.end), other_times)
        spans = spans.take(2 * arrays.sums(which, owned.end - owned.start, len(spans)) <= spans.end - spans.start)
        spans = spans.take(~elsewhere(trace, lane, spans.start, spans.end, spans.row))
        spans = spans.take(~_ends_with_work(trace, spans.start, spans.end))
        parts.append(spans.take(np.argsort(spans.start, kind="stable")))
    spans = Spans.joined(parts)
    captured = captured_in(trace, spans.row)
    return spans.take(~captured), spans.take(captured)


def _runs_of_frames(trace: Trace, lane: int, ts: arrays.Int64s, row: arrays.EventRows) -> Spans:
    """The long stretches in which a thread is in no operator or call, but in one short frame of Python after the other;
    the rows are the shortest frames that hold most of a stretch. Without stacks each would be one segment. Calls that
    ask whether work is done are part of them while devices idle: what the host waits for is something else."""
    events = trace.events
    chosen = np.append(critical.host_kinds(trace, row) == critical.BoundBy.OUTSIDE_OPERATORS, False)
    polls = np.flatnonzero((row >= 0) & names.matching(trace, _POLLS)[events.name[row]])
    chosen[polls] = judging.idle_ns(trace, Spans(ts[polls], ts[polls + 1], row[polls])) > 0
    outside = where(ts, chosen)
    alone = where(ts, chosen & (np.diff(ts, append=ts[-1:]) >= LONG_NS))  # each of these is a stretch itself
    start, end = subtract(outside, alone)
    which = np.searchsorted(outside.start, start, side="right") - 1
    long = (arrays.sums(which, end - start, len(outside.start)) >= LONG_NS)[which]  # more than a little beside such
    start, end = start[long], end[long]
    if not len(start):
        return NOWHERE
    around = np.full(len(start), arrays.NO_INDEX, arrays.EventRow)
    frames = events.slices_of(Category.PYTHON_FUNCTION, Category.USER_ANNOTATION, Category.CPU_OP)
    frames = frames[(events.track[frames] == lane) & (events.dur[frames] >= MOST_AROUND * names.LONG_CALL_NS)]
    frames = frames[np.argsort(-events.dur[frames], kind="stable")]
    spans = Spans.of(trace, frames)
    which, stretch, parts = clip(Intervals(spans.start, spans.end), Intervals(start, end))
    most = parts.end - parts.start >= MOST_AROUND * (end - start)[stretch]
    around[stretch[most]] = frames[which[most]]  # of several, the last, which is the shortest
    return Spans(start, end, around)


def _quiet_operators(trace: Trace, lane: int, known: Intervals) -> Spans:
    """The long operators of a thread that launch nothing, as one that splits a tensor into many views; without
    the ``known`` times in them. Had what they call not been recorded, each would be one segment."""
    events = trace.events
    rows, calls = events.slices_of(Category.CPU_OP), events.slices_of(*LAUNCHES)
    rows = rows[(events.track[rows] == lane) & (events.dur[rows] >= LONG_NS)]
    ts = events.ts[calls[events.track[calls] == lane]]
    rows = rows[np.searchsorted(ts, events.ts[rows]) == np.searchsorted(ts, events.ts[rows] + events.dur[rows])]
    end = events.ts[rows] + events.dur[rows]
    outer = np.ones(len(rows), np.bool_)
    outer[1:] = end[1:] > np.maximum.accumulate(end)[:-1]
    rows, whole = rows[outer], Intervals(events.ts[rows[outer]], end[outer])
    start, end = subtract(whole, known)
    which = np.searchsorted(whole.start, start, side="right") - 1
    many = (arrays.sums(which, end - start, len(rows)) >= LONG_NS)[which]  # not only one stall, and little around it
    return Spans(start[many], end[many], rows[which[many]])


def _ends_with_work(trace: Trace, start: arrays.Int64s, end: arrays.Int64s) -> arrays.Bools:
    """Whether one piece of GPU work runs from before each stretch until just before its end: the host waits for it in a
    call that profilers do not record, as PyTorch's allocator does before it gives memory back."""
    work = gpu.work(trace)
    places = np.flatnonzero(work.end - work.ts >= (end - start).min(initial=RETURN_NS))
    places = places[np.argsort(work.end[places], kind="stable")]
    ts, ends = work.ts[places], work.end[places]
    first, stop = np.searchsorted(ends, end - RETURN_NS), np.searchsorted(ends, end, side="right")
    which, candidate = expand(first, stop)
    waits = np.zeros(len(start), np.bool_)
    waits[which[ts[candidate] <= start[which]]] = True
    return waits


def _long_handovers(trace: Trace) -> tuple[Spans, arrays.Int64s]:
    """The times in which neither the main thread nor one that works for it does anything for long, until one of them
    goes on; the rows are what the main thread is in. And the edges of the graph that are so long."""
    graph, segments, main = (critical.graph(trace), host.host_segments(trace), critical.main_track(trace))
    edges = np.flatnonzero((graph.kind == waits.DependencyKind.HANDOVER) & (graph.weight >= LONG_NS))
    into = graph.lane[graph.target[edges]] == main
    edges = edges[into | (graph.lane[graph.source[edges]] == main)]
    if not len(edges):
        return Spans.of(trace, edges), edges
    start, end = graph.ts[graph.source[edges]], graph.ts[graph.target[edges]]
    moment = np.where(graph.lane[graph.target[edges]] == main, end - 1, start)
    part = segments.of(main)
    row = segments.row[part][np.searchsorted(segments.ts[part], moment, side="right") - 1].astype(np.int64)
    idle = _other_work(trace, row) & ~elsewhere(trace, main, start, end, row)
    return Spans(start[idle], end[idle], row[idle]), edges[idle]


def _other_work(trace: Trace, row: arrays.EventRows) -> arrays.Bools:
    """Whether the time in each row, innermost on its thread, is neither of the runtime, nor of a loader or compiler."""
    kind = critical.host_kinds(trace, row)
    other: arrays.Bools = (kind == critical.BoundBy.CPU_OPERATOR) | (kind == critical.BoundBy.OUTSIDE_OPERATORS)
    named = compiles(trace) | names.starting(trace, *_COMMUNICATION)
    other &= ~((row >= 0) & named[trace.events.name[row]])
    return other
