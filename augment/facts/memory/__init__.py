"""Memory: the allocators' events, and PyTorch's categories."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from augment.core.trace import Trace
    from augment.facts.memory.memory_events import DeviceMemory


def devices(trace: Trace) -> tuple[DeviceMemory, ...]:
    """The events of each device's allocator."""
    from augment.facts.memory.memory_events import memory_events

    return memory_events(trace)
