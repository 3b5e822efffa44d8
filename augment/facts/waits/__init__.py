"""Waiting: idle gaps and their causes; dependencies between calls, work and events."""

from __future__ import annotations

# fmt: off
# ruff: noqa: I001
from augment.arrays import Bytes
from augment.core import Trace
from augment.facts.waits.gap_causes import (
    DeviceStates, GapCategory, IdleGaps, causes_of_gaps, device_gaps, device_states, launch_end, stream_gaps,
)
from augment.facts.waits.sync_dependencies import SyncCalls, sync_calls

__all__ = [
    "GapCategory", "causes", "gaps", "gaps_of_streams", "launch_end", "states", "syncs",
]
# fmt: on


def gaps(trace: Trace) -> tuple[IdleGaps, ...]:
    """The idle gaps of each device."""
    return device_gaps(trace)


def gaps_of_streams(trace: Trace) -> tuple[IdleGaps, ...]:
    """The idle gaps of each stream."""
    return stream_gaps(trace)


def causes(trace: Trace) -> tuple[Bytes, ...]:
    """The cause of each of the gaps of ``waits.gaps``, a ``GapCategory``."""
    return causes_of_gaps(trace)


def states(trace: Trace) -> tuple[DeviceStates, ...]:
    """Whether each device computes, communicates, copies, or why it is idle, at each moment."""
    return device_states(trace)


def syncs(trace: Trace) -> SyncCalls:
    """The calls of the host that wait for a device."""
    return sync_calls(trace)
