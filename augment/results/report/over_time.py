"""The section about time: how busy each device was, how far the host was ahead, and memory, from part to part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from augment.core.text import percent, size
from augment.results.report import charts
from augment.results.report.document import Chart, Row, Section
from augment.results.report.rows import rows_of, table, totals

_MOST_DEVICES = len(charts.COLOURS)
_GB = 1e9


def over_time(sidecar: Mapping[str, Any]) -> Section:
    """Charts of one axis of time each, of the devices with most work."""
    rows = rows_of(sidecar, "activity_over_time")
    busy = totals(rows, _label, "busy_ns")
    chosen = sorted(sorted(busy, key=lambda label: -busy[label][0])[:_MOST_DEVICES])
    colours = dict(zip(chosen, charts.COLOURS, strict=False))
    shown = [row for row in rows if _label(row) in colours]
    if not shown:
        return Section("Over time")
    parts = len({row["part"] for row in shown})
    lead = f"The recording in {parts} parts of equal length; of queues and memory the greatest value in each part."
    if len(busy) > len(chosen):
        lead += f" Shown are the {len(chosen)} of {len(busy)} devices with most work."
    folded = table(sidecar, "activity_over_time", "Each part", folded=True)
    return Section("Over time", lead, list(_charts(shown, colours)), folded)


def _charts(rows: Sequence[Row], colours: Mapping[str, str]) -> Iterator[Chart]:
    for name, text, y, value, exact in _CURVES:
        points = [
            {"x": row["start_ns"] / 1e6, "y": value(row), "kind": _label(row), "exact": exact(row)}
            for row in rows
            if value(row) is not None
        ]
        if any(point["y"] for point in points):
            yield charts.over_time(name, text, points, y=y, colours=colours)


def _label(row: Row) -> str:
    rank = "" if row["rank"] is None else f"rank {row['rank']} "
    return f"{rank}GPU {row['device']}"


def _allocated(row: Row) -> float | None:
    return None if row["allocated_bytes"] is None else row["allocated_bytes"] / _GB


_CURVES: tuple[tuple[str, str, str, Callable[[Row], float | None], Callable[[Row], str]], ...] = (
    (
        "busy_over_time",
        "Time in which the device had work",
        "busy (%)",
        lambda row: 100 * row["busy_ns"] / (row["dur_ns"] or 1),
        lambda row: f"{row['busy_ns']:,} of {row['dur_ns']:,} ns ({percent(row['busy_ns'] / (row['dur_ns'] or 1))})",
    ),
    (
        "queue_over_time",
        "Work launched and not yet started: an empty queue waits for the host",
        "queued",
        lambda row: row["queued_count"],
        lambda row: f"{row['queued_count']:,} queued, {row['launch_count']:,} launches",
    ),
    (
        "memory_over_time",
        "Memory allocated on the device",
        "allocated (GB)",
        _allocated,
        lambda row: f"{size(row['allocated_bytes'])} ({row['allocated_bytes']:,} bytes)",
    ),
)
