"""The report of a trend: figures over many runs, from their sidecars."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from augment.diagnosis.wording import percent, size, time
from augment.history.changes import Change, changes
from augment.report import charts
from augment.report.document import Document, Row, Section
from augment.report.rows import made_table, mean, rows_of

Sidecar = Mapping[str, Any]
#: the figures of a run: name, title, analysis, column, what its numbers are
FIGURES = (
    ("step", "Time of a step", "step_figures", "step_ns", "ns"),
    ("compute", "Computation in a step", "step_figures", "compute_ns", "ns"),
    ("exposed communication", "Exposed communication in a step", "step_figures", "exposed_communication_ns", "ns"),
    ("waits for the host", "Waits for the host in a step", "step_figures", "host_wait_ns", "ns"),
    ("span", "Time of the whole recording", "temporal_breakdown", "span_ns", "ns"),
    ("MFU", "MFU", "step_efficiency", "mfu_ratio", "ratio"),
    ("peak of memory", "Peak of allocated memory", "memory_profile", "peak_allocated_bytes", "bytes"),
)
_SCALE = {"ns": (1e6, "ms"), "bytes": (1e9, "GB"), "ratio": (0.01, "%")}


def document(runs: Sequence[tuple[str, Sequence[Sidecar]]], title: str) -> Document:
    """The report of named runs in their order; a run is the sidecars of its ranks."""
    table = [_figures_of(name, sidecars) for name, sidecars in runs]
    sections = [section for each in FIGURES if (section := _section(table, each))]
    rows = made_table("runs", "Figures of each run", table)
    verdict = [_change(table)]
    facts = [("runs", f"{len(runs)}: {runs[0][0]} to {runs[-1][0]}")]
    return Document(title, "trend", verdict, facts, [*sections, Section("Runs", "", (), [rows])])


def _figures_of(name: str, sidecars: Sequence[Sidecar]) -> dict[str, Any]:
    row: dict[str, Any] = {"run": name, "traces": len(sidecars)}
    for _, _, analysis, column, _ in FIGURES:
        values = [value for sidecar in sidecars if (value := mean(rows_of(sidecar, analysis), column)) is not None]
        row[column] = sum(values) / len(values) if values else None
    return row


def _section(table: Sequence[Row], figure: tuple[str, str, str, str, str]) -> Section | None:
    name, title, _, column, unit = figure
    known = [row for row in table if row[column] is not None]
    if len(known) < 2 or not any(row[column] for row in known):
        return None
    scale, word = _SCALE[unit]
    points = [
        {
            "x": row["run"],
            "y": row[column] / scale,
            "kind": name,
            "exact": f"{row[column]:,.6g} {unit if unit != 'ratio' else ''}",
        }
        for row in known
    ]
    levels = _levels(known, column)
    points += [
        {"x": row["run"], "y": level / scale, "kind": "level", "exact": f"{level:,.6g}"}
        for row, level in zip(known, levels, strict=True)
    ]
    first, last = known[0][column], known[-1][column]
    lead = f"{_shown(first, unit)} in {known[0]['run']}, {_shown(last, unit)} in {known[-1]['run']}."
    for each in _changes(known, column):
        lead += f" Since {known[each.first]['run']} it is {_moved(each)}."
    colours = {name: charts.BLUE, "level": charts.VERMILION}
    chart = charts.line(f"trend_{column}", lead, points, x="run", y=f"{title} ({word})", colours=colours)
    return Section(title, lead, [chart])


def _changes(known: Sequence[Row], column: str) -> list[Change]:
    return changes(np.array([row[column] for row in known], np.float64))


def _levels(known: Sequence[Row], column: str) -> list[float]:
    """The level of each run: the median of the runs between two changes."""
    values = np.array([row[column] for row in known], np.float64)
    bounds = [0, *(each.first for each in changes(values)), len(values)]
    return [float(np.median(values[a:b])) for a, b in itertools.pairwise(bounds) for _ in range(a, b)]


def _moved(change: Change) -> str:
    direction = "higher" if change.after > change.before else "lower"
    return f"{percent(abs(change.after / change.before - 1))} {direction}" if change.before else direction


def _change(table: Sequence[Row]) -> str:
    column = "step_ns" if sum(row["step_ns"] is not None for row in table) >= 2 else "span_ns"
    known = [row for row in table if row[column] is not None]
    if len(known) < 2:
        return "Fewer than two of the runs have a common figure."
    word = "A step" if column == "step_ns" else "The recording"
    worst = max(known, key=lambda row: row[column])
    moved = [f"since {known[each.first]['run']} it is {_moved(each)}" for each in _changes(known, column)]
    if moved:
        return f"{word} took {time(known[0][column])} in {known[0]['run']}; {', '.join(moved)}."
    return (
        f"{word} took {time(known[0][column])} in {known[0]['run']} "
        f"and {time(known[-1][column])} in {known[-1]['run']}; "
        f"most in {worst['run']}: {time(worst[column])}."
    )


def _shown(value: float, unit: str) -> str:
    return time(value) if unit == "ns" else size(value) if unit == "bytes" else f"{100 * value:.1f} %"
