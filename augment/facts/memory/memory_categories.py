"""Memory by PyTorch's categories: the sums of a memory timeline, and the device of the trace that it describes.

A raw file of ``export_memory_timeline`` (torch/profiler/_memory_profiler.py) has a row ``[time, action, bytes,
category]`` for each change of one device's memory. Times are those of the profiler's own events, ns since 1970 in every
version, or -1 for memory held before the recording. The Chrome trace has the same clock, rounded down to whole
microseconds before PyTorch 2.4. An allocation or free has exactly the time of its ``[memory]`` instant. The file does
not name its device.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from augment.arrays.ordering import distinct
from augment.arrays.types import Int64s
from augment.core.attachments import MemoryChanges
from augment.core.trace import Trace
from augment.facts.memory.memory_events import DeviceMemory, memory_events

#: the categories, by their numbers in the file
CATEGORIES = ("Parameter", "Optimizer state", "Input", "Temporary", "Activation", "Gradient", "Autograd", "Unknown")
_CREATE, _DESTROY = 2, 4  #: the actions that have a ``[memory]`` instant


def held_by_category(changes: MemoryChanges, before: int) -> tuple[Int64s, Int64s]:
    """Moments (int64 ns, strictly ascending), and the bytes of each category from then on (moments × categories).

    Args:
        changes: the changes of a memory timeline.
        before: the moment at which memory held before the recording is added.
    """
    ts = np.where(changes.ts < 0, before, changes.ts)
    order = np.argsort(ts, kind="stable")
    ts = ts[order]
    last = np.append(ts[1:] != ts[:-1], True)[: len(ts)]
    size = np.zeros((len(ts), len(CATEGORIES)), np.int64)
    size[np.arange(len(ts)), changes.category[order]] = changes.size[order]
    return ts[last], np.cumsum(size, axis=0)[last]


class Instants(Struct, frozen=True):
    """The agreement between the allocations and frees of a memory timeline and the ``[memory]`` instants of a trace.

    ``device`` is the device with most agreeing instants, None if there are none to compare. Of the ``compared``
    allocations and frees, ``agreeing`` have an instant.
    """

    device: DeviceMemory | None
    agreeing: int
    compared: int


def compared_with_instants(trace: Trace, changes: MemoryChanges) -> Instants:
    """Compare the changes between the trace's first and last instant, to the microsecond, the resolution of older
    traces."""
    devices = memory_events(trace)
    us = changes.ts[np.isin(changes.action, (_CREATE, _DESTROY)) & (changes.ts >= 0)] // 1000
    known = [distinct(device.ts // 1000) for device in devices]
    if known:
        us = us[(us >= min(moments[0] for moments in known)) & (us <= max(moments[-1] for moments in known))]
    if not known or not len(us):
        return Instants(None, 0, 0)
    agreeing = [int(np.isin(us, moments).sum()) for moments in known]
    most = int(np.argmax(agreeing))
    return Instants(devices[most], agreeing[most], len(us))
