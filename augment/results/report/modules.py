"""The section about modules: a flame graph of GPU time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from augment.core.text import percent
from augment.results.report import charts
from augment.results.report.document import Chart, Row, Section
from augment.results.report.rows import rows_of, table

_LEAST = 0.002  #: shares below this are not drawn
_IN_PASS: dict[str, Callable[[Row], int]] = {
    "all": lambda row: row["gpu_ns"],
    "forward": lambda row: row["gpu_ns"] - (row["backward_gpu_ns"] or 0),
    "backward": lambda row: row["backward_gpu_ns"] or 0,
}
_CHARACTERS = 130  #: so many characters fit into the width of the chart


def modules(sidecar: Mapping[str, Any]) -> Section:
    """GPU time of modules within modules, forward and backward."""
    rows = [row for row in rows_of(sidecar, "gpu_time_by_module") if row["gpu_ns"] and row["module"]]
    if not rows:
        return Section("Modules")
    backward = sum(row["backward_gpu_ns"] or 0 for row in rows if "/" not in row["module"])
    whole = sum(row["gpu_ns"] for row in rows if "/" not in row["module"])
    lead = f"{percent(backward / whole)} of the GPU time in modules is of the backward pass." if whole else ""
    passes = {"forward": "Forward pass", "backward": "Backward pass"} if backward else {"all": "GPU time"}
    drawn = [_flame(rows, name, title) for name, title in passes.items()]
    return Section("Modules", lead, drawn, table(sidecar, "gpu_time_by_module", "Modules", by="gpu_ns"))


def _flame(rows: Sequence[Row], name: str, title: str) -> Chart:
    boxes = _boxes(rows, _IN_PASS[name])
    depth = 1 + max((box["depth"] for box in boxes), default=0)
    chart = "modules" if name == "all" else f"modules_{name}"
    return charts.flame(chart, f"{title}: modules within modules; the width is time of the GPU.", boxes, depth)


def _boxes(rows: Sequence[Row], time_of: Callable[[Row], int]) -> list[dict[str, Any]]:
    """The rectangle of each module: its share of the GPU time, within that of the module around it. Siblings are in
    the order of their time in all, so that all charts have them in one order."""
    time: dict[str, int] = defaultdict(int)
    whole_time: dict[str, int] = defaultdict(int)
    for row in rows:
        time[row["module"]] += time_of(row)
        whole_time[row["module"]] += row["gpu_ns"]
    inner: dict[str, list[str]] = defaultdict(list)
    for path in time:
        parent = path.rpartition("/")[0]
        while parent and parent not in time:
            parent = parent.rpartition("/")[0]
        inner[parent].append(path)
    whole = sum(time[path] for path in inner[""]) or 1
    boxes: list[dict[str, Any]] = []
    pending = [("", 0.0, 0)]
    while pending:
        parent, at, depth = pending.pop()
        for path in sorted(inner[parent], key=lambda name: -whole_time[name]):
            share = time[path] / whole
            if share >= _LEAST:
                name = path.rpartition("/")[2]
                room = int(share * _CHARACTERS)
                shown = name if len(name) <= room else name[: room - 1] + "…" if room > 3 else ""
                box = {"x": 100 * at, "x2": 100 * (at + share), "depth": depth, "label": path, "shown": shown}
                boxes.append({**box, "exact": f"{time[path]:,} ns, {percent(share)}"})
                pending.append((path, at, depth + 1))
            at += share
    return boxes
