"""The critical path: the chain of events that decided how long a recording took, without a gap.

The path is found from the end of the recording back to its start: of the prerequisites of each moment, it continues
with the one that was fulfilled last. See ``critical_graph``.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from msgspec import Struct

from augment.arrays import NO_INDEX, Bools, Bytes, EventRows, Int32s, Int64s, each, is_among, reserved
from augment.core import LAUNCHES, Category, Trace, derived
from augment.facts import gpu, host, names
from augment.facts.critical.critical_graph import critical_graph, latest, walk
from augment.facts.steps.step_windows import recorded_windows, step_windows, steps
from augment.facts.waits.dependencies import UNEXPLAINED_NS, DependencyKind
from augment.kernels import critical as loops
from augment.kernels.native import native


class BoundBy(IntEnum):
    """What a piece of the path consists of."""

    CPU_OPERATOR = 0  #: a thread is in an operator
    RUNTIME_CALL = 1  #: a thread is in a call of the runtime or driver, and does not wait for a device
    DATA_LOADING = 2  #: a thread fetches the next batch from a data loader
    OUTSIDE_OPERATORS = 3  #: a thread is in none of these: Python, or code that was not recorded
    THREAD_HANDOVER = 4  #: from the last event of one thread to the next event of another
    LAUNCH_DELAY = 5  #: from a launch to the start of its work
    KERNEL_COMPUTATION = 6
    KERNEL_COMMUNICATION = 7
    KERNEL_MEMORY = 8
    KERNEL_GAP = 9  #: from the end of work to the start of the next on its stream, which had been launched
    SYNC = 10  #: from the end of work to the event that waited for it: the return of a call, the start of other work
    IDLE = 11  #: no known reason to wait


KINDS = [kind.name.lower() for kind in BoundBy]

#: what each kind is called where it is drawn: one word for one thing on all rows, so that it has one colour
DRAWN = (
    "host: op",
    "launch",
    "host: data",
    "host: other",
    "host: handover",
    "launch delay",
    "compute",
    "communication",
    "copy",
    "gap",
    "sync",
    "idle",
)

_ON_THREAD = np.full(256, BoundBy.OUTSIDE_OPERATORS, np.uint8)
_ON_THREAD[Category.CPU_OP] = BoundBy.CPU_OPERATOR
_ON_THREAD[list(LAUNCHES)] = BoundBy.RUNTIME_CALL
_DELAY = np.full(256, BoundBy.IDLE, np.uint8)
_DELAY[DependencyKind.LAUNCH] = BoundBy.LAUNCH_DELAY
_DELAY[DependencyKind.STREAM] = BoundBy.KERNEL_GAP
_DELAY[DependencyKind.HANDOVER] = BoundBy.THREAD_HANDOVER
_DELAY[[DependencyKind.WAIT_EVENT, DependencyKind.SYNC, DependencyKind.FULL_QUEUE, DependencyKind.INFERRED]] = (
    BoundBy.SYNC
)


NAMED = (
    BoundBy.CPU_OPERATOR,
    BoundBy.RUNTIME_CALL,
    BoundBy.DATA_LOADING,
    BoundBy.OUTSIDE_OPERATORS,
    BoundBy.KERNEL_COMPUTATION,
    BoundBy.KERNEL_COMMUNICATION,
    BoundBy.KERNEL_MEMORY,
)  #: kinds of time that are work, not delay
_IS_NAMED = np.zeros(len(BoundBy), np.uint8)
_IS_NAMED[list(NAMED)] = True


class NamedSums(Struct, frozen=True):
    """Equal-length columns: the time on the path of each name and kind of time in each window, in any order.

    ``window``: int32, a place in :func:`windows`. ``name``: int32, into ``Trace.strings``. ``bound_by``: int32, one of
    :data:`NAMED`. ``ns``: int64. ``count``: int64, slices; one that goes on in the next window counts there, too.
    """

    window: Int32s
    name: Int32s
    bound_by: Int32s
    ns: Int64s
    count: Int64s


class CriticalPath(Struct, frozen=True):
    """Slices of the path, ascending, each beginning where the previous one ends, the last at ``end``.

    Neighbours differ in kind, source or window. In operators ``row`` is the outermost one; outside operators the slice
    that is innermost for most of the time; for a delay the slice that is late; else the slice that the time belongs to.
    """

    ts: Int64s  #: ns
    end: int  #: ns
    bound_by: Bytes  #: a :class:`BoundBy`
    row: Int32s  #: index of an event, -1 for none
    edges: Int32s  #: the edges of the path: indexes of the edges of ``critical.graph``
    time: Int64s  #: ns: a row for each window, a column for each :class:`BoundBy`
    early_time: Int64s  #: ns: the part of it that is work launched before the recording
    names: NamedSums  #: the time of each name

    def __len__(self) -> int:
        return len(self.ts)

    @property
    def dur(self) -> Int64s:
        """How long each slice takes, int64 ns; computed at each call."""
        return np.diff(self.ts, append=self.end)


def windows(trace: Trace) -> tuple[Int64s, Int64s]:
    """Start and end of each step, those of its devices, or of the whole recording if there are no steps; int64 ns."""
    if len(steps(trace)):
        whole, known = recorded_windows(trace), step_windows(trace)
        known = whole if len(whole) == len(known) else known  # of a file that was cut off, some steps are not whole
        return known.start, np.maximum(known.end, known.start)
    return critical_graph(trace).ts[[0]], critical_graph(trace).ts[[-1]]


@derived(until="critical path")
def critical_path(trace: Trace) -> CriticalPath:
    """The chain of calls and work that decides how long the recording takes.

    It is cut where steps begin and end.
    """
    graph, segments, stacks = critical_graph(trace), host.host_segments(trace), host.stacks(trace)
    work, events = gpu.work(trace), trace.events
    start, end = windows(trace)
    edges = np.ascontiguousarray(walk(graph.binding, graph.source, len(graph) - 1))
    pieces = len(segments.ts) + 2 * (len(edges) + len(start)) + 1  # at most; far fewer are filled
    codes = len(trace.strings) * len(BoundBy)
    early = np.zeros(len(events), np.bool_)  # whether each event is work launched before the recording
    early[work.row[gpu.before_recording(trace)]] = True
    state = loops.PathProgress()
    time, early_time = (np.zeros((len(start), len(BoundBy)), np.int64) for _ in range(2))
    slices = [reserved(pieces, kind) for kind in (np.int64, np.uint8, np.int32)]
    named = [reserved(pieces, kind) for kind in (np.int32, np.int32, np.int64, np.int64)]
    # the row of the outermost operator around each place of the call stacks, or of its own; -1 if there is none. A
    # step that an early profiler recorded as an operator counts only where no other operator is.
    rows, operators = host.stacks(trace).row, (Category.CPU_OP,)
    around = host.outermost(trace, rows, operators)
    step = names.starting(trace, names.STEP)
    if step[trace.events.name[around[around >= 0]]].any():
        within = host.outermost(trace, rows, operators, ~step)
        around = np.where(within >= 0, within, around)
    made = native("critical.follow")(
        *(edges, graph.kind, graph.source, graph.target, graph.self_ns, graph.to_row, graph.ts, graph.lane),
        *(graph.first_work, segments.ts, segments.row, segments.bounds, segments.bounds[:-1].copy()),
        *(kinds_of_host(trace), np.uint8(BoundBy.KERNEL_COMPUTATION) + work.type, work.row, _DELAY, UNEXPLAINED_NS),
        *(state, stacks.place_of, around.astype(np.int32), start, end, early.view(np.uint8), _IS_NAMED),
        *(events.name[:], np.zeros(len(events), np.uint8), time.ravel(), early_time.ravel(), *slices),
        *(np.zeros(len(stacks) + 1, np.int64), np.empty(len(stacks) + 1, np.int32)),
        *(np.empty(codes, np.int32), np.zeros(codes, np.int64), np.zeros(codes, np.int64), *named),
    )
    ts, bound_by, row = (column[:made].copy() for column in slices)
    window, code, ns, count = (column[: state.named].copy() for column in named)
    name, kind = np.divmod(code, np.int32(len(BoundBy)))
    sums = NamedSums(window, name, kind, ns, count)
    return CriticalPath(ts, int(graph.ts[-1]), bound_by, row, edges, time, early_time, sums)


@derived(until="critical path")
def latest_of_nodes(trace: Trace) -> Int64s:
    """The latest time of each node of the graph that does not make the recording longer, int64 ns."""
    graph = critical_graph(trace)
    return latest(graph.order, graph.head, graph.following, graph.source, graph.weight, int(graph.ts[-1]))


@derived(until="critical path")
def node_slack(trace: Trace) -> Int64s:
    """How much later each node could come without making the recording longer, int64 ns; at most until its end."""
    graph = critical_graph(trace)
    room: Int64s = np.minimum(latest_of_nodes(trace), graph.ts[-1]) - graph.ts
    return room


def host_kinds(trace: Trace, rows: EventRows) -> Bytes:
    """The kind of time of each of ``rows``, innermost slices of threads; uint8, a :class:`BoundBy`."""
    kinds: Bytes = _ON_THREAD.take(trace.events.category[rows])
    kinds[rows < 0] = BoundBy.OUTSIDE_OPERATORS
    if len(steps := _steps_among_operators(trace)):
        kinds[is_among(rows, steps)] = BoundBy.OUTSIDE_OPERATORS
    kinds[_in_loader(trace)[rows] & (rows >= 0)] = BoundBy.DATA_LOADING
    return kinds


@derived(until="critical path")
def kinds_of_host(trace: Trace) -> Bytes:
    """The kind of time of each event as the innermost slice of a thread; uint8, a :class:`BoundBy`."""
    kinds: Bytes = _ON_THREAD.take(trace.events.category)
    kinds[_steps_among_operators(trace)] = BoundBy.OUTSIDE_OPERATORS
    kinds[_in_loader(trace)[:-1]] = BoundBy.DATA_LOADING
    return kinds


@derived
def _steps_among_operators(trace: Trace) -> EventRows:
    """The rows, ascending, of steps that were recorded as operators, as profilers of 2021 did."""
    rows = trace.events.slices_of(Category.CPU_OP)
    step = names.starting(trace, names.STEP)
    return rows[step.take(trace.events.name[rows])] if step.any() else rows[:0]


@derived(until="rules")
def _in_loader(trace: Trace) -> Bools:
    """Whether each event lies within a fetch from a data loader, by PyTorch's annotation."""
    stacks, events = host.stacks(trace), trace.events
    in_loader = np.zeros(len(events) + 1, np.bool_)  # one more entry: row -1 reads the last
    loads = names.starting(trace, "enumerate(DataLoader)")
    if not loads.any():
        return in_loader
    ts, bounds = events.ts[stacks.row], host.thread_bounds(trace)
    places = np.flatnonzero(loads.take(events.name[stacks.row]))
    stop = places + 1
    for track, index in each(events.track[stacks.row[places]], len(trace.tracks)):  # the slices within it follow it
        end = ts[places[index]] + events.dur[stacks.row[places[index]]]
        within = bounds[track] + np.searchsorted(ts[bounds[track] : bounds[track + 1]], end, side="left")
        stop[index] = np.maximum(stop[index], within)
    depth = np.cumsum(np.bincount(places, minlength=len(ts) + 1) - np.bincount(stop, minlength=len(ts) + 1))
    in_loader[stacks.row[depth[:-1] > 0]] = True
    return in_loader


def delay_kinds(kind: Bytes, dur: Int64s) -> Bytes:
    """The kind of delays of ``dur`` ns (uint8, a :class:`BoundBy`) for dependencies of a ``kind``."""
    kinds: Bytes = _DELAY[kind]
    kinds[(kind == DependencyKind.STREAM) & (dur > UNEXPLAINED_NS)] = BoundBy.IDLE
    return kinds


def crossings(trace: Trace) -> tuple[Int64s, Int64s]:
    """Where the path changes tracks: the rows of the events that it leaves, and when it continues, ns."""
    graph, path, track = critical_graph(trace), critical_path(trace), trace.events.track
    edges = path.edges[graph.kind[path.edges] != DependencyKind.THREAD]
    edges = edges[(graph.from_row[edges] != NO_INDEX) & (graph.to_row[edges] != NO_INDEX)]
    edges = edges[track[graph.from_row[edges]] != track[graph.to_row[edges]]]
    return graph.from_row[edges], graph.ts[graph.target[edges]]
