"""Idle time of a device within the steps, by cause, also before its first and after its last work."""

from __future__ import annotations

import numpy as np

from augment.arrays.intervals import Intervals, clip
from augment.arrays.types import Bytes, Int64s, Places
from augment.derived.gpu.gpu_work import gpu_work
from augment.derived.gpu.launches import NO_ROW
from augment.derived.steps.step_windows import StepWindows
from augment.derived.waits.gap_causes import GapCategory, device_categories
from augment.derived.waits.idle_gaps import device_gaps
from augment.records import dataclass
from augment.trace import Trace

_FOREVER = np.iinfo(np.int64).max // 4


@dataclass(frozen=True, slots=True)
class StepIdle:
    """Disjoint, ascending pieces of idle time of one device: equal-length columns.

    ``start`` and ``end`` int64 ns; ``step`` the place of the step in whose window the piece lies; ``category`` uint8, a
    :class:`~augment.derived.waits.gap_causes.GapCategory`; ``launch`` int64, the row of the call that launched the work
    that ends the gap, or ``NO_ROW``.
    """

    start: Int64s
    end: Int64s
    step: Places
    category: Bytes
    launch: Int64s


def step_idle(trace: Trace, device: int, windows: StepWindows) -> StepIdle:
    """The idle time of device number ``device`` of ``gpu_work(trace).devices`` in each of the windows.

    Before its first and after its last work a device waits for the host, because nothing is launched.
    """
    work, gaps = gpu_work(trace), device_gaps(trace)[device]
    order = work.by_time[work.devices[device].places]
    start = np.concatenate(([-_FOREVER], gaps.start, [max(work.end[order].max(), work.ts[order[-1]])]))
    end = np.concatenate(([work.ts[order[0]]], gaps.end, [_FOREVER]))
    category = np.full(len(start), GapCategory.HOST_WAIT, np.uint8)
    category[1:-1] = device_categories(trace, gaps)
    launch = np.concatenate((work.launch[order[:1]], work.launch[gaps.next], [NO_ROW]))
    which, step, pieces = clip(Intervals(start, end), Intervals(windows.start, windows.end))
    return StepIdle(pieces.start, pieces.end, step, category[which], launch[which])
