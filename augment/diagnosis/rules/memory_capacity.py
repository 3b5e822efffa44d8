"""Is the device's memory nearly full, or held but not used?

From ``[memory]`` instants (``profile_memory=True``) and the device's capacity in the header of the trace. Memory is
nearly full from 92 % of the capacity: another batch may end the job, and before that the allocator gives memory back
and asks again, which waits for the device. It is fragmented if, at the peak of what tensors hold, a quarter of what
PyTorch holds is unused, and the device is at least 70 % full.

**What to do**: activation checkpointing, a smaller batch with gradient accumulation, sharding; for fragments
``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``. ``torch.cuda.memory._record_memory_history`` shows who holds it.
"""

from __future__ import annotations

import numpy as np

from augment.derived.gpu.gpu_work import gpu_work
from augment.derived.memory.memory_events import DeviceMemory, memory_events
from augment.derived.operators.peaks import capacity_bytes
from augment.diagnosis.rule import Answer, Fine, Found, NoData, NotApplicable, Spans
from augment.diagnosis.wording import percent, size
from augment.trace import Trace

NAME = "memory_capacity"
FULL, USED, UNUSED = 0.92, 0.70, 0.25


def check(trace: Trace) -> Answer:
    """Compare what is held with what there is."""
    devices = [events for events in memory_events(trace) if events.on_stream and events.reserved is not None]
    if not devices and not len(gpu_work(trace)):
        return NotApplicable("no GPU work was recorded")
    if not devices:
        return NoData("no memory of the device was recorded", "record with profile_memory=True")
    known = [(memory, capacity_bytes(trace, memory.device)) for memory in devices]
    fullest, capacity = max(known, key=lambda pair: _peak(pair[0]) / pair[1] if pair[1] else 0.0)
    if not capacity:
        return NoData("the trace does not say how much memory the device has")
    held = _peak(fullest)
    share = held / capacity
    if share >= FULL:
        title = f"PyTorch holds {size(held)} of the device's {size(capacity)}, {percent(share)}: there is no room left"
        advice = "Use activation checkpointing, a smaller batch with gradient accumulation, or sharding"
        return _found(fullest, title, advice)
    unused = _unused(fullest)
    if share >= USED and unused >= UNUSED:
        title = f"{percent(unused)} of the {size(held)} that PyTorch holds is unused at the peak: memory is fragmented"
        return _found(fullest, title, "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
    return Fine(f"PyTorch holds {size(held)} of {size(capacity)} ({percent(share)})")


def most_held(trace: Trace) -> float | None:
    """The greatest share of a device's memory that PyTorch held; None where the recording does not tell."""
    devices = [events for events in memory_events(trace) if events.on_stream and events.reserved is not None]
    known = [(_peak(memory), capacity_bytes(trace, memory.device)) for memory in devices]
    return max((held / capacity for held, capacity in known if capacity), default=None)


def _peak(memory: DeviceMemory) -> int:
    return 0 if memory.reserved is None else int(memory.reserved.max())


def _unused(memory: DeviceMemory) -> float:
    """The share of what is held that no tensor uses when tensors use most."""
    held = 0 if memory.reserved is None else int(memory.reserved[memory.peak])
    return 1 - int(memory.allocated[memory.peak]) / held if held else 0.0


def _found(memory: DeviceMemory, title: str, advice: str) -> Found:
    at = memory.ts[memory.peak : memory.peak + 1]
    return Found(title, advice, Spans(at, at + 1, np.full(1, -1, np.int64)), "medium", severity="warning")
