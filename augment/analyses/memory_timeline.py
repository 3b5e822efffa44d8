"""Which of PyTorch's categories held the memory: parameters, activations, gradients …?

The input is the raw file of PyTorch's ``export_memory_timeline`` (``*.raw.json.gz``), given with the trace (``augment
run --memory-timeline FILE``, ``augment.with_memory_timeline``). Without it the analysis is skipped. Each category that
held memory has a row and a counter track ``Memory timeline CATEGORY``; the first row and track are their ``total``.
Times count from the first event of the trace. Only changes within the trace, or within the selected steps, count.

The categories are PyTorch's: its profiler classifies the tensors by the operators that it saw. ``Unknown`` is what it
could not classify, which is much if neither an optimizer's step nor Python's calls (``with_stack``) were recorded. The
total covers the tensors that the profiler saw, also before the recording. What the allocator gave out, and to which
operators, is in [`memory_profile`](#memory_profile) and [`memory_at_peak`](#memory_at_peak).

File and trace have one clock, and no time is moved. The analysis is skipped if the file belongs to another recording,
such as that of another rank: if its times are not those of the trace, or if fewer than half of its allocations and
frees have a ``[memory]`` instant at their time. These instants also identify the device that the file describes. In a
trace without them the file is accepted if its times overlap the trace's, and the tracks lie under the first device.

HTA plots such a file by itself.

**What to do**: a large share of activations: checkpointing. Many optimizer states: shard them (FSDP, ZeRO), or a
lighter optimizer.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from augment import facts
from augment.arrays import changing
from augment.core import (
    Category,
    CounterTrack,
    Diagnostic,
    Findings,
    MemoryChanges,
    OfRank,
    Skipped,
    Trace,
    byte_unit,
    column,
    in_unit,
)

NAME = "memory_timeline"
NEEDS: tuple[tuple[Category, ...], ...] = ()  # it needs the file given with the trace, no slices


class Row(OfRank, frozen=True):
    """One category, or the total."""

    category: Annotated[str, column("PyTorch's category of the memory; ``total`` for all together.")]
    start_bytes: Annotated[int, column("Held at the first event of the trace.", "bytes")]
    end_bytes: Annotated[int, column("Held at the end of the trace.", "bytes")]
    peak_bytes: Annotated[int, column("Greatest sum that the category held.", "bytes")]
    peak_at_ns: Annotated[int, column("When it was first reached, after the first event of the trace.", "ns")]
    at_total_peak_bytes: Annotated[int, column("Held by the category when the total was at its peak.", "bytes")]
    at_total_peak_ratio: Annotated[float | None, column("Share of the total's peak.", "ratio")]


def analyze(trace: Trace) -> Findings | Skipped:
    """Add up and draw the memory of each category."""
    changes = trace.context.attached(MemoryChanges)
    if changes is None:
        return Skipped("no memory timeline is given beside the trace; name one with --memory-timeline")
    if apart := _apart(trace, changes):
        return Skipped(apart)
    comparison = facts.memory.compared_with_instants(trace, changes)
    lacking = comparison.compared - comparison.agreeing
    if 2 * lacking > comparison.compared:
        what = f"{lacking:,} of {comparison.compared:,} allocations and frees have no [memory] instant at their time"
        return Skipped(f"the memory timeline is of another recording: {what}")
    message = "allocations and frees of the memory timeline have no [memory] instant at their time"
    differing = [Diagnostic("memory_timeline_differs", lacking, message)] if lacking else []
    # Moments from the first event to the end of the trace, and the bytes of each category from then on
    start = int(trace.events.ts[0])
    ts, held = facts.memory.held_by_category(changes, min(start, int(changes.ts[changes.ts >= 0].min())))
    first, stop = np.searchsorted(ts, (start, _end(trace)), "right")
    before = held[first - 1] if first else np.zeros_like(held[0])
    ts, held = np.append(start, ts[first:stop]), np.concatenate((before[np.newaxis], held[first:stop]))
    occurring = {name: values for name, values in zip(facts.memory.CATEGORIES, held.T, strict=True) if values.any()}
    series = {"total": held.sum(axis=1), **occurring}
    unit = byte_unit(int(series["total"].max(initial=0)))
    tracks = []
    device, devices = comparison.device, facts.gpu.work(trace).devices
    for name, values in series.items():
        keep = changing(values)
        tracks.append(
            CounterTrack(
                analysis=NAME,
                name=f"Memory timeline {name}{device.label if device else ''}",
                under=device.track if device else devices[0].track if devices else 0,
                ts=ts[keep],
                values=in_unit(values[keep], unit),
                unit=unit[1],
                description="memory of tensors, by the category that PyTorch's profiler gave them",
                scale="memory timeline",
            )
        )
    peak = int(series["total"].argmax())
    rows = [
        Row(
            rank=trace.rank,
            category=name,
            start_bytes=int(values[0]),
            end_bytes=int(values[-1]),
            peak_bytes=int(values.max()),
            peak_at_ns=int(ts[values.argmax()] - ts[0]),
            at_total_peak_bytes=int(values[peak]),
            at_total_peak_ratio=int(values[peak]) / most if (most := int(series["total"][peak])) else None,
        )
        for name, values in series.items()
    ]
    return Findings(rows, tracks, differing)


def _apart(trace: Trace, changes: MemoryChanges) -> str:
    """Why file and trace cannot be of one recording, by their times; empty if they can."""
    recorded = changes.ts[changes.ts >= 0]
    if not len(recorded) or not len(trace.events):
        return f"the {'trace' if len(recorded) else 'memory timeline'} tells of nothing that happened while recording"
    late, early = int(recorded.min()) - _end(trace), int(trace.events.ts[0]) - int(recorded.max())
    if max(late, early) <= 0:
        return ""
    how = (
        f"begins {_seconds(late)} after the trace ends"
        if late > 0
        else f"ends {_seconds(early)} before the trace begins"
    )
    return f"the memory timeline is of another recording: it {how}; times are never moved"


def _seconds(ns: int) -> str:
    return f"{ns // 10**9:,}.{ns // 1000 % 10**6:06d} s"


def _end(trace: Trace) -> int:
    return int(trace.events.end.max())
