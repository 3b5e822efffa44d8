"""Which end of a slice belongs to which beginning."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from augment.kernels.native import native
from augment.trace import Int32s, Int64s

NONE = -1


COMPILED_FROM = 100_000  #: beginnings and ends from which on compiled code earns its load


def matched(ts: Int64s, track: Int32s, end_ts: Int64s, end_track: Int32s, before: Int64s, track_count: int) -> Int64s:
    """For each beginning its end, :data:`NONE` where there is none: rows of the other table.

    An end closes what was begun last on its track, in the order of time, then of the file.

    Args:
        ts: of beginnings, in the order of the file.
        track: of beginnings.
        end_ts: of ends, in the order of the file.
        end_track: of ends.
        before: how many beginnings stand before each end in the file.
        track_count: tracks are numbered below it.
    """
    if len(ts) + len(end_ts) >= COMPILED_FROM:
        return in_one_pass(ts, track, end_ts, end_track, before, track_count)
    return by_depth(ts, track, end_ts, end_track, before)


def in_one_pass(
    ts: Int64s, track: Int32s, end_ts: Int64s, end_track: Int32s, before: Int64s, track_count: int
) -> Int64s:
    """:func:`matched`, compiled."""
    match = native("match.match")
    end_of, below = np.full(len(ts), NONE, np.int64), np.empty(len(ts), np.int64)
    columns: list[npt.NDArray[Any]] = [
        ts.argsort(kind="stable"), ts, track, end_ts.argsort(kind="stable"), end_ts, end_track, before,
        np.full(track_count, NONE, np.int64), below, end_of,
    ]  # fmt: skip
    held = [np.ascontiguousarray(column) for column in columns]  # the same arrays, but for slices
    table = np.array([column.ctypes.data for column in held], np.int64)
    match(table.ctypes.data, len(ts), len(end_ts))
    return end_of


def by_depth(ts: Int64s, track: Int32s, end_ts: Int64s, end_track: Int32s, before: Int64s) -> Int64s:
    """:func:`matched` by sorting: of the events of a track at one depth, each beginning is followed by its end."""
    count, total = len(ts), len(ts) + len(end_ts)
    end_of = np.full(count, NONE, np.int64)
    if not total:
        return end_of
    place = np.concatenate([2 * np.arange(count) + 1, 2 * before])
    tracks = np.concatenate([track, end_track]).astype(np.int64)
    order = np.lexsort((place, np.concatenate([ts, end_ts]), tracks))
    tracks = tracks[order]
    is_begin = order < count
    # how many are open, counted anew on each track: each begins lower than anything before it, by so much per track
    step = 2 * total + 2
    first = np.ones(total, np.bool_)
    first[1:] = tracks[1:] != tracks[:-1]
    floor = -step * np.cumsum(first)
    level = np.cumsum(np.where(is_begin, 1, -1))
    start = np.maximum.accumulate(np.where(first, np.arange(total), 0))
    level += floor - (level - np.where(is_begin, 1, -1))[start]
    # an end of nothing lowers the ground
    ground = np.minimum(np.minimum.accumulate(level), floor)
    earlier = np.concatenate([floor[:1], ground[:-1]])
    closes = ~is_begin & (ground >= np.minimum(earlier, floor))
    taken = np.flatnonzero(is_begin | closes)
    depth = (level - ground)[taken] + ~is_begin[taken]
    pairs = taken[np.lexsort((depth, tracks[taken]))]
    depth = (level - ground)[pairs] + ~is_begin[pairs]
    together = is_begin[pairs[:-1]] & ~is_begin[pairs[1:]]
    together &= (tracks[pairs[1:]] == tracks[pairs[:-1]]) & (depth[1:] == depth[:-1])
    which = np.flatnonzero(together)
    end_of[order[pairs[which]]] = order[pairs[which + 1]] - count
    return end_of
