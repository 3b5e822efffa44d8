"""Sections about steps: where the time, and the MFU, of each went."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from augment.core.text import percent, time
from augment.results.report import charts
from augment.results.report.document import Row, Section
from augment.results.report.rows import mean, rows_of, table

PARTS = {
    "compute_ns": ("computation", charts.BLUE),
    "exposed_communication_ns": ("exposed communication", charts.VERMILION),
    "exposed_memory_ns": ("exposed copies", charts.PURPLE),
    "host_wait_ns": ("idle: waits for the host", charts.ORANGE),
    "kernel_wait_ns": ("idle: between kernels", charts.YELLOW),
    "other_wait_ns": ("idle: other", charts.GREY),
}
EFFICIENCY = {
    "ideal_compute_ns": ("at the peak of the device", charts.GREEN),
    "compute_above_ns": ("compute-bound work above its roof", charts.BLUE),
    "memory_ideal_ns": ("memory-bound work at its roof", charts.SKY),
    "memory_above_ns": ("memory-bound work above its roof", charts.BLUE),
    "latency_bound_ns": ("small kernels, bound by latency", charts.YELLOW),
    "unmodelled_ns": ("computation without a model", charts.GREY),
    "exposed_communication_ns": ("exposed communication", charts.VERMILION),
    "exposed_copy_ns": ("exposed copies", charts.PURPLE),
    "host_wait_ns": ("waits for the host", charts.ORANGE),
    "kernel_wait_ns": ("between kernels", charts.ORANGE),
    "other_wait_ns": ("idle otherwise", charts.GREY),
}
_MOST_STEPS = 60


def efficiency(sidecar: Mapping[str, Any]) -> Section:
    """The mean step, from the work at the peak to its whole time."""
    rows = rows_of(sidecar, "step_efficiency")
    wall = mean(rows, "wall_ns")
    if not rows or not wall:
        return Section("Where a step goes")
    bars: list[Row] = []
    start = 0.0
    for name, (label, colour) in EFFICIENCY.items():
        ns = mean(rows, name) or 0.0
        if not ns:
            continue
        exact, shown = f"{ns:,.0f} ns", f"{time(ns)}, {percent(ns / wall)}"
        bars.append(charts.bar(label, start / 1e6, (start + ns) / 1e6, colour, exact, shown))
        start += ns
    mfu = mean(rows, "mfu_ratio")
    lead = f"A step takes {time(wall)} on average" + (f", at {percent(mfu)} MFU." if mfu is not None else ".")
    if mfu is None:
        lead += f" Its MFU is not known: {rows[0].get('lacking') or 'no shapes were recorded'}."
    chart = charts.waterfall("step_efficiency", lead, bars, x_title="time of the mean step (ms)")
    return Section("Where a step goes", lead, [chart], table(sidecar, "step_efficiency", "Each step", folded=True))


def steps(sidecar: Mapping[str, Any]) -> Section:
    """Each step of the device with most work."""
    rows = rows_of(sidecar, "step_figures")
    devices = sorted(
        {row["device"] for row in rows},
        key=lambda device: -(mean([row for row in rows if row["device"] == device], "busy_ns") or 0),
    )
    if not rows or len(rows) < 2:
        return Section("Steps")
    chosen = [row for row in rows if row["device"] == devices[0]][:_MOST_STEPS]
    outlying = {row["step"] for row in rows_of(sidecar, "steps") if row.get("is_outlier")}
    bars = [
        charts.part(f"{row['step']}{' (outlier)' if row['step'] in outlying else ''}", label, row[name])
        for row in chosen
        for name, (label, _) in PARTS.items()
        if row.get(name)
    ]
    if not bars:
        return Section("Steps")
    lead = f"{len(chosen)} steps take {time(mean(chosen, 'step_ns') or 0)} on average"
    lead += f"; outlying: {', '.join(map(str, sorted(outlying)))}." if outlying else "."
    more = len(devices) - 1
    if more > 0:
        lead += f" The chart shows GPU {devices[0]}; the table has {more} more."
    used = {label: colour for label, colour in PARTS.values() if any(bar["part"] == label for bar in bars)}
    chart = charts.stacked("steps", lead, bars, y="step", x_title="time (ms)", parts=used)
    return Section("Steps", lead, [chart], table(sidecar, "step_figures", "Figures of each step"))
