"""The report of a trend: figures over many runs, from their sidecars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from augment.results.report.document import Document, Section
from augment.results.report.rows import made_table, mean, rows_of
from augment.results.report.trend import Entry, Series, TrendFigure, change_rows, section, verdict

Sidecar = Mapping[str, Any]
#: the figures of a run, and the analysis that has the column
FIGURES = (
    (TrendFigure("step_ns", "Time of a step", "ns"), "step_figures"),
    (TrendFigure("compute_ns", "Computation in a step", "ns"), "step_figures"),
    (TrendFigure("exposed_communication_ns", "Exposed communication in a step", "ns"), "step_figures"),
    (TrendFigure("host_wait_ns", "Waits for the host in a step", "ns"), "step_figures"),
    (TrendFigure("span_ns", "Time of the whole recording", "ns"), "temporal_breakdown"),
    (TrendFigure("mfu_ratio", "MFU", "ratio"), "step_efficiency"),
    (TrendFigure("peak_allocated_bytes", "Peak of allocated memory", "bytes"), "memory_profile"),
)
_STEP = [figure for figure, analysis in FIGURES if analysis == "step_figures"]
_SPAN = next(figure for figure, _ in FIGURES if figure.name == "span_ns")


def document(runs: Sequence[tuple[str, Sequence[Sidecar]]], title: str) -> Document:
    """The report of named runs in their order; a run is the sidecars of its ranks."""
    series = Series("", [Entry(name, _figures_of(sidecars)) for name, sidecars in runs])
    figures = [figure for figure, _ in FIGURES]
    order = [entry.run for entry in series.entries]
    sections = [made for each in figures if (made := section(each, [series], order))]
    changed = change_rows(figures, [series])
    tables = [made_table("changes", "Changes of a level", changed)] if changed else []
    table = [
        {"run": entry.run, "traces": len(sidecars), **{each.name: entry.figures.get(each.name) for each in figures}}
        for entry, (_, sidecars) in zip(series.entries, runs, strict=True)
    ]
    sections += [Section("Changes", "", (), tables), Section("Runs", "", (), [made_table("runs", "Figures", table)])]
    in_steps = len(series.with_figure("step_ns")) >= 2
    said = (
        verdict(_STEP[0], _STEP[1:], [series], "A step") if in_steps else verdict(_SPAN, (), [series], "The recording")
    )
    facts = [("runs", f"{len(runs)}: {runs[0][0]} to {runs[-1][0]}")]
    return Document(title, "trend", said, facts, [each for each in sections if each])


def _figures_of(sidecars: Sequence[Sidecar]) -> dict[str, float]:
    """The mean over the ranks of each figure that any of them has."""
    figures = {}
    for figure, analysis in FIGURES:
        means = [mean(rows_of(sidecar, analysis), figure.name) for sidecar in sidecars]
        values = [value for value in means if value is not None]
        if values:
            figures[figure.name] = sum(values) / len(values)
    return figures
