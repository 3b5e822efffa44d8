"""Fewer pieces where more than may be drawn: short ones are joined or left out, counters keep peaks or means."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from augment.arrays.ordering import numbered, run_starts
from augment.arrays.types import Int32s, Int64s, Places
from augment.kernels.native import native

_LEAST_NS, _GREATEST_NS = 1 << 8, 1 << 57  #: the first and the last limit
_CELL = np.uint64(8)  #: short pieces within so many limits are joined


class Joined(Struct, frozen=True):
    """Pieces after joining, in their order; equal-length columns.

    ``first`` is the place of each one's first piece, ``count`` the number of its pieces, and ``longest`` the place of
    the piece that represents it: of the kind that takes most of its time, the longest.
    """

    first: Places
    count: Int64s
    longest: Places

    def __len__(self) -> int:
        return len(self.first)

    @property
    def group(self) -> Int64s:
        """For each original piece, which of the joined ones it is in."""
        return np.repeat(np.arange(len(self.first)), self.count)

    def times(self, dur: Int64s, kind: Int32s, kinds: int) -> Int64s:
        """How long the pieces of each kind in ``range(kinds)`` last: a row for each kind, a column for each group."""
        times = np.zeros(kinds * len(self), np.int64)
        native("sorted_columns.times")(self.first, dur, kind, times)
        return times.reshape(kinds, len(self))


def joined(start: Int64s, dur: Int64s, kind: npt.NDArray[Any], most: int) -> Joined:
    """Join short pieces that touch until there are at most ``most``, if that is possible.

    Pieces shorter than a limit are joined if they begin within the same eight limits of time. The limit is the least
    power of two ns that suffices. So pieces stay as they are where few are short.

    Args:
        start: when each piece begins, int64 ns, ascending; pieces do not overlap.
        dur: how long it lasts, ns.
        kind: what it is, integers.
        most: how many pieces may remain.
    """
    begins = np.ones(len(start), np.bool_)
    if len(start) > most:
        touching = np.flatnonzero(start[1:] == start[:-1] + dur[:-1]) + 1
        between = _differing(start)[touching - 1]
        between //= _CELL
        above = np.maximum(dur[touching], dur[touching - 1]).view(np.uint64)
        np.maximum(above, between, out=above)  # joined by greater limits
        del between  # frees memory for what follows, as below
        enough = (limit for limit in _limits() if len(start) - np.count_nonzero(above < limit) <= most)
        begins[touching[np.flatnonzero(above < next(enough, _GREATEST_NS))]] = False
        del touching, above, enough
    first = np.flatnonzero(begins)
    count = np.diff(first, append=len(start)).astype(np.int64)
    longest = first
    if len(first) < len(start):
        kinds, code = numbered(kind)
        longest = np.empty(len(first), np.int64)
        native("sorted_columns.longest")(first, dur, code.astype(np.int32), np.zeros(len(kinds), np.int64), longest)
    return Joined(first, count, longest)


def longest(dur: Int64s, most: int) -> Places:
    """The places of the ``most`` longest, ascending; of equal ones the first."""
    if len(dur) <= most:
        return np.arange(len(dur))
    if not most:
        return np.empty(0, np.intp)
    least = np.partition(dur, len(dur) - most)[len(dur) - most]
    kept = dur > least
    kept[np.flatnonzero(dur == least)[: most - np.count_nonzero(kept)]] = True
    return np.flatnonzero(kept)


def peaks(ts: Int64s, values: npt.NDArray[Any], most: int) -> Places:
    """The places of a counter's points to keep so that there are at most ``most``, if that is possible: of each cell of
    time the greatest value and the last, and the first and last point of all. Cells are the shortest that suffice.

    Args:
        ts: when each point is, int64 ns, ascending.
        values: the value from then on.
        most: how many points may remain.
    """
    most = max(most, 4)
    kept = np.arange(len(ts))
    for starts in _cells(ts, most):
        if len(kept) <= most:
            break
        kept = _peaks_and_ends(values.astype(np.float64), starts)
    return kept


def means(
    ts: Int64s, values: npt.NDArray[Any], most: int
) -> tuple[Int64s, npt.NDArray[np.int64] | npt.NDArray[np.float64]]:
    """Points of a counter that leave its integral as it is, so that there are at most ``most``, if that is possible.

    Of each cell of time there are two: from its first point on the mean up to its last, and the last. Cells are the
    shortest that suffice. Arguments are those of :func:`peaks`; values of a reduced counter are float64.
    """
    most = max(most, 4)
    if len(ts) <= most:
        return ts, values
    for starts in _cells(ts, most):
        count = np.diff(starts, append=len(ts))
        if 2 * len(starts) - int(np.count_nonzero(count == 1)) <= most:
            break
    last = starts + count - 1
    held = np.diff(ts, append=ts[-1])
    held[last] = 0
    mean = np.add.reduceat(values * held, starts) / np.maximum(ts[last] - ts[starts], 1)
    mean = np.where(count == 1, values[starts], mean)
    kept = np.zeros(len(ts), np.bool_)
    kept[starts] = kept[last] = True
    reduced = values.astype(np.float64)
    reduced[starts] = mean
    return ts[kept], reduced[kept]


def _peaks_and_ends(values: npt.NDArray[np.float64], starts: Places) -> Places:
    """The first point, and of each run the last and the first of the greatest; NaN is less than any number."""
    count = np.diff(starts, append=len(values))
    run = np.repeat(np.arange(len(starts)), count)
    greatest = np.fmax.reduceat(values, starts)[run]
    highest = np.flatnonzero((values == greatest) | np.isnan(greatest))
    first = highest[run_starts(run[highest])]
    kept = np.zeros(len(values), np.bool_)
    kept[0] = kept[first] = kept[starts + count - 1] = True
    return np.flatnonzero(kept)


def _cells(ts: Int64s, most: int) -> Iterator[Places]:
    """Where cells of time begin, of ever greater length, from the first on of which there are at most ``most``: there
    are more points than cells, as the last point of each stays."""
    differing = _differing(ts)
    for limit in _limits():
        if np.count_nonzero(differing >= limit) < most or limit == _GREATEST_NS:
            yield np.append(0, np.flatnonzero(differing >= limit) + 1)


def _differing(ts: Int64s) -> npt.NDArray[np.uint64]:
    """The bits in which neighbours differ: both are in one cell whose length is a power of two greater than these."""
    return (ts[1:] ^ ts[:-1]).view(np.uint64)


def _limits() -> Iterator[int]:
    """Powers of two, ns."""
    return (1 << power for power in range(_LEAST_NS.bit_length() - 1, _GREATEST_NS.bit_length()))
