"""The call trees of each thread (operators, annotations, Python functions, runtime calls), and what encloses what.

The innermost and the outermost slice around another slice, or a moment, are known for any set of slices, also for those
that cross: among the slices that wholly enclose it, the innermost began last, the outermost first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from augment.arrays import (
    NO_INDEX,
    Bools,
    Bytes,
    EventRow,
    EventRows,
    Int32s,
    Int64s,
    Places,
    StackIndexes,
    Values,
    combinations,
    each,
    grouped,
    is_any,
    narrowed,
    occurring,
    sums,
)
from augment.core import LAUNCHES, Category, Diagnostic, Trace, derived, text
from augment.core.source_code import USERS, function_line, owner, shown_frame
from augment.facts.names import LOOKED_AT, STEP, matching, starting
from augment.kernels.native import native

#: the categories that nest on a thread; of two slices with one extent, the first category is the outer
OUTER_FIRST = (Category.PYTHON_FUNCTION, Category.USER_ANNOTATION, Category.CPU_OP, *LAUNCHES)


class CallStacks(Struct, frozen=True):
    """Operators, annotations, Python functions and runtime calls: equal-length columns, a preorder of every call tree.
    They ascend by thread, then ``ts``, then from outer to inner.

    Intervals are half-open: a slice that begins where another ends lies outside it, even if it takes no time. A slice
    that overlaps another only partly lies outside it, too, and does not change what encloses other slices. Where slices
    cross, these trees do not hold everything that a slice encloses; functions such as :func:`enclosing` do.
    """

    row: EventRows  #: its event
    parent: Int32s  #: index of the innermost slice of the thread that encloses it wholly, -1 if none does
    depth: Values[np.int32]  #: 0 without a parent
    stop: Int32s  #: the slices ``[i, stop[i])`` are slice ``i`` and all below it
    place_of: Int32s  #: of each event its index in these columns; -1 if it is on no call stack
    crosses: bool  #: whether any two slices of a thread cross

    def __len__(self) -> int:
        return len(self.row)

    def where(self, chosen: Bools) -> StackIndexes:
        """The indexes of the ``chosen`` slices, ascending."""
        return cast("StackIndexes", np.flatnonzero(chosen))


@derived(until="summary")
def call_stacks(trace: Trace) -> CallStacks:
    """The call trees of every thread: operators, annotations, Python functions and runtime calls.

    Linear in the number of slices.
    """
    events = trace.events
    rows = events.slices_of(*OUTER_FIRST)
    thread = events.track[rows]
    order = grouped(thread, len(trace.tracks))
    row, thread = rows[order], thread[order]
    ts = events.ts[row]
    end = ts + events.dur[row]
    tied = (ts[1:] == ts[:-1]) & (thread[1:] == thread[:-1])
    if tied.any():
        # ties from outer to inner: longer first, then as in OUTER_FIRST
        rank = np.zeros(256, np.int8)
        rank[list(OUTER_FIRST)] = np.arange(len(OUTER_FIRST))
        places = np.flatnonzero(np.concatenate(([False], tied)) | np.concatenate((tied, [False])))
        run = np.cumsum(~np.concatenate(([False], tied))[places])
        order = np.arange(len(end))
        order[places] = places[np.lexsort((rank[events.category[row][places]], -end[places], run))]
        row, end = row[order], end[order]
    parent, depth, stop, crosses = nesting(ts, end, np.ascontiguousarray(thread, np.int32))
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

    place: StackIndexes
    name: Int32s
    strings: Sequence[str]

    def where(self, matches: Callable[[str], object]) -> StackIndexes:
        """The places whose name ``matches``; the function is called once for each name."""
        distinct = occurring(self.name, len(self.strings))
        matching = np.zeros(len(self.strings), np.bool_)
        matching[[code for code in distinct.tolist() if matches(self.strings[code])]] = True
        return self.place[np.flatnonzero(matching.take(self.name))]


def places_of(trace: Trace, *categories: Category) -> NamedPlaces:
    """The slices of ``categories`` as indexes of ``host.stacks``; ``.where(lambda name: …)`` chooses some by name."""
    place = call_stacks(trace).where(is_of(trace, categories))
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
def crossed_places(trace: Trace) -> StackIndexes:
    """The places of the call stacks that are :func:`crossed`."""
    stacks, events = call_stacks(trace), trace.events
    if not stacks.crosses:
        return stacks.where(np.zeros(len(stacks), np.bool_))
    ts = events.ts[stacks.row]
    return stacks.where(_is_crossed(ts, ts + events.dur[stacks.row], events.track[stacks.row], stacks.stop))


def crossing_diagnostics(trace: Trace) -> list[Diagnostic]:
    """The number of slices of the host that cross."""
    count = len(crossed_places(trace))
    message = "slices of the host end before a slice that began in them (the later one counts as outside)"
    return [Diagnostic("slices_cross", count, message)] if count else []


def _is_crossed(ts: Int64s, end: Int64s, thread: Int32s, stop: Int32s) -> Bools:
    following = np.minimum(stop, len(ts) - 1)
    crossed: Bools = (stop < len(ts)) & (thread[following] == thread) & (ts[following] < end)
    return crossed


def nesting(ts: Int64s, end: Int64s, thread: Int32s) -> tuple[Int32s, Int32s, Int32s, bool]:
    """``parent``, ``depth`` and ``stop`` of slices in the order of :class:`CallStacks`, and whether any cross."""
    parent, depth, stop = (np.empty(len(ts), np.int32) for _ in range(3))
    crosses = native("nesting.nest")(*map(np.ascontiguousarray, (ts, end, thread)), parent, depth, stop)
    return parent, depth, stop, bool(crosses)


def enclosing(trace: Trace, places: StackIndexes) -> Int32s:
    """For each slice: the index in ``places`` (ascending, distinct) of itself, else of the innermost around it; -1:
    none.

    The innermost is the one that began last among those that enclose it wholly, whatever else crosses them.
    """
    around = _others_around(trace, places)
    around[places] = np.arange(len(places), dtype=np.int32)
    return around


def outermost_of(trace: Trace, places: StackIndexes) -> Int32s:
    """As :func:`enclosing`, but the outermost: the one that began first."""
    around = _others_around(trace, places, outermost=True)
    around[places] = np.where(around[places] < 0, np.arange(len(places), dtype=np.int32), around[places])
    return around


def directly_around(trace: Trace, places: StackIndexes) -> Int32s:
    """For each of ``places`` (ascending, distinct): the index of the innermost other one around it; -1: none."""
    return _others_around(trace, places)[places]


def innermost(trace: Trace, rows: EventRows, categories: Sequence[Category], named: Bools | None = None) -> EventRows:
    """The innermost slice of ``categories`` that encloses each of ``rows``, a row of the event table, int64.

    A row of one of ``categories`` is its own innermost slice. The answer is :data:`NO_INDEX` for rows that no slice
    encloses, that are on no call stack (GPU work), or that are negative. ``named``, if given, is the mask of names that
    count, over ``trace.strings``. The innermost is the one that began last among those that enclose the row wholly.
    """
    return _sought(trace, rows, categories, named, enclosing)


def outermost(trace: Trace, rows: EventRows, categories: Sequence[Category], named: Bools | None = None) -> EventRows:
    """As :func:`innermost`, but the outermost: the one that began first."""
    return _sought(trace, rows, categories, named, outermost_of)


def around_moments(
    trace: Trace, ts: Int64s, thread: Int32s, categories: Sequence[Category]
) -> tuple[EventRows, EventRows]:
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
    where, needed, on_thread = where[order], ts[order] + 1, thread[order]
    row = stacks.row[wanted]
    end, of_thread = events.ts[row] + events.dur[row], events.track[row]
    # the innermost: of the first ``where``, the last that ends late enough
    last, opened = np.empty(len(ts), np.int32), np.empty(len(wanted) + 1, np.int32)
    given = (end, of_thread, needed, on_thread, where.astype(np.int64))
    native("nesting.around")(*map(np.ascontiguousarray, given), opened, last)
    # the outermost: the first that ends late enough, among those that end later than all earlier ones of their thread
    first_around = np.full(len(ts), -1, np.int32)
    for track, asked in each(on_thread, len(trace.tracks)):
        first, stop = bounds[track : track + 2].tolist()
        if first < stop:
            place = first + np.searchsorted(np.maximum.accumulate(end[first:stop]), needed[asked])
            first_around[asked] = np.where(place < where[asked], place, -1)
    inner, outer = np.full(len(ts), NO_INDEX, EventRow), np.full(len(ts), NO_INDEX, EventRow)
    rows = np.append(row, NO_INDEX)  # -1 reads the last entry
    inner[order], outer[order] = rows[last], rows[first_around]
    return inner, outer


_Search = Callable[[Trace, StackIndexes], Int32s]


def _sought(
    trace: Trace, rows: EventRows, categories: Sequence[Category], named: Bools | None, search: _Search
) -> EventRows:
    """The result of ``search`` for each of ``rows``."""
    stacks = call_stacks(trace)
    result = np.full(len(rows), NO_INDEX, EventRow)
    wanted = stacks.where(is_of(trace, categories, named))
    place = stacks.place_of[rows]  # of negative rows, which are left out, any
    known = np.flatnonzero((rows >= 0) & (place >= 0))
    if not len(wanted) or not len(known):
        return result
    around = search(trace, wanted)[place[known]]
    result[known] = np.where(around < 0, NO_INDEX, stacks.row[wanted[around]])
    return result


def _others_around(trace: Trace, places: StackIndexes, *, outermost: bool = False) -> Int32s:
    """For each slice: the index in ``places`` (ascending, distinct) of the innermost or outermost other slice around
    it; -1: none. Intervals are half-open, so around a slice without length others end later."""
    stacks, events = call_stacks(trace), trace.events
    row, around = stacks.row, np.empty(len(stacks), np.int32)
    if not stacks.crosses:
        index = np.full(len(row), -1, np.int32)
        index[places] = np.arange(len(places), dtype=np.int32)
        native("nesting.of_parents")(stacks.parent, index, outermost, around)
        return around
    opened = np.empty(len(places), np.int32)
    ends, chosen = np.empty(len(places), np.int64), places.astype(np.int64, copy=False)
    columns = row.astype(np.int64, copy=False), events.ts[:], events.dur[:], events.track[:]
    native("nesting.of_places")(*columns, chosen, outermost, opened, ends, around)
    return around


class CallPaths(Struct, frozen=True):
    """The ways down the call trees, each but once: a call's ``path`` (int64) is the names of the calls around it and
    its own. Of each path ``name`` is that of its last call, ``parent`` the path above it, which comes before it, or
    :data:`NO_INDEX`."""

    path: Int64s
    name: list[int]
    parent: list[int]


def call_paths(outer: Int64s | Int32s, name: Int32s) -> CallPaths:
    """The paths of calls, of each of which ``outer`` is the index of the call around it, -1 for none.

    Calls that lie around each other in a circle, which no call tree does, have no path.
    """
    path = np.full(len(name), NO_INDEX, np.int64)
    names: list[int] = []
    parent: list[int] = []
    level, todo = np.flatnonzero(outer < 0), np.flatnonzero(outer >= 0)
    while len(level):  # one round per level of nesting
        above = np.where(outer[level] >= 0, path[outer[level]], NO_INDEX)
        keys, code = combinations(above, name[level])
        path[level] = code + len(names)
        parent += keys[0].tolist()
        names += keys[1].tolist()
        ready = path[outer[todo]] != NO_INDEX
        level, todo = todo[ready], todo[~ready]
    return CallPaths(path, names, parent)


class OperatorTimes(Struct, frozen=True):
    """Equal-length columns: a row for each call of an operator."""

    place: StackIndexes  #: ascending
    row: EventRows  #: its event
    self_ns: Int64s  #: its duration without the operators directly within it


@derived(until="breakdowns")
def operator_times(trace: Trace) -> OperatorTimes:
    """Every call of an operator, and its time without the operators within it."""
    place = call_stacks(trace).where(is_of(trace, (Category.CPU_OP,)))
    row = call_stacks(trace).row[place]
    dur, outer = trace.events.dur[row], directly_around(trace, place)
    inside = outer >= 0
    return OperatorTimes(place, row, dur - sums(outer[inside], dur[inside], len(place)))


@derived
def owners(trace: Trace) -> npt.NDArray[np.int8]:
    """Whose Python function each string of the trace names; -1: no such function."""
    lines = (function_line(name[:LOOKED_AT]) for name in trace.strings)
    return np.array([-1 if line is None else owner(line.file) for line in lines], np.int8)


def python_lines(trace: Trace, rows: EventRows) -> list[str]:
    """The innermost frames of the user's own program around ``rows``, the most frequent first; none without stacks."""
    rows = rows[rows >= 0]
    frames = innermost(trace, rows, (Category.PYTHON_FUNCTION,), owners(trace) == USERS)
    frames = frames[frames >= 0]
    return [shown_frame(name) for name, _ in Counter(trace.names_of(frames)).most_common()]


_COMPILED = re.compile(r"^(?:Torch-Compiled Region|CompiledFunction|## Call CompiledFxGraph)")
_OF_COMPILED = re.compile(f"{_COMPILED.pattern}|^TorchDynamo Cache Lookup")


def in_compiled(trace: Trace, rows: npt.NDArray[Any]) -> Bools:
    """Whether each of ``rows``, innermost slices of threads (``NO_INDEX`` for none), is a region of torch.compile, the
    lookup of one, or Python or an annotation within one."""
    named = matching(trace, _OF_COMPILED)
    if not named.any():
        return np.zeros(len(rows), np.bool_)
    once, place = np.unique(rows, return_inverse=True)
    once = once.astype(np.int64)
    python = is_any(trace.events.category[once], (Category.USER_ANNOTATION, Category.PYTHON_FUNCTION))
    inside = within_compiled(trace, once) & python
    compiled: Bools = (once >= 0) & (inside | named[trace.events.name[once]])
    return compiled[place]


def within_compiled(trace: Trace, rows: EventRows) -> Bools:
    """Whether each of ``rows`` lies within a region of torch.compile."""
    named, around = matching(trace, _OF_COMPILED), (Category.CPU_OP, Category.USER_ANNOTATION)
    if not named.any():
        return np.zeros(len(rows), np.bool_)
    inside: Bools = innermost(trace, rows, around, named) >= 0
    return inside


def callers(trace: Trace, calls: EventRows) -> list[str]:
    """What waits, by the outermost operator around each of ``calls`` that is no compiled region as a whole, else by the
    call; the longest first."""
    no_step = ~(starting(trace, STEP) | matching(trace, _COMPILED))
    around = outermost(trace, calls, (Category.CPU_OP,), no_step)
    inner = innermost(trace, calls, (Category.USER_ANNOTATION,), no_step)
    named = np.where(around >= 0, around, np.where(inner >= 0, inner, calls))
    spent: Counter[str] = Counter()
    for name, ns in zip(trace.names_of(named), trace.events.dur[calls].tolist(), strict=True):
        spent[text.short(name)] += ns
    return [name for name, _ in spent.most_common()]
