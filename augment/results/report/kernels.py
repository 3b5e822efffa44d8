"""The section about kernels and operators: families, the longest, and the roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from augment.core.text import percent, short, time
from augment.results.report import charts
from augment.results.report.document import Chart, Row, Section
from augment.results.report.rows import rows_of, table, totals

_MOST_LEAVES = 120
_MOST_POINTS = 150
_BOUNDS = {"compute": charts.BLUE, "memory": charts.ORANGE, "latency": charts.GREY}


def kernels(sidecar: Mapping[str, Any]) -> Section:
    """Kernels by family and name, operators, and how near each is to its roof."""
    rows = [row for row in rows_of(sidecar, "kernel_breakdown") if row["sum_ns"]]
    if not rows:
        return Section("Kernels and operators")
    families = totals(rows, lambda row: row.get("family") or row["kernel_type"], "sum_ns")
    whole = sum(ns for (ns,) in families.values()) or 1
    order = sorted(families, key=lambda family: -families[family][0])
    named = ", ".join(f"{family.replace('_', ' ')} {percent(families[family][0] / whole)}" for family in order[:3])
    lead = f"Most GPU time: {named}."
    drawn = [_treemap(rows, order, lead)]
    drawn += _roofline(rows_of(sidecar, "roofline"))
    tables = [
        *table(sidecar, "kernel_family_breakdown", "By kind of work", by="sum_ns"),
        *table(sidecar, "kernel_breakdown", "Kernels", by="sum_ns"),
        *table(sidecar, "operator_breakdown", "Operators", by="self_gpu_ns"),
        *table(sidecar, "roofline", "Operators against their device's peak, the most lost time first", by="lost_ns"),
    ]
    return Section("Kernels and operators", lead, drawn, tables)


def _treemap(rows: Sequence[Row], order: Sequence[str], text: str) -> Chart:
    places = {family: place for place, family in enumerate(order)}
    nodes: list[Row] = [{"id": "all", "parent": None}]
    nodes += [{"id": f"family {family}", "parent": "all"} for family in order]
    largest = sorted(rows, key=lambda row: -row["sum_ns"])
    for place, row in enumerate(largest[:_MOST_LEAVES]):
        family = row.get("family") or row["kernel_type"]
        colour = charts.COLOURS[places[family] % len(charts.COLOURS)]
        exact = f"{row['sum_ns']:,} ns in {row['count']:,} calls"
        label = f"{family}: {short(row['name'])}"
        nodes.append(charts.leaf(str(place), f"family {family}", row["sum_ns"], colour, label, exact))
    rest = sum(row["sum_ns"] for row in largest[_MOST_LEAVES:])
    if rest:
        label = f"{len(rows) - _MOST_LEAVES} more kernels"
        nodes.append(charts.leaf("rest", "all", rest, charts.GREY, label, f"{rest:,} ns"))
    return charts.treemap("kernels_by_family", f"Kernels as areas, by family. {text}", nodes)


def _roofline(rows: Sequence[Row]) -> list[Chart]:
    usable = [
        row for row in rows if row.get("intensity") and row.get("achieved_tflops") and row.get("bound") in _BOUNDS
    ]
    if not usable:
        return []
    largest = sorted(usable, key=lambda row: -row["time_ns"])[:_MOST_POINTS]
    points = [_point(row) for row in largest]
    used = {bound: colour for bound, colour in _BOUNDS.items() if any(point["kind"] == bound for point in points)}
    xs = [point["x"] for point in points]
    lines = _roofs(rows, min(xs) / 3, max(xs) * 3)
    text = "Operators: operations per byte, and TFLOP/s; the area is time" + (
        "; the dashed lines are what the device can do." if lines else "."
    )
    return [charts.scatter("roofline", text, points, x="operations per byte", y="TFLOP/s", colours=used, lines=lines)]


def _point(row: Row) -> Row:
    label = f"{short(row['operator'] or 'no operator')} {row['number'] or ''} {short(row['shapes'] or '')}"
    share = percent(row["roof_ratio"] or 0)
    exact = f"{row['achieved_tflops']:.4g} TFLOP/s, {share} of its roof, {time(row['time_ns'])}"
    return charts.point(row["intensity"], row["achieved_tflops"], row["bound"], row["time_ns"] / 1e6, label, exact)


def _roofs(rows: Sequence[Row], low: float, high: float) -> list[Row]:
    """The roof of each type of number: the memory's bandwidth up to the peak of the operations."""
    memory = [
        row["size_bytes"] / row["roof_ns"]
        for row in rows
        if row["bound"] == "memory" and row.get("roof_ns") and row.get("size_bytes")
    ]
    bandwidth = sorted(memory)[len(memory) // 2] if memory else None  # GB/s: bytes per ns
    lines: list[Row] = []
    for number in dict.fromkeys(row["number"] for row in rows):
        compute = [
            row["flops"] / row["roof_ns"] / 1e3
            for row in rows
            if row["bound"] == "compute" and row["number"] == number and row.get("roof_ns") and row.get("flops")
        ]
        if not compute:
            continue
        peak = sorted(compute)[len(compute) // 2]
        name = f"peak of {number or 'its numbers'}, {peak:.4g} TFLOP/s"
        if bandwidth:
            knee = peak * 1e3 / bandwidth
            start = min(low, knee / 2)
            lines.append({"x": start, "y": start * bandwidth / 1e3, "line": name})
            lines.append({"x": knee, "y": peak, "line": name})
            lines.append({"x": max(high, knee * 2), "y": peak, "line": name, "shown": name})
        else:
            lines += [{"x": low, "y": peak, "line": name}, {"x": high, "y": peak, "line": name, "shown": name}]
    return lines
