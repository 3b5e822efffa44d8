"""GPU time divided by key. Every piece of work has one key, so the parts of a device add up to all of its time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from augment.arrays.ordering import combinations, sums
from augment.arrays.types import Int64s
from augment.core.trace import Trace
from augment.facts.gpu.gpu_work import Device, gpu_work


class TimeShare(NamedTuple):
    """The work of one device and key: the number of pieces, and the sum of their durations."""

    device: Device
    key: int
    kernel_count: int
    gpu_ns: int

    def ratio(self, of_ns: int) -> float | None:
        """The share of ``of_ns``; None if that is 0."""
        return self.gpu_ns / of_ns if of_ns else None


def gpu_time_by(trace: Trace, key: Int64s) -> list[TimeShare]:
    """The shares, by device in ``gpu_work``'s order, then by ascending ``key`` (the key of each place of
    ``gpu_work``)."""
    work = gpu_work(trace)
    keys, code = combinations(device_of_work(trace), key)
    gpu_ns = sums(code, work.end - work.ts, len(keys[0]))
    columns = (*keys, np.bincount(code, minlength=len(keys[0])), gpu_ns)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [TimeShare(work.devices[device], *rest) for device, *rest in rows]


def device_of_work(trace: Trace) -> Int64s:
    """The index of the device of each place of ``gpu_work``."""
    devices = gpu_work(trace).devices
    return np.repeat(np.arange(len(devices)), [device.stop - device.start for device in devices])


def gpu_time_of(shares: list[TimeShare]) -> dict[Device, int]:
    """All GPU time of each device, ns."""
    total: dict[Device, int] = {}
    for share in shares:
        total[share.device] = total.get(share.device, 0) + share.gpu_ns
    return total
