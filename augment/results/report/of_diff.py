"""The report of a comparison, from its ``.diff.metrics.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from augment.compare.diff_verdict import changed_on_host, figure_title, kind_title, no_interval, parts
from augment.core.text import devices_text, listed, percent, ranges_text, rough_time, size
from augment.results.report import charts
from augment.results.report.sections import Document, Row, Section, made_table, not_possible, others, rows_of, totals

Sidecar = Mapping[str, Any]
LEAST_AXIS = 2.0  #: the axis of changes reaches at least so far, %: noise does not look large
_DELTA = "delta_per_step_ns"
_PARTS = ("operator", "kind", "change", _DELTA, "control_ns", "test_ns", "p", "verdict", "control_names", "test_names")
#: the verdict follows the interval of the t-test: another, by resampling few steps, is narrower; the file has both
_FIGURES = ("figure", "unit", "control", "test", "delta", "change_ratio", "low", "high", "verdict", "p", "is_paired")
_MOST_LINES = 12  #: bars of lines of code


def document(sidecar: Sidecar) -> Document:
    """All sections that have something to say."""
    called = {"control": sidecar["control"]["name"], "test": sidecar["source"]["name"], **sidecar.get("runs", {})}
    facts, pairs = [], sidecar.get("compared", ())
    for side, source in (("control", sidecar["control"]), ("test", sidecar["source"])):
        devices = devices_text(source["devices"], sidecar.get("traces", {}).get(side, len(pairs)))
        files = [f"{each['name']}, SHA-256 {each['sha256']}" for each in [pair[side] for pair in pairs] or [source]]
        name = [called[side]] if called[side] != source["name"] or devices else []
        facts.append((side, "\n".join([*(f"{each}{devices and f' ({devices})'}" for each in name), *files])))
    if pairs:
        numbers = [ranges_text(pairs[0][side]["steps"]) for side in ("control", "test")]
        which = numbers[0] if numbers[0] == numbers[1] else " with ".join(numbers)
        whole = f"{len(pairs)} ranks, " if len(pairs) > 1 else ""
        facts.insert(0, ("compared", f"{whole}steps {which}" if which else f"{whole}whole recordings"))
    facts += not_possible(sidecar)
    facts.append(("made by", f"{sidecar['tool']['name']} {sidecar['tool']['version']}"))
    sections = (
        figures(sidecar),
        waterfall(sidecar),
        kinds(sidecar),
        efficiency(sidecar),
        names(sidecar),
        memory(sidecar),
    )
    shown = {each.name for section in sections for each in section.tables}
    return Document(
        title=f"{called['test']} against {called['control']}",
        subject="comparison",
        verdict=sidecar.get("verdict", {}).get("text") or ["The two runs have no common figure."],
        facts=facts,
        sections=[section for section in (*sections, others(sidecar, shown)) if section],
        diagnostics=sidecar["diagnostics"],
    )


def figures(sidecar: Sidecar) -> Section:
    """Each figure with its confidence interval."""
    rows = rows_of(sidecar, "diff_figures")
    if not rows:
        return Section("Figures")
    whole = next((row["control"] for row in rows if row["figure"] == "wall_ns"), 0)
    marks: list[Row] = []
    for row in rows:
        if row["unit"] != "ns" or row["delta"] is None or not whole or not (row["control"] or row["test"]):
            continue
        low, high = (None if row.get(end) is None else 100 * row[end] / whole for end in ("low", "high"))
        reach = no_interval(row["step_count"]) if low is None else f"{row['low']:+,.0f} to {row['high']:+,.0f}"
        marks.append(
            {
                "label": figure_title(row["figure"]),
                "low": low,
                "at": 100 * row["delta"] / whole,
                "high": high,
                "colour": _colour(row["delta"], row["verdict"]),
                "exact": f"{row['delta']:+,.0f} ns, {reach}",
                "shown": rough_time(row["delta"]) + (f" ({_doubt(row)})" if row["verdict"] == "within_noise" else ""),
            }
        )
    lead = "Changes of a step's figures, with 95 % intervals. Green: better, orange: worse, grey: neither, or noise."
    if not any(mark["low"] is not None for mark in marks):
        why = no_interval(rows[0]["step_count"]).capitalize() if rows else "Too few steps"
        lead = f"Changes of a step's figures. {why} for intervals: none is known to be better or worse."
    title = "% of a step"
    differs = any(mark["at"] for mark in marks)
    chart = [charts.forest("figures", lead, marks, x_title=title, least=LEAST_AXIS)] if differs else []
    return Section(
        "Figures", lead, chart, [made_table("diff_figures", "Figures of both sides", _in_words(rows), columns=_FIGURES)]
    )


def _in_words(rows: Sequence[Row]) -> list[Row]:
    return [{**row, "figure": figure_title(row["figure"])} for row in rows]


def _doubt(row: Row) -> str:
    """What a change is that does not exceed the noise of all figures together: its own interval may exclude zero."""
    return "not certain" if row["low"] is not None and row["low"] * row["high"] > 0 else "noise"


def waterfall(sidecar: Sidecar) -> Section:
    """From the control's step to the test's, by cause; the bars add up."""
    rows = rows_of(sidecar, "diff_waterfall")
    step = next((row for row in rows_of(sidecar, "diff_figures") if row["figure"] == "wall_ns"), None)
    if step is None or not any(row[_DELTA] for row in rows):
        return Section("What changed")
    count = windows(sidecar)
    sides = (
        (row["control_names"] or row["test_names"], row["control_ns"] / count, row["test_ns"] / count) for row in rows
    )
    times = ((row["kind"], row["operator"], *side) for row, side in zip(rows, sides, strict=True))
    changes = parts(times, changed_on_host(rows_of(sidecar, "diff_names"), step["control"]))
    bars = []
    at = 0.0
    for each in changes:
        bars.append(_bar(each.label, at, at + each.ns, _colour(each.ns, step["verdict"])))
        at += each.ns
    bars.append(_bar("the whole step", 0.0, step["test"] - step["control"], charts.BLUE))
    lead = f"The largest part: {rough_time(changes[0].ns)} per step {changes[0].label}."
    if step["verdict"] == "within_noise":
        lead += f" The change of the whole step is {_doubt(step)}."
    chart = charts.waterfall("waterfall", lead, bars, x_title="change of the step's time, added up (ms)")
    named = [
        {
            **row,
            "kind": kind_title(row["kind"]),
            "operator": row["operator"] or listed(row["control_names"] or row["test_names"]) or "–",
        }
        for row in sorted(rows, key=lambda row: -abs(row[_DELTA]))
    ]
    tables = [made_table("diff_waterfall", "Parts of the change", named, columns=_PARTS)]
    if operators := by_operator(rows, count):
        tables.append(made_table("operators", "By operator, for any kernels: exclusive time per step", operators))
    return Section("What changed", lead, [chart], tables)


def windows(sidecar: Sidecar) -> int:
    """The number of steps, or recordings, in the sums of a comparison: of all ranks and devices."""
    mean: float = next((row["control"] for row in rows_of(sidecar, "diff_figures") if row["figure"] == "wall_ns"), 0)
    whole: int = sum(row["control_ns"] for row in rows_of(sidecar, "diff_steps"))
    return max(round(whole / mean), 1) if mean else 1


def by_operator(rows: Sequence[Row], count: int) -> list[Row]:
    """The parts of each operator over all its kernels, per step, rank and device; the largest difference first.

    ``count`` is the number of :func:`windows`.
    """
    figures = ("control_ns", "test_ns", "delta_ns")
    sums = totals((row for row in rows if row["operator"]), lambda row: row["operator"], *figures)
    rows = [
        {"operator": name, **{figure: ns / count for figure, ns in zip(figures, each, strict=True)}}
        for name, each in sums.items()
    ]
    return sorted(rows, key=lambda row: -abs(row["delta_ns"]))


def kinds(sidecar: Sidecar) -> Section:
    """By kind of work."""
    rows = [
        {**row, "kind_of_work": kind_title(row["kind_of_work"])}
        for row in sorted(rows_of(sidecar, "diff_kinds"), key=lambda row: -abs(row["delta_ns"]))
    ]
    if not rows:
        return Section("By kind of work")
    bars = [
        _bar(row["kind_of_work"], 0, ns, _colour(ns, row["verdict"]))
        for row in rows
        if (ns := row["delta_per_step_ns"])
    ]
    chart = [charts.waterfall("kinds", "Change by kind of work", bars, x_title="change per step (ms)")] if bars else []
    return Section("By kind of work", "", chart, [made_table("diff_kinds", "By kind of work", rows)])


def efficiency(sidecar: Sidecar) -> Section:
    """MFU and the parts of a step on both sides."""
    rows = rows_of(sidecar, "diff_efficiency")
    mfu = next((row for row in rows if row["figure"] == "mfu_ratio" and row["control"] is not None), None)
    lead = ""
    if mfu is not None and mfu["test"] is not None:
        lead = f"MFU was {percent(mfu['control'])} and is {percent(mfu['test'])}."
        if mfu["control_peak"] != mfu["test_peak"]:
            lead += f" They are of different peaks: {mfu['control_peak']} and {mfu['test_peak']}."
    tables = [made_table("diff_efficiency", "Parts of a step on both sides", _in_words(rows))] if rows else []
    return Section("Efficiency", lead, (), tables)


def names(sidecar: Sidecar) -> Section:
    """What was added, removed, or takes another time."""
    rows = sorted(rows_of(sidecar, "diff_names"), key=lambda row: -abs(row["delta_ns"]))
    if not rows:
        return Section("Operators and kernels")
    added, deleted = (sum(row["change"] == change for row in rows) for change in ("added", "deleted"))
    lead = f"{added:,} names were added, {deleted:,} removed."
    return Section("Operators and kernels", lead, (), [made_table("diff_names", "Names", rows)])


def memory(sidecar: Sidecar) -> Section:
    """What lines of code hold more or less at the peak, of memory snapshots."""
    rows = sorted(rows_of(sidecar, "diff_memory"), key=lambda row: -abs(row["delta_bytes"]))
    bars = []
    for row in [row for row in rows if row["delta_bytes"]][:_MOST_LINES]:
        held, shown = row["delta_bytes"], size(abs(row["delta_bytes"]))
        colour, sign = (charts.VERMILION, "+") if held > 0 else (charts.GREEN, "-")
        bars.append(charts.bar(row["line"], 0, held / 1e9, colour, f"{held:+,} bytes", sign + shown))
    chart = [charts.waterfall("diff_memory", "Held at the peak: change by line", bars, x_title="GB")] if bars else []
    return Section("Memory", "", chart, [made_table("diff_memory", "Held at the peak", rows)] if rows else [])


def _bar(label: str, start: float, end: float, colour: str) -> Row:
    ns = end - start
    return charts.bar(label, start / 1e6, end / 1e6, colour, f"{ns:+,.0f} ns", rough_time(ns))


def _colour(delta: float, verdict: str) -> str:
    if verdict in ("within_noise", "unknown", "different") or not delta:
        return charts.GREY
    return charts.VERMILION if delta > 0 else charts.GREEN
