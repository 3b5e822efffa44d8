"""The gaps between pieces of GPU work in which nothing runs, on a stream or on a whole device."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from augment.arrays.types import Int64s, Places, WorkIndexes
from augment.core.context import derived
from augment.core.trace import Trace
from augment.facts.gpu.gpu_work import gpu_work


class IdleGaps(Struct, frozen=True):
    """Idle time between work: equal-length columns, ascending."""

    start: Int64s  #: ns
    end: Int64s  #: ns
    previous: WorkIndexes  #: whose end began the gap
    next: WorkIndexes  #: whose start ended it
    overlapping: int  #: how many pieces of work begin before all earlier ones have ended

    def __len__(self) -> int:
        """The number of gaps."""
        return len(self.start)


@derived(until="idle time")
def stream_gaps(trace: Trace) -> tuple[IdleGaps, ...]:
    """The gaps on each stream, in the order of ``gpu_work(trace).streams``."""
    work = gpu_work(trace)
    return tuple(
        _gaps(work.ts[stream.places], work.end[stream.places], np.arange(stream.start, stream.stop))
        for stream in work.streams
    )


@derived(until="summary")
def device_gaps(trace: Trace) -> tuple[IdleGaps, ...]:
    """The gaps in which no stream of a device works, in the order of ``gpu_work(trace).devices``; they are disjoint."""
    work = gpu_work(trace)
    orders = [work.by_time[device.places] for device in work.devices]
    return tuple(_gaps(work.ts[order], work.end[order], order) for order in orders)


def _gaps(ts: Int64s, end: Int64s, places: Places) -> IdleGaps:
    """The gaps between pieces of work in ascending ``ts``. Work without duration ends a gap, too."""
    end = np.maximum(end, ts)  # a negative duration counts as 0
    reach = np.maximum.accumulate(end)
    after = np.flatnonzero(ts[1:] > reach[:-1])
    last_to_end = np.maximum.accumulate(np.where(end == reach, np.arange(len(end)), 0))
    overlapping = int((ts[1:] < reach[:-1]).sum())
    return IdleGaps(reach[after], ts[after + 1], places[last_to_end[after]], places[after + 1], overlapping)
