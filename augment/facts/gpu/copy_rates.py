"""The rate of copies of each kind over time, in bytes per second."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from augment.arrays import intervals
from augment.arrays.types import Int64s, Places, WorkIndexes
from augment.core.context import derived
from augment.core.trace import Trace
from augment.facts.gpu.gpu_work import Device, gpu_work
from augment.facts.names.kernel_types import KernelType, copy_kind

FASTEST = 10**15  #: bytes per second: above any memory, and the sum of a thousand such rates fits int64


class CopyRate(Struct, frozen=True):
    """The copies of one kind on one device, and their rate after every change; rates of overlapping copies add up."""

    device: Device  #: which
    kind: str  #: such as ``Memcpy HtoD (Pinned -> Device)``
    places: WorkIndexes  #: the copies
    bytes: int  #: in all
    ts: Int64s  #: ns; strictly ascending
    rate: Int64s  #: whole bytes per second, so that it returns to exactly 0
    without: int  #: copies without a rate: bytes unknown or 0, no time, or faster than :data:`FASTEST`


@derived(until="breakdowns")
def copy_rates(trace: Trace) -> tuple[CopyRate, ...]:
    """The rates for each device and each kind of copy that occurs on it."""
    work = gpu_work(trace)
    rates = []
    for device in work.devices:
        places = work.by_time[device.places]
        copies = places[work.type[places] == KernelType.MEMORY]
        for kind, chosen in _kinds(trace, work.row[copies], copies):
            size = _sizes(trace, work.row[chosen])
            series = _series(work.ts[chosen], work.end[chosen], size)
            rates.append(CopyRate(device, kind, chosen, int(size.sum()), *series))
    return tuple(rates)


def _kinds(trace: Trace, rows: Int64s, copies: Places) -> list[tuple[str, Places]]:
    """The kinds of ``copies``, ascending, each with its copies. Every name is matched once."""
    names, which = np.unique(trace.events.name[rows], return_inverse=True)
    kind_of_name = [copy_kind(trace.strings[name]) for name in names.tolist()]
    kinds = sorted(set(kind_of_name))
    code = np.array([kinds.index(kind) for kind in kind_of_name], np.intp)[which]
    return [(kind, copies[code == index]) for index, kind in enumerate(kinds)]


def _sizes(trace: Trace, rows: Int64s) -> Int64s:
    """The bytes of each of ``rows``, 0 where unknown."""
    order = np.argsort(rows, kind="stable")  # look-ups of ascending rows are faster
    size = np.empty(len(rows), np.int64)
    size[order] = trace.events.bytes.at(rows[order], 0)
    return np.maximum(size, 0)


def _series(start: Int64s, end: Int64s, size: Int64s) -> tuple[Int64s, Int64s, int]:
    """The moments, the rate after every change, and the number of copies without a rate."""
    rate = size / np.maximum(end - start, 1) * 1e9
    known = (size > 0) & (end > start) & (rate < FASTEST)
    change = np.rint(rate[known]).astype(np.int64)
    ts, value = intervals.steps(np.concatenate((start[known], end[known])), np.concatenate((change, -change)))
    return ts, value, len(known) - int(known.sum())
