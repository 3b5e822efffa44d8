"""The loop of ``derived/host/call_stacks.py``."""

from __future__ import annotations

from augment.kernels.memory import Column, compiled


@compiled
def nest(ts: Column, end: Column, thread: Column, parent: Column, depth: Column, stop: Column) -> int:
    """Fill ``parent``, ``depth`` and ``stop`` of slices sorted by thread, then ``ts``, then from outer to inner.
    Returns whether any two of a thread cross.

    The stack is the chain of parents of the previous slice. A slice on it that ends before the current slice cannot
    enclose any later slice, because it would have to enclose the current slice, too. So each slice leaves the stack
    once, and the time is linear.
    """
    crosses = 0
    for i in range(len(ts)):
        stop[i] = len(ts)
        outer = i - 1
        while outer >= 0 and (end[outer] < end[i] or end[outer] <= ts[i] or thread[outer] != thread[i]):
            if end[outer] > ts[i] and thread[outer] == thread[i]:
                crosses = 1
            stop[outer] = i
            outer = parent[outer]
        parent[i] = outer
        depth[i] = 0 if outer < 0 else depth[outer] + 1
    return crosses
