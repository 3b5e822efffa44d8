"""Figures over runs: a chart of each, with the runs where its level changed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field

from augment.core.text import counted, percent, size, time
from augment.history.changes import FEWEST, Change, changes
from augment.results.report import charts
from augment.results.report.document import Row, Section

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
    curves = charts.Curves(
        points=[_point(figure, each, entry, scale) for each in drawn for entry in each.with_figure(figure.name)],
        levels=[level for each in drawn for level in _levels(figure, each, scale)],
        changes=[_mark(each, place, change) for each in drawn for place, change in each.changes_of(figure.name)],
    )
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
    return [_verdict(figure, others, each, subject) for each in series if len(each.with_figure(figure.name)) > 1] or [
        "Fewer than two of the runs have a common figure."
    ]


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


def _verdict(figure: TrendFigure, others: Sequence[TrendFigure], series: Series, subject: str) -> str:
    known = series.with_figure(figure.name)
    first, last = known[0], known[-1]
    text = f"{series.name}: {subject.lower()}" if series.name else subject
    text += f" took {time(first.figures[figure.name])} in {first.run}"
    changed = series.changes_of(figure.name)
    if changed:
        moved = [f"since {_named(series.entries[place])} it is {_moved(change)}" for place, change in changed]
        return f"{text}; {', '.join(moved)}.{_along(*changed[-1], figure, others, series)}"
    text += f" and {time(last.figures[figure.name])} in {last.run}"
    if len(known) < 2 * FEWEST:
        most = max(known, key=lambda entry: entry.figures[figure.name])
        return f"{text}; most in {most.run}: {time(most.figures[figure.name])}."
    return f"{text}; no change of its level was found in {counted(len(known), 'run')}."


def _along(place: int, change: Change, figure: TrendFigure, others: Sequence[TrendFigure], series: Series) -> str:
    """What else changed at the run, in the same direction."""
    moved = [
        (other.after - other.before, each.title)
        for each in others
        if each.unit == figure.unit
        for at, other in series.changes_of(each.name)
        if abs(at - place) <= _NEAR and (other.after > other.before) == (change.after > change.before)
    ]
    named = [f"{title[0].lower()}{title[1:]} ({'+' if ns > 0 else '-'}{time(abs(ns))})" for ns, title in _most(moved)]
    return f" With it changed {' and '.join(named)}." if named else ""


def _most(moved: list[tuple[float, str]]) -> list[tuple[float, str]]:
    return sorted(moved, key=lambda each: -abs(each[0]))[:2]


def _named(entry: Entry) -> str:
    day = entry.note[:10] if entry.note[:4].isdigit() else ""
    return f"{entry.run} ({day})" if day else entry.run


def _moved(change: Change) -> str:
    direction = "higher" if change.after > change.before else "lower"
    return f"{percent(abs(change.ratio))} {direction}" if change.ratio is not None else direction


def _point(figure: TrendFigure, series: Series, entry: Entry, scale: float) -> dict[str, Any]:
    value = entry.figures[figure.name]
    exact = f"{value:,.0f} {figure.unit}" if figure.unit in ("ns", "bytes") else f"{value:,.6g}"
    point = {"x": entry.run, "y": value / scale, "kind": series.name or "runs", "exact": exact}
    return {**point, "note": entry.note} if entry.note else point


def _levels(figure: TrendFigure, series: Series, scale: float) -> Iterator[dict[str, Any]]:
    """Two ends of each stretch of runs between two changes: the median."""
    known = series.with_figure(figure.name)
    runs = {entry.run: place for place, entry in enumerate(known)}
    starts = [runs[series.entries[place].run] for place, _ in series.changes_of(figure.name)]
    for number, (start, end) in enumerate(itertools.pairwise([0, *starts, len(known)])):
        level = float(np.median([entry.figures[figure.name] for entry in known[start:end]])) / scale
        stretch = {"y": level, "kind": series.name or "runs", "stretch": f"{series.name} {number}"}
        yield from ({"x": known[place].run, **stretch} for place in (start, end - 1))


def _mark(series: Series, place: int, change: Change) -> dict[str, Any]:
    by = "" if change.ratio is None else f" {100 * change.ratio:+.1f} %"
    run = series.entries[place].run
    return {"x": run, "kind": series.name or "runs", "text": f"{run}{by}"}
