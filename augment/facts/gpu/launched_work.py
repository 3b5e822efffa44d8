"""The GPU work in launch order, so that the work launched within a slice of a thread is one range."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from augment.arrays.ordering import is_among, settled
from augment.arrays.types import NO_INDEX, Int32s, Int64s, Places, StackIndexes, WorkIndexes
from augment.core.context import derived
from augment.core.trace import LAUNCHES, Trace
from augment.facts.gpu.arrow_correlations import correlations_of
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.host.call_stacks import call_stacks, crossed_places, is_of, thread_bounds


class LaunchedWork(Struct, frozen=True):
    """Work of known launch by thread, then by launch, then by start, so that a slice's is one range: see :meth:`under`.

    Of launches that begin at one moment, the lower correlation comes first.
    """

    place: WorkIndexes  #: the work
    listed: WorkIndexes  #: ``place``, then lists of slices whose work is not one range, because slices cross
    before: Int64s  #: of each call stack, how many of ``place`` are launched before it
    last: Int32s  #: of each call stack, the index after its last descendant
    apart: dict[int, tuple[int, int]]  #: spans in ``listed`` of slices that cross, by the index of their call stack

    def spans(self, places: Places) -> tuple[Int64s, Int64s]:
        """The ``start`` and ``stop`` of the work launched by each of ``places`` and all that these enclose:
        ``listed[start:stop]``. ``places`` are of the call stacks, and not runtime calls."""
        start, stop = self.before[places], self.before[self.last[places]]
        if self.apart:
            at = np.array(sorted(self.apart), np.int64)
            known = is_among(places, at)
            spans = [self.apart[place] for place in places[known].tolist()]
            start[known], stop[known] = np.array(spans, np.int64).reshape(-1, 2).T
        return start, stop

    def under(self, stacks: StackIndexes) -> WorkIndexes:
        """The work launched by any of ``stacks`` and all that these enclose, ascending and distinct. ``stacks`` are
        indexes of the call stacks, and not runtime calls."""
        depth = np.zeros(len(self.listed) + 1, np.int64)
        start, stop = self.spans(stacks)
        np.add.at(depth, start, 1)
        np.add.at(depth, stop, -1)
        return np.unique(self.listed[np.cumsum(depth)[:-1] > 0])


@derived(until="breakdowns")
def launched_work(trace: Trace) -> LaunchedWork:
    """The trace's launched work."""
    work, stacks = gpu_work(trace), call_stacks(trace)
    place = work.by_time[work.launch[work.by_time] != NO_INDEX]
    launch = stacks.place_of[work.launch[place]]
    order = np.argsort(launch, kind="stable")
    place, launch = place[order], launch[order]
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.bincount(launch, minlength=len(stacks)))))
    place = _by_correlation(trace, place, launch)
    listed, apart = _across(trace, place, before)
    return LaunchedWork(place, listed, before, stacks.stop, apart)


def _by_correlation(trace: Trace, place: Places, launch: Places) -> Places:
    """``place`` with launches of one moment in the order of their correlations, where no operator begins between
    them."""
    work = gpu_work(trace)
    others = np.cumsum(~is_of(trace, LAUNCHES))[launch]
    ts, thread = trace.events.ts[work.launch[place]], trace.events.track[work.launch[place]]
    tied = (ts[1:] == ts[:-1]) & (thread[1:] == thread[:-1]) & (others[1:] == others[:-1])
    order = settled(tied, correlations_of(trace, work.row[place])) if tied.any() else None
    return place if order is None else place[order]


def _across(trace: Trace, place: Places, before: Int64s) -> tuple[Places, dict[int, tuple[int, int]]]:
    """``listed``, and the spans in it of slices that launched more than their call tree holds. Where another slice
    crosses the end of such a slice, later launches can lie outside its tree, although it encloses them."""
    stacks, events = call_stacks(trace), trace.events
    launch = gpu_work(trace).launch[place]
    until = events.ts[launch] + events.dur[launch]
    begin, bounds = events.ts[stacks.row], thread_bounds(trace)
    lists, count = [place], len(place)
    known: dict[bytes, tuple[int, int]] = {}
    apart: dict[int, tuple[int, int]] = {}
    for bad in crossed_places(trace).tolist():
        row = stacks.row[bad]
        end, thread = events.ts[row] + events.dur[row], slice(*bounds[events.track[row] : events.track[row] + 2])
        after = thread.start + int(np.searchsorted(begin[thread], end))
        first, near, far = before[[bad, stacks.stop[bad], after]].tolist()
        more = near + np.flatnonzero(until[near:far] <= end)
        if not len(more):
            continue
        if more[-1] - near + 1 == len(more):
            apart[bad] = first, near + len(more)
            continue
        both = np.concatenate((np.arange(first, near), more))
        span = known.setdefault(both.tobytes(), (count, count + len(both)))
        if span[0] == count:
            lists.append(place[both])
            count += len(both)
        apart[bad] = span
    return np.concatenate(lists), apart
