"""The loop of ``writers/perfetto/lanes.py``: each lane keeps its open slices as a list from ``top`` to those ``below``.

Of each place of a track there is the first lane, and of each lane the next; -1 is none.
"""

from __future__ import annotations

from augment.kernels.memory import Column, compiled


@compiled
def slice_at(
    at: int, meant: int, lane: int, ts: Column, end: Column, mark: Column, top: Column, next_lane: Column, below: Column
) -> int:
    """The innermost slice that covers ``at``, of ``lane`` and all after it; -1 if there is none."""
    best = -1
    while lane >= 0:
        inner = top[lane]
        while inner >= 0 and end[inner] < at:
            inner = below[inner]
        if inner >= 0 and (best < 0 or ts[inner] > ts[best]):
            best = inner
        while inner >= 0 and ts[inner] == at:
            if mark[inner] == meant:
                return inner
            inner = below[inner]
        lane = next_lane[lane]
    return best


@compiled
def walk(
    rows: Column, place: Column, ts: Column, end: Column, mark: Column, point_place: Column, point_ts: Column,
    point_mark: Column, first_lane: Column, top: Column, next_lane: Column, below: Column, lane: Column, result: Column,
) -> int:  # fmt: skip
    """One pass in the order of time: the lane of each of ``rows``, and what slice each point found."""
    lanes, point = 0, 0
    for i in range(len(rows) + 1):
        row = rows[i] if i < len(rows) else 0
        while point < len(point_ts) and (i == len(rows) or point_ts[point] < ts[row]):
            first = first_lane[point_place[point]]
            result[point] = slice_at(point_ts[point], point_mark[point], first, ts, end, mark, top, next_lane, below)
            point += 1
        if i == len(rows):
            break
        number, before, open_slice = 0, -1, -1
        current = first_lane[place[row]]
        while current >= 0:
            open_slice = top[current]
            while open_slice >= 0 and end[open_slice] <= ts[row]:
                open_slice = below[open_slice]
            if open_slice < 0 or end[row] <= end[open_slice]:
                break
            number += 1
            before = current
            current = next_lane[current]
        if current < 0:
            current = lanes
            lanes += 1
            next_lane[current] = -1
            open_slice = -1
            if before < 0:
                first_lane[place[row]] = current
            else:
                next_lane[before] = current
        below[row] = open_slice
        top[current] = row
        lane[row] = number
    return 0
