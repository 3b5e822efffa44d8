"""Which types of GPU work run, alone and at the same time?

The busy time of each device is divided by what runs at each moment: ``COMPUTATION``, ``COMMUNICATION``, ``MEMORY``, or
several of them, such as ``COMMUNICATION overlapping COMPUTATION`` (names in alphabetical order). The times of a device
add up to its ``busy_ns`` in the temporal breakdown, the ratios to 1. Combinations that do not occur have no row. A
table in ``augment/facts/names.py`` decides the type of each kernel.

**What to do**: much ``COMMUNICATION`` alone: overlap it. Much ``MEMORY`` alone: avoid copies, or hide them.
"""

from __future__ import annotations

from itertools import combinations
from typing import Annotated

from augment.core import GPU_WORK, Findings, OfDevice, Trace, column
from augment.facts.gpu.device_activity import type_coverage
from augment.facts.names import KernelType

NAME = "kernel_type_breakdown"
NEEDS = (GPU_WORK,)
#: every combination of types by its mask, fewest types first
_NAMES = {
    sum(1 << kernel_type for kernel_type in some): " overlapping ".join(sorted(each.name for each in some))
    for size in (1, 2, 3)
    for some in combinations(KernelType, size)
}


class Row(OfDevice, frozen=True):
    """One combination of kernel types on one device."""

    kernel_types: Annotated[str, column("The kernel types that run at the same time, joined by ' overlapping '.")]
    time_ns: Annotated[int, column("Time in which exactly these types run.", "ns")]
    time_ratio: Annotated[float, column("Share of the device's busy time.", "ratio")]


def analyze(trace: Trace) -> Findings:
    """Divide each device's busy time."""
    rows = []
    for coverage in type_coverage(trace):
        device, times = coverage.device, {name: coverage.time_ns[mask] for mask, name in _NAMES.items()}
        busy = sum(times.values())
        rows += [Row(device.rank, device.device, name, ns, ns / busy) for name, ns in times.items() if ns]
    return Findings(rows)
