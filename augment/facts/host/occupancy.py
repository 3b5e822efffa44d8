"""The innermost slice of each thread over time, as segments between its changes; what took most of given intervals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from augment.arrays import (
    NO_INDEX,
    Int32s,
    Int64s,
    Intervals,
    Places,
    compressed,
    expand,
    group_bounds,
    grouped,
    settled,
    touched,
    union,
    where_in,
)
from augment.core import Category, Trace, derived
from augment.facts.host.call_stacks import call_stacks
from augment.facts.names import STEP, starting
from augment.kernels.native import native


class HostSegments(Struct, frozen=True):
    """Columns in ascending order of track, then ``ts``, strictly within a track.

    The last segment of a track marks its end and holds no time.
    """

    ts: Int64s  #: ns; the segment lasts until the next ``ts`` of the track
    row: Int32s  #: the innermost slice, an event; -1: none
    bounds: Places  #: where each track's segments begin, and the end of the last track's

    def of(self, track: int) -> slice:
        """The places of a track."""
        return slice(int(self.bounds[track]), int(self.bounds[track + 1]))


@derived(until="rules")
def host_segments(trace: Trace) -> HostSegments:
    """Which slice is innermost on each thread, from moment to moment.

    Where slices cross, the one that began last is the innermost until it ends.
    """
    stacks, events = call_stacks(trace), trace.events
    ts = events.ts[stacks.row]
    end = events.dur[stacks.row]
    end += ts
    when, place, stop, count = segments(ts, end, events.track[stacks.row], len(trace.tracks))
    row = np.append(stacks.row.astype(np.int32), np.int32(NO_INDEX))[place[:count]]  # place -1 reads the last entry
    return HostSegments(when[:count], row, np.concatenate((np.zeros(1, np.intp), np.maximum.accumulate(stop))))


def segments(ts: Int64s, end: Int64s, thread: Int32s, tracks: int) -> tuple[Int64s, Int32s, Int64s, int]:
    """The changes of each thread's innermost slice.

    Args:
        ts: int64 ns, of slices by ascending ``thread``, then ``ts``, then from outer to inner.
        end: int64 ns.
        thread: int32.
        tracks: the number of tracks.

    Returns:
        The times; the place of the innermost slice from then on, -1 if there is none; the stop of each thread; and the
        number of segments. Entries beyond that number are not filled.
    """
    when, place = np.empty(2 * len(ts) + 1, np.int64), np.empty(2 * len(ts) + 1, np.int32)
    stop, open_ = np.zeros(tracks, np.int64), np.empty(len(ts) + 1, np.int32)
    count = native("nesting.divide")(*map(np.ascontiguousarray, (ts, end, thread)), when, place, stop, open_)
    return when, place, stop, count


PAIRS_AT_ONCE = 1 << 18  #: pairs of an interval and a slice per round, which bounds the memory


class Innermost(NamedTuple):
    """The innermost slice is ``row[i]`` from ``start[i]`` until ``end[i]``: int64, ns, disjoint."""

    start: Int64s
    end: Int64s
    row: Int64s


class Occupants(NamedTuple):
    """For each interval: the ``name`` (int32, into ``trace.strings``) that took most of it, that name's time ``ns``,
    and the ``row`` of the slice with that name and the longest stretch. Of equals the first counts; -1 stands for
    none. ``all_ns`` is the time of all names, 0 for none."""

    name: Int32s
    ns: Int64s
    row: Int64s
    all_ns: Int64s


def innermost(row: Int64s, start: Int64s, end: Int64s) -> Innermost:
    """The innermost slice of one thread at each moment, as in :func:`timelines`."""
    return timelines(row, start, end, np.zeros(len(row), np.int32), 1)[0]


def timelines(row: Int64s, start: Int64s, end: Int64s, group: Int32s, groups: int) -> tuple[Innermost, Places]:
    """The innermost slice at each moment: the one that began last among those open, whether slices nest or cross.

    Of several that began together it is the shortest; of equally short ones, the last.

    Args:
        row: int64, any id.
        start: int64 ns, ascending in each group.
        end: int64 ns.
        group: int32, ascending: the thread or stream of each slice.
        groups: the number of groups.

    Returns:
        The timelines of all groups in one, and the places where each group begins, plus the end.
    """
    real = end > start  # an empty slice is innermost at no moment
    row, start, end, group = row[real], start[real], end[real], group[real]
    tied = (start[1:] == start[:-1]) & (group[1:] == group[:-1])
    if (outer_first := settled(tied, -end)) is not None:
        row, start, end = row[outer_first], start[outer_first], end[outer_first]
    when, place, stop, count = segments(start, end, np.ascontiguousarray(group, np.int32), groups)
    when, place = when[:count], place[:count]
    busy = np.flatnonzero(place >= 0)  # the last segment of a group has no slice
    bounds = np.concatenate((np.zeros(1, np.intp), np.maximum.accumulate(stop)))
    return Innermost(when[busy], when[busy + 1], row[place[busy]]), np.searchsorted(busy, bounds)


def occupants(trace: Trace, categories: Sequence[Category], start: Int64s, end: Int64s, thread: Int32s) -> Occupants:
    """The name among the slices of ``categories`` that each ``thread`` spent most of ``[start, end)`` innermost in.

    Steps do not count, because they enclose everything.

    Args:
        trace: the trace of the slices.
        categories: categories of the slices that count.
        start: int64 ns, any order.
        end: int64 ns, above ``start``.
        thread: int32, into ``trace.tracks``.
    """
    none = np.full(len(start), -1, np.int64)
    occupants_ = Occupants(none.astype(np.int32), none, none.copy(), np.zeros(len(start), np.int64))
    threads, code_of_track = compressed(thread, len(trace.tracks))
    rows = trace.events.slices_of(*categories)
    rows = rows[~starting(trace, STEP)[trace.events.name[rows]]]
    code = code_of_track.take(trace.events.track[rows])
    rows, code = rows[code >= 0], code[code >= 0]
    slices = rows[grouped(code, len(threads))]
    asked = grouped(code_of_track[thread], len(threads))
    slice_bounds = group_bounds(code, len(threads)).tolist()
    asked_bounds = group_bounds(code_of_track[thread], len(threads)).tolist()
    near: list[Int64s] = []
    for index in range(len(threads)):
        index_ = asked[asked_bounds[index] : asked_bounds[index + 1]]
        slice_index = slices[slice_bounds[index] : slice_bounds[index + 1]]
        # those that overlap an interval
        when = union(start[index_], end[index_])
        begin = trace.events.ts[slice_index]
        begins = np.concatenate((when.start, [np.iinfo(np.int64).max]))[where_in(when.end, begin, side="right")]
        near.append(slice_index[begins < begin + trace.events.dur[slice_index]])
    group = np.repeat(np.arange(len(near), dtype=np.int32), [len(rows) for rows in near])
    rows = np.concatenate((*near, none[:0]))
    line, bounds = timelines(
        rows, trace.events.ts[rows], trace.events.ts[rows] + trace.events.dur[rows], group, len(near)
    )
    for index in np.flatnonzero(np.diff(bounds)).tolist():
        index_ = asked[asked_bounds[index] : asked_bounds[index + 1]]
        timeline = Innermost(*(column[bounds[index] : bounds[index + 1]] for column in line))
        for some, names, ns, row, all_ns in _longest(trace, timeline, start[index_], end[index_]):
            occupants_.name[index_[some]] = names
            occupants_.ns[index_[some]] = ns
            occupants_.row[index_[some]] = row
            occupants_.all_ns[index_[some]] = all_ns
    return occupants_


def _longest(
    trace: Trace, timeline: Innermost, start: Int64s, end: Int64s
) -> Iterator[tuple[Places, Int32s, Int64s, Int64s, Int64s]]:
    """Parts of the result: indexes of intervals, the name that took most of each, its time, its longest slice, and the
    time of all names."""
    name = trace.events.name[timeline.row]
    names, code_of_name = compressed(name, len(trace.strings))
    code = code_of_name[name]
    dur = timeline.end - timeline.start
    first, stop = touched(start, end, Intervals(timeline.start, timeline.end))
    some = np.flatnonzero(stop > first)
    first, stop, start, end = first[some], stop[some], start[some], end[some]
    before = np.maximum(start - timeline.start[first], 0)  # the parts of the first and last slice outside the interval
    after = np.maximum(timeline.end[stop - 1] - end, 0)
    until = np.cumsum(stop - first)
    low = 0
    while low < len(some):
        high = max(low + 1, int(np.searchsorted(until, until[low] + PAIRS_AT_ONCE)))
        whose, place = expand(first[low:high], stop[low:high])
        held = dur[place]
        firsts = until[low:high] - (stop - first)[low:high] - (until[low] - (stop - first)[low])
        held[firsts] -= before[low:high]
        held[np.concatenate((firsts[1:], [len(held)])) - 1] -= after[low:high]
        named, ns = _most(whose, code[place], held, high - low, len(names))
        places = np.flatnonzero(code[place] == named[whose])
        places = places[_first_greatest(whose[places], held[places])]
        all_ns = np.add.reduceat(held, firsts)
        yield some[low:high], names[named].astype(np.int32), ns, timeline.row[place[places]], all_ns
        low = high


def _most(whose: Places, code: Int32s, held: Int64s, count: int, codes: int) -> tuple[Int64s, Int64s]:
    """For each of ``count`` owners: the code with the greatest sum of ``held``, and that sum. Of equals, the least code
    wins. ``whose`` gives the owner of each entry, ascending; every owner occurs."""
    key = whose * codes + code
    if count * codes <= 8 * len(key):  # a table of sums costs less than sorting
        table = np.zeros(count * codes, np.int64)
        np.add.at(table, key, held)
        most = table.reshape(count, codes).argmax(axis=1)
        return most, table[np.arange(count) * codes + most]
    order = np.argsort(key, kind="stable")
    key = key[order]
    starts = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))
    sums = np.add.reduceat(held[order], starts)
    owner, named = np.divmod(key[starts], codes)
    winners = _first_greatest(owner, sums)
    return named[winners], sums[winners]


def _first_greatest(owner: Places, values: Int64s) -> Places:
    """The place of each owner's greatest value; the first of equals. ``owner`` ascends."""
    first = np.concatenate(([True], owner[1:] != owner[:-1]))
    greatest = np.maximum.reduceat(values, np.flatnonzero(first))
    winners = np.flatnonzero(values == greatest[np.cumsum(first) - 1])
    return winners[np.concatenate(([True], owner[winners][1:] != owner[winners][:-1]))]
