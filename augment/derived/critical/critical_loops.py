"""The loops over the critical graph, which are kernels."""

from __future__ import annotations

import numpy as np

from augment.arrays.types import Int32s, Int64s
from augment.kernels.critical_loops import NEVER as NEVER
from augment.kernels.native import native

NONE = -1


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
    native("critical_loops.bind")(target, arrival, head, following, binding)
    return head, following, binding


def walk(binding: Int32s, source: Int32s, node: int) -> Int32s:
    """The binding edges from ``node`` back to where there is none, in the order of time; int32."""
    path = np.empty(len(binding), np.int32)
    count = native("critical_loops.walk")(binding, source, path, node)
    return path[:count][::-1]


def latest(order: Int32s, head: Int32s, following: Int32s, source: Int32s, weight: Int64s, end: int) -> Int64s:
    """The latest that each node could come for the last to come by ``end``, int64 ns; :data:`NEVER` if the last does
    not depend on it."""
    late = np.full(len(order), NEVER, np.int64)
    late[-1] = end
    native("critical_loops.latest")(order, head, following, source, weight, late)
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
    columns = (order, head, following, source, weight, ts, due, leaving, cut_edge, cut_ns)
    native("critical_loops.saved")(*columns, np.ascontiguousarray(jobs).ravel(), early, cut, result)
    return result
