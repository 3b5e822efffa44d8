"""Matches ends of slices with their beginnings."""

from __future__ import annotations

import numpy as np

from augment.arrays.types import NO_INDEX, Int32s, Int64s
from augment.kernels.native import native


def matched(ts: Int64s, track: Int32s, end_ts: Int64s, end_track: Int32s, before: Int64s, track_count: int) -> Int64s:
    """For each beginning the row of its end in the other table; :data:`NO_INDEX` if it has none.

    An end closes the latest open beginning of its track, in the order of time, then of the file.

    Args:
        ts: of beginnings, in the order of the file.
        track: of beginnings.
        end_ts: of ends, in the order of the file.
        end_track: of ends.
        before: how many beginnings stand before each end in the file.
        track_count: tracks are numbered below it.
    """
    end_of, below = np.full(len(ts), NO_INDEX, np.int64), np.empty(len(ts), np.int64)
    columns = (ts.argsort(kind="stable"), ts, track, end_ts.argsort(kind="stable"), end_ts, end_track, before)
    top = np.full(track_count, NO_INDEX, np.int64)
    native("match.match")(*map(np.ascontiguousarray, columns), top, below, end_of)
    return end_of
