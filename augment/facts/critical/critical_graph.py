"""The recording as a graph: nodes are moments, edges are dependencies with the time that each takes."""

from __future__ import annotations

from functools import partial

import numpy as np
from msgspec import Struct

from augment.arrays import (
    NO_INDEX,
    Bools,
    Bytes,
    Int32s,
    Int64s,
    Places,
    compressed,
    distinct,
    each,
    group_bounds,
    grouped,
)
from augment.core import Diagnostic, Trace, derived, threads
from augment.facts import gpu, host, steps
from augment.facts.critical.handovers import handovers, main_track
from augment.facts.waits.dependencies import (
    LONGEST_NS,
    CallWaits,
    Dependencies,
    DependencyKind,
    full_queues,
    last_to_end,
    launch_latencies,
    launched_at,
    launched_by,
    launches_of_work,
    order_on_streams,
    slow_launches,
    unexplained_starts,
)
from augment.facts.waits.sync_dependencies import synchronizations, task_queues
from augment.kernels.critical import NEVER as NEVER
from augment.kernels.native import native

ROOT = 0  #: the node of the recording's start; the last node is its end
_ROUNDS = 64  #: the longest supported chain of dependent nodes at one moment


class CriticalGraph(Struct, frozen=True):
    """Nodes and edges, in columns. Every edge leads to a node that is not earlier.

    The first node is the recording's start, the last its end. Between them are the moments of threads that something
    depends on, then the start of each piece of GPU work. Edges ascend by kind. The weight of a binding edge is the full
    time between its ends. So the path of binding edges from the end to the start is as long as the recording, and no
    path is longer.
    """

    ts: Int64s  #: ns, of each node
    lane: Int32s  #: of nodes of threads, an index of ``trace.tracks``; -1 for other nodes
    first_work: int  #: the node of GPU work ``i`` is ``first_work + i``
    kind: Bytes  #: of each edge, a ``Kind``
    source: Int32s  #: of each edge, a node
    target: Int32s  #: of each edge, a node
    self_ns: Int64s  #: how long the source's GPU work runs from then on; the rest of the edge is delay
    weight: Int64s  #: ns: all time between its ends if the edge decided when the target came, else the least
    from_row: Int32s  #: index of the event that the edge begins at, -1 for none
    to_row: Int32s  #: index of the event that the edge leads to, -1 for none
    binding: Int32s  #: of each node the edge that was fulfilled last; -1 for the first node
    head: Int32s  #: of each node the first of the edges that lead to it
    following: Int32s  #: of each edge the next that leads to the same node
    order: Int32s  #: the nodes, sources first
    diagnostics: tuple[Diagnostic, ...]  #: what could not be joined

    def __len__(self) -> int:
        """How many nodes there are."""
        return len(self.ts)


class _Edges(Struct, frozen=True):
    """Edges before their binding is known; ``least`` (int64 ns) is the least time that each takes."""

    kind: Bytes
    source: Int32s
    target: Int32s
    self_ns: Int64s
    least: Int64s
    from_row: Int32s
    to_row: Int32s

    def take(self, chosen: Bools) -> _Edges:
        return _Edges(*(getattr(self, name)[chosen] for name in self.__struct_fields__))

    @staticmethod
    def joined(parts: list[_Edges], pool: threads.Threads) -> _Edges:
        columns = ([getattr(part, name) for part in parts] for name in _Edges.__struct_fields__)
        return _Edges(*pool.all([partial(np.concatenate, each) for each in columns]))


class _Lanes(Struct, frozen=True):
    """The nodes on threads: ``track`` (int32) and ``ts``, ascending; the ``bounds`` of each of ``tracks``; and whether
    the thread only ``waits`` from a node to its next."""

    tracks: Int32s
    bounds: Places
    track: Int32s
    ts: Int64s
    waits: Bools

    def nodes(self, track: Int32s, ts: Int64s) -> Int32s:
        """The node of each moment of a thread."""
        nodes = np.empty(len(ts), np.int32)
        place_of = {track: place for place, track in enumerate(self.tracks.tolist())}
        for track_index, index in each(track, max(place_of, default=-1) + 1):
            place = place_of[track_index]
            times = self.ts[self.bounds[place] : self.bounds[place + 1]]
            nodes[index] = 1 + self.bounds[place] + np.searchsorted(times, ts[index])
        return nodes


@derived(until="diagnosis")
def critical_graph(trace: Trace) -> CriticalGraph:
    """What waits for what: calls, work and events as a graph of dependencies.

    The cost is linear in events, plus merging runs that are sorted.
    """
    # in ascending order of Kind
    asked = (synchronizations, order_on_streams, launches_of_work, full_queues, handovers, task_queues)
    waits = trace.context.threads.all([partial(ask, trace) for ask in asked])
    known = _known(trace, [wait.dependencies for wait in waits])
    waits.append(unexplained_starts(trace, known))
    at = asked.index(launches_of_work)
    waits[at] = slow_launches(trace, waits[at], known, waits[-1])
    lanes = _lanes(trace, waits)
    work = gpu.work(trace)
    ts = np.concatenate(([0], lanes.ts, work.ts, [0]))
    # the recording's start and end, over threads, GPU work and steps; broken work may end before it starts
    starts = [int(column.min()) for column in (lanes.ts, work.ts, steps.recorded(trace).ts) if len(column)]
    ends = [int(column.max()) for column in (lanes.ts, work.ts, work.end, steps.recorded(trace).end) if len(column)]
    ts[0], ts[-1] = min(starts, default=0), max(ends, default=0)
    diagnostics = [diagnostic for wait in waits for diagnostic in wait.diagnostics]
    parts = [partial(_along_threads, lanes), *(partial(_across, trace, lanes, wait.dependencies) for wait in waits)]
    made = trace.context.threads.all([*parts, partial(_to_end, trace, lanes, ts)])
    del waits, parts  # frees memory for what follows
    edges = _Edges.joined(made, trace.context.threads)
    del made
    level, sound = _levels(ts, edges.source, edges.target)
    if not sound.all():
        message = "circular dependencies at one moment (left out)"
        diagnostics.append(Diagnostic("circular_dependency", int(np.count_nonzero(~sound)), message))
        edges = edges.take(sound)
    # the edges from the recording's start to all nodes that no other edge leads to
    reached = np.zeros(len(ts), np.bool_)
    reached[edges.target] = True
    reached[ROOT] = True
    target = np.flatnonzero(~reached)
    nothing = np.zeros(len(target), np.int64)
    from_root = _edges_of(DependencyKind.OPEN, nothing + ROOT, target, nothing, nothing)
    edges = _Edges.joined([edges, from_root], trace.context.threads)
    by_level = np.argsort(level, kind="stable") if level.any() else np.arange(len(ts))
    order = by_level[np.argsort(ts[by_level], kind="stable")].astype(np.int32)
    # the graph with its binding edges: for each node, the edge that is fulfilled last
    head, following, binding = bind(edges.source, edges.target, ts[edges.source] + edges.least, len(ts))
    weight, decides = edges.least, binding[binding >= 0]
    weight[decides] = ts[edges.target[decides]] - ts[edges.source[decides]]
    lane = np.full(len(ts), -1, np.int32)
    lane[1 : 1 + len(lanes.ts)] = lanes.track
    return CriticalGraph(
        ts=ts,
        lane=lane,
        first_work=1 + len(lanes.ts),
        kind=edges.kind,
        source=edges.source,
        target=edges.target,
        self_ns=np.minimum(edges.self_ns, weight, out=edges.self_ns),
        weight=weight,
        from_row=edges.from_row,
        to_row=edges.to_row,
        binding=binding,
        head=head,
        following=following,
        order=order,
        diagnostics=tuple(diagnostics),
    )


def _known(trace: Trace, dependencies: list[Dependencies]) -> Int64s:
    """When the last known prerequisite of each piece of work was fulfilled, int64 ns; at most the work's start.

    Work without a known launch counts as launched with the work before it, or before the recording.
    """
    work = gpu.work(trace)
    began = trace.events.ts[:1].min(initial=np.iinfo(np.int64).max)
    queued = np.maximum(launched_by(trace), np.minimum(began, work.ts))
    known: Int64s = np.where(work.launch != NO_INDEX, launched_at(trace), queued)
    for part in dependencies:
        chosen = np.flatnonzero((part.from_work != NO_INDEX) & (part.to_work != NO_INDEX))
        before, after = part.from_work[chosen], part.to_work[chosen]
        np.maximum.at(known, after, np.minimum(work.end[before], work.ts[after]))
    return known


def _lanes(trace: Trace, waits: list[CallWaits]) -> _Lanes:
    """The nodes on threads: ends of dependencies, of waits, and of the threads themselves."""
    segments = host.host_segments(trace)
    track, start, end = (np.concatenate([getattr(wait, name) for wait in waits]) for name in ("track", "start", "end"))
    edges = [wait.dependencies for wait in waits]
    moments_of = [(each.from_track, each.from_ts) for each in edges] + [(each.to_track, each.to_ts) for each in edges]
    moments_of += [(track, start), (track, end), (np.array([main_track(trace)], np.int32), np.zeros(1, np.int64))]
    on_thread = [np.flatnonzero(tracks != NO_INDEX) for tracks, _ in moments_of]
    tracks, moments = (
        np.concatenate([columns[side][rows] for columns, rows in zip(moments_of, on_thread, strict=True)])
        for side in (0, 1)
    )
    used, code_of_track = compressed(tracks, len(trace.tracks))
    code = code_of_track[tracks]
    order = grouped(code, len(used))
    bounds = group_bounds(code, len(used))
    waits_of = dict(each(track, len(trace.tracks)))
    parts, waiting = [], []
    for place, track_index in enumerate(used.tolist()):
        track_moments = moments[order[bounds[place] : bounds[place + 1]]]
        ends = segments.ts[segments.of(track_index)][[0, -1]]
        times = distinct(np.concatenate((ends, track_moments[(track_moments >= ends[0]) & (track_moments <= ends[1])])))
        wait_index = waits_of.get(track_index, order[:0])
        depth = np.zeros(len(times) + 1, np.int64)
        np.add.at(depth, np.searchsorted(times, start[wait_index]), 1)
        np.add.at(depth, np.searchsorted(times, end[wait_index]), -1)
        parts.append(times)
        waiting.append(np.cumsum(depth[:-1]) > 0)
    sizes = np.array([len(times) for times in parts], np.intp)
    return _Lanes(
        used.astype(np.int32),
        np.concatenate((np.zeros(1, np.intp), np.cumsum(sizes))),
        np.repeat(used, sizes).astype(np.int32),
        np.concatenate([np.empty(0, np.int64), *parts]),
        np.concatenate([np.empty(0, np.bool_), *waiting]),
    )


def _edges_of(kind: DependencyKind, source: Places, target: Places, self_ns: Int64s, least: Int64s) -> _Edges:
    """Edges of one kind without events at their ends, so that no arrow shows them."""
    none = np.full(len(source), -1, np.int32)
    ends = source.astype(np.int32), target.astype(np.int32)
    return _Edges(np.full(len(source), kind, np.uint8), *ends, self_ns, least, none, none)


def _along_threads(lanes: _Lanes) -> _Edges:
    """The edges from each moment of a thread to its next; where the thread only waits, their least time is 0."""
    source = np.flatnonzero(lanes.track[1:] == lanes.track[:-1]) + 1
    took = lanes.ts[source] - lanes.ts[source - 1]
    least = np.where(lanes.waits[source - 1], 0, took)
    return _edges_of(DependencyKind.THREAD, source, source + 1, np.zeros_like(took), least)


def _across(trace: Trace, lanes: _Lanes, dependencies: Dependencies) -> _Edges:
    """The dependencies as edges."""
    work = gpu.work(trace)
    first_work = 1 + len(lanes.ts)
    from_work, to_work = dependencies.from_work != NO_INDEX, dependencies.to_work != NO_INDEX
    source, target = ((first_work + place).astype(np.int32) for place in (dependencies.from_work, dependencies.to_work))
    source[~from_work] = lanes.nodes(dependencies.from_track[~from_work], dependencies.from_ts[~from_work])
    target[~to_work] = lanes.nodes(dependencies.to_track[~to_work], dependencies.to_ts[~to_work])
    from_ts = np.where(from_work, _at(work.ts, dependencies.from_work), dependencies.from_ts)
    took = np.where(to_work, _at(work.ts, dependencies.to_work), dependencies.to_ts) - from_ts
    took = np.maximum(took, 0)  # a call of negative duration ends before what it waited for
    runs = np.maximum(np.where(from_work, _at(work.end, dependencies.from_work), from_ts) - from_ts, 0)
    runs[dependencies.kind == DependencyKind.FULL_QUEUE] = 0  # there is room when it starts
    self_ns = np.minimum(runs, took)
    least = self_ns.copy()
    overlapping = np.flatnonzero((dependencies.kind == DependencyKind.STREAM) & (runs > took))
    to = dependencies.to_work[overlapping]
    new = (work.launch[to] != NO_INDEX) & (work.ts[to] - launched_at(trace)[to] <= LONGEST_NS)
    least[overlapping[new]] = 0  # its launch decided, not the work that still runs
    launched = dependencies.kind == DependencyKind.LAUNCH
    least[launched] = np.minimum(took[launched], launch_latencies(trace)[dependencies.to_work[launched]])
    rows = dependencies.from_row.astype(np.int32), dependencies.to_row.astype(np.int32)
    return _Edges(dependencies.kind, source, target, self_ns, least, *rows)


def _at(column: Int64s, places: Places) -> Int64s:
    """``column`` at ``places``; any value where the place is -1."""
    return column[places] if len(column) else np.zeros(len(places), np.int64)


def _to_end(trace: Trace, lanes: _Lanes, ts: Int64s) -> _Edges:
    """The edges from the last moment of the main thread and the last work of each stream to the recording's end."""
    work = gpu.work(trace)
    last_work = last_to_end(trace)[[stream.stop - 1 for stream in work.streams]]
    last_node = np.flatnonzero(lanes.track == main_track(trace))[-1:]
    source = np.concatenate((1 + last_node, 1 + len(lanes.ts) + last_work))
    ran = np.maximum(work.end[last_work] - work.ts[last_work], 0)
    self_ns = np.concatenate((np.zeros(len(last_node), np.int64), ran))
    return _edges_of(DependencyKind.OPEN, source, np.full(len(source), len(ts) - 1), self_ns, self_ns)


def _levels(ts: Int64s, sources: Int32s, targets: Int32s) -> tuple[Bytes, Bools]:
    """The order of nodes at one moment, as levels (uint8, ascending), and which edges respect that order."""
    level = np.zeros(len(ts), np.uint8)
    took = ts[targets] - ts[sources]
    tied = np.flatnonzero(took == 0)
    source, target = sources[tied], targets[tied]
    for _ in range(_ROUNDS):
        behind = level[source] >= level[target]
        if not behind.any():
            break
        np.maximum.at(level, target[behind], level[source[behind]] + np.uint8(1))
    sound = took >= 0
    sound[tied] = level[source] < level[target]
    return level, sound


def bind(source: Int32s, target: Int32s, arrival: Int64s, nodes: int) -> tuple[Int32s, Int32s, Int32s]:
    """For each node, the edge that arrives last (the first of equals), and all edges that lead to it.

    Args:
        source: int32, the node at which each edge begins.
        target: int32, the node at which it ends.
        arrival: int64 ns, when it arrives there.
        nodes: the number of nodes.

    Returns:
        Three int32 columns, with -1 for none: ``head`` (for each node, an edge that leads to it), ``following`` (for
        each edge, another edge to the same node) and ``binding`` (for each node, the edge that arrives last).
    """
    head, binding = np.full(nodes, NO_INDEX, np.int32), np.full(nodes, NO_INDEX, np.int32)
    following = np.full(len(source), NO_INDEX, np.int32)
    native("critical.bind")(target, arrival, head, following, binding)
    return head, following, binding


def walk(binding: Int32s, source: Int32s, node: int) -> Int32s:
    """The path of binding edges that ends at ``node``, in order of time; int32."""
    path = np.empty(len(binding), np.int32)
    count = native("critical.walk")(binding, source, path, node)
    return path[:count][::-1]


def latest(
    order: Int32s, head: Int32s, following: Int32s, source: Int32s, weight: Int64s, end: int, last: int = -1
) -> Int64s:
    """The latest time of each node, int64 ns, at which the node ``last`` still comes by ``end``; :data:`NEVER` for
    nodes that it does not depend on."""
    late = np.full(len(order), NEVER, np.int64)
    late[last] = end
    native("critical.latest")(order, head, following, source, weight, late)
    return late


def saved(
    order: Int32s,
    head: Int32s,
    following: Int32s,
    source: Int32s,
    weight: Int64s,
    ts: Int64s,
    due: Int64s,
    leaving: Int64s,
    cut_edge: Int64s,
    cut_ns: Int64s,
    jobs: Int64s,
) -> Int64s:
    """By how much a window's outgoing edges could finish earlier if the given edges were shortened.

    Args:
        order: the nodes, sources first.
        head: int32, from :func:`bind`.
        following: int32, from :func:`bind`.
        source: int32, the source node of each edge.
        weight: int64 ns, the weight of each edge.
        ts: int64 ns, the time of each node, which is the earliest possible.
        due: int64 ns, for each of ``leaving``: the latest time of its target.
        leaving: int64, the edges that lead out of windows.
        cut_edge: int64, the edges to shorten.
        cut_ns: int64 ns, by how much.
        jobs: int64, six columns: the places ``[from, to)`` in ``order``, in ``leaving``, and in ``cut_edge``.

    Returns:
        The time that each of ``jobs`` gains, int64 ns.
    """
    result = np.zeros(len(jobs), np.int64)
    early, cut = ts.copy(), np.zeros(len(source), np.int64)
    columns = (order, head, following, source, weight, ts, due, leaving, cut_edge, cut_ns)
    native("critical.saved")(*columns, np.ascontiguousarray(jobs).ravel(), early, cut, result)
    return result
