"""The loop of ``derived/host/enclosing.py``."""

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
