"""Lanes and arrows: partly overlapping slices of one track are placed side by side, and the slices are found that the
source's flow events link: at each moment the innermost slice that covers it, bounds included.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from augment.arrays import NO_INDEX, Int32s, Int64s, is_among
from augment.core import Category, Trace
from augment.kernels.native import native


class TrackSlices(Struct, frozen=True):
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


def lanes_and_slices(slices: TrackSlices, points: Points, place_count: int) -> tuple[Int32s, Int64s]:
    """The lane of each row (0 is the first; rows that are not slices also have 0), and the slice of each point."""
    count, rows = len(slices.ts), len(slices.rows)
    lane = np.zeros(count, np.int32)
    next_slice = np.full(len(points.ts), NO_INDEX, np.int64)
    given = (slices.rows, slices.place, slices.ts, slices.end, slices.mark, points.place, points.ts, points.mark)
    room = (np.full(place_count, -1, np.int32), *(np.empty(size, np.int32) for size in (rows, rows, count)))
    native("nesting.assign_lanes")(*map(np.ascontiguousarray, given), *room, lane, next_slice)
    return lane, next_slice


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


ENCLOSING = (Category.AC2G, Category.FWDBWD)  #: whose ends bind to the slice around them, as Kineto always says
_NO_MARK = -3  #: a value that no slice's mark has


class Arrows(Struct, frozen=True):
    """Arrows from the slice in row ``out`` to that in row ``into``: equal-length int64 columns. ``lost`` flow events
    made no arrow.
    """

    out: Int64s
    into: Int64s
    lost: int


def flow_rows(trace: Trace) -> Int64s:
    """The rows of flow events, ascending."""
    phase = trace.events.phase
    return np.flatnonzero((phase == ord("s")) | (phase == ord("f")) | (phase == ord("t")))


def rows_to_look_at(trace: Trace) -> Int64s:
    """The rows of flow ends whose text must be read to know what they bind to."""
    events = trace.events
    doubtful = events.phase == ord("f")
    for category in ENCLOSING:
        doubtful &= events.category != category
    return np.flatnonzero(doubtful)


def points(trace: Trace, rows: Int64s, place: Int32s) -> Points:
    """The points at which slices are searched: those of ``rows``."""
    events = trace.events
    ids = _ids(trace, rows).copy()
    ids[events.category[rows] != Category.AC2G] = _NO_MARK
    return Points(place[rows], events.ts[rows], ids)


def bind_to_next(next_slice: Int64s, rows: Int64s, slices: TrackSlices, texts: Mapping[int, dict[str, Any]]) -> None:
    """Fill ``next_slice`` for flow ends without ``bp: e``: they bind to the next slice of their track, as in
    Perfetto.
    """
    for at in np.flatnonzero(is_among(rows, np.sort(np.array([*texts], np.int64)))).tolist():
        row = int(rows[at])
        if texts[row].get("ph") != "f" or texts[row].get("bp") == "e":
            continue
        rows_of_place = slices.rows[slices.place[slices.rows] == slices.place[row]]
        after = int(np.searchsorted(slices.ts[rows_of_place], slices.ts[row]))
        next_slice[at] = rows_of_place[after] if after < len(rows_of_place) else NO_INDEX


def arrows(trace: Trace, rows: Int64s, next_slice: Int64s) -> Arrows:
    """The arrows of the source. Each leads to a step or end, from the previous step or beginning with the same id.

    An end before its beginning (clocks differ) is still linked from that beginning.
    """
    events = trace.events
    # A number for each flow event; equal if id, name and category are equal
    ids = _ids(trace, rows)
    words = len(trace.strings) + 1
    kinds = events.category_name[rows].astype(np.int64) * words + events.name[rows]
    if len(rows) and (kinds != kinds[0]).any():
        kinds = np.unique(kinds, return_inverse=True)[1].reshape(-1)
    else:
        kinds = np.zeros(len(rows), np.int64)
    low = int(ids.min(initial=0))
    width = int(ids.max(initial=0)) - low + 1
    if (int(kinds.max(initial=0)) + 1) * width < 2**62:
        keys = kinds * width + (ids - low)
    else:
        keys = np.unique(np.stack([kinds, ids]), axis=1, return_inverse=True)[1].reshape(-1)
    order = np.argsort(keys, kind="stable")  # within a key, in order of time
    keys = keys[order]
    phase = events.phase[rows][order]
    slice_of = next_slice[order]
    position = np.arange(len(rows))
    new_key = np.ones(len(rows), np.bool_)
    new_key[1:] = keys[1:] != keys[:-1]
    first = np.maximum.accumulate(np.where(new_key, position, 0)) if len(rows) else position
    is_source = phase != ord("f")
    last = np.maximum.accumulate(np.where(is_source, position, -1)) if len(rows) else position
    before = np.concatenate([np.full(1, -1), last[:-1]]) if len(rows) else position
    source = np.where(phase == ord("s"), -1, before)
    early = (source < first) & (phase == ord("f"))
    if early.any():
        starts = np.flatnonzero(phase == ord("s"))
        after = np.minimum(np.searchsorted(starts, position[early]), max(len(starts) - 1, 0))
        candidate = starts[after] if len(starts) else np.full(int(early.sum()), -1)
        known = candidate >= 0
        known[known] = keys[candidate[known]] == keys[early][known]
        source[early] = np.where(known, candidate, -1)
    source = np.where(source < first, np.where(early, source, -1), source)
    linked = source >= 0
    out, into = slice_of[source[linked]], slice_of[linked]
    good = (out != NO_INDEX) & (into != NO_INDEX) & (out != into)
    used = np.zeros(len(rows), np.bool_)
    used[source[linked][good]] = True
    used[np.flatnonzero(linked)[good]] = True
    return Arrows(out[good], into[good], int((~used).sum()))


def _ids(trace: Trace, rows: Int64s) -> Int64s:
    known = trace.events.flow_id
    return known.values[:] if np.array_equal(known.rows[:], rows) else known.at(rows, _NO_MARK)
