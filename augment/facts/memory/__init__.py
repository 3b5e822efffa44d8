"""Memory: the allocators' events, and PyTorch's categories."""

from __future__ import annotations

# fmt: off
# ruff: noqa: I001
from augment.facts.memory.memory_events import DeviceMemory, held_by_pytorch, memory_events as devices

__all__ = [
    "DeviceMemory", "devices", "held_by_pytorch",
]
# fmt: on
