"""Half-open intervals of time: arrays in, arrays out.

An interval ``[start, end)`` holds the moments ``start <= t < end``. If ``end <= start`` it is empty and ignored. Every
array is int64 ns. *Disjoint* intervals are ascending, do not overlap, and are not empty; they may touch. Costs are
linear in the intervals, plus sorting where the input is not sorted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from augment.arrays.ordering import where_in
from augment.arrays.types import Bools, Int64s, Places

Masks = npt.NDArray[np.int8]


class Intervals(NamedTuple):
    """``start`` and ``end``, int64 ns, of equal length."""

    start: Int64s
    end: Int64s


NONE = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def total(intervals: Intervals) -> int:
    """The time that disjoint ``intervals`` hold, ns."""
    return int((intervals.end - intervals.start).sum())


def union(start: Int64s, end: Int64s) -> Intervals:
    """The union of the intervals, as disjoint intervals; touching ones are joined."""
    real = end > start
    if not real.all():
        start, end = start[real], end[real]
    if not len(start):
        return NONE
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.flatnonzero(start[1:] > reach[:-1]) + 1
    return Intervals(start[np.concatenate(([0], first))], reach[np.concatenate((first - 1, [len(end) - 1]))])


def coverage(sets: Sequence[Intervals]) -> tuple[Int64s, Masks]:
    """Which of ``sets`` hold each moment.

    Args:
        sets: up to six sets of disjoint intervals; set ``k`` is bit ``1 << k``.

    Returns:
        ``ts`` (int64 ns, strictly ascending) and ``mask`` (int8): the sets that hold the moments from ``ts[i]``
        until ``ts[i + 1]``; the last mask is 0.
    """
    edges = np.concatenate([side for intervals in sets for side in intervals])
    sizes = [len(intervals.start) for intervals in sets]
    change = np.concatenate([np.full(size, sign << bit, np.int8) for bit, size in enumerate(sizes) for sign in (1, -1)])
    order = np.argsort(edges, kind="stable")  # merges sorted runs in linear time
    edges = edges[order]
    mask = np.cumsum(change[order], dtype=np.int8)
    last = _last_of_equals(edges)
    return edges[last], mask[last]


def where(ts: Int64s, chosen: Bools) -> Intervals:
    """The intervals in which a stepping series is ``chosen``; ``ts`` and ``chosen`` as from :func:`coverage`."""
    held = np.concatenate(([False], chosen[:-1], [False]))
    rises = np.flatnonzero(held[1:] & ~held[:-1])
    falls = np.flatnonzero(held[:-1] & ~held[1:])
    return Intervals(ts[rises], ts[falls])


def held_before(ts: Int64s, chosen: Bools, moments: Int64s) -> Int64s:
    """The ``chosen`` time of a stepping series before each of ``moments``, int64 ns; arguments as for :func:`where`.

    The last entry of ``chosen`` must be false.
    """
    if not len(ts):
        return np.zeros(len(moments), np.int64)
    until = np.zeros(len(ts), np.int64)
    np.subtract(ts[1:], ts[:-1], out=until[1:], where=chosen[:-1])
    np.cumsum(until, out=until)
    place = where_in(ts, moments, side="right") - 1
    inside = until[place] + np.where(chosen[place], moments - ts[place], 0)
    return np.where(place >= 0, inside, 0)


def held_between(ts: Int64s, chosen: Bools, start: Int64s, end: Int64s) -> Int64s:
    """The ``chosen`` time of a stepping series within each ``[start, end)``, int64 ns; see :func:`held_before`."""
    before = held_before(ts, chosen, np.concatenate((start, end)))
    return before[len(start) :] - before[: len(start)]


def clip(xs: Intervals, disjoint: Intervals) -> tuple[Places, Places, Intervals]:
    """The parts of ``xs`` within the ``disjoint`` intervals: for each part its index in both, and its interval."""
    which, window = expand(*touched(xs.start, xs.end, disjoint))
    start = np.maximum(xs.start[which], disjoint.start[window])
    return which, window, Intervals(start, np.minimum(xs.end[which], disjoint.end[window]))


def subtract(xs: Intervals, ys: Intervals) -> Intervals:
    """The difference of disjoint sets: the moments in ``xs`` that are not in ``ys``."""
    xs, ys = union(xs.start, xs.end), union(ys.start, ys.end)
    ever = np.iinfo(np.int64)
    _, _, parts = clip(xs, Intervals(np.append(ever.min, ys.end), np.append(ys.start, ever.max)))
    return parts


def steps(ts: Int64s, change: Int64s) -> tuple[Int64s, Int64s]:
    """The running sum of changes: ``ts`` strictly ascending, and the value after every change at that moment.

    Args:
        ts: int64 ns, the time of each change, in any order; a few ascending runs are fastest.
        change: the value added at each of ``ts``.
    """
    order = np.argsort(ts, kind="stable")
    ts, change = ts[order], change[order]
    del order  # frees memory for what follows
    value = np.cumsum(change)
    del change
    last = _last_of_equals(ts)
    return ts[last], value[last]


def touched(start: Int64s, end: Int64s, disjoint: Intervals) -> tuple[Places, Places]:
    """Which of the ``disjoint`` intervals each non-empty ``[start, end)`` overlaps: the places ``[first, stop)``."""
    first = where_in(disjoint.end, start, side="right")
    stop = where_in(disjoint.start, end)
    return first, np.maximum(first, stop)


def least_over(first: Places, stop: Places, values: Places, count: int) -> Places:
    """For each of ``count`` places, the least of ``values`` whose ``range(first, stop)`` contains it; the greatest
    integer if there is none. Ranges may be empty.

    Each range is covered by two overlapping ranges whose length is a power of two. From the greatest power down, each
    level passes its values on to the next lower one.
    """
    longest = int((stop - first).max(initial=0))
    least = np.full(count, np.iinfo(np.intp).max, np.intp)
    for power in range(longest.bit_length() - 1, -1, -1):
        half = 1 << power  # each entry of ``least`` still covers twice as many places
        if power + 1 < longest.bit_length():
            np.minimum(least[half:], least[:-half].copy(), out=least[half:])
        index = np.flatnonzero((stop - first >> power) == 1)
        np.minimum.at(least, first[index], values[index])
        np.minimum.at(least, stop[index] - half, values[index])
    return least


def expand(first: Places, stop: Places) -> tuple[Places, Places]:
    """The pairs ``(i, j)`` with ``first[i] <= j < stop[i]``, in ascending order, as two arrays."""
    count = stop - first
    if count.max(initial=0) <= 1:  # as with short pieces of long intervals
        whose = np.flatnonzero(count)
        return whose, first[whose]
    whose = np.repeat(np.arange(len(first)), count)
    return whose, np.repeat(first - (np.cumsum(count) - count), count) + np.arange(len(whose))


def _last_of_equals(ascending: Int64s) -> Places:
    """The last place of each run of equal values."""
    if not len(ascending):
        return np.empty(0, np.intp)
    return np.flatnonzero(np.concatenate((ascending[1:] != ascending[:-1], [True])))
