"""Memory: the allocators' events, and PyTorch's categories."""

from __future__ import annotations

# fmt: off
from augment.core import Trace
from augment.facts.memory.memory_events import DeviceMemory, memory_events

__all__ = [
    "DeviceMemory", "devices",
]
# fmt: on


def devices(trace: Trace) -> tuple[DeviceMemory, ...]:
    """The events of each device's allocator."""
    return memory_events(trace)
