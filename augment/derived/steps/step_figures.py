"""The main figures of each step: what runs of a job are compared by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from augment.arrays.ordering import sums
from augment.arrays.types import Int64s
from augment.derived.gpu.gpu_work import gpu_work
from augment.derived.gpu.launches import NO_ROW
from augment.derived.gpu.type_coverage import COMMUNICATION, COMPUTATION, MEMORY, TypeCoverage, type_coverage
from augment.derived.memory.memory_events import memory_rows
from augment.derived.source.arg_columns import arg_columns
from augment.derived.steps.step_idle import step_idle
from augment.derived.steps.step_windows import StepWindows, step_of_work
from augment.derived.waits.gap_causes import GapCategory
from augment.trace import Identity, Trace


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Of one device, or of the host alone: int64 columns, a step of the windows a place.

    ``busy_ns``, ``compute_ns``, ``exposed_communication_ns``, ``exposed_memory_ns`` and ``idle_ns`` as in the temporal
    breakdown, of the window ``step_ns``; ``host_wait_ns``, ``kernel_wait_ns`` and ``other_wait_ns`` divide the idle
    time; ``communication_ns``, exposed or not. ``work_count`` pieces of work were launched in the step, ``launched``
    of them by a known call, ``launch_delay_ns`` in all after the end of that call. All but ``step_ns`` are absent of
    the host alone.
    """

    device: Identity
    step_ns: Int64s
    of_device: dict[str, Int64s]


def step_figures(trace: Trace, windows: StepWindows) -> list[StepFigures]:
    """The figures of each device in each window; one of the host alone if there is no GPU work."""
    step_ns = windows.end - windows.start
    coverages = type_coverage(trace)
    if not coverages:
        return [StepFigures(None, step_ns, {})]
    return [
        StepFigures(one.device.device, step_ns,
                    _times(one, windows) | _idle(trace, place, windows) | _launched(trace, place, windows))
        for place, one in enumerate(coverages)
    ]  # fmt: skip


def memory_peaks(trace: Trace, windows: StepWindows) -> Int64s | None:
    """The greatest size that the GPU's allocator had handed out in each step, bytes; -1 of a step without a word of it.

    From the ``[memory]`` instants of PyTorch; None if the trace has none of a GPU.
    """
    rows = memory_rows(trace)
    step = windows.of_host(trace.events.ts[rows])
    rows, step = rows[step >= 0], step[step >= 0]
    if not len(rows):  # the source need not be read again
        return None
    columns = arg_columns(trace)
    on_device = columns.ints("Device Type").at(rows, 0) != 0
    peaks = np.full(len(windows), -1, np.int64)
    np.maximum.at(peaks, step[on_device], columns.ints("Total Allocated").at(rows[on_device], -1))
    return peaks if (peaks >= 0).any() else None


def _times(one: TypeCoverage, windows: StepWindows) -> dict[str, Int64s]:
    def time(any_of: int, none_of: int = 0) -> Int64s:
        return one.time_within(windows.start, windows.end, any_of=any_of, none_of=none_of)

    return {
        "busy_ns": time(COMPUTATION | COMMUNICATION | MEMORY),
        "compute_ns": time(COMPUTATION),
        "communication_ns": time(COMMUNICATION),
        "exposed_communication_ns": time(COMMUNICATION, COMPUTATION),
        "exposed_memory_ns": time(MEMORY, COMPUTATION | COMMUNICATION),
    }


def _idle(trace: Trace, device: int, windows: StepWindows) -> dict[str, Int64s]:
    idle = step_idle(trace, device, windows)
    waits = np.zeros((len(GapCategory), len(windows)), np.int64)
    np.add.at(waits, (idle.category, idle.step), idle.end - idle.start)
    return {
        "idle_ns": waits.sum(axis=0),
        "host_wait_ns": waits[GapCategory.HOST_WAIT],
        "kernel_wait_ns": waits[GapCategory.KERNEL_WAIT],
        "other_wait_ns": waits[GapCategory.OTHER],
    }


def _launched(trace: Trace, device: int, windows: StepWindows) -> dict[str, Int64s]:
    work, events = gpu_work(trace), trace.events
    places = np.arange(work.devices[device].start, work.devices[device].stop)
    launch = work.launch[places]
    known = launch != NO_ROW
    step = step_of_work(trace, windows)[places]
    delay = np.maximum(work.ts[places] - (events.ts[launch] + events.dur[launch]), 0)
    inside, told = step >= 0, known & (step >= 0)
    return {
        "work_count": np.bincount(step[inside], minlength=len(windows)).astype(np.int64),
        "launched": np.bincount(step[told], minlength=len(windows)).astype(np.int64),
        "launch_delay_ns": sums(step[told], delay[told], len(windows)),
    }
