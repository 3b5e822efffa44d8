"""How much of the device do the kernels fill?

A device is busy while any kernel runs, however small. There is a row for every step and family of kernels, and one for
each step as a whole (without ``family``). All ratios are means of the kernels that have such figures, weighted by their
durations: Kineto computes them from the launch, not from counters, and only for CUDA.

- ``occupancy_ratio``: the warps that the launch keeps on an SM at most, as a share of those that it can hold
  (Kineto's ``est. achieved occupancy %``). Few registers and much parallel work make it high; matrix products are
  often fast with 10 to 25 %. A 0 says nothing: Kineto also writes it where it cannot compute the estimate.
- ``filled_sm_ratio``: the share of the SMs that get a block at all (``blocks per SM``, at most 1). A grid of 16 blocks
  on 132 SMs leaves 88 % of the device without work, whatever the kernel does.

``small_grid_ns`` is the time of kernels whose grid fills less than half of the SMs; collectives are not among them, as
they use few SMs on purpose.

**What to do**: little ``filled_sm_ratio`` in much time: larger batches, kernels that split the reduced dimension
(split-K, FlashDecoding), or independent work on another stream beside it.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from augment import facts
from augment.arrays import combinations, sums
from augment.core import GPU_WORK, Findings, OfDevice, Skipped, Trace, column

NAME = "kernel_occupancy"
NEEDS = (GPU_WORK,)


class Row(OfDevice, frozen=True):
    """One family in one step on one device, or all its families."""

    step: Annotated[int | None, column("The step in which the host launched the kernels; none outside of steps.")]
    family: Annotated[str | None, column("The kind of work; none for all together.")]
    count: Annotated[int, column("Number of kernels that have such figures.", "count")]
    sum_ns: Annotated[int, column("Sum of their durations.", "ns")]
    occupancy_ratio: Annotated[float | None, column("Mean estimate of the share of warps on an SM.", "ratio")]
    filled_sm_ratio: Annotated[float | None, column("Mean share of the SMs that get a block.", "ratio")]
    small_grid_ns: Annotated[int, column("Durations of those whose grid fills less than half of the SMs.", "ns")]


def analyze(trace: Trace) -> Findings | Skipped:
    """Weigh the figures of kernels by their durations."""
    fills = facts.gpu.occupancy(trace)
    if not fills.is_known:
        return Skipped("no kernel says its occupancy: Kineto writes it for CUDA")
    work, families, windows = (
        facts.gpu.work(trace),
        facts.operators.work_families(trace),
        facts.steps.recorded_windows(trace),
    )
    known = np.flatnonzero(~np.isnan(fills.achieved) | ~np.isnan(fills.filled))
    dur = (work.end - work.ts)[known]
    device, step = facts.gpu.device_of_work(trace)[known], facts.steps.step_of_work(trace, windows)[known]
    small = dur * facts.gpu.small_grids(trace)[known]
    rows = []
    for family in (np.full(len(known), -1, np.int64), families.family[known]):
        keys, code = combinations(device, step, family)
        count = len(keys[0])
        columns = (
            np.bincount(code, minlength=count).tolist(),
            sums(code, dur, count).tolist(),
            facts.gpu.weighed(fills.achieved[known], dur, code, count),
            facts.gpu.weighed(fills.filled[known], dur, code, count),
            sums(code, small, count).tolist(),
        )
        for index, place, kind, *values in zip(*(key.tolist() for key in keys), *columns, strict=True):
            unit, number = work.devices[index], int(windows.number[place]) if place >= 0 else -1
            name = None if kind < 0 else families.names[kind]
            rows.append(Row(unit.rank, unit.device, None if number < 0 else number, name, *values))
    rows.sort(key=lambda row: (row.family is not None, -row.sum_ns, row.family or ""))
    rows.sort(
        key=lambda row: (facts.gpu.sort_key(row.rank), facts.gpu.sort_key(row.device), row.step is None, row.step or 0)
    )
    return Findings(rows)
