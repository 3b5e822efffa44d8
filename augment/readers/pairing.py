"""Pairs the ``B`` and ``E`` events of Chrome JSON into slices, by Perfetto's rules.

An end without name and category closes the latest open beginning of its thread. An end with a name or a category closes
the latest open beginning with that name and category; all slices begun inside it that are still open end with it. The
row of the beginning becomes the slice, with phase ``X``. The row of the end stays an event without a duration.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from msgspec import Struct

from augment.arrays import NO_INDEX, Bools, Int32s, Int64s, distinct, is_among
from augment.core import COMPLETE, NO_CORRELATION, SparseColumn
from augment.kernels.native import native
from augment.readers.raw import RawEvents

BEGIN, END = ord("B"), ord("E")
ANY = 0  #: the number of the empty string: an end without a name or category matches any


class _Marks(Struct):
    """The rows of beginnings and ends, in the order of the file, with their threads.

    For each beginning, ``end_row`` is the row of its end (:data:`NO_INDEX` without one) and ``end_ts`` the time at
    which it ends. ``inner`` are the beginnings that end only because a slice around them does.
    """

    begins: Int64s
    ends: Int64s
    begin_thread: Int32s
    end_thread: Int32s
    end_row: Int64s
    end_ts: Int64s
    inner: Bools


def pair(raw: RawEvents, longest: int) -> None:
    """Make slices of the beginnings and ends in ``raw``. Slices longer than ``longest`` ns become ``longest`` + 1
    ns.
    """
    begins, ends = (np.flatnonzero(raw.phase == phase) for phase in (BEGIN, END))
    if not len(begins) and not len(ends):
        return
    threads: dict[tuple[object, object], int] = {}
    thread = np.array([threads.setdefault(place[:2], len(threads)) for place in raw.places], np.int32)
    of_begins, of_ends = thread[raw.place[begins]], thread[raw.place[ends]]  # rows of phase 0 have an arbitrary place
    before = np.searchsorted(begins, ends)
    number = matched(raw.ts[begins], of_begins, raw.ts[ends], of_ends, before, len(threads))
    end_row = np.append(ends, NO_INDEX)[number]  # NO_INDEX is -1, which indexes the last entry
    marks = _Marks(begins, ends, of_begins, of_ends, end_row, raw.ts[end_row], np.zeros(len(begins), np.bool_))
    wrong = np.zeros(len(begins), np.bool_)  # whose end contradicts its name or category
    for column in (raw.name, raw.category):
        wrong |= (column[end_row] != ANY) & (column[end_row] != column[begins])
    wrong &= end_row != NO_INDEX
    if wrong.any():
        _pair_by_name(raw, marks, distinct(of_begins[wrong]))
    # set the durations of slices, and count beginnings and ends without a counterpart
    is_ended = marks.end_row != NO_INDEX
    closed = is_ended | marks.inner
    rows, last = marks.begins[is_ended], marks.end_row[is_ended]
    every = marks.begins[closed]
    lasted = marks.end_ts[closed].view(np.uint64) - raw.ts[every].view(np.uint64)  # the difference may exceed int64
    raw.dur[every] = np.minimum(lasted, np.uint64(longest + 1)).astype(np.int64)
    raw.phase[every] = COMPLETE
    raw.ends = SparseColumn(rows, last)
    for column in (raw.place, raw.category):  # an end has no device, and gets no separate track
        column[last] = column[rows]
    bare = raw.correlation[rows] == NO_CORRELATION
    raw.correlation[rows[bare]] = raw.correlation[last[bare]]
    open_ones, lone = marks.begins[~closed], marks.ends[~is_among(marks.ends, np.sort(last))]
    for code, odd in (
        ("slice_without_end", open_ones),
        ("end_without_slice", lone),
        ("slice_without_own_end", marks.begins[marks.inner]),
    ):
        if len(odd):
            raw.tally.add(code, int(raw.offset[odd].min()), len(odd))


def _pair_by_name(raw: RawEvents, marks: _Marks, threads: Int32s) -> None:
    """Repeat the pairing for ``threads`` on which some end does not close the latest beginning."""
    begins = np.flatnonzero(np.isin(marks.begin_thread, threads))
    ends = np.flatnonzero(np.isin(marks.end_thread, threads))
    marks.end_row[begins] = NO_INDEX
    rows = np.concatenate([marks.begins[begins], marks.ends[ends]])
    number = np.concatenate([begins, np.full(len(ends), NO_INDEX)])
    thread = np.concatenate([marks.begin_thread[begins], marks.end_thread[ends]])
    order = np.lexsort((rows, raw.ts[rows], thread))
    columns = (thread, number, rows, raw.category[rows], raw.name[rows], raw.ts[rows])
    stack: list[tuple[int, int, int]] = []
    known: Counter[tuple[int, int]] = Counter()  # how many slices are open that an end of this category and name closes
    last = -1
    for key, begin, row, category, name, ts in zip(*(column[order].tolist() for column in columns), strict=True):
        if key != last:
            last, stack, known = key, [], Counter()
        if begin != NO_INDEX:
            stack.append((begin, category, name))
            known.update(_closed_by(category, name))
        while begin == NO_INDEX and known[category, name]:
            inner, *kind = stack.pop()
            ended = _closed_by(*kind)
            known.subtract(ended)
            marks.end_ts[inner] = ts
            marks.inner[inner] = (category, name) not in ended
            if not marks.inner[inner]:
                marks.end_row[inner] = row
                break


def _closed_by(category: int, name: int) -> set[tuple[int, int]]:
    """The categories and names of ends that can close a slice of this category and name."""
    return {(category, name), (ANY, name), (category, ANY), (ANY, ANY)}


def matched(ts: Int64s, track: Int32s, end_ts: Int64s, end_track: Int32s, before: Int64s, track_count: int) -> Int64s:
    """For each beginning of a slice the row of its end in the other table; :data:`NO_INDEX` if it has none.

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
    native("nesting.match")(*map(np.ascontiguousarray, columns), top, below, end_of)
    return end_of
