"""The tables of ``augment diff``: figures, where the difference comes from, and what changed most."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from augment.cli.table_output import NOTHING, TableColumn, print_columns
from augment.cli.terminal import emit
from augment.core.text import counted, first_of, signed_text, value_text

NAME_WIDTH = 64
NAMES_SHOWN = 2  #: names shown per side of a part
LEAST_NS = 500  #: per step: less would show as 0.000 ms
_MARKS = {"regression": "worse", "improvement": "better", "different": "other", "within_noise": "", "unknown": ""}


def print_diff(sidecar: dict[str, Any], control: str, test: str, limit: int) -> None:
    """Print the tables of a comparison to stdout, at most ``limit`` rows each (0: all)."""
    analyses = {name: analysis.get("rows", []) for name, analysis in sidecar["analyses"].items()}
    emit(f"control: {_about(control, sidecar['control'])}")
    emit(f"test:    {_about(test, sidecar['source'])}")
    emit(_compared(sidecar["compared"]))
    for sentence in sidecar.get("verdict", {}).get("text", ()):
        emit(f"  {sentence}")
    for diagnostic in sidecar["diagnostics"]:
        emit(f"{diagnostic['code']}: {diagnostic['count']:,} ({diagnostic['message']})")
    whole_recordings = not sidecar["compared"][0]["control"]["steps"]
    of = "recording" if whole_recordings else "a step"
    _figures("Figures", analyses["diff_figures"], of)
    if reason := sidecar["analyses"]["diff_figures"].get("reason"):
        emit(reason)
    whole = sum(row["delta_ns"] for row in analyses["diff_steps"])
    _waterfall(analyses["diff_waterfall"], whole, limit)
    _operators(analyses["diff_waterfall"], limit)
    _kinds(analyses["diff_kinds"], limit)
    _efficiency(sidecar["analyses"]["diff_efficiency"], of)
    _changes(analyses["diff_names"], len(analyses["diff_steps"]), limit)


def _about(label: str, source: dict[str, Any]) -> str:
    names = [device["name"] for device in source["devices"]]
    devices = "".join(f", {names.count(name)} × {name}" for name in dict.fromkeys(names) if name)
    return f"{label}{devices}"


def _compared(pairs: Sequence[dict[str, Any]]) -> str:
    steps = [pairs[0][side]["steps"] for side in ("control", "test")]
    ranks = f"{len(pairs)} ranks, " if len(pairs) > 1 else ""
    if not steps[0]:
        instead = "--region NAME uses an annotation as steps"
        return f"compared: {ranks}whole recordings, because there are no steps ({instead})"
    numbers = [", ".join(map(str, step)) for step in steps]
    which = numbers[0] if numbers[0] == numbers[1] else f"{numbers[0]} with {numbers[1]}"
    return f"compared: {ranks}{counted(len(steps[0]), 'step')}: {which}"


def _figures(title: str, rows: Sequence[dict[str, Any]], of: str) -> None:
    rows = [row for row in rows if row["control"] or row["test"]]
    known = any(row["low"] is not None for row in rows)
    columns = [
        TableColumn(
            (of, ""),
            [_words(row["figure"], row["unit"]) for row in rows],
            True,
            True,
        ),
        TableColumn(("control", ""), [value_text(row["control"], row["unit"]) for row in rows]),
        TableColumn(("test", ""), [value_text(row["test"], row["unit"]) for row in rows]),
        TableColumn(("difference", ""), [signed_text(row["delta"], row["unit"]) for row in rows]),
        TableColumn(
            ("", ""),
            [NOTHING if row["change_ratio"] is None else f"{100 * row['change_ratio']:+.1f} %" for row in rows],
        ),
    ]
    if known:
        columns += [
            TableColumn(("95 % confidence interval", ""), [_interval(row) for row in rows]),
            TableColumn(("", ""), [_MARKS[row["verdict"]] for row in rows], text=True),
        ]
    print_columns(title, columns)
    if not known:
        emit("one step per side: the noise is unknown")


def _waterfall(rows: Sequence[dict[str, Any]], whole: int, limit: int) -> None:
    rows = [row for row in rows if row["delta_ns"]]
    if not rows:
        return
    shown = rows[:limit] if limit else rows
    rest = whole - sum(row["delta_ns"] for row in shown)
    scale = _scale(rows)
    numbers = [row["delta_ns"] / scale for row in shown]
    tail = [rest / scale] if len(rows) > len(shown) else []
    blank = [""] * (len(tail) + 1)
    words = [row["kind"].replace("_", " ") for row in shown]
    print_columns(
        "Where the difference comes from",
        [
            TableColumn(("time", "ms"), [f"{value / 1e6:+,.3f}" for value in (*numbers, *tail, whole / scale)]),
            TableColumn(("what", ""), [*words, *(["the rest"] if tail else []), "all"], text=True),
            TableColumn(("", ""), [row["change"] for row in shown] + blank, text=True),
            TableColumn(("", ""), [_MARKS[row["verdict"]] for row in shown] + blank, text=True),
            TableColumn(("operator", ""), [row["operator"] or NOTHING for row in shown] + blank, text=True),
            TableColumn(("control → test", ""), [_what(row) for row in shown] + blank, text=True),
        ],
    )
    if tail:
        emit(f"… the rest: {counted(len(rows) - len(shown), 'part')} (--limit 0 shows all)")


def _what(row: dict[str, Any]) -> str:
    """The names of what ran, or of the host's activity, on both sides."""
    sides = [
        first_of(list(dict.fromkeys(map(_readable, row[side]))), NAMES_SHOWN)
        for side in ("control_names", "test_names")
    ]
    if sides[0] == sides[1]:
        return sides[0]
    return f"{sides[0] or NOTHING} → {sides[1] or NOTHING}"


def _operators(rows: Sequence[dict[str, Any]], limit: int) -> None:
    """The sum of the parts of each operator over all its kernels."""
    sums: dict[str, list[int]] = {}
    for row in rows:
        if row["operator"]:
            totals = sums.setdefault(row["operator"], [0, 0, 0])
            for place, column in enumerate(("control_ns", "test_ns", "delta_ns")):
                totals[place] += row[column]
    scale = _scale(rows)
    changed = [name for name in sums if abs(sums[name][2]) >= LEAST_NS * scale]
    shown = sorted(changed, key=lambda name: -abs(sums[name][2]))[: limit or None]
    if shown:
        columns = [[sums[name][place] / scale / 1e6 for name in shown] for place in range(3)]
        print_columns(
            "By operator, for any kernels: exclusive time per step",
            [
                TableColumn(("difference", "ms"), [f"{value:+,.3f}" for value in columns[2]]),
                TableColumn(("control", "ms"), [f"{value:,.3f}" for value in columns[0]]),
                TableColumn(("test", "ms"), [f"{value:,.3f}" for value in columns[1]]),
                TableColumn(("operator", ""), shown, text=True),
            ],
        )


def _kinds(rows: Sequence[dict[str, Any]], limit: int) -> None:
    """The exclusive time of each kind of work; prints nothing for a recording of the host alone."""
    if not any(row["control_count"] or row["test_count"] for row in rows):
        return
    scale = _scale(rows)
    shown = [row for row in rows if max(row["control_ns"], row["test_ns"]) >= LEAST_NS * scale][: limit or None]
    if not shown:
        return
    print_columns(
        "By kind of work: exclusive time per step",
        [
            TableColumn(("difference", "ms"), [f"{row['delta_ns'] / scale / 1e6:+,.3f}" for row in shown]),
            TableColumn(("control", "ms"), [f"{row['control_ns'] / scale / 1e6:,.3f}" for row in shown]),
            TableColumn(("test", "ms"), [f"{row['test_ns'] / scale / 1e6:,.3f}" for row in shown]),
            TableColumn(("", ""), [_percent(row) for row in shown]),
            TableColumn(
                ("count", ""), [_counts(row) if row["control_count"] or row["test_count"] else "" for row in shown]
            ),
            TableColumn(("", ""), [_MARKS[row["verdict"]] for row in shown], text=True),
            TableColumn(("kind of work", ""), [row["kind_of_work"].replace("_", " ") for row in shown], text=True),
        ],
    )


def _efficiency(outcome: dict[str, Any], of: str) -> None:
    """The MFU and where the rest of the time went, or why the MFU is unknown."""
    if reason := outcome.get("reason"):
        emit(reason)
    else:
        _figures("Efficiency", outcome["rows"], of)
        for row in outcome["rows"]:
            if row["figure"] == "mfu_ratio" and row["control_peak"] != row["test_peak"]:
                emit(f"The MFUs are of different peaks: {row['control_peak']} (control), {row['test_peak']} (test)")


def _scale(rows: Sequence[dict[str, Any]]) -> float:
    """The number of steps, times ranks and devices, in the sums."""
    return next((row["delta_ns"] / row["delta_per_step_ns"] for row in rows if row["delta_ns"]), 1.0)


def _words(figure: str, unit: str) -> str:
    """``exposed_communication_ns`` for people."""
    return figure.removesuffix(f"_{unit}").replace("_", " ")


def _changes(rows: Sequence[dict[str, Any]], steps: int, limit: int) -> None:
    changed = [row for row in rows if row["change"] not in ("added", "deleted") and row["verdict"] != "within_noise"]
    tables = (
        ("Slower", [row for row in changed if row["delta_ns"] > 0]),
        ("Faster", [row for row in changed if row["delta_ns"] < 0]),
        ("Added", [row for row in rows if row["change"] == "added"]),
        ("Removed", [row for row in rows if row["change"] == "deleted"]),
    )
    for title, all_of_it in tables:
        chosen = [row for row in all_of_it if abs(row["delta_ns"]) >= LEAST_NS * steps]
        if not chosen:
            continue
        shown = sorted(chosen, key=lambda row: (row["side"] != "gpu", -abs(row["delta_ns"])))
        gpu, cpu = ([row for row in shown if row["side"] == side] for side in ("gpu", "cpu"))
        shown = [*gpu[:limit], *cpu[:limit]] if limit else shown
        print_columns(
            f"{title}, time per step",
            [
                TableColumn(("on", ""), [row["side"] for row in shown], True, True),
                TableColumn(("difference", "ms"), [f"{row['delta_ns'] / steps / 1e6:+,.3f}" for row in shown]),
                TableColumn(("", ""), [_percent(row) for row in shown]),
                TableColumn(("count", ""), [_counts(row) for row in shown]),
                TableColumn(
                    ("name", ""),
                    [_readable(row["name"]) for row in shown],
                    text=True,
                ),
            ],
        )
        if len(chosen) > len(shown):
            emit(f"… and {len(chosen) - len(shown):,} more")


def _readable(name: str) -> str:
    """A kernel's name without return type and parameters, cut to a readable length."""
    if name.startswith("void ") or "::" in name.partition("(")[0]:
        name = re.sub(r"\([^()]*\)$", "", name.removeprefix("void ")) or name
    return name if len(name) <= NAME_WIDTH else name[: NAME_WIDTH - 1] + "…"


def _percent(row: dict[str, Any]) -> str:
    return f"{100 * row['delta_ns'] / row['control_ns']:+.1f} %" if row["control_ns"] and row["test_ns"] else ""


def _counts(row: dict[str, Any]) -> str:
    if row["control_count"] == row["test_count"]:
        return f"{row['test_count']:,}"
    return f"{row['control_count']:,} → {row['test_count']:,}"


def _interval(row: dict[str, Any]) -> str:
    if row["low"] is None:
        return NOTHING
    return f"{signed_text(row['low'], row['unit'])} … {signed_text(row['high'], row['unit'])}"
