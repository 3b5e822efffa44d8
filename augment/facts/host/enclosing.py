"""The innermost and the outermost slice around another slice, or around a moment, on a thread of the host.

This works for any set of slices, also for slices that cross. Among the slices that wholly enclose the given slice or
moment, the innermost is the one that began last, the outermost the one that began first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from augment.arrays.ordering import each
from augment.arrays.types import NO_INDEX, Bools, Int32s, Int64s, Places
from augment.core.trace import Category, Trace
from augment.facts.host.call_stacks import call_stacks, is_of
from augment.kernels.native import native


def enclosing(trace: Trace, places: Places) -> Int32s:
    """For each slice: the index in ``places`` (ascending, distinct) of itself, else of the innermost around it; -1:
    none.

    The innermost is the one that began last among those that enclose it wholly, whatever else crosses them.
    """
    around = _others_around(trace, places)
    around[places] = np.arange(len(places), dtype=np.int32)
    return around


def outermost_of(trace: Trace, places: Places) -> Int32s:
    """As :func:`enclosing`, but the outermost: the one that began first."""
    around = _others_around(trace, places, outermost=True)
    around[places] = np.where(around[places] < 0, np.arange(len(places), dtype=np.int32), around[places])
    return around


def directly_around(trace: Trace, places: Places) -> Int32s:
    """For each of ``places`` (ascending, distinct): the index of the innermost other one around it; -1: none."""
    return _others_around(trace, places)[places]


def innermost(trace: Trace, rows: Int64s, categories: Sequence[Category], named: Bools | None = None) -> Int64s:
    """The innermost slice of ``categories`` that encloses each of ``rows``, a row of the event table, int64.

    A row of one of ``categories`` is its own innermost slice. The answer is :data:`NO_INDEX` for rows that no slice
    encloses, that are on no call stack (GPU work), or that are negative. ``named``, if given, is the mask of names that
    count, over ``trace.strings``. The innermost is the one that began last among those that enclose the row wholly.
    """
    return _sought(trace, rows, categories, named, enclosing)


def outermost(trace: Trace, rows: Int64s, categories: Sequence[Category], named: Bools | None = None) -> Int64s:
    """As :func:`innermost`, but the outermost: the one that began first."""
    return _sought(trace, rows, categories, named, outermost_of)


def around_moments(trace: Trace, ts: Int64s, thread: Int32s, categories: Sequence[Category]) -> tuple[Int64s, Int64s]:
    """The innermost and the outermost slice of ``categories`` at each moment ``ts`` on its ``thread``: rows, int64.

    :data:`NO_INDEX` where there is none. ``thread`` int32, into ``trace.tracks``.
    """
    stacks, events = call_stacks(trace), trace.events
    wanted = np.flatnonzero(is_of(trace, categories))
    thread_of_start, begin = events.track[stacks.row[wanted]], events.ts[stacks.row[wanted]]
    where = np.empty(len(ts), np.intp)
    bounds = np.searchsorted(thread_of_start, np.arange(len(trace.tracks) + 1))
    for track, asked in each(thread, len(trace.tracks)):
        first, stop = bounds[track : track + 2]
        where[asked] = first + np.searchsorted(begin[first:stop], ts[asked], side="right")
    order = np.argsort(where, kind="stable")
    moments = _Asked(ts[order] + 1, thread[order])
    inner, outer = np.full(len(ts), NO_INDEX, np.int64), np.full(len(ts), NO_INDEX, np.int64)
    rows = np.append(stacks.row[wanted], NO_INDEX)  # -1 reads the last entry
    inner[order] = rows[_last_around(trace, wanted, moments, where[order])]
    outer[order] = rows[_first_around(trace, wanted, moments, where[order])]
    return inner, outer


class _Asked(NamedTuple):
    """Slices to be enclosed: an enclosing slice ends at ``needed`` (int64 ns) or later, on the same ``thread``
    (int32)."""

    needed: Int64s
    thread: Int32s


_Search = Callable[[Trace, Places], Int32s]


def _sought(trace: Trace, rows: Int64s, categories: Sequence[Category], named: Bools | None, search: _Search) -> Int64s:
    """The result of ``search`` for each of ``rows``."""
    stacks = call_stacks(trace)
    result = np.full(len(rows), NO_INDEX, np.int64)
    wanted = np.flatnonzero(is_of(trace, categories, named))
    place = stacks.place_of[rows]  # of negative rows, which are left out, any
    known = np.flatnonzero((rows >= 0) & (place >= 0))
    if not len(wanted) or not len(known):
        return result
    around = search(trace, wanted)[place[known]]
    result[known] = np.where(around < 0, NO_INDEX, stacks.row[wanted[around]])
    return result


def _others_around(trace: Trace, places: Places, *, outermost: bool = False) -> Int32s:
    """For each slice: the index in ``places`` (ascending, distinct) of the innermost or outermost other slice around
    it; -1: none. Intervals are half-open, so around a slice without length others end later."""
    stacks, events = call_stacks(trace), trace.events
    row, around = stacks.row, np.empty(len(stacks), np.int32)
    if not stacks.crosses:
        index = np.full(len(row), -1, np.int32)
        index[places] = np.arange(len(places), dtype=np.int32)
        native("enclosing.of_parents")(stacks.parent, index, outermost, around)
        return around
    opened = np.empty(len(places), np.int32)
    ends, chosen = np.empty(len(places), np.int64), places.astype(np.int64, copy=False)
    columns = row.astype(np.int64, copy=False), events.ts[:], events.dur[:], events.track[:]
    native("enclosing.of_places")(*columns, chosen, outermost, opened, ends, around)
    return around


def _last_around(trace: Trace, places: Places, asked: _Asked, where: Places) -> Int32s:
    """The index in ``places`` of the innermost slice around each of ``asked``: of the first ``where`` (ascending), the
    last that ends late enough; -1: none."""
    row, events = call_stacks(trace).row[places], trace.events
    end, thread = events.ts[row] + events.dur[row], events.track[row]
    count = len(asked.needed)
    around, opened = np.empty(count, np.int32), np.empty(len(places) + 1, np.int32)
    given = (end, thread, asked.needed, asked.thread, where.astype(np.int64))
    native("enclosing.around")(*map(np.ascontiguousarray, given), opened, around)
    return around


def _first_around(trace: Trace, places: Places, asked: _Asked, where: Places) -> Int32s:
    """As :func:`_last_around`, but the outermost: the first of ``places`` that ends late enough.

    It is among the slices that end later than all earlier slices of their thread.
    """
    row, events = call_stacks(trace).row[places], trace.events
    end = events.ts[row] + events.dur[row]
    first_around = np.full(len(where), -1, np.int32)
    bounds = np.searchsorted(events.track[row], np.arange(len(trace.tracks) + 1))
    for track, index in each(asked.thread, len(trace.tracks)):
        first, stop = int(bounds[track]), int(bounds[track + 1])
        if first == stop:
            continue
        latest = np.maximum.accumulate(end[first:stop])
        place = first + np.searchsorted(latest, asked.needed[index])
        first_around[index] = np.where(place < where[index], place, -1)
    return first_around
