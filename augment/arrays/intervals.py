"""Half-open intervals of time: arrays in, arrays out.

An interval ``[start, end)`` holds the moments ``start <= t < end``; where ``end <= start`` it holds none, and is
ignored. Every array is int64 ns. *Disjoint* means ascending, none overlapping another, none empty; touching is allowed.
Costs are linear in the intervals, but for sorting what is not sorted yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

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
    """The moments that at least one interval holds, as few disjoint intervals as can be: touching ones are joined."""
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
    edges = np.concatenate([side for one in sets for side in one])
    change = np.concatenate([np.full(len(one.start), sign << bit, np.int8)
                             for bit, one in enumerate(sets) for sign in (1, -1)])  # fmt: skip
    order = np.argsort(edges, kind="stable")  # runs that are sorted: merged in linear time
    edges = edges[order]
    mask = np.cumsum(change[order], dtype=np.int8)
    last = _last_of_equals(edges)
    return edges[last], mask[last]


def where(ts: Int64s, chosen: Bools) -> Intervals:
    """The moments of a stepping series that are ``chosen``, joined; ``ts`` and ``chosen`` as from :func:`coverage`."""
    held = np.concatenate(([False], chosen[:-1], [False]))
    rises = np.flatnonzero(held[1:] & ~held[:-1])
    falls = np.flatnonzero(held[:-1] & ~held[1:])
    return Intervals(ts[rises], ts[falls])


def held_before(ts: Int64s, chosen: Bools, moments: Int64s) -> Int64s:
    """How much of the ``chosen`` time of a stepping series lies before each of ``moments``, ns; as for :func:`where`.

    The series ends unchosen, and so does ``chosen``.
    """
    if not len(ts):
        return np.zeros(len(moments), np.int64)
    until = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.where(chosen[:-1], np.diff(ts), 0))))
    place = np.searchsorted(ts, moments, side="right") - 1
    inside = until[place] + np.where(chosen[place], moments - ts[place], 0)
    return np.where(place >= 0, inside, 0)


def clip(xs: Intervals, disjoint: Intervals) -> tuple[Places, Places, Intervals]:
    """The parts of ``xs`` in each of the ``disjoint`` intervals: which of both a part is of, and the part."""
    which, window = expand(*touched(xs.start, xs.end, disjoint))
    start = np.maximum(xs.start[which], disjoint.start[window])
    return which, window, Intervals(start, np.minimum(xs.end[which], disjoint.end[window]))


def subtract(xs: Intervals, ys: Intervals) -> Intervals:
    """The moments that the disjoint ``xs`` hold and the disjoint ``ys`` do not."""
    ts, mask = coverage((xs, ys))
    return where(ts, mask == 0b01)


def steps(ts: Int64s, change: Int64s) -> tuple[Int64s, Int64s]:
    """The running sum of changes: ``ts`` strictly ascending, and the value after every change at that moment.

    Args:
        ts: when each change happens, any order; cheapest as a few ascending runs.
        change: what is added then.
    """
    order = np.argsort(ts, kind="stable")
    ts = ts[order]
    value = np.cumsum(change[order])
    last = _last_of_equals(ts)
    return ts[last], value[last]


def touched(start: Int64s, end: Int64s, disjoint: Intervals) -> tuple[Places, Places]:
    """Which of the ``disjoint`` intervals each non-empty ``[start, end)`` overlaps: the places ``[first, stop)``."""
    first = np.searchsorted(disjoint.end, start, side="right")
    stop = np.searchsorted(disjoint.start, end, side="left")
    return first, np.maximum(first, stop)


def least_over(first: Places, stop: Places, values: Places, count: int) -> Places:
    """Of each of ``count`` places, the least of ``values`` whose ``range(first, stop)`` has it; the greatest integer if
    none has. Ranges may be empty.

    Each range is two of a power of two's length, which overlap; then each power's are handed down to the next lesser.
    """
    longest = int((stop - first).max(initial=0))
    least = np.full(count, np.iinfo(np.intp).max, np.intp)
    for power in range(longest.bit_length() - 1, -1, -1):
        half = 1 << power  # what is in ``least`` holds for twice as many places
        if power + 1 < longest.bit_length():
            np.minimum(least[half:], least[:-half].copy(), out=least[half:])
        own = np.flatnonzero((stop - first >> power) == 1)
        np.minimum.at(least, first[own], values[own])
        np.minimum.at(least, stop[own] - half, values[own])
    return least


def expand(first: Places, stop: Places) -> tuple[Places, Places]:
    """The pairs ``(i, j)`` with ``first[i] <= j < stop[i]``, ascending, as two arrays."""
    count = stop - first
    whose = np.repeat(np.arange(len(first)), count)
    offset = np.arange(len(whose)) - np.repeat(np.cumsum(count) - count, count)
    return whose, first[whose] + offset


def _last_of_equals(ascending: Int64s) -> Places:
    """Where each run of equal values ends."""
    if not len(ascending):
        return np.empty(0, np.intp)
    return np.flatnonzero(np.concatenate((ascending[1:] != ascending[:-1], [True])))
