"""Lanes: partly overlapping slices of one track are placed side by side.

The same pass finds the slices at which flows begin and end: the innermost slice that covers a moment, bounds included.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from augment.arrays.types import NO_INDEX, Int32s, Int64s
from augment.kernels.native import native


class Slices(Struct, frozen=True):
    """Columns of equal length; ``rows`` are those that are slices, ascending ``ts``, then longer first.

    ``place`` int32 is the track, ``mark`` int64 tells which of two slices that begin at a point's moment is meant.
    """

    rows: Int64s
    place: Int32s
    ts: Int64s
    end: Int64s
    mark: Int64s


class Points(Struct, frozen=True):
    """Moments on tracks, ascending ``ts``, in equal-length columns."""

    place: Int32s
    ts: Int64s
    mark: Int64s


def by_start(rows: Int64s, ts: Int64s, end: Int64s) -> Int64s:
    """``rows``, which ascend in ``ts``, with rows of equal ``ts`` reordered to longer first; any further ties keep
    their order.
    """
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
    """The lane of each row (0 is the first; rows that are not slices also have 0), and the slice of each point."""
    count, rows = len(slices.ts), len(slices.rows)
    lane = np.zeros(count, np.int32)
    next_slice = np.full(len(points.ts), NO_INDEX, np.int64)
    given = (
        slices.rows,
        slices.place,
        slices.ts,
        slices.end,
        slices.mark,
        points.place,
        points.ts,
        points.mark,
    )
    room = (np.full(place_count, -1, np.int32), *(np.empty(size, np.int32) for size in (rows, rows, count)))
    native("nesting.assign_lanes")(*map(np.ascontiguousarray, given), *room, lane, next_slice)
    return lane, next_slice
