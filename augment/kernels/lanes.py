"""The loop of ``writers/perfetto/lanes.py``: the open slices of each lane form a list that starts at ``top`` and
continues in ``below``.

Each place of a track has a first lane, and each lane a next one; -1 stands for none.
"""

from __future__ import annotations

from augment.kernels.memory import Column, compiled


@compiled
def slice_at(
    at: int, meant: int, lane: int, ts: Column, end: Column, mark: Column, top: Column, next_lane: Column, below: Column
) -> int:
    """The innermost slice that covers ``at`` in ``lane`` and all lanes after it; -1 if there is none."""
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
    """One pass in order of time: assigns a lane to each of ``rows`` and a slice to each point."""
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
