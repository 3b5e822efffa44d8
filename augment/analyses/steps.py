"""How long was each step, what did the device do meanwhile, and which steps are out of the ordinary?

A step is a ``ProfilerStep#n`` annotation on the host; two threads that tell of one step tell of one. There is a row for
each step and device; without GPU work, a row for each step. Between the beginning and the end of a step::

    compute_ns + exposed_communication_ns + exposed_memory_ns + idle_ns = wall_ns

whatever work it is that runs, be it of an earlier step: the host is ahead of the device. Work belongs to the step in
which it was *launched*, however much later it runs; work whose launch is not in the trace, to the step in which it
begins. ``kernel_count`` and ``launched_busy_ns`` are of the work that belongs to the step. What was launched before the
recording, and so in no step, is told apart: ``before_recording_kernel_count`` of these kernels, and
``before_recording_ns`` of the step, in which such work runs. ``step_figures`` leaves it out.

``robust_z`` is the step's distance from the median of all steps, in deviations as the median absolute deviation gives
them (over 0.6745). Beyond 3.5 either way the step is an outlier (Iglewicz and Hoaglin 1993). With fewer than four
steps, or when most are equally long, there is none.

HTA drops the last step, takes ``ProfilerStep`` annotations of the device for steps, too, and leaves work on AMD's
stream 0 without a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from augment.arrays import intervals
from augment.arrays.ordering import grouped, sums
from augment.arrays.statistics import OUTLIER, robust_z
from augment.arrays.types import Int64s
from augment.derived.gpu.before_recording import before_recording, before_recording_diagnostics
from augment.derived.gpu.gpu_work import gpu_work
from augment.derived.gpu.type_coverage import COMMUNICATION, COMPUTATION, MEMORY, TypeCoverage, type_coverage
from augment.derived.steps.steps import steps, steps_of_gpu_work
from augment.findings import Findings, Skipped, column
from augment.trace import Category, Identity, Trace

NAME = "steps"
NEEDS = ((Category.USER_ANNOTATION, Category.CPU_OP),)


@dataclass(frozen=True, slots=True)
class Row:
    """One step, and one device during it."""

    rank: int | None = column("The rank of the process, if known.")
    device: Identity = column("The device, if there is any GPU work.")
    step: int = column("The number of the step.")
    start_ns: int = column("When it begins, after the first event of the trace.", "ns")
    wall_ns: int = column("From its beginning to its end on the host.", "ns")
    busy_ns: int | None = column("Time of it in which anything runs on the device.", "ns")
    compute_ns: int | None = column("Time of it in which computation runs.", "ns")
    exposed_communication_ns: int | None = column("Time in which communication runs and no computation.", "ns")
    exposed_memory_ns: int | None = column("Time in which copies or memsets run and nothing else.", "ns")
    idle_ns: int | None = column("Time of it in which nothing runs on the device.", "ns")
    kernel_count: int | None = column("How many kernels belong to it.", "count")
    launched_busy_ns: int | None = column("Time in which work that belongs to it runs, within it or later.", "ns")
    before_recording_kernel_count: int | None = column("Kernels of these that were launched before recording.", "count")
    before_recording_ns: int | None = column("Time of it in which work launched before the recording runs.", "ns")
    robust_z: float | None = column("Distance of its length from the median of all steps, in robust deviations.")
    is_outlier: bool | None = column("Whether that is more than 3.5 either way.")


ROW: type[Any] = Row


def analyze(trace: Trace) -> Findings | Skipped:
    """Describe every step."""
    found = steps(trace)
    if not len(found):
        return Skipped("no ProfilerStep annotation; call the profiler's step() after each")
    wall = found.end - found.ts
    z = robust_z(wall)
    devices = list(_devices(trace))
    first = int(trace.events.ts[0])
    numbers, starts, walls = found.number.tolist(), (found.ts - first).tolist(), wall.tolist()
    rows = []
    for place, number in enumerate(numbers):
        distance = None if z is None else float(z[place])
        outlier = None if distance is None else abs(distance) > OUTLIER
        for rank, device, columns in devices or [(trace.rank, None, np.empty((0, 0), np.int64))]:
            told = columns[:, place].tolist() if len(columns) else [None] * 9
            rows.append(ROW(rank, device, number, starts[place], walls[place], *told, distance, outlier))
    return Findings(rows, (), before_recording_diagnostics(trace))


def _devices(trace: Trace) -> Iterator[tuple[int | None, Identity, Int64s]]:
    """Each device, and the columns from ``busy_ns`` on, a column of the array each step."""
    found, work, early = steps(trace), gpu_work(trace), before_recording(trace)
    step = np.where(early, found.at(work.ts), steps_of_gpu_work(trace))
    for one in type_coverage(trace):
        places = one.device.places
        is_kernel = trace.events.category[work.row[places]] == Category.KERNEL
        kernels, before = (
            np.bincount(step[places][which] + 1, minlength=len(found) + 1)[1:]
            for which in (is_kernel, is_kernel & early[places])
        )
        launched = _launched(work.ts[places], work.end[places], step[places], len(found))
        running = intervals.union(work.ts[places][early[places]], work.end[places][early[places]])
        _, which, part = intervals.clip(running, intervals.Intervals(found.ts, found.end))
        ran = sums(which, part.end - part.start, len(found))
        during = _during(one, found.ts, found.end)
        yield one.device.rank, one.device.device, np.concatenate((during, np.stack((kernels, launched, before, ran))))


def _during(one: TypeCoverage, start: Int64s, end: Int64s) -> Int64s:
    compute = one.time_within(start, end, any_of=COMPUTATION)
    communication = one.time_within(start, end, any_of=COMMUNICATION, none_of=COMPUTATION)
    memory = one.time_within(start, end, any_of=MEMORY, none_of=COMPUTATION | COMMUNICATION)
    busy = compute + communication + memory
    return np.stack((busy, compute, communication, memory, end - start - busy))


def _launched(start: Int64s, end: Int64s, step: Int64s, count: int) -> Int64s:
    """The time in which work of each step runs."""
    order = grouped(step + 1, count + 1)  # that of no step comes first
    bounds = np.searchsorted(step[order], np.arange(count + 1)).tolist()
    own = [order[first:stop] for first, stop in pairwise(bounds)]
    return np.array([intervals.total(intervals.union(start[one], end[one])) for one in own], np.int64)
