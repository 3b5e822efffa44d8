"""What held the memory when most was allocated?

For each device, the analysis takes the moment of the greatest allocated sum and lists what was live then, by the
operators that had allocated it. ``operator`` is the innermost operator around the allocation on its thread (for a
tensor mostly ``aten::empty`` and the like). ``outer_operator`` is the outermost, which says what the tensor is for. The
largest sum comes first.

``origin`` is ``operator``, ``no operator`` for allocations outside of any operator, or ``before recording`` for the
rest of what was allocated at the peak. The rows of a device add up to its ``peak_allocated_bytes`` of
[`memory_profile`](#memory_profile), unless the allocator's total and its events disagree.

The analysis is skipped without ``[memory]`` instants or without addresses, as in traces of 2021. HTA has no equivalent.

**What to do**: the operators with most bytes at the peak are those to checkpoint or to shard; what was allocated
before the recording is parameters and states.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from augment import facts
from augment.arrays import NO_INDEX, combinations, sums
from augment.core import Category, Findings, Identity, OfRank, Skipped, Trace, column

NAME = "memory_at_peak"
NEEDS: tuple[tuple[Category, ...], ...] = ()  # it needs instants; NEEDS names categories of slices


class Row(OfRank, frozen=True):
    """The memory that one operator held on one device."""

    device_type: Annotated[str, column("The kind of device, as PyTorch names it.")]
    device: Annotated[Identity, column("The device; none for the CPU.")]
    origin: Annotated[str, column("Where it was allocated: operator, no operator, or before recording.")]
    outer_operator: Annotated[str | None, column("The outermost operator around the allocations.")]
    operator: Annotated[str | None, column("The innermost operator around the allocations.")]
    bytes: Annotated[int, column("Sum of its allocations that were not freed yet.", "bytes")]
    count: Annotated[int | None, column("Number of these allocations.", "count")]


def analyze(trace: Trace) -> Findings | Skipped:
    """Sum up by operator what was live at the peak of each device."""
    devices = facts.memory.devices(trace)
    if not devices:
        return Skipped(facts.memory.why_none(trace))
    peaked = [memory for memory in devices if memory.next is not None]
    if not peaked:
        return Skipped("the [memory] instants have no addresses")
    rows: list[Row] = []
    for memory in peaked:
        live = memory.live_at(memory.peak)
        around = facts.host.around_moments(
            trace, memory.ts[live], trace.events.track[memory.row[live]], [Category.CPU_OP]
        )
        inner, outer = (np.where(each == NO_INDEX, -1, trace.events.name[each]).astype(np.int64) for each in around)
        columns, which = combinations(outer, inner)
        groups = np.stack(columns, axis=1)
        size = sums(which, memory.size[live], len(groups))
        count = np.bincount(which, minlength=len(groups))
        for index in np.argsort(-size, kind="stable").tolist():
            outermost_name, innermost_name = (
                trace.strings[code] if code >= 0 else None for code in groups[index].tolist()
            )
            rows.append(
                Row(
                    rank=memory.rank,
                    device_type=memory.kind,
                    device=memory.device,
                    origin="no operator" if innermost_name is None else "operator",
                    outer_operator=outermost_name,
                    operator=innermost_name,
                    bytes=int(size[index]),
                    count=int(count[index]),
                )
            )
        before = int(memory.allocated[memory.peak] - size.sum())
        if before > 0:
            rows.append(Row(memory.rank, memory.kind, memory.device, "before recording", None, None, before, None))
    return Findings(rows)
