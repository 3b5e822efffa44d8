"""Which slice of a thread encloses which: operators, annotations, python functions and calls of the runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from augment.derived.ordering import compressed, each, grouped
from augment.intervals import Places
from augment.kernels.load import Load
from augment.trace import LAUNCHES, Bools, Category, Int32s, Int64s, Trace, derived

COMPILED_FROM = 30_000  #: slices from which on compiled code earns its load
_load = Load()
NO_ROW = -1
#: what nests on a thread, and of two slices with one extent, which is the outer
OUTER_FIRST = (Category.PYTHON_FUNCTION, Category.USER_ANNOTATION, Category.CPU_OP, *LAUNCHES)


@dataclass(frozen=True, slots=True)
class CallStacks:
    """Equal-length columns, ascending thread, then ``ts``, then from outer to inner: a preorder of every call tree.

    ``row`` int64, into the event table; ``parent`` int32, the *place* in these columns of the innermost slice of the
    thread that encloses this one wholly, -1 if none does; ``depth`` int32, 0 without a parent; ``stop`` int32: the
    places ``[i, stop[i])`` are slice ``i`` and all that it encloses. ``place_of`` int32 is the place of each row of the
    event table; -1 for what is not on a call stack.

    Intervals are half-open: what begins where another ends is not in it, even if it takes no time. A slice that
    overlaps another only in part is not in it.
    """

    row: Int64s
    parent: Int32s
    depth: Int32s
    stop: Int32s
    place_of: Int32s

    def __len__(self) -> int:
        return len(self.row)

    def within(self, places: Places) -> Bools:
        """Whether each slice is one of ``places``, or any of them encloses it."""
        inside: Bools = self._levels(places) > 0
        return inside

    def enclosing(self, places: Places) -> Int32s:
        """Which of ``places`` (ascending, distinct) each slice is, or the innermost of them that encloses it; -1 none.

        As ``innermost`` in ``occupancy.py``: of those at one level only the last that began can be open.
        """
        if not len(places):
            return np.full(len(self), -1, np.int32)
        level = self._levels(places)
        order = grouped(level, int(level.max(initial=0)) + 1)
        index = np.full(len(self), -1, np.int32)
        index[places] = np.arange(len(places), dtype=np.int32)
        begun = np.where(index[order] >= 0, np.arange(len(order), dtype=np.int32), np.int32(0))
        found = np.empty(len(self), np.int32)
        found[order] = index[order[np.maximum.accumulate(begun)]]
        found[level == 0] = -1
        return found

    def _levels(self, places: Places) -> Int32s:
        """How many of ``places`` each slice is or is enclosed by."""
        change = np.zeros(len(self) + 1, np.int32)
        np.add.at(change, places, np.int32(1))
        np.subtract.at(change, self.stop[places], np.int32(1))
        return np.cumsum(change[:-1], dtype=np.int32)


@derived
def call_stacks(trace: Trace) -> CallStacks:
    """The call stacks of every thread; linear in the number of slices."""
    events = trace.events
    rows = events.slices_of(*OUTER_FIRST)
    thread = events.track[rows]
    order = grouped(thread, len(trace.tracks))
    row, thread = rows[order], thread[order]
    ts = events.ts[row]
    end = ts + events.dur[row]
    tied = (ts[1:] == ts[:-1]) & (thread[1:] == thread[:-1])
    if tied.any():
        order = _outer_first(tied, end, events.category[row])
        row, end = row[order], end[order]
    parent, depth, stop = _nesting(ts, end, np.ascontiguousarray(thread, np.int32))
    place_of = np.full(len(events), NO_ROW, np.int32)
    place_of[row] = np.arange(len(row), dtype=np.int32)
    return CallStacks(row, parent, depth, stop, place_of)


@derived
def thread_bounds(trace: Trace) -> Places:
    """Where each track's slices begin in the call stacks, and the end: ``len(tracks) + 1`` places."""
    bounds: Places = np.searchsorted(trace.events.track[call_stacks(trace).row], np.arange(len(trace.tracks) + 1))
    return bounds


@dataclass(frozen=True, slots=True)
class NamedPlaces:
    """Places of the call stacks, ascending, and the names there (indexes into ``strings``)."""

    place: Places
    name: Int32s
    strings: Sequence[str]

    def where(self, matches: Callable[[str], object]) -> Places:
        """The places whose name ``matches``, which is asked once for each name."""
        distinct, _ = compressed(self.name, len(self.strings))
        matching = np.zeros(len(self.strings), np.bool_)
        matching[[code for code in distinct.tolist() if matches(self.strings[code])]] = True
        return self.place[np.flatnonzero(matching[self.name])]


def places_of(trace: Trace, *categories: Category) -> NamedPlaces:
    """The places of the slices of ``categories``."""
    row = call_stacks(trace).row
    place = np.flatnonzero(_wanted(trace, categories, None))
    return NamedPlaces(place, trace.events.name[row[place]], trace.strings)


def innermost(trace: Trace, rows: Int64s, categories: Sequence[Category], named: Bools | None = None) -> Int64s:
    """The innermost slice of ``categories`` that encloses each of ``rows``, a row of the event table, int64.

    A row of one of ``categories`` is its own. :data:`NO_ROW` for rows that none encloses, that are on no call stack
    (GPU work), or are negative. ``named``, where given, says of each of ``trace.strings`` whether a slice of that name
    counts.
    """
    stacks = call_stacks(trace)
    is_wanted = _wanted(trace, categories, named)
    place = np.where(rows >= 0, stacks.place_of[rows], NO_ROW).astype(np.int64)
    climbing, steps_left = np.flatnonzero(place >= 0), len(stacks)
    while len(climbing) and steps_left > 0:  # as often as a stack is deep; fewer climb each time
        steps_left -= len(climbing)
        climbing = climbing[~is_wanted[place[climbing]]]
        place[climbing] = stacks.parent[place[climbing]]
        climbing = climbing[place[climbing] >= 0]
    if len(climbing):  # stacks so deep that looking at every slice once costs less
        wanted = np.flatnonzero(is_wanted)
        which = stacks.enclosing(wanted)[place[climbing]]
        place[climbing] = np.where(which >= 0, wanted[which], NO_ROW) if len(wanted) else NO_ROW
    return np.where(place >= 0, stacks.row[place], NO_ROW) if len(stacks) else place


def enclosing(trace: Trace, ts: Int64s, thread: Int32s) -> Int64s:
    """The innermost slice of any category that encloses each moment ``ts`` on its ``thread``, a row, int64.

    :data:`NO_ROW` where there is none. ``thread`` int32, into ``trace.tracks``.
    """
    stacks, events = call_stacks(trace), trace.events
    own, begin = events.track[stacks.row], events.ts[stacks.row]
    where = np.empty(len(ts), np.intp)
    bounds = thread_bounds(trace)
    for one, asked in each(thread, len(trace.tracks)):
        where[asked] = bounds[one] + np.searchsorted(begin[bounds[one] : bounds[one + 1]], ts[asked], side="right")
    order = np.lexsort((ts, thread, where))
    where, ts, thread = where[order], ts[order], thread[order]
    # each moment as a slice that takes no time: what is around it is its parent, as for every other
    added = where + np.arange(len(where))
    columns = ((begin, ts), (begin + events.dur[stacks.row], ts), (own, thread))
    parent = _nesting(*(np.insert(column, where, values) for column, values in columns))[0][added]
    inside = parent >= 0
    around = parent[inside] - np.searchsorted(added, parent[inside])  # without those added before it
    found = np.full(len(ts), NO_ROW, np.int64)
    found[order[inside]] = stacks.row[around]
    return found


def outermost(trace: Trace, rows: Int64s, categories: Sequence[Category], named: Bools | None = None) -> Int64s:
    """As :func:`innermost`, but the outermost."""
    stacks = call_stacks(trace)
    wanted = np.flatnonzero(_wanted(trace, categories, named))
    found = np.full(len(rows), NO_ROW, np.int64)
    if not len(wanted):
        return found
    over = np.maximum.accumulate(stacks.stop[wanted])
    outer = wanted[np.concatenate(([True], wanted[1:] >= over[:-1]))]  # those that are in no other
    place = np.where(rows >= 0, stacks.place_of[rows], NO_ROW)
    last = outer[np.maximum(np.searchsorted(outer, place, side="right") - 1, 0)]
    inside = (last <= place) & (place < stacks.stop[last])
    found[inside] = stacks.row[last[inside]]
    return found


def _wanted(trace: Trace, categories: Sequence[Category], named: Bools | None) -> Bools:
    """Whether each place of the call stacks is of ``categories`` and of a name that counts."""
    row = call_stacks(trace).row
    table = np.zeros(256, np.bool_)
    table[list(categories)] = True
    wanted: Bools = table[trace.events.category[row]]
    return wanted if named is None else wanted & named[trace.events.name[row]]


def _outer_first(tied: Any, end: Int64s, category: Any) -> Any:
    """The order in which runs of ties go from outer to inner: longer first, then as in :data:`OUTER_FIRST`."""
    rank = np.zeros(256, np.int8)
    rank[list(OUTER_FIRST)] = np.arange(len(OUTER_FIRST))
    places = np.flatnonzero(np.concatenate(([False], tied)) | np.concatenate((tied, [False])))
    run = np.cumsum(~np.concatenate(([False], tied))[places])
    order = np.arange(len(end))
    order[places] = places[np.lexsort((rank[category[places]], -end[places], run))]
    return order


def _nesting(ts: Int64s, end: Int64s, thread: Int32s) -> tuple[Int32s, Int32s, Int32s]:
    """``parent``, ``depth`` and ``stop`` of slices in the order of :class:`CallStacks`."""
    if nest := _load.native("call_stacks.nest", len(ts), COMPILED_FROM):
        parent, depth, stop = (np.empty(len(ts), np.int32) for _ in range(3))
        columns = [np.ascontiguousarray(column) for column in (ts, end, thread)]
        nest(*(column.ctypes.data for column in (*columns, parent, depth, stop)), len(ts))
        return parent, depth, stop
    parents, depths, stops = _nest(ts.tolist(), end.tolist(), thread.tolist())
    return np.array(parents, np.int32), np.array(depths, np.int32), np.array(stops, np.int32)


def _nest(ts: list[int], end: list[int], thread: list[int]) -> tuple[list[int], list[int], list[int]]:
    """The same, by a loop.

    The chain of parents of the slice before is the stack: what ends before this one does can enclose nothing that is
    still to come, as it would have to enclose this one first. So each slice is passed once: linear time.
    """
    parent: list[int] = []
    depth: list[int] = []
    stop = [len(ts)] * len(ts)
    for i, (start, own_end, own) in enumerate(zip(ts, end, thread, strict=True)):
        outer = i - 1
        while outer >= 0 and (end[outer] < own_end or end[outer] <= start or thread[outer] != own):
            stop[outer] = i
            outer = parent[outer]
        parent.append(outer)
        depth.append(0 if outer < 0 else depth[outer] + 1)
    return parent, depth, stop
