"""How much of a device's memory PyTorch holds."""

from __future__ import annotations

from augment.core import Trace
from augment.facts.memory.memory_events import DeviceMemory, memory_events
from augment.facts.operators.peaks import capacity_bytes


def devices_held(trace: Trace) -> list[DeviceMemory]:
    """The memory of each device of which it was recorded what PyTorch holds."""
    return [events for events in memory_events(trace) if events.on_stream and events.reserved is not None]


def most_held(trace: Trace) -> float | None:
    """The greatest share of a device's memory that PyTorch held; None where the recording does not tell."""
    known = [(peak_held(memory), capacity_bytes(trace, memory.device)) for memory in devices_held(trace)]
    return max((held / capacity for held, capacity in known if capacity), default=None)


def peak_held(memory: DeviceMemory) -> int:
    """The most that is held, bytes."""
    return 0 if memory.reserved is None else int(memory.reserved.max())
