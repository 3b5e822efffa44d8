"""The critical path: the chain of events that decided how long a recording took, without a gap.

The path is found from the end of the recording back to its start: of the prerequisites of each moment, it continues
with the one that was fulfilled last. See ``critical_graph``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from augment.arrays.intervals import expand
from augment.arrays.ordering import distinct, each
from augment.arrays.types import Bools, Bytes, Int32s, Int64s, Places
from augment.derived.critical.critical_graph import Graph, critical_graph
from augment.derived.critical.critical_loops import latest, walk
from augment.derived.gpu.gpu_work import gpu_work
from augment.derived.host.call_stacks import call_stacks, thread_bounds
from augment.derived.host.host_segments import host_segments
from augment.derived.steps.steps import steps
from augment.derived.waits.dependencies import UNEXPLAINED_NS, Kind
from augment.trace import LAUNCHES, Category, Trace, derived

NO_ROW = -1


class BoundBy(IntEnum):
    """What a piece of the path consists of."""

    CPU_OPERATOR = 0  #: a thread is in an operator
    RUNTIME_CALL = 1  #: a thread is in a call of the runtime or driver, and does not wait for a device
    DATA_LOADING = 2  #: a thread fetches the next batch from a data loader
    OUTSIDE_OPERATORS = 3  #: a thread is in none of these: Python, or code that was not recorded
    THREAD_HANDOVER = 4  #: from the last event of one thread to the next event of another
    LAUNCH_DELAY = 5  #: from the start of a launch to the start of its work
    KERNEL_COMPUTATION = 6
    KERNEL_COMMUNICATION = 7
    KERNEL_MEMORY = 8
    KERNEL_GAP = 9  #: from the end of work to the start of the next on its stream, which had been launched
    SYNC = 10  #: from the end of work to the event that waited for it: the return of a call, the start of other work
    IDLE = 11  #: no known reason to wait


KINDS = [kind.name.lower() for kind in BoundBy]

_ON_THREAD = np.full(256, BoundBy.OUTSIDE_OPERATORS, np.uint8)
_ON_THREAD[Category.CPU_OP] = BoundBy.CPU_OPERATOR
_ON_THREAD[list(LAUNCHES)] = BoundBy.RUNTIME_CALL
_DELAY = np.full(256, BoundBy.IDLE, np.uint8)
_DELAY[Kind.LAUNCH] = BoundBy.LAUNCH_DELAY
_DELAY[Kind.STREAM] = BoundBy.KERNEL_GAP
_DELAY[Kind.HANDOVER] = BoundBy.THREAD_HANDOVER
_DELAY[[Kind.WAIT_EVENT, Kind.SYNC, Kind.FULL_QUEUE, Kind.INFERRED]] = BoundBy.SYNC


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """Pieces of the path, ascending, each beginning where the previous one ends: equal-length columns.

    ``ts`` and ``dur``: int64 ns, ``dur`` above 0. ``bound_by``: uint8, a :class:`BoundBy`. ``row``: int64, into the
    event table: the slice that the time belongs to, for a delay the slice that is late; -1 for none. ``step``: int64,
    the place in ``steps``; -1 outside steps. ``edges`` (int32, into the graph): the edges of the path.
    """

    ts: Int64s
    dur: Int64s
    bound_by: Bytes
    row: Int64s
    step: Int64s
    edges: Int32s

    def __len__(self) -> int:
        return len(self.ts)


@derived
def critical_path(trace: Trace) -> CriticalPath:
    """The critical path of the whole recording, cut where steps begin and end."""
    graph = critical_graph(trace)
    edges = walk(graph.binding, graph.source, len(graph) - 1)
    parts = [_on_threads(trace, graph, edges), _on_devices(trace, graph, edges), _delays(graph, edges)]
    ts, dur, bound_by, row = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(ts, kind="stable")
    ts, which = _cut(ts[order], dur[order], np.concatenate((steps(trace).ts, steps(trace).end)))
    order = order[which]
    dur = np.diff(ts, append=graph.ts[-1])
    return CriticalPath(ts, dur, bound_by[order], row[order], steps(trace).at(ts), edges)


@derived
def latest_of_nodes(trace: Trace) -> Int64s:
    """The latest time of each node of the graph that does not make the recording longer, int64 ns."""
    graph = critical_graph(trace)
    return latest(graph.order, graph.head, graph.following, graph.source, graph.weight, int(graph.ts[-1]))


@derived
def node_slack(trace: Trace) -> Int64s:
    """How much later each node could come without making the recording longer, int64 ns; at most until its end."""
    graph = critical_graph(trace)
    room: Int64s = np.minimum(latest_of_nodes(trace), graph.ts[-1]) - graph.ts
    return room


def slack(trace: Trace, rows: Int64s) -> Int64s:
    """How much longer each of ``rows`` could have taken without making the recording longer, int64 ns.

    The slack is 0 on the critical path. It is -1 for rows outside the graph, which are neither GPU work nor on a thread
    that launches or waits. It is an estimate: a trace does not record all dependencies.
    """
    graph, work, late, events = critical_graph(trace), gpu_work(trace), node_slack(trace), trace.events
    found = np.full(len(rows), -1, np.int64)
    place_of = np.full(len(events), -1, np.intp)
    place_of[work.row] = np.arange(len(work))
    place = place_of[rows]
    found[place >= 0] = late[graph.first_work + place[place >= 0]]
    end = events.ts[rows] + events.dur[rows]
    lane = graph.lane[: graph.first_work]
    on_host = call_stacks(trace).place_of[rows] >= 0
    on_thread = np.flatnonzero(lane >= 0)
    nodes_of = {track: on_thread[own] for track, own in each(lane[on_thread], len(trace.tracks))}
    asked, way = np.flatnonzero(on_host), _way_slack(graph, late)
    for track, own in each(events.track[rows[asked]], len(trace.tracks)):
        if (nodes := nodes_of.get(track)) is not None:
            next_node = np.searchsorted(graph.ts[nodes], end[asked[own]], side="left")
            found[asked[own]] = way[nodes[np.minimum(next_node, len(nodes) - 1)]]
    return found


def _way_slack(graph: Graph, late: Int64s) -> Int64s:
    """For each node of a thread, how much longer the edge from its predecessor could take."""
    along = np.flatnonzero(graph.kind == Kind.THREAD)
    found: Int64s = late.copy()
    target = graph.target[along]
    found[target] = late[target] + graph.ts[target] - graph.ts[graph.source[along]] - graph.weight[along]
    return found


_Pieces = tuple[Int64s, Int64s, Bytes, Int64s]  # ts, dur, bound_by, row


def _on_threads(trace: Trace, graph: Graph, edges: Int32s) -> _Pieces:
    """The pieces of the path on threads: their innermost slices."""
    segments = host_segments(trace)
    along = edges[graph.kind[edges] == Kind.THREAD]
    start, end = graph.ts[graph.source[along]], graph.ts[graph.target[along]]
    track = graph.lane[graph.source[along]]
    first, stop = np.empty(len(along), np.intp), np.empty(len(along), np.intp)
    for one, mine in each(track, len(trace.tracks)):
        own = segments.of(one)
        first[mine] = own.start + np.searchsorted(segments.ts[own], start[mine], side="right") - 1
        stop[mine] = own.start + np.searchsorted(segments.ts[own], end[mine], side="left")
    whose, place = expand(first, stop)
    ts = np.maximum(segments.ts[place], start[whose])
    until = np.minimum(segments.ts[np.minimum(place + 1, len(segments.ts) - 1)], end[whose])
    row = segments.row[place].astype(np.int64)
    return _real(ts, until - ts, host_kinds(trace, row), row)


def host_kinds(trace: Trace, rows: Int64s) -> Bytes:
    """The kind of time of each of ``rows``, innermost slices of threads; uint8, a :class:`BoundBy`."""
    kinds: Bytes = _ON_THREAD[trace.events.category[rows]]
    kinds[rows < 0] = BoundBy.OUTSIDE_OPERATORS
    kinds[_in_loader(trace)[rows] & (rows >= 0)] = BoundBy.DATA_LOADING
    return kinds


@derived
def _in_loader(trace: Trace) -> Bools:
    """Whether each event lies within a fetch from a data loader, by PyTorch's annotation."""
    stacks, events = call_stacks(trace), trace.events
    found = np.zeros(len(events) + 1, np.bool_)  # one more entry: row -1 reads the last
    loads = np.array([name.startswith("enumerate(DataLoader)") for name in trace.strings], np.bool_)
    if not loads.any():
        return found
    ts, bounds = events.ts[stacks.row], thread_bounds(trace)
    places = np.flatnonzero(loads[events.name[stacks.row]])
    stop = places + 1
    for one, own in each(events.track[stacks.row[places]], len(trace.tracks)):  # the slices within it follow it
        end = ts[places[own]] + events.dur[stacks.row[places[own]]]
        within = bounds[one] + np.searchsorted(ts[bounds[one] : bounds[one + 1]], end, side="left")
        stop[own] = np.maximum(stop[own], within)
    depth = np.cumsum(np.bincount(places, minlength=len(ts) + 1) - np.bincount(stop, minlength=len(ts) + 1))
    found[stacks.row[depth[:-1] > 0]] = True
    return found


def _on_devices(trace: Trace, graph: Graph, edges: Int32s) -> _Pieces:
    """The pieces of the path in GPU work, until the path leaves it."""
    work = gpu_work(trace)
    runs = edges[graph.own[edges] > 0]
    place = graph.source[runs] - graph.first_work
    kinds = np.uint8(BoundBy.KERNEL_COMPUTATION) + work.type[place] if len(work) else np.empty(0, np.uint8)
    return graph.ts[graph.source[runs]], graph.own[runs], kinds, work.row[place]


def _delays(graph: Graph, edges: Int32s) -> _Pieces:
    """The delays of the path: the prerequisite is fulfilled, and what waits for it has not begun."""
    across = edges[graph.kind[edges] != Kind.THREAD]
    ts = graph.ts[graph.source[across]] + graph.own[across]
    dur = graph.ts[graph.target[across]] - ts
    return _real(ts, dur, delay_kinds(graph.kind[across], dur), graph.to_row[across])


def delay_kinds(kind: Bytes, dur: Int64s) -> Bytes:
    """The kind of delays of ``dur`` ns (uint8, a :class:`BoundBy`) for dependencies of a ``kind``."""
    kinds: Bytes = _DELAY[kind]
    kinds[(kind == Kind.STREAM) & (dur > UNEXPLAINED_NS)] = BoundBy.IDLE
    return kinds


def _real(ts: Int64s, dur: Int64s, kinds: Bytes, row: Int64s) -> _Pieces:
    """The pieces whose duration is above 0."""
    real = dur > 0
    return ts[real], dur[real], kinds[real], row[real]


def _cut(ts: Int64s, dur: Int64s, at: Int64s) -> tuple[Int64s, Places]:
    """The starts of adjacent pieces after they are cut ``at`` moments, and the piece that each is part of."""
    inside = at[(at > ts[0]) & (at < ts[-1] + dur[-1])] if len(ts) else at[:0]
    starts = distinct(np.concatenate((ts, inside)))
    return starts, np.searchsorted(ts, starts, side="right") - 1


def crossings(trace: Trace) -> tuple[Int64s, Int64s]:
    """Where the path changes tracks: the rows of the events that it leaves, and when it continues, ns."""
    graph, path, track = critical_graph(trace), critical_path(trace), trace.events.track
    edges = path.edges[graph.kind[path.edges] != Kind.THREAD]
    edges = edges[(graph.from_row[edges] != NO_ROW) & (graph.to_row[edges] != NO_ROW)]
    edges = edges[track[graph.from_row[edges]] != track[graph.to_row[edges]]]
    return graph.from_row[edges], graph.ts[graph.target[edges]]
