"""The GPU work in the order in which the host launched it: what each slice of a thread launched lies together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from augment.derived.call_stacks import call_stacks
from augment.derived.gpu_work import gpu_work
from augment.derived.launches import NO_ROW
from augment.intervals import Places
from augment.trace import Int64s, Trace, derived


@dataclass(frozen=True, slots=True)
class LaunchedWork:
    """``place`` (into ``gpu_work``) of the work whose launch is known, by thread, then by launch, then by start.

    What the slice at place ``i`` of ``stacks = call_stacks(trace)`` and the slices that it encloses launched is
    ``place[before[i] : before[stacks.stop[i]]]``; ``before`` int64, one longer than the call stacks.
    """

    place: Places
    before: Int64s


@derived
def launched_work(trace: Trace) -> LaunchedWork:
    """The trace's launched work."""
    work, stacks = gpu_work(trace), call_stacks(trace)
    place = work.by_time[work.launch[work.by_time] != NO_ROW]
    launch = stacks.place_of[work.launch[place]]
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.bincount(launch, minlength=len(stacks)))))
    return LaunchedWork(place[np.argsort(launch, kind="stable")], before)
