"""Waiting: idle gaps and their causes; dependencies between calls, work and events."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from augment.arrays.types import Bytes
    from augment.core.trace import Trace
    from augment.facts.waits.gap_causes import DeviceStates, IdleGaps
    from augment.facts.waits.sync_dependencies import SyncCalls


def gaps(trace: Trace) -> tuple[IdleGaps, ...]:
    """The idle gaps of each device."""
    from augment.facts.waits.gap_causes import device_gaps

    return device_gaps(trace)


def gaps_of_streams(trace: Trace) -> tuple[IdleGaps, ...]:
    """The idle gaps of each stream."""
    from augment.facts.waits.gap_causes import stream_gaps

    return stream_gaps(trace)


def causes(trace: Trace) -> tuple[Bytes, ...]:
    """The cause of each of the gaps of ``waits.gaps``, a ``GapCategory``."""
    from augment.facts.waits.gap_causes import causes_of_gaps

    return causes_of_gaps(trace)


def states(trace: Trace) -> tuple[DeviceStates, ...]:
    """Whether each device computes, communicates, copies, or why it is idle, at each moment."""
    from augment.facts.waits.gap_causes import device_states

    return device_states(trace)


def syncs(trace: Trace) -> SyncCalls:
    """The calls of the host that wait for a device."""
    from augment.facts.waits.sync_dependencies import sync_calls

    return sync_calls(trace)
