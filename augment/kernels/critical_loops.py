"""The loops of ``derived/critical_loops.py``, compiled: line by line the same.

All arguments are addresses of columns, but for counts and a node: of int32 columns where they hold nodes or edges of
the graph (``cut_edge`` and ``leaving`` are int64), else of int64.
"""

from __future__ import annotations

from augment.kernels.memory import compiled, load_int, load_int32, store_int, store_int32


@compiled
def bind(target: int, arrival: int, head: int, following: int, binding: int, count: int) -> int:
    """See :func:`augment.derived.critical_loops.bind`."""
    for edge in range(count):
        to = load_int32(target + 4 * edge)
        store_int32(following + 4 * edge, load_int32(head + 4 * to))
        store_int32(head + 4 * to, edge)
        known = load_int32(binding + 4 * to)
        if known < 0 or load_int(arrival + 8 * edge) > load_int(arrival + 8 * known):
            store_int32(binding + 4 * to, edge)
    return 0


@compiled
def walk(binding: int, source: int, path: int, node: int) -> int:
    """See :func:`augment.derived.critical_loops.walk`; the path is written backwards, its length returned."""
    count = 0
    edge = load_int32(binding + 4 * node)
    while edge >= 0:
        store_int32(path + 4 * count, edge)
        count += 1
        edge = load_int32(binding + 4 * load_int32(source + 4 * edge))
    return count


@compiled
def latest(order: int, head: int, following: int, source: int, weight: int, late: int, count: int) -> int:
    """See :func:`augment.derived.critical_loops.latest`."""
    for place in range(count):
        node = load_int32(order + 4 * (count - 1 - place))
        at = load_int(late + 8 * node)
        edge = load_int32(head + 4 * node) if at < 1 << 62 else -1
        while edge >= 0:
            before = late + 8 * load_int32(source + 4 * edge)
            if at - load_int(weight + 8 * edge) < load_int(before):
                store_int(before, at - load_int(weight + 8 * edge))
            edge = load_int32(following + 4 * edge)
    return 0


@compiled
def saved(
    order: int, head: int, following: int, source: int, weight: int, ts: int, due: int, leaving: int, cut_edge: int,
    cut_ns: int, jobs: int, early: int, cut: int, result: int, count: int,
) -> int:  # fmt: skip
    """See :func:`augment.derived.critical_loops.saved`."""
    for job in range(count):
        row = jobs + 48 * job
        first, stop = load_int(row), load_int(row + 8)
        low, high = load_int(row + 32), load_int(row + 40)
        for place in range(low, high):
            spot = cut + 8 * load_int(cut_edge + 8 * place)
            store_int(spot, load_int(spot) + load_int(cut_ns + 8 * place))
        for place in range(first, stop):
            node = load_int32(order + 4 * place)
            edge = load_int32(head + 4 * node)
            if edge >= 0:
                at = -9223372036854775807
                while edge >= 0:
                    comes = load_int(early + 8 * load_int32(source + 4 * edge)) + load_int(weight + 8 * edge)
                    comes -= load_int(cut + 8 * edge)
                    if comes > at:
                        at = comes
                    edge = load_int32(following + 4 * edge)
                store_int(early + 8 * node, at)
        gain, found = 0, 0
        for place in range(load_int(row + 16), load_int(row + 24)):
            edge = load_int(leaving + 8 * place)
            comes = load_int(early + 8 * load_int32(source + 4 * edge)) + load_int(weight + 8 * edge)
            left = load_int(due + 8 * place) - comes + load_int(cut + 8 * edge)
            if found == 0 or left < gain:
                gain, found = left, 1
        store_int(result + 8 * job, gain)
        for place in range(first, stop):
            node = load_int32(order + 4 * place)
            store_int(early + 8 * node, load_int(ts + 8 * node))
        for place in range(low, high):
            store_int(cut + 8 * load_int(cut_edge + 8 * place), 0)
    return 0
