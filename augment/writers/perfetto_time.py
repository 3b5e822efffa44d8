"""How Perfetto reads the times of a Chrome file, and durations that survive this.

Its importer reads ``ts`` and ``dur`` as doubles of microseconds. For times since 1970 these lie 250 ns apart, and they
are rounded again after multiplication by 1000. Two adjacent slices may then overlap, and Perfetto drops an overlapping
slice with an import error. The rules were found by experiment with v52 (tests/writers/test_perfetto_time.py checks
them).
"""

from __future__ import annotations

import numpy as np

from augment.arrays.types import Int64s

_EXACT = 1 << 49  #: below this, a double of microseconds is exact enough to round to the nanosecond that was written
_BLOCK = 1 << 15  #: the number of values per round, which fit the cache
_GRAIN = 512  #: ns, at most between two doubles of what 64 bits hold: months and years are rounded, too


def seen_ns(ns: Int64s) -> Int64s:
    """The nanoseconds that Perfetto reads if the file contains ``ns / 1000`` with three decimals."""
    if ns.max(initial=0) < _EXACT and ns.min(initial=0) > -_EXACT:
        return ns
    return np.concatenate([_seen(ns[start : start + _BLOCK]) for start in range(0, len(ns), _BLOCK)])


def _seen(ns: Int64s) -> Int64s:
    whole, part = np.divmod(ns, 1000)
    us = whole + part / 1000  # the double nearest to the text, as strtod has it
    scaled = us * 1000
    down = np.floor(scaled)
    rounded = (down + (scaled - down >= 0.5)).astype(np.int64)
    # a number without a fraction is read as an integer
    seen: Int64s = np.where(us == np.floor(us), us.astype(np.int64) * 1000, rounded)
    return seen


def fitting_durations(ts: Int64s, dur: Int64s, base_ns: int) -> Int64s:
    """``dur``, shortened just enough that, as Perfetto reads it, no slice of a track reaches into the next.

    A slice inside another does not extend beyond the end of that slice, either.

    Args:
        ts: ns, ascending; of equal ones the longer slice first.
        dur: ns.
        base_ns: what the times of the file lack.
    """
    if len(ts) < 2:
        return dur
    starts = seen_ns(ts - base_ns)
    depth = _depths(ts, dur)
    shown: Int64s = dur.copy()
    end_of = np.full(len(ts), np.iinfo(np.int64).max)  # that Perfetto sees, of the slice around each
    for level in range(int(depth.max()) + 1):
        rows = np.flatnonzero(depth == level)
        limit = np.minimum(np.append(starts[rows[1:]], end_of[rows[-1:]]), end_of[rows])
        room = np.maximum(limit - starts[rows], 0)
        short = seen_ns(dur[rows]) > room
        room = room[short]
        shown[rows[short]] = np.where(seen_ns(room) > room, np.maximum(room - _GRAIN, 0), room)
        inside = np.flatnonzero(depth == level + 1)
        around = rows[np.searchsorted(rows, inside) - 1]
        end_of[inside] = starts[around] + seen_ns(shown[around])
    return shown


def _depths(ts: Int64s, dur: Int64s) -> Int64s:
    """The number of slices around each slice, int64."""
    if (ts[1:] >= ts[:-1] + dur[:-1]).all():
        return np.zeros(len(ts), np.int64)
    ended = np.sort(ts + np.maximum(dur, 1))
    depth: Int64s = np.arange(len(ts)) - np.searchsorted(ended, ts, side="right")
    return depth
