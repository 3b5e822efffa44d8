"""The innermost slice of each thread over time, as segments between its changes."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from augment.arrays.types import NO_INDEX, Int32s, Int64s, Places
from augment.core.context import derived
from augment.core.trace import Trace
from augment.facts.host.call_stacks import call_stacks
from augment.kernels.native import native


class HostSegments(Struct, frozen=True):
    """Equal-length columns, ascending track, then ``ts``, strictly within a track.

    From ``ts`` (int64 ns) until the next ``ts`` of the track, its innermost slice is ``row`` (int32, into the event
    table; -1: none). The last segment of a track marks its end and holds no time. ``bounds`` (``len(tracks) + 1``
    places) gives where each track's segments begin.
    """

    ts: Int64s
    row: Int32s
    bounds: Places

    def of(self, track: int) -> slice:
        """The places of a track."""
        return slice(int(self.bounds[track]), int(self.bounds[track + 1]))


@derived(until="rules")
def host_segments(trace: Trace) -> HostSegments:
    """The segments of every thread; linear in the number of slices.

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
    count = native("host_segments.divide")(*map(np.ascontiguousarray, (ts, end, thread)), when, place, stop, open_)
    return when, place, stop, count
