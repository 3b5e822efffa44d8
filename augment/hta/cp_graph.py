"""HTA's critical path graph, a ``networkx.DiGraph``: its nodes, edges and methods on :func:`event_graph`'s columns.

Importing this module needs networkx; ``augment.hta`` does so when its names are first asked for.
"""

from __future__ import annotations

import json
import logging
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile

import numpy as np
from msgspec import Struct

from augment import facts
from augment.arrays import NO_INDEX, Bools, Bytes, EventRow, EventRows, Int64s, distinct, each, is_among
from augment.core import LAUNCHES, Category
from augment.core import Trace as Events
from augment.errors import InputError, UsageError
from augment.facts.steps.window import rows_in_whole
from augment.hta.frames import SymbolTable, pandas
from augment.hta.traces import Trace

try:
    import networkx as nx
except ImportError as missing:
    raise UsageError("augment.hta's critical path needs networkx: pip install 'kineto-augment[hta]'") from missing

if TYPE_CHECKING:
    import pandas as pd

_LOG = logging.getLogger(__name__)
_MEMBER = "cp_graph.json"
_TOLD = ("window", "nodes", "edges", "path")  #: its members


@dataclass
class CPNode:
    """The moment ``ts`` (us) at which event ``ev_idx`` starts or ends (``index`` in the frame; -1: no event)."""

    idx: int = -1
    ev_idx: int = NO_INDEX
    ts: float = 0
    is_start: bool = False
    is_blocking: bool = False


class CPEdgeType(Enum):
    """The type of an edge."""

    OPERATOR_KERNEL = "critical_path_operator"
    DEPENDENCY = "critical_path_dependency"
    KERNEL_LAUNCH_DELAY = "critical_path_kernel_launch_delay"
    KERNEL_KERNEL_DELAY = "critical_path_kernel_kernel_delay"
    SYNC_DEPENDENCY = "critical_path_sync_dependency"


@dataclass(frozen=True)
class CPEdge:
    """An edge from the node ``begin`` to the node ``end``; ``end`` is at least ``weight`` us later."""

    begin: int
    end: int
    type: CPEdgeType
    weight: float = 0


_TYPES = {
    facts.critical.BoundBy.LAUNCH_DELAY: CPEdgeType.KERNEL_LAUNCH_DELAY,
    facts.critical.BoundBy.KERNEL_GAP: CPEdgeType.KERNEL_KERNEL_DELAY,
    facts.critical.BoundBy.SYNC: CPEdgeType.SYNC_DEPENDENCY,
    facts.critical.BoundBy.IDLE: CPEdgeType.DEPENDENCY,
    facts.critical.BoundBy.THREAD_HANDOVER: CPEdgeType.DEPENDENCY,
    facts.critical.BoundBy.OUTSIDE_OPERATORS: CPEdgeType.DEPENDENCY,
}
_EDGE_TYPES = tuple(CPEdgeType)
_OPERATOR, _KERNEL_DELAY = map(_EDGE_TYPES.index, (CPEdgeType.OPERATOR_KERNEL, CPEdgeType.KERNEL_KERNEL_DELAY))
_TYPE_OF = np.full(max(facts.critical.BoundBy) + 1, _OPERATOR, np.int64)  #: places in the above, by :class:`BoundBy`
for _kind, _type in _TYPES.items():
    _TYPE_OF[_kind] = _EDGE_TYPES.index(_type)
_WITHOUT_TIME = (CPEdgeType.DEPENDENCY, CPEdgeType.SYNC_DEPENDENCY)  #: HTA gives them no bound_by

#: HTA's words; where it has none, ours
_BOUND_BY = {
    facts.critical.BoundBy.CPU_OPERATOR: "cpu_bound",
    facts.critical.BoundBy.RUNTIME_CALL: "cpu_bound",
    facts.critical.BoundBy.OUTSIDE_OPERATORS: "cpu_bound",
    facts.critical.BoundBy.THREAD_HANDOVER: "cpu_bound",
    facts.critical.BoundBy.DATA_LOADING: "data_loading",
    facts.critical.BoundBy.LAUNCH_DELAY: "gpu_kernel_launch_overhead",
    facts.critical.BoundBy.KERNEL_COMPUTATION: "gpu_compute_bound",
    facts.critical.BoundBy.KERNEL_MEMORY: "gpu_compute_bound",
    facts.critical.BoundBy.KERNEL_COMMUNICATION: "gpu_communication_bound",
    facts.critical.BoundBy.KERNEL_GAP: "gpu_kernel_kernel_overhead",
    facts.critical.BoundBy.SYNC: "sync",
    facts.critical.BoundBy.IDLE: "idle",
}


class CPGraph(nx.DiGraph):  # type: ignore[misc]
    """The events ``t`` of a rank as a graph, and its critical path.

    Nodes are indexes of ``node_list``; the first and the last are the start and end of the analysed period. The
    attributes of an edge are ``weight`` (us), ``object`` (a :class:`CPEdge`), ``event`` and ``bound_by``. After a
    change of weights, :meth:`critical_path` finds the path of the changed graph. Events are identified by ``index`` in
    the frame of ``t_full``; ``trace_df`` has the analysed ones.
    """

    BLOCKING_SYNC_CALLS = (
        "cudaDeviceSynchronize",
        "cudaStreamSynchronize",
        "cudaEventQuery",
        "cudaEventSynchronize",
        "cudaMemcpy",
        "cudaMemcpyAsync",
    )

    def __init__(self, t: Trace | None = None, t_full: Trace | None = None, rank: int = 0, G: Any = None) -> None:  # noqa: N803
        super().__init__(G)
        self.t, self.t_full, self.rank = t, t_full, rank
        self.node_list: list[CPNode] = []
        self.critical_path_nodes: list[int] = []
        self.critical_path_events_set: set[int] = set()
        self.critical_path_edges_set: set[CPEdge] = set()
        self.event_to_start_node_map: dict[int, int] = {}
        self.event_to_end_node_map: dict[int, int] = {}
        self.edge_to_event_map: dict[tuple[int, int], int] = {}
        if t is None or t_full is None:  # networkx makes a copy
            return
        self.events: Events = t.of_rank(rank)
        # The row of ``full`` that corresponds to each row of ``part``; ``part`` is a part of ``full``'s trace
        part = self.events
        full = t_full.of_rank(rank)
        whole, places = (
            rows_in_whole(events, np.arange(len(events.events), dtype=EventRow)) for events in (full, part)
        )
        index = np.searchsorted(whole, places).astype(np.int64)
        self.full_trace_df: pd.DataFrame = t_full.get_trace(rank)
        self.trace_df: pd.DataFrame = self.full_trace_df[self.full_trace_df["index"].isin(index)].copy()
        self.symbol_table: SymbolTable = t_full.symbol_table
        self.sym_table = self.symbol_table.get_sym_table()
        if G is None:
            self._add(index, t_full.min_ts)

    def _add(self, index: Int64s, origin_ns: int) -> None:
        """The nodes and edges; events are those of ``index``."""
        # the graph with synchronisation edges of zero weight, as in HTA, and the index of each edge's type. The time
        # from the end of the awaited work until the call returns, or the next work starts, becomes an edge from a new
        # node; the awaited work leads to that node. The original edge stays with zero weight. New nodes are inserted
        # before the last node, new edges after all others, because the first edge decides between paths of equal
        # length
        plain = event_graph(self.events)
        types = _TYPE_OF[plain.bound_by]
        waits = np.flatnonzero((plain.bound_by == facts.critical.BoundBy.SYNC) & (plain.weight > 0))
        count, last = len(waits), len(plain.ts) - 1
        over = last + np.arange(count)
        source, target = (np.where(nodes == last, last + count, nodes) for nodes in (plain.source, plain.target))
        begin, end = source[waits], target[waits]
        source[waits] = over
        starts_work = plain.is_start[plain.target[waits]]
        types[waits] = np.where(starts_work, _KERNEL_DELAY, _OPERATOR)
        sync = np.full(2 * count, facts.critical.BoundBy.SYNC, np.uint8)
        graph = EventGraph(
            ts=np.insert(plain.ts, last, plain.ts[plain.target[waits]] - plain.weight[waits]),
            row=np.insert(plain.row, last, np.full(count, NO_INDEX)),
            is_start=np.insert(plain.is_start, last, np.zeros(count, np.bool_)),
            source=np.concatenate((source, begin, begin)),
            target=np.concatenate((target, over, end)),
            weight=np.append(plain.weight, np.zeros(2 * count, np.int64)),
            bound_by=np.append(plain.bound_by, sync),
            event=np.concatenate((plain.event, plain.event[waits], plain.event[waits])),
        )
        types, trace = np.append(types, _TYPE_OF[sync]), self.events
        index = np.append(index, NO_INDEX)  # events without a row map to the last entry
        blocking = facts.names.strings_where(trace, lambda name: name in self.BLOCKING_SYNC_CALLS)
        is_blocking = (graph.row >= 0) & blocking[trace.events.name[graph.row]]
        nodes = (index[graph.row], (graph.ts - origin_ns) / 1000, graph.is_start, is_blocking)
        for idx, (event, *rest) in enumerate(zip(*(node.tolist() for node in nodes), strict=True)):
            self._take(CPNode(idx, event, *rest))
        self.add_nodes_from(range(len(self.node_list)))
        edges = (graph.source, graph.target, types, graph.weight / 1000, graph.bound_by, index[graph.event])
        bound_by = {kind.value: _BOUND_BY[kind] for kind in facts.critical.BoundBy}
        for source, target, code, weight, kind, event in zip(*(edge.tolist() for edge in edges), strict=True):
            self._join(CPEdge(source, target, _EDGE_TYPES[code], weight), bound_by[kind], event)

    def _take(self, node: CPNode) -> None:
        self.node_list.append(node)
        if node.ev_idx != NO_INDEX:
            (self.event_to_start_node_map if node.is_start else self.event_to_end_node_map)[node.ev_idx] = node.idx

    def _join(self, edge: CPEdge, bound_by: str, event: int) -> None:
        self.add_edge(edge.begin, edge.end, weight=edge.weight, object=edge, bound_by=bound_by, event=event)
        if event != NO_INDEX:
            self.edge_to_event_map[edge.begin, edge.end] = event

    def get_nodes_for_event(self, ev_id: int) -> tuple[CPNode | None, CPNode | None]:
        """The nodes of the event's start and end; None for events that are no operator, runtime call or GPU work."""
        maps = (self.event_to_start_node_map, self.event_to_end_node_map)
        start, end = (self.node_list[of[ev_id]] if ev_id in of else None for of in maps)
        return start, end

    def get_events_for_edge(self, edge: CPEdge) -> tuple[int, int]:
        """The events at both ends of ``edge``; -1 for none."""
        return self.node_list[edge.begin].ev_idx, self.node_list[edge.end].ev_idx

    def get_event_attribution_for_edge(self, edge: CPEdge) -> int | None:
        """The event that the time of ``edge`` belongs to (for a delay, the delayed event); None if there is none."""
        return self.edge_to_event_map.get((edge.begin, edge.end))

    def get_edges_attributed_to_event(self, ev_idx: int) -> list[CPEdge]:
        """The edges whose time belongs to the event."""
        if not hasattr(self, "_edges_of"):
            self._edges_of: dict[int, list[CPEdge]] = defaultdict(list)
            for (begin, end), event in self.edge_to_event_map.items():
                self._edges_of[event].append(self.edges[begin, end]["object"])
        return self._edges_of.get(ev_idx, [])

    def critical_path(self) -> bool:
        """Find the longest path by the edges' ``weight``; returns whether one exists."""
        last = len(self.node_list) - 1
        # integer ns, because rounding of floats would make paths of equal length differ; among paths of equal length,
        # the added ns prefers the one that reaches the last node
        for _, target, data in self.edges(data=True):
            data["_ns"] = round(data["weight"] * 1000) + (target == last)
        try:
            self._follow(nx.dag_longest_path(self, weight="_ns"))
        except nx.NetworkXUnfeasible:
            return False
        finally:
            for _, _, data in self.edges(data=True):
                data.pop("_ns", None)
        return len(self.critical_path_nodes) > 1

    def _follow(self, path: list[int]) -> None:
        self.critical_path_nodes = path
        self.critical_path_events_set = {self.node_list[node].ev_idx for node in path} - {NO_INDEX}
        self.critical_path_edges_set = {self.edges[pair]["object"] for pair in pairwise(path)}

    def bound_by(self, row: Mapping[str, Any]) -> str:
        """What a row of :meth:`get_critical_path_breakdown` is bound by: its column ``bound_by``."""
        return str(row["bound_by"])

    def get_critical_path_breakdown(self) -> pd.DataFrame | None:
        """A row for each edge of the path, in order; None without a path."""
        if len(self.critical_path_nodes) < 2:
            return None
        edges = [self.edges[pair] for pair in pairwise(self.critical_path_nodes)]
        kinds = [edge["object"].type for edge in edges]
        pieces = pandas().DataFrame(
            {
                "event_idx": [math.nan if edge["event"] == NO_INDEX else float(edge["event"]) for edge in edges],
                "duration": [edge["weight"] for edge in edges],
                "type": [kind.value for kind in kinds],
                "bound_by": [
                    edge["bound_by"] if edge["weight"] or kind not in _WITHOUT_TIME else ""
                    for edge, kind in zip(edges, kinds, strict=True)
                ],
            }
        )
        events = self.trace_df[["s_name", "cat", "pid", "tid", "stream", "index"]]
        joined = pieces.merge(events, how="left", left_on="event_idx", right_on="index")
        return joined[["event_idx", "duration", "type", "s_name", "cat", "pid", "tid", "stream", "index", "bound_by"]]

    def summary(self) -> pd.Series:
        """The share of each ``bound_by`` in the path's length, percent."""
        breakdown = self.get_critical_path_breakdown()
        if breakdown is None:
            return pandas().Series(dtype=float, name="duration")
        named = breakdown[breakdown["bound_by"] != ""]  # edges without bound_by take no time
        return named.groupby("bound_by")["duration"].sum() / breakdown["duration"].sum() * 100

    def show_critical_path(self) -> None:
        """Log the nodes of the path, as ``INFO`` of this module's logger."""
        names = self.trace_df["name"]
        for number in self.critical_path_nodes:
            node = self.node_list[number]
            _LOG.info("Critical %s, ev_name = %s", node, names.get(node.ev_idx, "ROOT"))

    def save(self, out_dir: str) -> str:
        """Write the graph as ``out_dir.zip`` for :func:`restore_cpgraph`; returns the file. It holds data, no code."""
        edges = [
            (edge.begin, edge.end, edge.weight, edge.type.value, data["weight"], data["bound_by"], data["event"])
            for _, _, data in self.edges(data=True)
            for edge in [data["object"]]
        ]
        window = self.t.window if self.t is not None else None
        nodes = [tuple(asdict(node).values()) for node in self.node_list]
        members = dict(zip(_TOLD, (window, nodes, edges, self.critical_path_nodes), strict=True))
        path = f"{out_dir}.zip"
        with ZipFile(path, "w", ZIP_DEFLATED) as archive:
            archive.writestr(_MEMBER, json.dumps(members))
        return path


def restore_cpgraph(zip_filename: str, t_full: Trace, rank: int) -> CPGraph:
    """Load the graph that :meth:`CPGraph.save` wrote for the same trace.

    Raises:
        InputError: :meth:`CPGraph.save` did not write the file.
    """
    try:
        with ZipFile(zip_filename) as archive:
            members = json.loads(archive.read(_MEMBER))
        window, nodes, edges, path = (members[name] for name in _TOLD)
    except (OSError, BadZipFile, KeyError, TypeError, ValueError) as error:
        raise InputError(zip_filename, "is not a graph written by CPGraph.save") from error
    t = t_full if window is None else t_full.clipped(rank, *window)
    graph = CPGraph(t, t_full, rank, nx.DiGraph())
    for node in nodes:
        graph._take(CPNode(*node))
    graph.add_nodes_from(range(len(graph.node_list)))
    for begin, end, weight, kind, now, bound_by, event in edges:
        graph._join(CPEdge(begin, end, CPEdgeType(kind), weight), bound_by, event)
        graph.edges[begin, end]["weight"] = now
    graph._follow(path)
    return graph


DECIDES, WAY, OTHER = range(
    3
)  #: ranks of edges: the edge that decided when its target came; along a thread or GPU work; any other


class EventGraph(Struct, frozen=True):
    """Nodes and edges, in columns. Every edge leads to a node that is not earlier; no two edges join the same nodes.

    Nodes: ``ts`` (int64 ns); ``row`` (int64, into the event table): the event of which the node is the start
    (``is_start``) or the end. ``row`` is -1 for the recording's start (the first node) and end (the last), and for
    slices that are neither operator nor call (Python functions, annotations).

    Edges: ``source``, ``target`` (int64 nodes); ``weight`` (int64 ns), as in :class:`CriticalGraph`, so the longest
    path is as long as the recording; ``bound_by`` (uint8, a :class:`BoundBy`); ``event`` (int64, into the event table;
    -1 none): the slice that the time belongs to, for a delay the slice that is late. If several paths to a node are
    equally long, the critical path takes the node's first edge.
    """

    ts: Int64s
    row: EventRows
    is_start: Bools
    source: Int64s
    target: Int64s
    weight: Int64s
    bound_by: Bytes
    event: Int64s


class _Chain(Struct, frozen=True):
    """The events of a thread: the slice (``row``, int64) that it entered or left at each ``ts``, ascending.

    Their nodes begin at ``first_node``. ``lane`` holds the thread's nodes in the :class:`CriticalGraph`.
    """

    track: int
    ts: Int64s
    row: EventRows
    is_start: Bools
    first_node: int
    lane: slice


_Edges = tuple[Int64s, Int64s, Int64s, Bytes, Int64s, Bytes]  # source, target, weight, bound_by, event, rank


def event_graph(trace: Events) -> EventGraph:
    """The critical path's graph with a node for the start and the end of every event, as in HTA.

    :func:`critical_graph` has nodes only where something depends on them. This graph adds, between those nodes, the
    starts and ends of each thread's slices in order, and the ends of GPU work. The added nodes leave the length of
    every path unchanged.
    """
    graph, work, events = facts.critical.graph(trace), facts.gpu.work(trace), trace.events
    # the chain of each thread
    chains = []
    stacks = facts.host.stacks(trace)
    lanes = graph.lane[1 : graph.first_work]
    bounds = facts.host.thread_bounds(trace)
    node = 1
    for track, places in each(lanes, len(trace.tracks)):
        lane = slice(1 + int(places[0]), 2 + int(places[-1]))
        ts, row, is_start = _boundaries(trace, stacks.row[slice(*bounds[track : track + 2])], graph.ts[lane])
        chains.append(_Chain(track, ts, row, is_start, node, lane))
        node += len(ts)
    first_work = 1 + sum(len(chain.ts) for chain in chains)
    nodes = first_work + 2 * len(work) + 1
    ts, row, is_start = np.empty(nodes, np.int64), np.full(nodes, NO_INDEX, EventRow), np.zeros(nodes, np.bool_)
    ts[0], ts[-1] = graph.ts[0], graph.ts[-1]
    has_node = np.zeros(256, np.bool_)
    has_node[[Category.CPU_OP, *LAUNCHES]] = True
    for chain in chains:
        nodes_of = slice(chain.first_node, chain.first_node + len(chain.ts))
        ts[nodes_of], is_start[nodes_of] = chain.ts, chain.is_start
        row[nodes_of] = np.where((chain.row >= 0) & has_node[events.category[chain.row]], chain.row, NO_INDEX)
    start = first_work + 2 * np.arange(len(work))
    run = np.maximum(work.end - work.ts, 0)
    ts[start], ts[start + 1] = work.ts, work.ts + run
    row[start], row[start + 1], is_start[start] = work.row, work.row, True
    runs = (
        start,
        start + 1,
        run,
        np.uint8(facts.critical.BoundBy.KERNEL_COMPUTATION) + work.type,
        work.row,
        _all(WAY, len(run)),
    )
    # the edges of the graph's dependencies. They lead from the end of work (its start, if it still runs), or from the
    # last node of a moment, to the first node of a moment
    first, last = np.zeros(len(graph), np.int64), np.zeros(len(graph), np.int64)
    for chain in chains:
        moments = graph.ts[chain.lane]
        first[chain.lane] = chain.first_node + np.searchsorted(chain.ts, moments, side="left")
        last[chain.lane] = chain.first_node + np.searchsorted(chain.ts, moments, side="right") - 1
    works = slice(graph.first_work, graph.first_work + len(start))
    first[works] = last[works] = start
    first[-1] = last[-1] = start[-1] + 2 if len(start) else 1 + sum(len(chain.ts) for chain in chains)
    edges = np.flatnonzero(graph.kind != facts.waits.DependencyKind.THREAD)
    place = graph.source[edges] - graph.first_work
    of_work = (place >= 0) & (place < len(start))
    place[~of_work] = 0
    ended = of_work & (graph.self_ns[edges] == run[place]) if len(run) else of_work
    running = of_work & ~ended & (graph.self_ns[edges] > 0)
    weight = graph.weight[edges] - np.where(ended, graph.self_ns[edges], 0)
    kinds, event = facts.critical.delay_kinds(graph.kind[edges], weight), graph.to_row[edges]
    if running.any():
        work = facts.gpu.work(trace)
        kinds[running] = np.uint8(facts.critical.BoundBy.KERNEL_COMPUTATION) + work.type[place[running]]
        event = np.where(running, work.row[place], event)
    rank = _all(OTHER, len(edges))
    decides = np.zeros(len(graph.kind), np.bool_)
    decides[graph.binding[graph.binding >= 0]] = True
    rank[decides[edges]] = DECIDES
    parts = [
        (last[graph.source[edges]] + ended, first[graph.target[edges]], weight, kinds, event.astype(np.int64), rank),
        *(_along(trace, graph, chain) for chain in chains),
        runs,
    ]
    columns: list[Any] = [np.concatenate(column) for column in zip(*parts, strict=True)]
    # in order of rank; of several edges between the same nodes, the deciding one stays, else the heaviest
    source, target, weight, *_, rank = columns
    order = np.lexsort((-weight, rank, target, source))
    pair = source[order] * nodes + target[order]
    kept = np.sort(order[np.flatnonzero(np.diff(pair, prepend=-1))])
    kept = kept[np.argsort(rank[kept], kind="stable")]
    return EventGraph(ts, row, is_start, *(column[kept] for column in columns[:-1]))


def _all(value: int, count: int) -> Bytes:
    return np.full(count, value, np.uint8)


def _boundaries(trace: Events, row: EventRows, moments: Int64s) -> tuple[Int64s, EventRows, Bools]:
    """Starts and ends of a thread's slices ``row`` (from outer to inner), and the ``moments`` without any of them.

    At one moment the thread first leaves the slices that end there, inner before outer. Then it enters the slices that
    begin there, outer before inner, and leaves slices without duration at once.
    """
    start, dur = trace.events.ts[row], np.maximum(trace.events.dur[row], 0)
    place, empty = np.arange(len(row)), dur == 0
    other = distinct(moments)
    other = other[~is_among(other, np.sort(np.concatenate((start, start + dur))))]
    ts = np.concatenate((start, start + dur, other))
    entered = np.concatenate((np.ones(len(row), np.bool_), empty, np.ones(len(other), np.bool_)))
    tie = np.concatenate((2 * place, np.where(empty, 2 * place + 1, -place), np.zeros(len(other), np.intp)))
    order = np.lexsort((tie, entered, ts))
    whose = np.concatenate((row, row, np.full(len(other), NO_INDEX, EventRow)))
    return ts[order], whose[order], order < len(row)


def _along(trace: Events, graph: facts.critical.CriticalGraph, chain: _Chain) -> _Edges:
    """The edges along a thread. Their time belongs to the innermost slice; where the thread only waits, it is 0."""
    segments = facts.host.host_segments(trace)
    part = segments.of(chain.track)
    ts, dur = chain.ts[:-1], np.diff(chain.ts)
    innermost = segments.row[part.start + np.searchsorted(segments.ts[part], ts, side="right") - 1]
    at_once = np.where(chain.is_start[:-1], chain.row[:-1], np.where(chain.is_start[1:], NO_INDEX, chain.row[1:]))
    event = np.where(dur > 0, innermost, at_once)
    way = np.flatnonzero(graph.kind == facts.waits.DependencyKind.THREAD)
    waits = np.zeros(len(graph), np.bool_)
    waits[graph.source[way]] = graph.weight[way] == 0
    between = chain.lane.start + np.searchsorted(graph.ts[chain.lane], ts, side="right") - 1
    weight = np.where(waits[between], 0, dur)
    source = chain.first_node + np.arange(len(ts))
    return source, source + 1, weight, facts.critical.host_kinds(trace, event), event, _all(WAY, len(ts))
