"""The main figures of each step. Comparisons of runs use them."""

from __future__ import annotations

from functools import partial

import numpy as np
from msgspec import Struct

from augment.arrays import NO_INDEX, Bytes, Int64s, Intervals, Places, clip, is_any, sums
from augment.core import Identity, Trace
from augment.facts import gpu, source
from augment.facts.memory.memory_events import memory_rows
from augment.facts.steps.step_windows import StepWindows, step_of_work
from augment.facts.waits.gap_causes import KERNEL_DELAY_NS, GapCategory, causes_of_gaps, device_gaps, launch_end


class StepFigures(Struct, frozen=True):
    """The figures of one device, or of the host alone: int64 columns with an entry for each step.

    ``wall_ns`` is the length of the window. ``busy_ns``, ``compute_ns``, ``exposed_communication_ns``,
    ``exposed_memory_ns`` and ``idle_ns`` divide it as in the temporal breakdown. ``host_wait_ns``, ``kernel_wait_ns``
    and ``other_wait_ns`` divide the idle time. ``communication_ns`` is exposed or not. ``work_count`` is the number of
    pieces of work launched in the step, ``launched`` the number of those with a known launch, and ``launch_delay_ns``
    the sum of their delays after the end of the call. For the host alone there is only ``wall_ns``.
    """

    device: Identity  #: None: the host alone
    wall_ns: Int64s  #: ns, of the window
    of_device: dict[str, Int64s]  #: the others, by name


def step_figures(trace: Trace, windows: StepWindows) -> list[StepFigures]:
    """The figures of each device in each window; without GPU work, one entry for the host alone."""
    wall_ns = windows.end - windows.start
    coverages = gpu.coverage(trace)
    if not coverages:
        return [StepFigures(None, wall_ns, {})]
    work, events = gpu.work(trace), trace.events
    figures = []
    for place, coverage in enumerate(coverages):
        time = partial(coverage.time_within, windows.start, windows.end)
        idle = step_idle(trace, place, windows)
        waits = np.zeros((len(GapCategory), len(windows)), np.int64)
        np.add.at(waits, (idle.category, idle.step), idle.end - idle.start)
        places = coverage.device.places
        launch, step = work.launch[places], step_of_work(trace, windows)[places]
        delay = np.maximum(work.ts[places] - (events.ts[launch] + events.dur[launch]), 0)
        inside, launched = step >= 0, (launch != NO_INDEX) & (step >= 0)
        of_device = {
            "busy_ns": time(any_of=gpu.COMPUTATION | gpu.COMMUNICATION | gpu.MEMORY),
            "compute_ns": time(any_of=gpu.COMPUTATION),
            "communication_ns": time(any_of=gpu.COMMUNICATION),
            "exposed_communication_ns": time(any_of=gpu.COMMUNICATION, none_of=gpu.COMPUTATION),
            "exposed_memory_ns": time(any_of=gpu.MEMORY, none_of=gpu.COMPUTATION | gpu.COMMUNICATION),
            "idle_ns": waits.sum(axis=0),
            "host_wait_ns": waits[GapCategory.HOST_WAIT],
            "kernel_wait_ns": waits[GapCategory.KERNEL_WAIT],
            "other_wait_ns": waits[GapCategory.OTHER],
            "work_count": np.bincount(step[inside], minlength=len(windows)).astype(np.int64),
            "launched": np.bincount(step[launched], minlength=len(windows)).astype(np.int64),
            "launch_delay_ns": sums(step[launched], delay[launched], len(windows)),
        }
        figures.append(StepFigures(coverage.device.device, wall_ns, of_device))
    return figures


def memory_peaks(trace: Trace, windows: StepWindows) -> Int64s | None:
    """The greatest sum that the GPU's allocator had given out in each step, bytes; -1 for a step without such data.

    It comes from PyTorch's ``[memory]`` instants; None if the trace has none for a GPU.
    """
    rows = memory_rows(trace)
    step = windows.of_host(trace.events.ts[rows])
    rows, step = rows[step >= 0], step[step >= 0]
    if not len(rows):  # avoids reading the source again
        return None
    columns = source.args(trace)
    on_device = columns.ints("Device Type").at(rows, 0) != 0
    peaks = np.full(len(windows), -1, np.int64)
    np.maximum.at(peaks, step[on_device], columns.ints("Total Allocated").at(rows[on_device], -1))
    return peaks if (peaks >= 0).any() else None


# Idle time of a device within the steps, by cause, also before its first and after its last work.


_FOREVER = np.iinfo(np.int64).max // 4
_OF_HEAD = (GapCategory.HOST_WAIT, GapCategory.OTHER)  #: before the first work: until its launch returns, and then


class StepIdle(Struct, frozen=True):
    """Disjoint, ascending pieces of idle time of one device: equal-length columns.

    ``start`` and ``end`` int64 ns; ``step`` the place of the step in whose window the piece lies; ``category`` uint8, a
    :class:`~augment.facts.waits.gap_causes.GapCategory`; ``launch`` int64, the row of the call that launched the work
    that ends the gap, or ``NO_INDEX``.
    """

    start: Int64s
    end: Int64s
    step: Places
    category: Bytes
    launch: Int64s

    def time_of(self, *categories: GapCategory) -> int:
        """The time of the pieces of these categories, ns."""
        return int((self.end - self.start).compress(is_any(self.category, categories)).sum())


def step_idle(trace: Trace, device: int, windows: StepWindows) -> StepIdle:
    """The idle time of device number ``device`` of ``gpu_work(trace).devices`` in each of the windows.

    After its last work a device waits for the host, because nothing is launched. Before its first work it waits for the
    host until the launching call returns. Any further time, if it is longer than between kernels, has no recorded
    cause. If the launch is not recorded, none of the time has a cause.
    """
    work, gaps = gpu.work(trace), device_gaps(trace)[device]
    order = work.by_time[work.devices[device].places]
    first = order[:1]
    # The time at which the cause of idle time before the ``first`` work changes, and the time at which it ends
    head = ts = work.ts[first]
    if work.launch[first[0]] != NO_INDEX:
        returned = launch_end(trace, first)
        head = np.concatenate((returned, ts)) if ts[0] - returned[0] >= KERNEL_DELAY_NS else ts
    start = np.concatenate(([-_FOREVER], head[:-1], gaps.start, [max(work.end[order].max(), work.ts[order[-1]])]))
    end = np.concatenate((head, gaps.end, [_FOREVER]))
    between = causes_of_gaps(trace)[device]
    category = np.concatenate((_OF_HEAD[: len(head)], between, [GapCategory.HOST_WAIT])).astype(np.uint8)
    if work.launch[first[0]] == NO_INDEX:
        category[0] = GapCategory.OTHER
    launch = np.concatenate((np.repeat(work.launch[first], len(head)), work.launch[gaps.next], [NO_INDEX]))
    which, step, pieces = clip(Intervals(start, end), Intervals(windows.start, windows.end))
    return StepIdle(pieces.start, pieces.end, step, category[which], launch[which])
