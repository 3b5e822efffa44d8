"""The loops over the critical graph: compiled where that pays and can be, else the same in Python."""

from __future__ import annotations

import numpy as np

from augment.kernels.load import Load
from augment.kernels.native import Native
from augment.trace import Int32s, Int64s

COMPILED_FROM = 30_000  #: edges from which on compiled code earns its load
_load = Load()
NONE = -1
NEVER = 1 << 62  #: no recording lasts so long


def bind(source: Int32s, target: Int32s, arrival: Int64s, nodes: int) -> tuple[Int32s, Int32s, Int32s]:
    """Of each node, the edge that arrives last (of equals, the first edge), and all edges that lead to it.

    Args:
        source: int32, the node from which each edge leads.
        target: int32, the node to which it leads.
        arrival: int64 ns, when it does.
        nodes: how many there are.

    Returns:
        ``head`` (of each node, an edge that leads to it), ``following`` (of each edge, another that leads to the same
        node) and ``binding`` (of each node); int32, -1 none.
    """
    head, binding = np.full(nodes, NONE, np.int32), np.full(nodes, NONE, np.int32)
    following = np.full(len(source), NONE, np.int32)
    if (loop := _compiled("bind", len(source))) is not None:
        loop(*_addresses(target, arrival, head, following, binding), len(target))
        return head, following, binding
    best: dict[int, int] = {}
    for edge, (to, at) in enumerate(zip(target.tolist(), arrival.tolist(), strict=True)):
        following[edge], head[to] = head[to], edge
        if to not in best or at > best[to]:
            best[to], binding[to] = at, edge
    return head, following, binding


def walk(binding: Int32s, source: Int32s, node: int) -> Int32s:
    """The binding edges from ``node`` back to where there is none, in the order of time; int32."""
    path = np.empty(len(binding), np.int32)
    if (loop := _compiled("walk", len(source))) is not None:
        count = loop(*_addresses(binding, source, path), node)
        return path[:count][::-1]
    found, edges, sources = [], binding.tolist(), source.tolist()
    while (edge := edges[node]) != NONE:
        found.append(edge)
        node = sources[edge]
    return np.array(found[::-1], np.int32)


def latest(order: Int32s, head: Int32s, following: Int32s, source: Int32s, weight: Int64s, end: int) -> Int64s:
    """The latest that each node could come for the last to come by ``end``, int64 ns; :data:`NEVER` if the last does
    not depend on it."""
    late = np.full(len(order), NEVER, np.int64)
    late[-1] = end
    if (loop := _compiled("latest", len(source))) is not None:
        loop(*_addresses(order, head, following, source, weight, late), len(order))
        return late
    heads, nexts, sources, weights, times = (x.tolist() for x in (head, following, source, weight, late))
    for node in order[::-1].tolist():
        edge = heads[node] if times[node] < NEVER else NONE
        while edge != NONE:
            times[sources[edge]] = min(times[sources[edge]], times[node] - weights[edge])
            edge = nexts[edge]
    return np.array(times, np.int64)


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
    """How much earlier all that leaves a window could be due, if some of its edges took less time; int64 ns, a job.

    Args:
        order: the nodes, sources first.
        head: as from :func:`bind`.
        following: as from :func:`bind`.
        source: of each edge.
        weight: of each edge, int64 ns.
        ts: of each node, int64 ns: as early as it can come.
        due: of each of ``leaving``, int64 ns: the latest that its target can come.
        leaving: edges, int64.
        cut_edge: edges that take less time, int64.
        cut_ns: by how much, int64 ns.
        jobs: int64, six columns: the places ``[from, to)`` in ``order``, in ``leaving``, and in ``cut_edge``.
    """
    result = np.zeros(len(jobs), np.int64)
    early, cut = ts.copy(), np.zeros(len(source), np.int64)
    columns = (order, head, following, source, weight, ts, due, leaving)
    if (loop := _compiled("saved", len(source))) is not None:
        loop(*_addresses(*columns, cut_edge, cut_ns, np.ascontiguousarray(jobs), early, cut, result), len(jobs))
        return result
    nodes, heads, nexts, sources, weights, times, dues, leaves = (column.tolist() for column in columns)
    cut_edges, cuts, moved, less = cut_edge.tolist(), cut_ns.tolist(), early.tolist(), cut.tolist()
    for job, (first, stop, leave, left, low, high) in enumerate(jobs.tolist()):
        for place in range(low, high):
            less[cut_edges[place]] += cuts[place]
        for node in nodes[first:stop]:
            edge, at = heads[node], None
            while edge != NONE:
                comes = moved[sources[edge]] + weights[edge] - less[edge]
                at = comes if at is None or comes > at else at
                edge = nexts[edge]
            moved[node] = times[node] if at is None else at
        gains = [
            at - moved[sources[edge]] - weights[edge] + less[edge]
            for at, edge in zip(dues[leave:left], leaves[leave:left], strict=True)
        ]
        result[job] = min(gains, default=0)
        for node in nodes[first:stop]:
            moved[node] = times[node]
        for place in range(low, high):
            less[cut_edges[place]] = 0
    return result


def _compiled(function: str, size: int) -> Native | None:
    return _load.native(f"critical_loops.{function}", size, COMPILED_FROM)


def _addresses(*columns: Int32s | Int64s) -> list[int]:
    """Of columns without gaps."""
    return [column.ctypes.data for column in columns]
