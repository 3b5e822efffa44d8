"""The call trees of each thread: operators, annotations, Python functions and runtime calls, by enclosure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from augment.arrays.columns import Values, narrowed
from augment.arrays.ordering import compressed, grouped
from augment.arrays.types import NO_INDEX, Bools, Bytes, EventRows, Int32s, Int64s, Places
from augment.core.context import derived
from augment.core.trace import LAUNCHES, Category, Diagnostic, Trace
from augment.kernels.native import native

#: the categories that nest on a thread; of two slices with one extent, the first category is the outer
OUTER_FIRST = (Category.PYTHON_FUNCTION, Category.USER_ANNOTATION, Category.CPU_OP, *LAUNCHES)


class CallStacks(Struct, frozen=True):
    """Operators, annotations, Python functions and runtime calls: equal-length columns, a preorder of every call tree.
    They ascend by thread, then ``ts``, then from outer to inner.

    Intervals are half-open: a slice that begins where another ends lies outside it, even if it takes no time. A slice
    that overlaps another only partly lies outside it, too, and does not change what encloses other slices. Where slices
    cross, these trees do not hold everything that a slice encloses; ``enclosing.py`` does.
    """

    row: EventRows  #: its event
    parent: Int32s  #: index of the innermost slice of the thread that encloses it wholly, -1 if none does
    depth: Values[np.int32]  #: 0 without a parent
    stop: Int32s  #: the slices ``[i, stop[i])`` are slice ``i`` and all below it
    place_of: Int32s  #: of each event its index in these columns; -1 if it is on no call stack
    crosses: bool  #: whether any two slices of a thread cross

    def __len__(self) -> int:
        return len(self.row)


@derived(until="summary")
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
    parent, depth, stop, crosses = _nested(ts, end, np.ascontiguousarray(thread, np.int32))
    place_of = np.full(len(events), NO_INDEX, np.int32)
    place_of[row] = np.arange(len(row), dtype=np.int32)
    return CallStacks(row, parent, narrowed(depth), stop, place_of, crosses)


@derived
def thread_bounds(trace: Trace) -> Places:
    """Where each track's slices begin in the call stacks, and the end: ``len(tracks) + 1`` places."""
    bounds: Places = np.searchsorted(trace.events.track[call_stacks(trace).row], np.arange(len(trace.tracks) + 1))
    return bounds


class NamedPlaces(Struct, frozen=True):
    """Places of the call stacks, ascending, and the names there (indexes into ``strings``)."""

    place: Places
    name: Int32s
    strings: Sequence[str]

    def where(self, matches: Callable[[str], object]) -> Places:
        """The places whose name ``matches``; the function is called once for each name."""
        distinct, _ = compressed(self.name, len(self.strings))
        matching = np.zeros(len(self.strings), np.bool_)
        matching[[code for code in distinct.tolist() if matches(self.strings[code])]] = True
        return self.place[np.flatnonzero(matching.take(self.name))]


def places_of(trace: Trace, *categories: Category) -> NamedPlaces:
    """The places of the slices of ``categories``."""
    place = np.flatnonzero(is_of(trace, categories))
    return NamedPlaces(place, trace.events.name[call_stacks(trace).row[place]], trace.strings)


def is_of(trace: Trace, categories: Sequence[Category], named: Bools | None = None) -> Bools:
    """Whether each place of the call stacks is of ``categories`` and has a name that counts. ``named``, if given, is
    the mask of names that count, over ``trace.strings``."""
    table = np.zeros(256, np.bool_)
    table[list(categories)] = True
    matches: Bools = table.take(_categories(trace))
    return matches if named is None else matches & named.take(trace.events.name[call_stacks(trace).row])


@derived(until="summary")
def _categories(trace: Trace) -> Bytes:
    """The category of each place of the call stacks, uint8: many ask for it."""
    return trace.events.category[call_stacks(trace).row]


def crossed(ts: Int64s, end: Int64s, thread: Int32s) -> Bools:
    """Which slices end before a slice that began in them; slices in the order of :class:`CallStacks`."""
    return _is_crossed(ts, end, thread, nesting(ts, end, thread)[2])


@derived(until="breakdowns")
def crossed_places(trace: Trace) -> Places:
    """The places of the call stacks that are :func:`crossed`."""
    stacks, events = call_stacks(trace), trace.events
    if not stacks.crosses:
        return np.empty(0, np.intp)
    ts = events.ts[stacks.row]
    return np.flatnonzero(_is_crossed(ts, ts + events.dur[stacks.row], events.track[stacks.row], stacks.stop))


def _is_crossed(ts: Int64s, end: Int64s, thread: Int32s, stop: Int32s) -> Bools:
    following = np.minimum(stop, len(ts) - 1)
    crossed: Bools = (stop < len(ts)) & (thread[following] == thread) & (ts[following] < end)
    return crossed


def crossing_diagnostics(trace: Trace) -> list[Diagnostic]:
    """The number of slices of the host that cross."""
    count = len(crossed_places(trace))
    message = "slices of the host end before a slice that began in them (the later one counts as outside)"
    return [Diagnostic("slices_cross", count, message)] if count else []


def _outer_first(tied: Any, end: Int64s, category: Any) -> Any:
    """The order that puts runs of ties from outer to inner: longer first, then as in :data:`OUTER_FIRST`."""
    rank = np.zeros(256, np.int8)
    rank[list(OUTER_FIRST)] = np.arange(len(OUTER_FIRST))
    places = np.flatnonzero(np.concatenate(([False], tied)) | np.concatenate((tied, [False])))
    run = np.cumsum(~np.concatenate(([False], tied))[places])
    order = np.arange(len(end))
    order[places] = places[np.lexsort((rank[category[places]], -end[places], run))]
    return order


def nesting(ts: Int64s, end: Int64s, thread: Int32s) -> tuple[Int32s, Int32s, Int32s]:
    """``parent``, ``depth`` and ``stop`` of slices in the order of :class:`CallStacks`."""
    return _nested(ts, end, thread)[:3]


def _nested(ts: Int64s, end: Int64s, thread: Int32s) -> tuple[Int32s, Int32s, Int32s, bool]:
    """:func:`nesting`, and whether any slices cross."""
    parent, depth, stop = (np.empty(len(ts), np.int32) for _ in range(3))
    crosses = native("call_stacks.nest")(*map(np.ascontiguousarray, (ts, end, thread)), parent, depth, stop)
    return parent, depth, stop, bool(crosses)
