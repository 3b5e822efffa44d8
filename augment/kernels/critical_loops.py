"""The loops over the critical graph. In columns of nodes or edges, -1 stands for none."""

from __future__ import annotations

from augment.kernels.memory import Column, compiled

NEVER = 1 << 62  #: later than the end of any recording


@compiled
def bind(target: Column, arrival: Column, head: Column, following: Column, binding: Column) -> int:
    """Fill ``head``, ``following`` and ``binding``: see :func:`augment.facts.critical.critical_graph.bind`."""
    for edge in range(len(target)):
        to = target[edge]
        following[edge] = head[to]
        head[to] = edge
        if binding[to] < 0 or arrival[edge] > arrival[binding[to]]:
            binding[to] = edge
    return 0


@compiled
def walk(binding: Column, source: Column, path: Column, node: int) -> int:
    """Write the binding edges on the way from ``node`` back to the start into ``path``. Returns their number."""
    count = 0
    edge = binding[node]
    while edge >= 0:
        path[count] = edge
        count += 1
        edge = binding[source[edge]]
    return count


@compiled
def latest(order: Column, head: Column, following: Column, source: Column, weight: Column, late: Column) -> int:
    """Fill ``late``. On entry it holds the time of the last node, and :data:`NEVER` for all others."""
    for place in range(len(order)):
        node = order[len(order) - 1 - place]
        edge = head[node] if late[node] < NEVER else -1
        while edge >= 0:
            late[source[edge]] = min(late[source[edge]], late[node] - weight[edge])
            edge = following[edge]
    return 0


@compiled
def saved(
    order: Column, head: Column, following: Column, source: Column, weight: Column, ts: Column, due: Column,
    leaving: Column, cut_edge: Column, cut_ns: Column, jobs: Column, early: Column, cut: Column, result: Column,
) -> int:  # fmt: skip
    """Fill ``result`` for jobs of six numbers each: see :func:`augment.facts.critical.critical_graph.saved`.

    Before and after the call, ``early`` equals ``ts`` and ``cut`` is 0.
    """
    for job in range(len(result)):
        first, stop, leave, left, low, high = 6 * job, 6 * job + 1, 6 * job + 2, 6 * job + 3, 6 * job + 4, 6 * job + 5
        for place in range(jobs[low], jobs[high]):
            cut[cut_edge[place]] += cut_ns[place]
        for place in range(jobs[first], jobs[stop]):
            node = order[place]
            edge = head[node]
            if edge >= 0:
                early[node] = early[source[edge]] + weight[edge] - cut[edge]
            while edge >= 0:
                early[node] = max(early[node], early[source[edge]] + weight[edge] - cut[edge])
                edge = following[edge]
        gain, has_gain = 0, False
        for place in range(jobs[leave], jobs[left]):
            edge = leaving[place]
            gained = due[place] - early[source[edge]] - weight[edge] + cut[edge]
            gain = min(gain, gained) if has_gain else gained
            has_gain = True
        result[job] = gain
        for place in range(jobs[first], jobs[stop]):
            early[order[place]] = ts[order[place]]
        for place in range(jobs[low], jobs[high]):
            cut[cut_edge[place]] = 0
    return 0
