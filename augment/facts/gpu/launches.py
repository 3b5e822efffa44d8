"""The launches: links from the host's calls to the work on the devices, by correlation."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from augment.arrays.ordering import distinct, settled
from augment.arrays.types import NO_INDEX, EventRows, Int64s
from augment.core.context import derived
from augment.core.trace import NO_CORRELATION, Category, Trace
from augment.facts.gpu.arrow_correlations import correlations_of


class Launches(Struct, frozen=True):
    """The launching call of each correlation."""

    correlation: Int64s  #: ascending and distinct
    row: EventRows  #: the call
    disputed: Int64s  #: ascending; correlations of calls of several processes, as when traces were merged into one file

    def of(self, correlation: Int64s) -> Int64s:
        """The row of the call that launched each ``correlation``, int64; :data:`NO_INDEX` where there is none."""
        if not len(self.row):
            return np.full(len(correlation), NO_INDEX, np.int64)
        lowest, highest = int(self.correlation[0]), int(self.correlation[-1])
        if highest - lowest < 4 * (len(self.row) + len(correlation)):
            return self._by_table(correlation, lowest, highest)
        place = np.minimum(np.searchsorted(self.correlation, correlation), len(self.row) - 1)
        return np.where(self.correlation[place] == correlation, self.row[place], NO_INDEX)

    def _by_table(self, correlation: Int64s, lowest: int, highest: int) -> Int64s:
        """The same as :meth:`of`, by a table. This is faster than a search if the ids lie close together."""
        table = np.full(highest - lowest + 2, NO_INDEX, np.int64)  # the last entry stands for every id outside
        table[self.correlation - lowest] = self.row
        outside = (correlation < lowest) | (correlation > highest)
        rows: Int64s = table[np.where(outside, highest - lowest + 1, correlation - lowest)]
        return rows


@derived
def launches(trace: Trace) -> Launches:
    """The launching call of each correlation. Of several, runtime calls come before driver calls, then earlier, then
    longer.

    A runtime call such as ``cudaLaunchKernel`` makes a driver call with the same correlation, and lasts longer.
    """
    events = trace.events
    rows = np.concatenate([events.slices_of(Category.CUDA_RUNTIME), events.slices_of(Category.CUDA_DRIVER)])
    correlation = correlations_of(trace, rows)
    linked = correlation != NO_CORRELATION
    if not linked.all():
        rows, correlation = rows[linked], correlation[linked]
    order = np.argsort(correlation, kind="stable")  # stable: the preferred call is the first of equals
    correlation, category, ts = correlation[order], events.category[rows[order]], events.ts[rows[order]]
    tied = (correlation[1:] == correlation[:-1]) & (category[1:] == category[:-1]) & (ts[1:] == ts[:-1])
    if (longest_first := settled(tied, -events.dur[rows[order]])) is not None:
        order = order[longest_first]
    first = np.ones(len(order), np.bool_)
    first[1:] = correlation[1:] != correlation[:-1]
    return Launches(correlation[first], rows[order[first]], _disputed(trace, correlation, rows[order]))


def _disputed(trace: Trace, correlation: Int64s, rows: Int64s) -> Int64s:
    """The values of ``correlation`` (ascending, of ``rows``) that calls of several processes have."""
    pids = {pid: code for code, pid in enumerate({track.pid: None for track in trace.tracks})}
    process = np.array([pids[track.pid] for track in trace.tracks], np.int32)[trace.events.track[rows]]
    other = (correlation[1:] == correlation[:-1]) & (process[1:] != process[:-1])
    return distinct(correlation[1:][other])
