"""How long was each step, what did the device do meanwhile, and which steps are outliers?

A step is a ``ProfilerStep#n`` annotation on the host. Where the annotations of two threads overlap, only the first
counts. There is a row for each step and device; without GPU work, a row for each step. Between the beginning and the
end of a step::

    compute_ns + exposed_communication_ns + exposed_memory_ns + idle_ns = wall_ns

All running work counts here, also that of an earlier step, because the host runs ahead of the device. Work belongs to
the step in which it was *launched*, however much later it runs. Work whose launch is not in the trace belongs to the
step in which it begins. ``kernel_count`` and ``launched_busy_ns`` describe the work that belongs to the step. Work
launched before the recording, and so in no step, has its own columns: ``before_recording_kernel_count`` of these
kernels, and ``before_recording_ns``, the part of the step in which such work runs. ``step_figures`` leaves it out.

``robust_z`` is the distance of the step's length from the median of all steps, in units of the median absolute
deviation over 0.6745. Beyond 3.5 either way the step is an outlier (Iglewicz and Hoaglin 1993). With fewer than four
steps, or when most are equally long, there are no outliers and no ``robust_z``.

The track ``Steps`` shows the windows of the steps, which do not overlap: from the beginning on the host, or the end of
earlier work on the device if that is later, to the end on the host, or of the work launched by then. ``wall_ns`` is
the length on the host, and ``backlog_ns`` how long the device still had earlier work when the step began there.

**What to do**: look at the steps whose part grew; leave warm-up steps out (``--steps``).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
from msgspec import Struct

from augment.arrays import intervals
from augment.arrays.ordering import grouped, sums
from augment.arrays.statistics import OUTLIER, median, robust_z
from augment.arrays.types import Int64s
from augment.core.annotations import SliceTrack, Texts
from augment.core.findings import Findings, Skipped, column
from augment.core.text import TIMES, four_digits
from augment.core.trace import Category, Identity, Trace
from augment.facts.gpu.device_activity import COMMUNICATION, COMPUTATION, MEMORY, TypeCoverage, type_coverage
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.gpu.launched_work import before_recording, before_recording_diagnostics
from augment.facts.steps.step_windows import step_windows
from augment.facts.steps.steps import steps, steps_of_gpu_work

NAME = "steps"
NEEDS = ((Category.USER_ANNOTATION, Category.CPU_OP),)
_SEEN = 0.05  #: of the median: the least difference for which a drawn step is called an outlier


class Row(Struct, frozen=True):
    """One step, and one device during it."""

    rank: Annotated[int | None, column("The rank of the process, if known.")]
    device: Annotated[Identity, column("The device, if there is any GPU work.")]
    step: Annotated[int, column("The number of the step.")]
    start_ns: Annotated[int, column("When it begins, after the first event of the trace.", "ns")]
    wall_ns: Annotated[int, column("From its beginning to its end on the host.", "ns")]
    busy_ns: Annotated[int | None, column("Time of the step in which anything runs on the device.", "ns")]
    compute_ns: Annotated[int | None, column("Time of the step in which computation runs.", "ns")]
    exposed_communication_ns: Annotated[
        int | None, column("Time in which communication runs and no computation.", "ns")
    ]
    exposed_memory_ns: Annotated[int | None, column("Time in which copies or memsets run and nothing else.", "ns")]
    idle_ns: Annotated[int | None, column("Time of the step in which nothing runs on the device.", "ns")]
    kernel_count: Annotated[int | None, column("Number of kernels that belong to the step.", "count")]
    launched_busy_ns: Annotated[
        int | None, column("Time in which work of the step runs, within the step or later.", "ns")
    ]
    before_recording_kernel_count: Annotated[
        int | None, column("The part of kernel_count launched before recording.", "count")
    ]
    before_recording_ns: Annotated[int | None, column("Time in which work launched before the recording runs.", "ns")]
    robust_z: Annotated[float | None, column("Distance of wall_ns from the median of all steps, in robust deviations.")]
    is_outlier: Annotated[bool | None, column("Whether robust_z is beyond 3.5 either way.")]


ROW: type[Any] = Row


def analyze(trace: Trace) -> Findings | Skipped:
    """Describe every step."""
    all_steps = steps(trace)
    if not len(all_steps):
        return Skipped("no ProfilerStep annotation; call the profiler's step() after each")
    wall = all_steps.end - all_steps.ts
    z = robust_z(wall)
    devices = list(_devices(trace))
    first = int(trace.events.ts[0])
    numbers, starts, walls = all_steps.number.tolist(), (all_steps.ts - first).tolist(), wall.tolist()
    rows = []
    for place, number in enumerate(numbers):
        distance = None if z is None else float(z[place])
        outlier = None if distance is None else abs(distance) > OUTLIER
        for rank, device, columns in devices or [(trace.rank, None, np.empty((0, 0), np.int64))]:
            figures = columns[:, place].tolist() if len(columns) else [None] * 9
            rows.append(ROW(rank, device, number, starts[place], walls[place], *figures, distance, outlier))
    return Findings(rows, [_drawn(trace)], before_recording_diagnostics(trace))


def _drawn(trace: Trace) -> SliceTrack:
    """The windows of the steps. One whose own length is unusual is called an outlier."""
    all_steps, windows = steps(trace), step_windows(trace)
    dur = windows.end - windows.start
    z = robust_z(dur)
    outlier = np.zeros(len(all_steps), np.bool_)
    if z is not None:
        outlier = (np.abs(z) > OUTLIER) & (np.abs(dur - median(dur)) > _SEEN * median(dur))
    names = [
        f"step {number}: {four_digits(ns, TIMES)}{', outlier' * far}"
        for number, ns, far in zip(all_steps.number.tolist(), dur.tolist(), outlier.tolist(), strict=True)
    ]
    return SliceTrack(
        analysis=NAME,
        name="Steps",
        under=int(trace.events.track[all_steps.row[0]]),
        ts=windows.start,
        dur=dur,
        names=Texts(np.arange(len(names), dtype=np.int32), names),
        args={"number": all_steps.number, "wall_ns": all_steps.end - all_steps.ts, "backlog_ns": windows.backlog},
        description="from the begin of a step on the host, or the end of earlier work, to the end of its GPU work",
        of_process=True,
    )


def _devices(trace: Trace) -> Iterator[tuple[int | None, Identity, Int64s]]:
    """Each device with its figures from ``busy_ns`` on: an array with a row per figure and a column per step."""
    all_steps, work, early = steps(trace), gpu_work(trace), before_recording(trace)
    step = np.where(early, all_steps.at(work.ts), steps_of_gpu_work(trace))
    for coverage in type_coverage(trace):
        device = coverage.device
        places = device.places
        is_kernel = trace.events.category[work.row[places]] == Category.KERNEL
        kernels, before = (
            np.bincount(step[places][which] + 1, minlength=len(all_steps) + 1)[1:]
            for which in (is_kernel, is_kernel & early[places])
        )
        launched = _launched(work.ts[places], work.end[places], step[places], len(all_steps))
        running = intervals.union(work.ts[places][early[places]], work.end[places][early[places]])
        _, which, part = intervals.clip(running, intervals.Intervals(all_steps.ts, all_steps.end))
        ran = sums(which, part.end - part.start, len(all_steps))
        during = _during(coverage, all_steps.ts, all_steps.end)
        yield device.rank, device.device, np.concatenate((during, np.stack((kernels, launched, before, ran))))


def _during(coverage: TypeCoverage, start: Int64s, end: Int64s) -> Int64s:
    compute = coverage.time_within(start, end, any_of=COMPUTATION)
    communication = coverage.time_within(start, end, any_of=COMMUNICATION, none_of=COMPUTATION)
    memory = coverage.time_within(start, end, any_of=MEMORY, none_of=COMPUTATION | COMMUNICATION)
    busy = compute + communication + memory
    return np.stack((busy, compute, communication, memory, end - start - busy))


def _launched(start: Int64s, end: Int64s, step: Int64s, count: int) -> Int64s:
    """The time in which work of each step runs."""
    order = grouped(step + 1, count + 1)  # work of no step comes first
    bounds = np.searchsorted(step[order], np.arange(count + 1)).tolist()
    groups = [order[first:stop] for first, stop in pairwise(bounds)]
    return np.array([intervals.total(intervals.union(start[group], end[group])) for group in groups], np.int64)
