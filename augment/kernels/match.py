"""The loop of ``readers/match.py``: one pass in order of time, with a stack for each track."""

from __future__ import annotations

from augment.kernels.memory import Column, compiled


@compiled
def match(
    begin_order: Column, begin_ts: Column, begin_track: Column, end_order: Column, end_ts: Column, end_track: Column,
    before: Column, top: Column, below: Column, end_of: Column,
) -> int:  # fmt: skip
    """Fill ``end_of``. ``top`` is the innermost open slice of each track, ``below`` the one around each slice; -1:
    none.
    """
    b = 0
    for e in range(len(end_order)):
        end = end_order[e]
        while b < len(begin_order):
            begin = begin_order[b]
            if begin_ts[begin] > end_ts[end] or (begin_ts[begin] == end_ts[end] and begin >= before[end]):
                break
            below[begin] = top[begin_track[begin]]
            top[begin_track[begin]] = begin
            b += 1
        innermost = top[end_track[end]]
        if innermost >= 0:
            end_of[innermost] = end
            top[end_track[end]] = below[innermost]
    return 0
