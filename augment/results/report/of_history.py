"""The report of a history's runs: each figure over the runs, and the runs where its level changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from augment.compare.totals import FIGURES
from augment.history.store import Run
from augment.results.report.document import Document, Section
from augment.results.report.rows import made_table
from augment.results.report.trend import MOST_SERIES, Entry, Series, TrendFigure, change_rows, changed, section, verdict

MOST_RUNS = 300  #: the latest runs, which are drawn
_LEAST_SHARE = 0.01  #: a part of a step that never takes more of it is not drawn, unless it changed
_TITLES = {"step_ns": "Time of a step", "memory_peak_bytes": "Peak of allocated memory"}
_FIRST = ("step_ns", "memory_peak_bytes")
_Key = tuple[str, str, int]


def document(runs: Sequence[Run], title: str) -> Document:
    """The report of runs in their order, of which there are two at least. Runs of different branches, devices or
    numbers of ranks are series of their own, because they cannot be compared."""
    latest = runs[-MOST_RUNS:]
    series, order, left_out = _series(latest)
    figures = [_figure(each.name, each.unit) for each in sorted(FIGURES, key=lambda each: each.name not in _FIRST)]
    step, others = figures[0], figures[1:]
    sections = [made for each in figures if _matters(each, series) and (made := section(each, series, order))]
    tables = [made_table("changes", "Changes of a level", rows)] if (rows := change_rows(figures, series)) else []
    table = made_table("runs", "Figures of each run: the median of its steps", [_row(run) for run in reversed(latest)])
    sections += [Section("Changes", _HOW if tables else "", (), tables), Section("Runs", left_out, (), [table])]
    said = [*verdict(step, others, series, "A step"), *changed(others[0], series)]
    return Document(title, "trend", said, _facts(runs, len(latest)), [each for each in sections if each])


_HOW = (
    "A change is a new level of at least three runs, by 1 % or more; runs that only vary have one in 1 of 100 "
    "histories of a figure."
)


def _series(runs: Sequence[Run]) -> tuple[list[Series], list[str], str]:
    """The series with most runs, the names of their runs in order, and a sentence about the others."""
    keys = [_key(run) for run in runs]
    members: dict[_Key, list[Entry]] = {}
    names = _unique(runs, keys)
    for run, key, name in zip(runs, keys, names, strict=True):
        figures = {name: figure.median for name, figure in run.figures.items()}
        members.setdefault(key, []).append(Entry(name, figures, _about(run)))
    differs = [len({key[place] for key in members}) > 1 for place in range(3)]
    order = sorted(members, key=lambda key: -len(members[key]))
    chosen = [Series(_name(key, differs), members[key]) for key in order[:MOST_SERIES]]
    drawn = dict.fromkeys(name for key, name in zip(keys, names, strict=True) if key in order[:MOST_SERIES])
    rest = sum(len(members[key]) for key in order[MOST_SERIES:])
    more = f"{rest} runs of {len(order) - MOST_SERIES} other branches or devices are not drawn." if rest else ""
    return chosen, list(drawn), more


def _key(run: Run) -> _Key:
    """What runs have in common that can be compared."""
    return run.labels.get("branch", ""), run.labels.get("device", ""), run.rank_count


def _name(key: _Key, differs: Sequence[bool]) -> str:
    branch, device, ranks = key
    parts = (branch or "no branch", device or "unknown device", f"{ranks} rank{'' if ranks == 1 else 's'}")
    return ", ".join(part for part, differ in zip(parts, differs, strict=True) if differ)


def _unique(runs: Sequence[Run], keys: Sequence[_Key]) -> list[str]:
    """The names of runs; a name that a series has already has its number behind it."""
    seen: Counter[tuple[_Key, str]] = Counter()
    names = []
    for run, key in zip(runs, keys, strict=True):
        seen[key, run.name] += 1
        again = seen[key, run.name]
        names.append(f"{run.name[:40]} ({again})" if again > 1 else run.name[:40])
    return names


def _about(run: Run) -> str:
    steps = run.figures["step_ns"].step_count if "step_ns" in run.figures else 0
    return "; ".join(filter(None, (run.recorded, run.labels_text("device"), f"{steps} steps" if steps else "")))


def _matters(figure: TrendFigure, series: Sequence[Series]) -> bool:
    if figure.unit != "ns" or figure.name == "step_ns" or any(each.changes_of(figure.name) for each in series):
        return True
    return any(
        entry.figures.get(figure.name, 0.0) >= _LEAST_SHARE * entry.figures.get("step_ns", 0.0)
        for each in series
        for entry in each.entries
    )


def _figure(name: str, unit: str) -> TrendFigure:
    words = name.removesuffix(f"_{unit}").replace("_", " ")
    return TrendFigure(name, _TITLES.get(name, words[0].upper() + words[1:]), unit)


def _row(run: Run) -> Mapping[str, Any]:
    figures = {each.name: run.figures[each.name].median if each.name in run.figures else None for each in FIGURES}
    return {"run": run.name, "recorded": run.recorded, "labels": run.labels_text(), "ranks": run.rank_count, **figures}


def _facts(runs: Sequence[Run], drawn: int) -> list[tuple[str, str]]:
    first, last = runs[-drawn], runs[-1]
    count = f"{drawn}" if drawn == len(runs) else f"the latest {drawn} of {len(runs)}"
    facts = [("runs", f"{count}, from {first.recorded} to {last.recorded} (UTC)")]
    keys = dict.fromkeys(key for run in runs for key in run.labels)
    for key in keys:
        values = list(dict.fromkeys(run.labels[key] for run in runs if key in run.labels))
        if len(values) <= MOST_SERIES:
            facts.append((key, ", ".join(values)))
    return facts
