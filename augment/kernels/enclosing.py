"""The loops of ``derived/host/enclosing.py``."""

from __future__ import annotations

from augment.kernels.memory import Column, compiled


@compiled
def around(
    end: Column, thread: Column, needed: Column, asker: Column, where: Column, opened: Column, result: Column
) -> int:
    """Fill ``result``: of the first ``where`` slices, the last one on the thread ``asker`` that ends at ``needed`` or
    later.

    A slice that ends no later than one that began after it is never the answer. The remaining slices are kept in
    ``opened``, where ends descend, so a binary search finds the last slice that ends late enough.
    """
    depth, passed = 0, 0
    for i in range(len(result)):
        while passed < where[i]:
            while depth > 0 and (end[opened[depth - 1]] < end[passed] or thread[opened[depth - 1]] != thread[passed]):
                depth -= 1
            opened[depth] = passed
            depth += 1
            passed += 1
        low, high = 0, depth
        while low < high:
            middle = (low + high) // 2
            if end[opened[middle]] >= needed[i]:
                low = middle + 1
            else:
                high = middle
        result[i] = opened[low - 1] if low > 0 and thread[opened[low - 1]] == asker[i] else -1
    return 0


@compiled
def of_parents(parent: Column, index: Column, outermost: int, result: Column) -> int:
    """Fill ``result`` where no slices cross, so that those around a place are its ancestors: the ``index`` of the
    innermost ancestor that has one, which is not -1, or of the ``outermost``; -1: none.
    """
    for i in range(len(parent)):
        outer = parent[i]
        if outer < 0:
            result[i] = -1
        elif outermost:
            result[i] = result[outer] if result[outer] >= 0 else index[outer]
        else:
            result[i] = index[outer] if index[outer] >= 0 else result[outer]
    return 0


@compiled
def of_places(
    row: Column,
    ts: Column,
    dur: Column,
    track: Column,
    places: Column,
    outermost: int,
    opened: Column,
    ends: Column,
    result: Column,
) -> int:
    """Fill ``result`` for every place of the call stacks: which of ``places`` is the innermost other slice around it,
    or the ``outermost``; -1: none.

    A slice that ends no later than one that began after it is never the innermost, and one that ends no later than one
    that began before it is never the outermost. The remaining slices of the thread are kept in ``opened``, and when
    they end in ``ends``, which descend for the innermost and ascend for the outermost.
    """
    depth, passed, thread = 0, 0, -1
    for i in range(len(row)):
        r = row[i]
        if track[r] != thread:
            depth, thread = 0, track[r]
        end = ts[r] + dur[r]
        needed = max(end, ts[r] + 1)
        if outermost:
            low, high, step = depth, depth, 1
            while low > 0 and ends[low - 1] >= needed:  # repeats only where slices cross
                high = low - 1
                low = max(high - step, 0)
                step *= 2
            while low < high:
                middle = (low + high) // 2
                if ends[middle] >= needed:
                    high = middle
                else:
                    low = middle + 1
            result[i] = opened[low] if low < depth else -1
        else:
            while depth > 0 and ends[depth - 1] <= ts[r]:
                depth -= 1
            low, high = 0, depth
            if depth > 0 and ends[depth - 1] >= needed:
                low = depth  # as nearly always
            while low < high:
                middle = (low + high) // 2
                if ends[middle] >= needed:
                    low = middle + 1
                else:
                    high = middle
            result[i] = opened[low - 1] if low > 0 else -1
        if passed < len(places) and places[passed] == i:
            while not outermost and depth > 0 and ends[depth - 1] < end:
                depth -= 1
            if not outermost or depth == 0 or ends[depth - 1] < end:
                opened[depth], ends[depth] = passed, end
                depth += 1
            passed += 1
    return 0
