"""The report of many runs, of a history or from their sidecars: a chart of each figure over the runs, with the runs
where its level changed.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field

from augment.compare.totals import FIGURES
from augment.core.text import capitalized, counted, percent, size, time
from augment.history.changes import FEWEST, Change, changes
from augment.history.store import Run
from augment.results.report import charts
from augment.results.report.sections import Document, Row, Section, made_table, mean, rows_of

MOST_SERIES = 6  #: series of a chart
_NEAR = 1  #: changes of two figures that are so many runs apart belong together
_SCALES = {"ns": (1e6, "ms"), "bytes": (1e9, "GB"), "ratio": (0.01, "%"), "count": (1.0, "count")}
_CAPTION = "each run; dashed, its level (the median of the runs between two changes); and where the level changed."
_COLOURS = (charts.BLUE, charts.VERMILION, charts.GREEN, charts.PURPLE, charts.ORANGE, charts.SKY)


class TrendFigure(Struct, frozen=True):
    """A figure of a run: its column, what a heading calls it, and its unit: ``ns``, ``bytes``, ``ratio``, ``count``."""

    name: str
    title: str
    unit: str


class Entry(Struct, frozen=True):
    """A run: its figures, and what is said when a reader points at it."""

    run: str
    figures: Mapping[str, float]
    note: str = ""


class Series(Struct, frozen=True):
    """Runs that can be compared, in their order. ``name`` is empty if there are no others."""

    name: str
    entries: Sequence[Entry]
    level_changes: dict[str, list[tuple[int, Change]]] = field(default_factory=dict)

    def with_figure(self, name: str) -> list[Entry]:
        """The runs that have the figure."""
        return [entry for entry in self.entries if entry.figures.get(name) is not None]

    def changes_of(self, name: str) -> list[tuple[int, Change]]:
        """The changes of a figure, each with the index in ``entries`` of the run where it began."""
        if name not in self.level_changes:
            places = [place for place, entry in enumerate(self.entries) if entry.figures.get(name) is not None]
            values = np.array([self.entries[place].figures[name] for place in places], np.float64)
            self.level_changes[name] = [(places[change.first], change) for change in changes(values)]
        return self.level_changes[name]


def section(figure: TrendFigure, series: Sequence[Series], order: Sequence[str]) -> Section | None:
    """The chart of a figure over the runs in ``order``; None if fewer than two have it, or it is always 0."""
    drawn = [each for each in series if any(entry.figures[figure.name] for entry in each.with_figure(figure.name))]
    if max((len(each.with_figure(figure.name)) for each in drawn), default=0) < 2:
        return None
    compared = [each for each in drawn if len(each.with_figure(figure.name)) > 1]
    lead = (
        _lead(figure, compared[0]) if len(series) == 1 else f"{'; '.join(_brief(figure, each) for each in compared)}."
    )
    scale, word = _SCALES[figure.unit]
    curves = charts.Curves([], [], [])
    for each in drawn:
        kind = {"kind": each.name or "runs"}
        for entry in each.with_figure(figure.name):
            value = entry.figures[figure.name]
            exact = f"{value:,.0f} {figure.unit}" if figure.unit in ("ns", "bytes") else f"{value:,.6g}"
            note = {"note": entry.note} if entry.note else {}
            curves.points.append({"x": entry.run, "y": value / scale, **kind, "exact": exact, **note})
        # two ends of each stretch of runs between two changes: the median
        known = each.with_figure(figure.name)
        runs = {entry.run: place for place, entry in enumerate(known)}
        starts = [runs[each.entries[place].run] for place, _ in each.changes_of(figure.name)]
        for number, (start, end) in enumerate(itertools.pairwise([0, *starts, len(known)])):
            level = float(np.median([entry.figures[figure.name] for entry in known[start:end]])) / scale
            at = {"y": level, **kind, "stretch": f"{each.name} {number}"}
            curves.levels.extend({"x": known[place].run, **at} for place in (start, end - 1))
        for place, change in each.changes_of(figure.name):
            by = "" if change.ratio is None else f" {100 * change.ratio:+.1f} %"
            run = each.entries[place].run
            curves.changes.append({"x": run, **kind, "text": f"{run}{by}"})
    colours = {each.name or "runs": colour for each, colour in zip(series, _COLOURS, strict=False) if each in drawn}
    y = figure.title if figure.unit == "count" else f"{figure.title} ({word})"
    chart = charts.trend(f"trend_{figure.name}", f"{figure.title}: {_CAPTION}", curves, order, y=y, colours=colours)
    return Section(figure.title, lead, [chart])


def change_rows(figures: Sequence[TrendFigure], series: Sequence[Series]) -> list[Row]:
    """A row for each change of each figure."""
    several = len(series) > 1
    return [
        {
            "figure": figure.name,
            **({"runs": each.name} if several else {}),
            "run": each.entries[place].run,
            "about_the_run": each.entries[place].note,
            "unit": figure.unit,
            "before": change.before,
            "after": change.after,
            "change_ratio": change.ratio,
        }
        for each in series
        for figure in figures
        for place, change in each.changes_of(figure.name)
    ]


def verdict(figure: TrendFigure, others: Sequence[TrendFigure], series: Sequence[Series], subject: str) -> list[str]:
    """A sentence for each series: how ``figure`` went, and the ``others`` of its unit that changed at the same run."""
    said = []
    for each in series:
        known = each.with_figure(figure.name)
        if len(known) < 2:
            continue
        first, last = known[0], known[-1]
        text = f"{each.name}: {subject.lower()}" if each.name else subject
        text += f" took {time(first.figures[figure.name])} in {first.run}"
        if changed := each.changes_of(figure.name):
            moved = [f"since {_named(each.entries[place])} it is {_moved(change)}" for place, change in changed]
            said.append(f"{text}; {', '.join(moved)}.{_along(*changed[-1], figure, others, each)}")
            continue
        text += f" and {time(last.figures[figure.name])} in {last.run}"
        if len(known) >= 2 * FEWEST:
            text += f"; no change of its level was found in {counted(len(known), 'run')}"
        elif (most := max(known, key=lambda entry: entry.figures[figure.name])) not in (first, last):
            text += f"; most in {most.run}: {time(most.figures[figure.name])}"
        said.append(f"{text}.")
    return said or ["Fewer than two of the runs have a common figure."]


def changed(figure: TrendFigure, series: Sequence[Series]) -> list[str]:
    """A sentence for each series in which the level of ``figure`` changed."""
    return [
        f"{f'{each.name}: ' if each.name else ''}{figure.title} is {', '.join(moved)}."
        for each in series
        if (
            moved := [
                f"{_moved(change)} since {_named(each.entries[at])}" for at, change in each.changes_of(figure.name)
            ]
        )
    ]


def shown(value: float, unit: str) -> str:
    """A figure in a sentence."""
    if unit == "ns":
        return time(value)
    return size(value) if unit == "bytes" else f"{100 * value:.1f} %" if unit == "ratio" else f"{value:,.4g}"


def _lead(figure: TrendFigure, series: Series) -> str:
    known = series.with_figure(figure.name)
    first, last = (known[place].figures[figure.name] for place in (0, -1))
    text = f"{shown(first, figure.unit)} in {known[0].run}, {shown(last, figure.unit)} in {known[-1].run}."
    for place, change in series.changes_of(figure.name):
        text += f" Since {series.entries[place].run} it is {_moved(change)}."
    return text


def _brief(figure: TrendFigure, series: Series) -> str:
    """How the figure of one of several series went."""
    last = series.with_figure(figure.name)[-1]
    text = f"{series.name}: {shown(last.figures[figure.name], figure.unit)}"
    moved = [f"{_moved(change)} since {series.entries[place].run}" for place, change in series.changes_of(figure.name)]
    return ", ".join([text, *moved])


def _along(place: int, change: Change, figure: TrendFigure, others: Sequence[TrendFigure], series: Series) -> str:
    """What else changed at the run, in the same direction."""
    moved = [
        (other.after - other.before, each.title)
        for each in others
        if each.unit == figure.unit
        for at, other in series.changes_of(each.name)
        if abs(at - place) <= _NEAR and (other.after > other.before) == (change.after > change.before)
    ]
    moved.sort(key=lambda each: -abs(each[0]))
    named = [f"{title[0].lower()}{title[1:]} ({'+' if ns > 0 else '-'}{time(abs(ns))})" for ns, title in moved[:2]]
    return f" Changed with it: {', '.join(named)}." if named else ""


def _named(entry: Entry) -> str:
    day = entry.note[:10] if entry.note[:4].isdigit() else ""
    return f"{entry.run} ({day})" if day else entry.run


def _moved(change: Change) -> str:
    direction = "higher" if change.after > change.before else "lower"
    return f"{percent(abs(change.ratio))} {direction}" if change.ratio is not None else direction


Sidecar = Mapping[str, Any]
#: the figures of a run, and the analysis that has the column
_RUN_FIGURES = (
    (TrendFigure("wall_ns", "Time of a step", "ns"), "steps"),
    (TrendFigure("compute_ns", "Computation in a step", "ns"), "steps"),
    (TrendFigure("exposed_communication_ns", "Exposed communication in a step", "ns"), "steps"),
    (TrendFigure("host_wait_ns", "Waits for the host in a step", "ns"), "steps"),
    (TrendFigure("span_ns", "Time of the whole recording", "ns"), "temporal_breakdown"),
    (TrendFigure("mfu_ratio", "MFU", "ratio"), "step_efficiency"),
    (TrendFigure("peak_allocated_bytes", "Peak of allocated memory", "bytes"), "memory_profile"),
)
_STEP = [figure for figure, analysis in _RUN_FIGURES if analysis == "steps"]
_SPAN = next(figure for figure, _ in _RUN_FIGURES if figure.name == "span_ns")


def document_of_runs(runs: Sequence[tuple[str, Sequence[Sidecar]]], title: str) -> Document:
    """The report of named runs in their order; a run is the sidecars of its ranks."""
    entries = []
    for name, sidecars in runs:  # the mean over the ranks of each figure that any of them has
        of_run = {}
        for figure, analysis in _RUN_FIGURES:
            means = [mean(rows_of(sidecar, analysis), figure.name) for sidecar in sidecars]
            if values := [value for value in means if value is not None]:
                of_run[figure.name] = sum(values) / len(values)
        entries.append(Entry(name, of_run))
    series = Series("", entries)
    figures = [figure for figure, _ in _RUN_FIGURES]
    order = [entry.run for entry in series.entries]
    sections = [made for each in figures if (made := section(each, [series], order))]
    changed = change_rows(figures, [series])
    tables = [made_table("changes", "Changes of a level", changed)] if changed else []
    table = [
        {"run": entry.run, "traces": len(sidecars), **{each.name: entry.figures.get(each.name) for each in figures}}
        for entry, (_, sidecars) in zip(series.entries, runs, strict=True)
    ]
    sections += [Section("Changes", "", (), tables), Section("Runs", "", (), [made_table("runs", "Figures", table)])]
    in_steps = len(series.with_figure("wall_ns")) >= 2
    said = (
        verdict(_STEP[0], _STEP[1:], [series], "A step") if in_steps else verdict(_SPAN, (), [series], "The recording")
    )
    facts = [("runs", f"{len(runs)}: {runs[0][0]} to {runs[-1][0]}")]
    return Document(title, "trend", said, facts, [each for each in sections if each])


MOST_RUNS = 300  #: the latest runs, which are drawn
_LEAST_SHARE = 0.01  #: a part of a step that never takes more of it is not drawn, unless it changed
_TITLES = {"wall_ns": "Time of a step", "memory_peak_bytes": "Peak of allocated memory"}  #: what comes first


def document_of_history(runs: Sequence[Run], title: str) -> Document:
    """The report of runs in their order, of which there are two at least. Runs of different branches, devices or
    numbers of ranks are series of their own, because they cannot be compared."""
    latest = runs[-MOST_RUNS:]
    series, order, left_out = _series(latest)
    figures = []
    for each in sorted(FIGURES, key=lambda each: each.name not in _TITLES):
        heading = _TITLES.get(each.name, capitalized(each.title))
        figures.append(TrendFigure(each.name, heading, each.unit))
    step, others = figures[0], figures[1:]
    sections = [made for each in figures if _matters(each, series) and (made := section(each, series, order))]
    tables = [made_table("changes", "Changes of a level", rows)] if (rows := change_rows(figures, series)) else []
    rows_of_runs = [
        {
            "run": run.name,
            "recorded": run.recorded,
            "labels": run.labels_text(),
            "ranks": run.rank_count,
            **{each.name: run.figures[each.name].median if each.name in run.figures else None for each in FIGURES},
        }
        for run in reversed(latest)
    ]
    table = made_table("runs", "Figures of each run: the median of its steps", rows_of_runs)
    sections += [Section("Changes", _HOW if tables else "", (), tables), Section("Runs", left_out, (), [table])]
    said = [*verdict(step, others, series, "A step"), *changed(others[0], series)]
    drawn = len(latest)
    first, last = runs[-drawn], runs[-1]
    count = f"{drawn}" if drawn == len(runs) else f"the latest {drawn} of {len(runs)}"
    facts = [("runs", f"{count}, from {first.recorded} to {last.recorded} (UTC)")]
    keys = dict.fromkeys(key for run in runs for key in run.labels)
    for key in keys:
        values = list(dict.fromkeys(run.labels[key] for run in runs if key in run.labels))
        if len(values) <= MOST_SERIES:
            facts.append((key, ", ".join(values)))
    return Document(title, "trend", said, facts, [each for each in sections if each])


_HOW = (
    "A change is a new level of at least three runs, by 1 % or more; runs that only vary have one in 1 of 100 "
    "histories of a figure."
)


def _series(runs: Sequence[Run]) -> tuple[list[Series], list[str], str]:
    """The series with most runs, the names of their runs in order, and a sentence about the others."""
    members: dict[tuple[str, str, int], list[Entry]] = {}  # by what runs have in common that can be compared
    names = []
    seen: Counter[tuple[Any, str]] = Counter()
    for run in runs:
        key = run.labels.get("branch", ""), run.labels.get("device", ""), run.rank_count
        seen[key, run.name] += 1
        again = seen[key, run.name]  # a name that a series has already has its number behind it
        name = f"{run.name[:40]} ({again})" if again > 1 else run.name[:40]
        steps = run.figures["wall_ns"].step_count if "wall_ns" in run.figures else 0
        about = filter(None, (run.recorded, run.labels_text("device"), f"{steps} steps" if steps else ""))
        figures = {name: figure.median for name, figure in run.figures.items()}
        members.setdefault(key, []).append(Entry(name, figures, "; ".join(about)))
        names.append((key, name))
    differs = [len({key[place] for key in members}) > 1 for place in range(3)]
    order = sorted(members, key=lambda key: -len(members[key]))
    chosen = []
    for branch, device, ranks in order[:MOST_SERIES]:
        parts = (branch or "no branch", device or "unknown device", f"{ranks} rank{'' if ranks == 1 else 's'}")
        title = ", ".join(part for part, differ in zip(parts, differs, strict=True) if differ)
        chosen.append(Series(title, members[branch, device, ranks]))
    drawn = dict.fromkeys(name for key, name in names if key in order[:MOST_SERIES])
    rest = sum(len(members[key]) for key in order[MOST_SERIES:])
    more = f"{rest} runs of {len(order) - MOST_SERIES} other branches or devices are not drawn." if rest else ""
    return chosen, list(drawn), more


def _matters(figure: TrendFigure, series: Sequence[Series]) -> bool:
    if figure.unit != "ns" or figure.name == "wall_ns" or any(each.changes_of(figure.name) for each in series):
        return True
    return any(
        entry.figures.get(figure.name, 0.0) >= _LEAST_SHARE * entry.figures.get("wall_ns", 0.0)
        for each in series
        for entry in each.entries
    )
