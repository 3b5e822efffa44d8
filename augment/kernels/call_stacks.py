"""The loop of ``derived/host/call_stacks.py``."""

from __future__ import annotations

from augment.kernels.memory import Column, compiled


@compiled
def nest(ts: Column, end: Column, thread: Column, parent: Column, depth: Column, stop: Column) -> int:
    """Fill ``parent``, ``depth`` and ``stop`` of slices by ascending thread, then ``ts``, then from outer to inner.

    The chain of parents of the slice before is the stack: what ends before this one does can enclose nothing that is
    still to come, as it would have to enclose this one first. So each slice is passed once: linear time.
    """
    for i in range(len(ts)):
        stop[i] = len(ts)
        outer = i - 1
        while outer >= 0 and (end[outer] < end[i] or end[outer] <= ts[i] or thread[outer] != thread[i]):
            stop[outer] = i
            outer = parent[outer]
        parent[i] = outer
        depth[i] = 0 if outer < 0 else depth[outer] + 1
    return 0
