"""Memory by PyTorch's categories: what a memory timeline tells, and which device of a trace it is of.

A raw file of ``export_memory_timeline`` (torch/profiler/_memory_profiler.py) has a row ``[time, action, bytes,
category]`` for each change of one device's memory. Times are those of the profiler's own events, ns since 1970 in every
version, or -1 of what was held before; the Chrome trace has the same clock, before PyTorch 2.4 rounded down to whole
microseconds. An allocation or free has the very time of its ``[memory]`` instant. The file does not name its device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from augment.arrays.types import Int64s
from augment.derived.memory.memory_events import DeviceMemory, memory_events
from augment.trace import MemoryChanges, Trace

#: by their numbers in the file
CATEGORIES = ("Parameter", "Optimizer state", "Input", "Temporary", "Activation", "Gradient", "Autograd", "Unknown")
_CREATE, _DESTROY = 2, 4  #: the actions that have an instant


def held_by_category(changes: MemoryChanges, before: int) -> tuple[Int64s, Int64s]:
    """Moments (int64 ns, strictly ascending), and the bytes of each category from then on (moments × categories).

    Args:
        changes: of a memory timeline.
        before: the moment from which on counts what was held before the recording.
    """
    ts = np.where(changes.ts < 0, before, changes.ts)
    order = np.argsort(ts, kind="stable")
    ts = ts[order]
    last = np.append(ts[1:] != ts[:-1], True)[: len(ts)]
    size = np.zeros((len(ts), len(CATEGORIES)), np.int64)
    size[np.arange(len(ts)), changes.category[order]] = changes.size[order]
    return ts[last], np.cumsum(size, axis=0)[last]


@dataclass(frozen=True, slots=True)
class Instants:
    """How the allocations and frees of a memory timeline agree with the ``[memory]`` instants of a trace.

    ``device`` is that of which most instants agree, None if there are none to compare; ``agreeing`` are how many of
    those that were ``compared`` have an instant.
    """

    device: DeviceMemory | None
    agreeing: int
    compared: int


def compared_with_instants(trace: Trace, changes: MemoryChanges) -> Instants:
    """Compare those between the trace's first and last instant: to the microsecond, which is what older traces have."""
    devices = memory_events(trace)
    us = changes.ts[np.isin(changes.action, (_CREATE, _DESTROY)) & (changes.ts >= 0)] // 1000
    known = [np.unique(one.ts // 1000) for one in devices]
    if known:
        us = us[(us >= min(one[0] for one in known)) & (us <= max(one[-1] for one in known))]
    if not known or not len(us):
        return Instants(None, 0, 0)
    agreeing = [int(np.isin(us, one).sum()) for one in known]
    most = int(np.argmax(agreeing))
    return Instants(devices[most], agreeing[most], len(us))
