"""How much memory was allocated and reserved, when was the peak, and how much reserved memory was unused?

The input is the ``[memory]`` instants that PyTorch records with ``profile_memory=True``, one for each allocation and
free. For each device, and the CPU, they give what its allocator had given out (*allocated*) and held from the driver
(*reserved*). Both are counter tracks, ``Memory allocated`` and ``Memory reserved``. Times count from the first event of
the trace.

``fragmentation_bytes`` is reserved minus allocated at the peak of allocated: memory that the allocator holds and nobody
uses, because it is cached or in pieces of the wrong size. ``fragmentation_ratio`` is its share of reserved.

Frees are paired with allocations by address. A free without an earlier allocation at that address
(``unmatched_free_count``) returns memory that was allocated before the recording. ``live_at_end_bytes`` was allocated
in the recording and not freed in it.

Traces of 2021 have neither totals nor addresses. *Allocated* is then a lower bound without the memory from before the
recording, and the status is ``partial``.

The analysis is skipped without such instants. HTA does not read them.

**What to do**: a peak near the capacity: activation checkpointing, smaller batches, sharding; much more reserved than
allocated: ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from augment.arrays import changing
from augment.core import Category, CounterTrack, Findings, Identity, OfRank, Skipped, Trace, byte_unit, column, in_unit
from augment.facts.memory.memory_events import DeviceMemory, diagnostics, memory_events, why_none

NAME = "memory_profile"
NEEDS: tuple[tuple[Category, ...], ...] = ()  # it needs instants; NEEDS names categories of slices
RELATIVE = "the instants have no totals: memory allocated before the recording is not counted"


class Row(OfRank, frozen=True):
    """One device."""

    device_type: Annotated[str, column("The kind of device, as PyTorch names it.")]
    device: Annotated[Identity, column("The device; none for the CPU.")]
    allocation_count: Annotated[int, column("Number of allocations.", "count")]
    free_count: Annotated[int, column("Number of frees.", "count")]
    unmatched_free_count: Annotated[
        int | None, column("Frees of memory that was allocated before the recording.", "count")
    ]
    start_allocated_bytes: Annotated[int, column("Allocated before the first event.", "bytes")]
    end_allocated_bytes: Annotated[int, column("Allocated after the last event.", "bytes")]
    live_at_end_bytes: Annotated[int | None, column("Allocated in the recording and not freed in it.", "bytes")]
    peak_allocated_bytes: Annotated[int, column("Greatest allocated sum.", "bytes")]
    peak_allocated_at_ns: Annotated[int, column("When it was first reached, after the first event of the trace.", "ns")]
    peak_reserved_bytes: Annotated[int | None, column("Greatest reserved sum, if recorded.", "bytes")]
    peak_reserved_at_ns: Annotated[
        int | None, column("When it was first reached, after the first event of the trace.", "ns")
    ]
    fragmentation_bytes: Annotated[int | None, column("Reserved minus allocated at the peak of allocated.", "bytes")]
    fragmentation_ratio: Annotated[float | None, column("fragmentation_bytes over the bytes reserved then.", "ratio")]


def analyze(trace: Trace) -> Findings | Skipped:
    """Summarize and draw the memory of each device."""
    devices = memory_events(trace)
    if not devices:
        return Skipped(why_none(trace))
    rows = [_row(device, int(trace.events.ts[0])) for device in devices]
    tracks = []
    for memory in devices:
        series = {"allocated": memory.allocated, "reserved": memory.reserved}
        recorded = {what: values for what, values in series.items() if values is not None}
        unit = byte_unit(max(int(values.max(initial=0)) for values in recorded.values()))
        # the points at which the value changes, plus the first and the last; for each moment the last event counts
        last = np.append(memory.ts[1:] != memory.ts[:-1], True)
        for what, values in recorded.items():
            ts, level = memory.ts[last], values[last]
            keep = changing(level)
            held = (
                "what the allocator has given out"
                if what == "allocated"
                else "what the allocator holds from the driver"
            )
            tracks.append(
                CounterTrack(
                    analysis=NAME,
                    name=f"Memory {what}{memory.label}",
                    under=memory.track,
                    ts=ts[keep],
                    values=in_unit(level[keep], unit),
                    unit=unit[1],
                    description=held,
                    scale=f"{memory.kind} {memory.device}",
                )
            )
    partial = RELATIVE if any(device.is_relative for device in devices) else None
    return Findings(rows, tracks, diagnostics(trace), partial)


def _row(memory: DeviceMemory, start_ns: int) -> Row:
    peak, reserved = memory.peak, memory.reserved
    most = None if reserved is None else int(reserved.argmax())
    fallow = None if reserved is None else int(reserved[peak] - memory.allocated[peak])
    frees, unmatched = (memory.size < 0, None) if memory.previous is None else memory.frees()
    live = None if memory.next is None else memory.live_at(len(memory.row) - 1)
    return Row(
        rank=memory.rank,
        device_type=memory.kind,
        device=memory.device,
        allocation_count=int((memory.size > 0).sum()),
        free_count=int(frees.sum()),
        unmatched_free_count=None if unmatched is None else int(unmatched.sum()),
        start_allocated_bytes=int(memory.allocated[0] - memory.size[0]),
        end_allocated_bytes=int(memory.allocated[-1]),
        live_at_end_bytes=None if live is None else int(memory.size[live].sum()),
        peak_allocated_bytes=int(memory.allocated[peak]),
        peak_allocated_at_ns=int(memory.ts[peak]) - start_ns,
        peak_reserved_bytes=None if reserved is None else int(reserved[most]),
        peak_reserved_at_ns=None if most is None else int(memory.ts[most]) - start_ns,
        fragmentation_bytes=fallow,
        fragmentation_ratio=None if reserved is None or not reserved[peak] else (fallow or 0) / int(reserved[peak]),
    )
