"""The kernel types that run on each device over time. All figures about busy time come from this sweep."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
from msgspec import Struct

from augment.arrays import intervals
from augment.arrays.intervals import Intervals, Masks
from augment.arrays.types import Bools, Int64s
from augment.core.context import derived
from augment.core.trace import Trace
from augment.facts.gpu.gpu_work import Device, gpu_work
from augment.facts.names.kernel_types import KernelType

COMPUTATION, COMMUNICATION, MEMORY = (1 << kernel_type for kernel_type in KernelType)


class TypeCoverage(Struct, frozen=True):
    """The types of kernels that run on a device at each moment."""

    device: Device  #: which
    ts: Int64s  #: ns; strictly ascending
    mask: Masks  #: the types that run from ``ts[i]`` until ``ts[i + 1]``: bits ``1 << KernelType``; the last is 0
    time_ns: tuple[int, ...]  #: of each mask, the time in which exactly its types run
    first_ns: int  #: the first start of the device's work
    last_ns: int  #: the last end of the device's work

    @property
    def span_ns(self) -> int:
        """From the first start to the last end."""
        return self.last_ns - self.first_ns

    def time_of(self, *, any_of: int, none_of: int = 0) -> int:
        """The time, ns, in which a type in ``any_of`` runs and no type in ``none_of``."""
        return sum(ns for mask, ns in enumerate(self.time_ns) if mask & any_of and not mask & none_of)

    def time_within(self, start: Int64s, end: Int64s, *, any_of: int, none_of: int = 0) -> Int64s:
        """The part of :meth:`time_of` within each ``[start, end)``, int64 ns."""
        return intervals.held_between(self.ts, self._wanted(any_of, none_of), start, end)

    def intervals_of(self, *, any_of: int, none_of: int = 0) -> Intervals:
        """When a type in ``any_of`` runs and no type in ``none_of``, disjoint."""
        return intervals.where(self.ts, self._wanted(any_of, none_of))

    def _wanted(self, any_of: int, none_of: int) -> Bools:
        """For each of ``mask``, whether it has a type in ``any_of`` and none in ``none_of``."""
        table = np.array([mask & any_of != 0 and mask & none_of == 0 for mask in range(len(self.time_ns))])
        return table.take(self.mask)  # half the time of an index


@derived(until="summary")
def type_coverage(trace: Trace) -> tuple[TypeCoverage, ...]:
    """The coverage of each device, in the order of ``gpu_work(trace).devices``."""
    return tuple(_coverages(trace))


def mask_name(mask: int) -> str:
    """The name of a mask, its types in alphabetical order: ``COMMUNICATION overlapping COMPUTATION``."""
    return " overlapping ".join(sorted(kernel_type.name for kernel_type in KernelType if mask >> kernel_type & 1))


def all_masks() -> list[int]:
    """Every combination of types, fewest types first."""
    return [sum(1 << bit for bit in some) for size in (1, 2, 3) for some in combinations(KernelType, size)]


def _coverages(trace: Trace) -> Iterator[TypeCoverage]:
    work = gpu_work(trace)
    for device in work.devices:
        places = work.by_time[device.places]
        kernel_type, start, end = work.type[places], work.ts[places], work.end[places]
        unions = []
        for chosen_type in KernelType:
            chosen = kernel_type == chosen_type
            unions.append(intervals.union(start[chosen], end[chosen]))
        ts, mask = intervals.coverage(unions)
        lasts = np.diff(ts)
        running = mask[:-1]
        time_ns = tuple(int(lasts[running == mask].sum()) for mask in range(1 << len(KernelType)))
        yield TypeCoverage(device, ts, mask, time_ns, int(start[0]), max(int(start[0]), int(end.max())))
