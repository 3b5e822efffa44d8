"""What a rank did during any interval, from a bounded table of its devices' states.

The table holds the time spent in each state until some moments: the starts and ends of collectives and steps, and of
the longest stays in a state. In between the time is spread evenly, so the parts of an interval always add up to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from augment.arrays import Int64s, Intervals, distinct, expand, sums, touched, union
from augment.core import Where
from augment.facts.collectives.rank_progress import HostWaits, RankStates, State

MOST_STAYS = 4096  #: the stays in a state whose starts and ends are exact
NOTHING: tuple[str, Where] = ("", "no_operator")  #: a host that is in nothing recorded
IDLE = (State.HOST, State.QUEUED, State.UNKNOWN)
_WIDE, _NARROW = 8, 4  #: bytes of a value
Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]


class Parts(NamedTuple):
    """What a rank did during intervals: an int64 column each, ns, which add up to the length of the intervals.

    ``host``: idle with nothing launched; ``queued``: idle with launched work; ``unknown``: idle without recorded
    launch, or after the recording; ``before``: before the recording.
    """

    compute: Int64s
    communication: Int64s
    memory: Int64s
    host: Int64s
    queued: Int64s
    unknown: Int64s
    before: Int64s

    def of(self, names: Sequence[str]) -> Int64s:
        """The time of several parts, int64 ns."""
        return sum((getattr(self, name) for name in names), np.zeros(len(self.compute), np.int64))


class StateTable(msgspec.Struct, omit_defaults=True):
    """The table of a rank: moments, the time until each in every :class:`State`, and the longest waits for its host.

    The columns are differences of successive int64 values; of ``ts`` and ``times`` all but the first are of ``width``
    bytes each. ``gap_doing`` is an index into ``doings``, -1 for none.
    """

    ts: bytes
    times: list[bytes]
    gap_start: bytes
    gap_end: bytes
    gap_doing: bytes
    doings: list[tuple[str, Where]]
    width: int = _WIDE

    def _moments(self) -> Int64s:
        return _summed(self.ts, self.width)

    def narrowed(self) -> StateTable:
        """The same in half the memory, unless the device stays in a state for seconds."""
        if self.width != _WIDE or not self.ts:
            return self
        columns = [np.frombuffer(column, np.int64) for column in (self.ts, *self.times)]
        if any((each[1:] >= 1 << 31).any() for each in columns):
            return self
        ts, *times = (each[:1].tobytes() + each[1:].astype(np.int32).tobytes() for each in columns)
        return msgspec.structs.replace(self, ts=ts, times=times, width=_NARROW)

    def parts(self, start: Int64s, end: Int64s) -> Parts:
        """What the rank did in each ``[start, end)`` of its own clock, int64 ns."""
        ts = self._moments()
        length = np.maximum(end - start, 0)
        if not len(ts):
            none = np.zeros(len(start), np.int64)
            return Parts(none, none, none, none, none, length, none)
        before = np.clip(ts[0] - start, 0, length)
        low, high = np.clip(start, ts[0], ts[-1]), np.clip(end, ts[0], ts[-1])
        until = np.vstack([_summed(column, self.width) for column in self.times])
        values = _interpolated(ts, until, np.concatenate((low, np.maximum(low, high))))
        table = values[:, len(low) :] - values[:, : len(low)]
        # rounding, and what lies after the recording: the parts must add up
        missing = length - before - table.sum(axis=0)
        table[State.UNKNOWN] += np.maximum(missing, 0)
        table[table.argmax(axis=0), np.arange(len(length))] += np.minimum(missing, 0)
        return Parts(*(*table, before))

    def thinned(self, most: int, moments: Sequence[Int64s]) -> StateTable:
        """The table with about ``most`` moments: the given ones, and the starts and ends of the longest stays."""
        ts = self._moments()
        if len(ts) <= most:
            return self
        kept = np.isin(ts, np.concatenate([ts[:0], *moments]))
        kept[[0, -1]] = True
        longest = np.argsort(-np.diff(ts), kind="stable")[: max(most - np.count_nonzero(kept), 0) // 2]
        kept[longest], kept[longest + 1] = True, True
        start, end = _summed(self.gap_start), _summed(self.gap_end)
        gaps = np.sort(np.argsort(start - end, kind="stable")[:most])
        return StateTable(
            ts=_differences(ts[kept]),
            times=[_differences(_summed(column, self.width)[kept]) for column in self.times],
            gap_start=_differences(start[gaps]),
            gap_end=_differences(end[gaps]),
            gap_doing=np.frombuffer(self.gap_doing, np.int64)[gaps].tobytes(),
            doings=self.doings,
        )

    def communicating(self) -> Intervals:
        """When the device communicates and does nothing else, of the rank's own clock: disjoint, int64 ns.

        A time of which the table has only the composition counts if most of it is communication.
        """
        ts, until = self._moments(), _summed(self.times[State.COMMUNICATION], self.width)
        most = 2 * np.diff(until) > np.diff(ts)
        return union(ts[:-1][most], ts[1:][most])

    def stays(self, *states: State) -> Intervals:
        """When the rank is in any of ``states`` throughout, on its own clock: disjoint, int64 ns. A time of which the
        table has only the composition counts if it has nothing else."""
        ts = self._moments()
        spent = [np.diff(_summed(self.times[state], self.width)) for state in states]
        throughout = np.diff(ts) == sum(spent, np.zeros(max(len(ts) - 1, 0), np.int64))
        return union(ts[:-1][throughout], ts[1:][throughout])

    def span(self) -> tuple[int, int] | None:
        """From the first moment of the table to the last, of the rank's own clock; None without work."""
        ts = self._moments()
        return (int(ts[0]), int(ts[-1])) if len(ts) else None

    def waits(self, doing: tuple[str, Where] | None) -> Intervals:
        """The waits for the host, disjoint, int64 ns; all, or those in which the launching thread was in one of
        :attr:`doings`, or in nothing recorded (:data:`NOTHING`)."""
        code = np.frombuffer(self.gap_doing, np.int64)
        named = [NOTHING, *self.doings]
        known = named.index(doing) - 1 if doing in named else len(named)
        chosen = (code == known) | (doing is None)
        return Intervals(_summed(self.gap_start)[chosen], _summed(self.gap_end)[chosen])

    def doing(self, start: Int64s, end: Int64s) -> list[tuple[str, Where, int]]:
        """What the launching thread did in the waits for the host within disjoint ``[start, end)``.

        Returns:
            Name ("" for nothing recorded), where it stands, time in ns; longest first.
        """
        gaps = Intervals(_summed(self.gap_start), _summed(self.gap_end))
        which, gap = expand(*touched(start, end, gaps))
        overlap = np.minimum(end[which], gaps.end[gap]) - np.maximum(start[which], gaps.start[gap])
        code = np.frombuffer(self.gap_doing, np.int64)[gap]
        total = sums(code + 1, overlap, len(self.doings) + 1)
        named = [NOTHING, *self.doings]
        order = np.argsort(-total, kind="stable")
        return [(*named[place], int(total[place])) for place in order.tolist() if total[place] > 0]


def state_table(states: RankStates, gaps: HostWaits, moments: Sequence[Int64s]) -> StateTable:
    """The table of a rank, exact at ``moments`` (int64 ns, any order)."""
    # The moments of the table, and the time until each in every state
    ts, dur = states.ts, np.diff(states.ts)
    if not len(dur):
        ts, until = ts[:0], [ts[:0]] * len(State)
    else:
        longest = np.argsort(-dur, kind="stable")[:MOST_STAYS]
        given = np.concatenate([ts[:0], *moments])
        given = given[(given >= ts[0]) & (given <= ts[-1])]
        chosen = distinct(np.concatenate((ts[longest], ts[longest + 1], given, ts[[0, -1]])))
        until = [np.append(0, np.cumsum(np.where(states.state == state, dur, 0))) for state in State]
        ts, until = chosen, [_interpolated(ts, column, chosen) for column in until]
    return StateTable(
        ts=_differences(ts),
        times=[_differences(column) for column in until],
        gap_start=_differences(gaps.start),
        gap_end=_differences(gaps.end),
        gap_doing=gaps.doing.astype(np.int64).tobytes(),
        doings=gaps.doings,
    )


def _interpolated(ts: Int64s, until: Int64s, moments: Int64s) -> Int64s:
    """The values at ``moments`` within ``ts`` of columns (lines of ``until``) that grow evenly in between, int64."""
    place = np.searchsorted(ts, moments, side="right") - 1
    place = np.minimum(np.maximum(place, 0), max(len(ts) - 2, 0))
    before = until[..., place]
    width, rise = ts[place + 1] - ts[place], until[..., place + 1] - before
    since = moments - ts[place]
    inside = np.where(rise == width, since, np.floor(rise / width * since).astype(np.int64))
    values: Int64s = before + np.where(since == width, rise, inside)
    return values


def _differences(values: Int64s) -> bytes:
    return np.diff(values, prepend=0).astype(np.int64).tobytes()


def _summed(column: bytes, width: int = _WIDE) -> Int64s:
    if width == _WIDE:
        return np.cumsum(np.frombuffer(column, np.int64))
    values = np.empty((len(column) - _WIDE) // width + 1, np.int64)
    values[:1] = np.frombuffer(column[:_WIDE], np.int64)
    values[1:] = np.frombuffer(column, np.int32, offset=_WIDE)
    return np.cumsum(values, out=values)
