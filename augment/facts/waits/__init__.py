"""Waiting: idle gaps and their causes; dependencies between calls, work and events."""

from __future__ import annotations

# fmt: off
# ruff: noqa: I001
from augment.facts.waits.dependencies import DependencyKind, full_queues
from augment.facts.waits.gap_causes import (
    STATES, KERNEL_DELAY_NS, GapCategory, causes_of_gaps as causes, device_gaps as gaps, device_states as states,
    launch_end, stream_gaps as gaps_of_streams, device_idle,
)
from augment.facts.waits.sync_dependencies import sync_calls as syncs, unrecorded_waits

__all__ = [
    "KERNEL_DELAY_NS", "STATES", "DependencyKind", "GapCategory", "causes", "device_idle", "full_queues", "gaps",
    "gaps_of_streams", "launch_end", "states", "syncs", "unrecorded_waits",
]
# fmt: on
