"""Loops over the critical graph. They run in compiled kernels."""

from __future__ import annotations

import numpy as np

from augment.arrays.types import NO_INDEX, Int32s, Int64s
from augment.kernels.critical_loops import NEVER as NEVER
from augment.kernels.native import native


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
    native("critical_loops.bind")(target, arrival, head, following, binding)
    return head, following, binding


def walk(binding: Int32s, source: Int32s, node: int) -> Int32s:
    """The path of binding edges that ends at ``node``, in order of time; int32."""
    path = np.empty(len(binding), np.int32)
    count = native("critical_loops.walk")(binding, source, path, node)
    return path[:count][::-1]


def latest(order: Int32s, head: Int32s, following: Int32s, source: Int32s, weight: Int64s, end: int) -> Int64s:
    """The latest time of each node, int64 ns, at which the last node still comes by ``end``; :data:`NEVER` for nodes
    that the last node does not depend on."""
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
    native("critical_loops.saved")(*columns, np.ascontiguousarray(jobs).ravel(), early, cut, result)
    return result
