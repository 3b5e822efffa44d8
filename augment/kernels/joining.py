"""The loops of ``arrays/joining.py``: a group is the pieces from its ``first`` to the next group's."""

from __future__ import annotations

from augment.kernels.memory import Column, compiled


@compiled
def longest(first: Column, dur: Column, kind: Column, total: Column, result: Column) -> int:
    """Fill ``result``: of each group the longest piece of the kind that takes most time; of equals the first, and the
    least kind. ``total`` is room for the time of each kind: 0, before and after.
    """
    for group in range(len(first)):
        start, stop = first[group], first[group + 1] if group + 1 < len(first) else len(dur)
        for i in range(start, stop):
            total[kind[i]] += dur[i]
        best, most = kind[start], -1
        for i in range(start, stop):
            if total[kind[i]] > total[best] or (total[kind[i]] == total[best] and kind[i] < best):
                best = kind[i]
        for i in range(start, stop):
            if kind[i] == best and (most < 0 or dur[i] > dur[most]):
                most = i
        result[group] = most
        for i in range(start, stop):
            total[kind[i]] = 0
    return 0


@compiled
def times(first: Column, dur: Column, kind: Column, result: Column) -> int:
    """Add the time of each kind in each group to ``result``: all groups of the first kind, then of the next."""
    for group in range(len(first)):
        stop = first[group + 1] if group + 1 < len(first) else len(dur)
        for i in range(first[group], stop):
            result[kind[i] * len(first) + group] += dur[i]
    return 0
