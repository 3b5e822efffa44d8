"""What was the memory held for, by PyTorch's categories: parameters, activations, gradients …?

Of the raw file of PyTorch's ``export_memory_timeline`` (``*.raw.json.gz``), which is named beside the trace (``augment
run --memory-timeline FILE``, ``augment.with_memory_timeline``); without one it is skipped. Each category that held
anything is a row, and a counter track ``Memory timeline CATEGORY``; the first row, and track, is their ``total``. Times
count from the first event of the trace. Only what lies within the trace, or the steps asked for, counts.

The categories are PyTorch's: what its profiler took the tensors for, from the operators that it saw. ``Unknown`` is
what it could not place: much, if neither an optimizer's step nor Python's calls (``with_stack``) were recorded. The
total is of the tensors that it saw, also before the recording; what the allocator gave out, and for what operators, is
in [`memory_profile`](#memory_profile) and [`memory_at_peak`](#memory_at_peak).

File and trace have one clock, and no time is moved. Where the file is of another recording, of another rank, say, it is
skipped: its times are not those of the trace, or fewer than half of its allocations and frees have a ``[memory]``
instant at their time. Which of the trace's devices the file is of these instants tell, too. A trace without them is
taken for the file's if their times overlap, and the tracks lie under its first device.

HTA plots such a file by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from augment.annotations import CounterTrack
from augment.arrays.ordering import changing
from augment.arrays.types import Int64s
from augment.derived.gpu.gpu_work import gpu_work
from augment.derived.memory.memory_categories import CATEGORIES, compared_with_instants, held_by_category
from augment.derived.memory.memory_events import DeviceMemory
from augment.findings import Findings, Skipped, column
from augment.trace import Category, Diagnostic, MemoryChanges, Trace

NAME = "memory_timeline"
NEEDS: tuple[tuple[Category, ...], ...] = ()  # the file beside the trace


@dataclass(frozen=True, slots=True)
class Row:
    """One category, or all together."""

    rank: int | None = column("The rank of the process, if known.")
    category: str = column("What PyTorch took the memory for; ``total`` of all categories.")
    start_bytes: int = column("Held at the first event of the trace.", "bytes")
    end_bytes: int = column("Held at the end of the trace.", "bytes")
    peak_bytes: int = column("Most that the category held.", "bytes")
    peak_at_ns: int = column("When that was first so, after the first event of the trace.", "ns")
    at_total_peak_bytes: int = column("Held by the category when the total was at its peak.", "bytes")
    at_total_peak_ratio: float | None = column("Share of the total's peak.", "ratio")


ROW = Row


def analyze(trace: Trace) -> Findings | Skipped:
    """Add up the file by category, and draw it."""
    changes = trace.memory_changes
    if changes is None:
        return Skipped("no memory timeline is given beside the trace; name one with --memory-timeline")
    if apart := _apart(trace, changes):
        return Skipped(apart)
    found = compared_with_instants(trace, changes)
    lacking = found.compared - found.agreeing
    if 2 * lacking > found.compared:
        what = f"{lacking:,} of {found.compared:,} allocations and frees have no [memory] instant at their time"
        return Skipped(f"the memory timeline is of another recording: {what}")
    message = "allocations and frees of the memory timeline have no [memory] instant at their time"
    differing = [Diagnostic("memory_timeline_differs", lacking, message)] if lacking else []
    ts, held = _within(trace, changes)
    occurring = {name: values for name, values in zip(CATEGORIES, held.T, strict=True) if values.any()}
    series = {"total": held.sum(axis=1), **occurring}
    tracks = [_track(trace, found.device, name, ts, values) for name, values in series.items()]
    return Findings(_rows(trace.rank, ts, series), tracks, differing)


def _apart(trace: Trace, changes: MemoryChanges) -> str:
    """Why the times of the file cannot be those of the trace; empty if they can."""
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


def _within(trace: Trace, changes: MemoryChanges) -> tuple[Int64s, Int64s]:
    """Moments from the first event to the end of the trace, and the bytes of each category from then on."""
    start = int(trace.events.ts[0])
    ts, held = held_by_category(changes, min(start, int(changes.ts[changes.ts >= 0].min())))
    first, stop = np.searchsorted(ts, (start, _end(trace)), "right")
    before = held[first - 1] if first else np.zeros_like(held[0])
    return np.append(start, ts[first:stop]), np.concatenate((before[np.newaxis], held[first:stop]))


def _rows(rank: int | None, ts: Int64s, series: dict[str, Int64s]) -> list[Row]:
    peak = int(series["total"].argmax())
    return [
        Row(
            rank=rank,
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


def _track(trace: Trace, device: DeviceMemory | None, name: str, ts: Int64s, values: Int64s) -> CounterTrack:
    devices = gpu_work(trace).devices
    keep = changing(values)
    return CounterTrack(
        analysis=NAME,
        name=f"Memory timeline {name}{device.label if device else ''}",
        under=device.track if device else devices[0].track if devices else 0,
        ts=ts[keep],
        values=values[keep],
        unit="bytes",
        description="memory of tensors, by what PyTorch's profiler took them for",
        scale="memory timeline",
    )
