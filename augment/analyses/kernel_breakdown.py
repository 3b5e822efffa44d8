"""Which kernels take the time?

A row for every name of GPU work on each device: how often it ran, and the sum, mean, least, greatest and standard
deviation (of a sample, over n - 1; 0 where it ran once) of its durations. Durations are added, not united: kernels that
run at the same time both count.

How HTA's ``get_gpu_kernel_breakdown`` differs: beyond its ``num_kernels`` it makes a row "others" and then
aggregates once more over the sums, so that least, greatest and mean of every kernel become its sum and the deviation
becomes 0; its durations are rounded to microseconds. Here every name has its row, with its own figures.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from augment.derived.gpu_work import GpuWork, gpu_work, sort_key
from augment.derived.kernel_types import KernelType
from augment.derived.ordering import compressed, group_bounds, grouped
from augment.findings import Findings, column
from augment.intervals import Places
from augment.trace import GPU_WORK, Identity, Int32s, Int64s, Trace

NAME = "kernel_breakdown"
NEEDS = (GPU_WORK,)


@dataclass(frozen=True, slots=True)
class Row:
    """One name on one device."""

    rank: int | None = column("The rank of the process, if known.")
    device: Identity = column("The device.")
    kernel_type: str = column("COMPUTATION, COMMUNICATION or MEMORY.")
    name: str = column("The name of the kernel, copy or memset.")
    count: int = column("How often it ran.", "count")
    sum_ns: int = column("Sum of its durations.", "ns")
    mean_ns: float = column("Mean duration.", "ns")
    min_ns: int = column("Least duration.", "ns")
    max_ns: int = column("Greatest duration.", "ns")
    std_ns: float = column("Standard deviation of the durations, of a sample; 0 where it ran once.", "ns")


ROW = Row


def analyze(trace: Trace) -> Findings:
    """Aggregate each device's work by type and name."""
    work = gpu_work(trace)
    names, rank_of_name = compressed(trace.events.name[work.row], len(trace.strings))
    group = _groups(trace, work, rank_of_name, len(names))
    keys, table = compressed(group, len(work.devices) * len(KernelType) * len(names))
    code = table[group]
    bounds = group_bounds(code, len(keys))
    order = grouped(code, len(keys))
    statistics = _statistics((work.end - work.ts)[order], bounds)
    rows = []
    for key, figures in zip(keys.tolist(), zip(*statistics, strict=True), strict=True):
        rest, name = divmod(key, len(names))
        device, kernel_type = divmod(rest, len(KernelType))
        one = work.devices[device]
        rows.append(Row(one.rank, one.device, KernelType(kernel_type).name, trace.strings[names[name]], *figures))
    rows.sort(key=lambda row: (sort_key(row.rank), sort_key(row.device), row.kernel_type, -row.sum_ns, row.name))
    return Findings(rows)


def _groups(trace: Trace, work: GpuWork, rank_of_name: Int32s, names: int) -> Int64s:
    """One integer for each device, type and name."""
    group = work.type.astype(np.int64) * names
    group += rank_of_name[trace.events.name[work.row]]
    for index, device in enumerate(work.devices):
        group[device.places] += index * len(KernelType) * names
    return group


def _statistics(dur: Int64s, bounds: Places) -> list[list[int] | list[float]]:
    """Count, sum, mean, least, greatest, deviation of each group, which lies between two ``bounds``."""
    starts, count = bounds[:-1], np.diff(bounds)
    total = np.add.reduceat(dur, starts)
    mean = total / count
    squares = np.add.reduceat((dur - np.repeat(mean, count)) ** 2, starts)
    std = np.sqrt(squares / np.maximum(count - 1, 1))
    columns = (count, total, mean, np.minimum.reduceat(dur, starts), np.maximum.reduceat(dur, starts), std)
    return [one.tolist() for one in columns]
