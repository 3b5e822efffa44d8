"""Idle time of a device within the steps, by cause, also before its first and after its last work."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from augment.arrays import NO_INDEX, Bytes, Int64s, Intervals, Places, clip, is_any
from augment.core.trace import Trace
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.steps.step_windows import StepWindows
from augment.facts.waits.gap_causes import KERNEL_DELAY_NS, GapCategory, causes_of_gaps, device_gaps, launch_end

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
    work, gaps = gpu_work(trace), device_gaps(trace)[device]
    order = work.by_time[work.devices[device].places]
    first = order[:1]
    head = _head(trace, first)
    start = np.concatenate(([-_FOREVER], head[:-1], gaps.start, [max(work.end[order].max(), work.ts[order[-1]])]))
    end = np.concatenate((head, gaps.end, [_FOREVER]))
    between = causes_of_gaps(trace)[device]
    category = np.concatenate((_OF_HEAD[: len(head)], between, [GapCategory.HOST_WAIT])).astype(np.uint8)
    if work.launch[first[0]] == NO_INDEX:
        category[0] = GapCategory.OTHER
    launch = np.concatenate((np.repeat(work.launch[first], len(head)), work.launch[gaps.next], [NO_INDEX]))
    which, step, pieces = clip(Intervals(start, end), Intervals(windows.start, windows.end))
    return StepIdle(pieces.start, pieces.end, step, category[which], launch[which])


def _head(trace: Trace, first: Places) -> Int64s:
    """The time at which the cause of idle time before the ``first`` work changes, and the time at which it ends."""
    ts = gpu_work(trace).ts[first]
    if gpu_work(trace).launch[first[0]] == NO_INDEX:
        return ts
    returned = launch_end(trace, first)
    return np.concatenate((returned, ts)) if ts[0] - returned[0] >= KERNEL_DELAY_NS else ts
