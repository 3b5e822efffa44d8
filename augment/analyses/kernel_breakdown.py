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

from augment.derived.gpu_work import gpu_work, sort_key
from augment.derived.kernel_types import KernelType
from augment.derived.ordering import combinations, group_bounds, grouped
from augment.derived.statistics import grouped_statistics
from augment.findings import Findings, column
from augment.trace import GPU_WORK, Identity, Trace

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
    device = np.repeat(np.arange(len(work.devices)), [one.stop - one.start for one in work.devices])
    keys, code = combinations(device, work.type, trace.events.name[work.row])
    count = len(keys[0])
    statistics = grouped_statistics((work.end - work.ts)[grouped(code, count)], group_bounds(code, count))
    rows = []
    for index, kernel_type, name, figures in zip(*(key.tolist() for key in keys), statistics, strict=True):
        one = work.devices[index]
        rows.append(Row(one.rank, one.device, KernelType(kernel_type).name, trace.strings[name], *figures))
    rows.sort(key=lambda row: (sort_key(row.rank), sort_key(row.device), row.kernel_type, -row.sum_ns, row.name))
    return Findings(rows)
