"""Memory: the allocators' events, and PyTorch's categories."""

from __future__ import annotations

# fmt: off
# ruff: noqa: I001
from augment.facts.memory.memory_events import (
    CATEGORIES, DeviceMemory, compared_with_instants, held_by_category, held_by_pytorch, memory_events as devices,
    why_none,
)
from augment.facts.memory.held import Held, MemoryReplay, held_memory

__all__ = [
    "CATEGORIES", "DeviceMemory", "Held", "MemoryReplay", "compared_with_instants", "devices", "held_by_category",
    "held_by_pytorch", "held_memory", "why_none",
]
# fmt: on
