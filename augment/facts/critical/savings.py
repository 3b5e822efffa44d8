"""How much shorter would a recording be if chosen time were not spent: on a thread, by GPU work, or in waits?

As in ``what_if``, edges of the graph are shortened and the longest path is computed again. Here any time can be chosen,
and the result covers the whole recording. So a gain in one step may help the next. Delays keep their length.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from augment.arrays.intervals import held_between, union
from augment.arrays.ordering import each, numbered
from augment.arrays.types import Int32s, Int64s, Places
from augment.core.context import derived
from augment.core.trace import Trace
from augment.facts.critical.critical_graph import Graph, critical_graph
from augment.facts.critical.critical_loops import saved
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.waits.dependencies import DependencyKind

FOREVER_NS = 1 << 50  #: more than any recording lasts: an edge shortened by it decides nothing


class Cut(Struct, frozen=True):
    """Edges of the graph and the time by which each is shortened: int64 columns. An edge may occur more than once."""

    edge: Int64s
    ns: Int64s

    @staticmethod
    def nothing() -> Cut:
        """No edge."""
        return Cut(np.empty(0, np.int64), np.empty(0, np.int64))


def joined(cuts: Sequence[Cut]) -> Cut:
    """All edges of ``cuts``. If several name an edge, the greatest time counts."""
    edge = np.concatenate([np.empty(0, np.int64), *(cut.edge for cut in cuts)])
    ns = np.concatenate([np.empty(0, np.int64), *(cut.ns for cut in cuts)])
    edges, which = numbered(edge)
    most = np.zeros(len(edges), np.int64)
    np.maximum.at(most, which, ns)
    return Cut(edges, most)


def without_host_time(trace: Trace, track: Int32s, start: Int64s, end: Int64s) -> Cut:
    """The cut that makes threads take no time in the intervals ``[start, end)`` (int64 ns) of each ``track``, except
    that they still wait for GPU work there."""
    graph = critical_graph(trace)
    parts = []
    lanes = _lane_edges(trace)
    for lane, chosen in each(track, len(trace.tracks)):
        edges = lanes.get(lane)
        if edges is None:
            continue
        spans = union(start[chosen], end[chosen])
        moments = np.stack((spans.start, spans.end), axis=1).ravel()
        inside = np.tile(np.array([True, False]), len(spans.start))
        overlap = held_between(moments, inside, graph.ts[graph.source[edges]], graph.ts[graph.target[edges]])
        ns = np.minimum(overlap, graph.weight[edges])
        parts.append(Cut(edges[ns > 0], ns[ns > 0]))
    return joined(parts)


def without_work(trace: Trace, places: Places, ns: Int64s) -> Cut:
    """The cut that makes GPU work at ``places`` of ``gpu_work`` take ``ns`` (int64) less."""
    graph = critical_graph(trace)
    less = np.zeros(len(gpu_work(trace)), np.int64)
    less[places] = ns
    edges = np.flatnonzero(graph.self_ns > 0)
    less = less[graph.source[edges] - graph.first_work]
    edges, less = edges[less > 0], less[less > 0]
    return Cut(edges, np.minimum(less, graph.self_ns[edges]))


def fused(trace: Trace, places: Places, ns: Int64s) -> Cut:
    """The cut that makes GPU work at ``places`` take ``ns`` (int64) less, as if it ran in fewer kernels: the delays
    between such kernels on a stream become shorter in proportion.
    """
    graph, work = critical_graph(trace), gpu_work(trace)
    ratio = np.zeros(len(work) + 1)
    ratio[places] = ns / np.maximum(work.end[places] - work.ts[places], 1)
    chosen = np.zeros(len(work) + 1, np.bool_)
    chosen[places] = True
    edges = np.flatnonzero(graph.kind == DependencyKind.STREAM)
    for side in (graph.source, graph.target):
        edges = edges[chosen[side[edges] - graph.first_work]]
    source = graph.source[edges] - graph.first_work
    shorter = np.minimum((graph.weight[edges] * np.minimum(ratio[source], 1)).astype(np.int64), graph.weight[edges])
    return joined([without_work(trace, places, ns), Cut(edges, shorter)])


def without_waits(trace: Trace, calls: Int64s) -> Cut:
    """The cut that lets ``calls`` (int64 rows) return without waiting for GPU work."""
    graph = critical_graph(trace)
    edges = np.flatnonzero((graph.kind == DependencyKind.SYNC) & np.isin(graph.to_row, calls))
    return Cut(edges, np.full(len(edges), FOREVER_NS, np.int64))


def saved_ns(trace: Trace, cut: Cut) -> int:
    """How much shorter the recording would be, ns; never below 0."""
    if not len(cut.edge):
        return 0
    graph = critical_graph(trace)
    last = len(graph) - 1
    leaving = np.flatnonzero(graph.target == last)
    due = np.full(len(leaving), graph.ts[-1])
    jobs = np.array([[0, last, 0, len(leaving), 0, len(cut.edge)]], np.int64)
    columns = (graph.order, graph.head, graph.following, graph.source, graph.weight, graph.ts)
    return max(int(saved(*columns, due, leaving, cut.edge, cut.ns, jobs)[0]), 0)


@derived(until="rules")
def _lane_edges(trace: Trace) -> dict[int, Int64s]:
    """The edges along each thread, in the order of time."""
    graph: Graph = critical_graph(trace)
    along = np.flatnonzero(graph.kind == DependencyKind.THREAD)
    lane = graph.lane[graph.source[along]]
    return {track: along[places] for track, places in each(lane, len(trace.tracks))}
