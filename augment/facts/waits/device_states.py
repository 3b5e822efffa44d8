"""The state of each device at every moment: computing, else communicating, else copying, else idle, with the cause."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from augment.arrays.types import Bytes, Int64s
from augment.core.context import derived
from augment.core.trace import Trace
from augment.facts.gpu.gpu_work import Device
from augment.facts.gpu.type_coverage import COMMUNICATION, COMPUTATION, TypeCoverage, type_coverage
from augment.facts.waits.gap_causes import GapCategory, causes_of_gaps
from augment.facts.waits.idle_gaps import device_gaps

COMPUTE, EXPOSED_COMMUNICATION, EXPOSED_COPY = range(3)
_IDLE = 3  #: the first of the idle states; there is one for each cause

#: the names of the states, as drawn
STATES = (
    "compute",
    "exposed communication",
    "exposed copy",
    *(f"idle: {category.name.lower()}" for category in GapCategory),
)


class DeviceStates(Struct, frozen=True):
    """The states of a device from its first to its last work, without interruption; equal-length columns."""

    device: Device  #: whose states they are
    start: Int64s  #: ns; ascending
    end: Int64s  #: ns; each piece ends where the next begins
    state: Bytes  #: an index of :data:`STATES`; neighbours differ

    def __len__(self) -> int:
        return len(self.start)


@derived(until="breakdowns")
def device_states(trace: Trace) -> tuple[DeviceStates, ...]:
    """The states of each device, in the order of ``gpu_work(trace).devices``."""
    return tuple(
        _states(coverage, gaps.start, causes)
        for coverage, gaps, causes in zip(type_coverage(trace), device_gaps(trace), causes_of_gaps(trace), strict=True)
    )


def _states(coverage: TypeCoverage, gap_start: Int64s, category: Bytes) -> DeviceStates:
    """The states of one device. Idle time begins where a gap begins: work without duration may divide it."""
    busy = np.flatnonzero(coverage.mask)
    running = coverage.mask[busy]
    state = np.full(len(busy), EXPOSED_COPY, np.uint8)
    state[running & COMMUNICATION != 0] = EXPOSED_COMMUNICATION
    state[running & COMPUTATION != 0] = COMPUTE
    start = np.concatenate((coverage.ts[busy], gap_start))
    order = np.argsort(start, kind="stable")
    start, state = start[order], np.concatenate((state, (_IDLE + category).astype(np.uint8)))[order]
    first = np.append(True, state[1:] != state[:-1])[: len(start)] & (start < coverage.last_ns)
    start, state = start[first], state[first]
    return DeviceStates(coverage.device, start, np.append(start[1:], coverage.last_ns)[: len(start)], state)
