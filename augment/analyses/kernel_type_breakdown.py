"""Which types of GPU work run, alone and at the same time?

The busy time of each device is divided by what runs at each moment: ``COMPUTATION``, ``COMMUNICATION``, ``MEMORY``, or
several of them, such as ``COMMUNICATION overlapping COMPUTATION`` (names in alphabetical order). The times of a device
add up to its ``busy_ns`` in the temporal breakdown, the ratios to 1. Combinations that do not occur have no row. A
table in ``augment/derived/names/kernel_types.py`` decides the type of each kernel.

**What to do**: much ``COMMUNICATION`` alone: overlap it. Much ``MEMORY`` alone: avoid copies, or hide them.
"""

from __future__ import annotations

from dataclasses import dataclass

from augment.derived.gpu.type_coverage import all_masks, mask_name, type_coverage
from augment.findings import Findings, column
from augment.trace import GPU_WORK, Identity, Trace

NAME = "kernel_type_breakdown"
NEEDS = (GPU_WORK,)


@dataclass(frozen=True, slots=True)
class Row:
    """One combination of kernel types on one device."""

    rank: int | None = column("The rank of the process, if known.")
    device: Identity = column("The device.")
    kernel_types: str = column("The kernel types that run at the same time, joined by ' overlapping '.")
    time_ns: int = column("Time in which exactly these types run.", "ns")
    time_ratio: float = column("Share of the device's busy time.", "ratio")


ROW = Row


def analyze(trace: Trace) -> Findings:
    """Divide each device's busy time."""
    rows = []
    for one in type_coverage(trace):
        busy = sum(one.time_ns[mask] for mask in all_masks())
        rows += [
            Row(one.device.rank, one.device.device, mask_name(mask), one.time_ns[mask], one.time_ns[mask] / busy)
            for mask in all_masks()
            if one.time_ns[mask]
        ]
    return Findings(rows)
