"""Lanes: where slices of one track overlap in part, those that do not fit into each other lie side by side.

The same pass finds the slices that flows begin and end at: the innermost that covers a moment, both its ends included.
``kernels/lanes.py`` has :func:`_walk` once more, for many slices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from augment.kernels.load import Load
from augment.trace import Int32s, Int64s

COMPILED_FROM = 30_000  #: slices from which on compiled code earns its load
_load = Load()
NO_SLICE = -1


@dataclass(frozen=True, slots=True)
class Slices:
    """Columns of equal length; ``rows`` are those that are slices, ascending ``ts``, then longer first.

    ``place`` int32 is the track, ``mark`` int64 tells which of two slices that begin at a point's moment is meant.
    """

    rows: Int64s
    place: Int32s
    ts: Int64s
    end: Int64s
    mark: Int64s


@dataclass(frozen=True, slots=True)
class Points:
    """Moments on tracks, ascending ``ts``: equal-length columns."""

    place: Int32s
    ts: Int64s
    mark: Int64s


def by_start(rows: Int64s, ts: Int64s, end: Int64s) -> Int64s:
    """``rows``, which ascend in ``ts``, with those of equal ``ts`` in the order longer first; else as they were."""
    starts = ts[rows]
    tied = np.zeros(len(rows) + 1, np.bool_)
    tied[1:-1] = starts[1:] == starts[:-1]
    tied = tied[1:] | tied[:-1]
    places = np.flatnonzero(tied)
    if len(places):
        chosen = rows[places]
        rows = rows.copy()
        rows[places] = chosen[np.lexsort((-end[chosen], ts[chosen]))]
    return rows


def lanes_and_slices(slices: Slices, points: Points, place_count: int) -> tuple[Int32s, Int64s]:
    """The lane of each row (0 is the first; 0 also for rows that are no slices), and the slice of each point."""
    count, rows = len(slices.ts), len(slices.rows)
    lane = np.zeros(count, np.int32)
    found = np.full(len(points.ts), NO_SLICE, np.int64)
    columns: list[npt.NDArray[Any]] = [
        slices.rows, slices.place, slices.ts, slices.end, slices.mark, points.place, points.ts, points.mark,
        np.full(place_count, -1, np.int32), np.empty(rows, np.int32), np.empty(rows, np.int32),
        np.empty(count, np.int32), lane, found,
    ]  # fmt: skip
    if walk := _load.native("lanes.walk", rows, COMPILED_FROM):
        held = [np.ascontiguousarray(column) for column in columns]  # the same arrays, but for those of the table
        table = np.array([column.ctypes.data for column in held], np.int64)
        walk(table.ctypes.data, rows, len(points.ts))
        return lane, found
    as_lists = [column.tolist() for column in columns]
    _walk(*as_lists)
    return np.array(as_lists[-2], np.int32), np.array(as_lists[-1], np.int64)


def _walk(
    rows: Any, place: Any, ts: Any, end: Any, mark: Any, point_place: Any, point_ts: Any, point_mark: Any,
    first_lane: Any, top: Any, next_lane: Any, below: Any, lane: Any, found: Any,
) -> None:  # fmt: skip
    """One pass in the order of time; each lane keeps its open slices as a list from its ``top`` to those ``below``."""
    lanes = 0
    point = 0
    for i in range(len(rows) + 1):
        row = rows[i] if i < len(rows) else 0
        while point < len(point_ts) and (i == len(rows) or point_ts[point] < ts[row]):
            at = point_ts[point]
            best = -1
            one = first_lane[point_place[point]]
            while one >= 0:
                inner = top[one]
                while inner >= 0 and end[inner] < at:
                    inner = below[inner]
                if inner >= 0 and (best < 0 or ts[inner] > ts[best]):
                    best = inner
                while inner >= 0 and ts[inner] == at and mark[inner] != point_mark[point]:
                    inner = below[inner]
                if inner >= 0 and ts[inner] == at:
                    best = inner
                    break
                one = next_lane[one]
            found[point] = best
            point += 1
        if i == len(rows):
            break
        number = 0
        before = -1
        open_slice = -1
        one = first_lane[place[row]]
        while one >= 0:
            open_slice = top[one]
            while open_slice >= 0 and end[open_slice] <= ts[row]:
                open_slice = below[open_slice]
            if open_slice < 0 or end[row] <= end[open_slice]:
                break
            number += 1
            before = one
            one = next_lane[one]
        if one < 0:
            one = lanes
            lanes += 1
            next_lane[one] = -1
            open_slice = -1
            if before < 0:
                first_lane[place[row]] = one
            else:
                next_lane[before] = one
        below[row] = open_slice
        top[one] = row
        lane[row] = number
