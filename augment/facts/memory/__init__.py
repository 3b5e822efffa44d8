"""Memory: the allocators' events, and PyTorch's categories."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from augment.derived.memory.memory_events import DeviceMemory
    from augment.trace import Trace


def devices(trace: Trace) -> tuple[DeviceMemory, ...]:
    """The events of each device's allocator."""
    from augment.derived.memory.memory_events import memory_events

    return memory_events(trace)
