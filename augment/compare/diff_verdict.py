"""The verdict on a comparison: whether a step is faster or slower beyond noise, and which parts it consists of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from augment.compare.diff_rows import FigureRow, PartRow
from augment.core.findings import Findings, Outcome, Verdict
from augment.core.text import signed_text, value_text

PARTS = 3  #: of the difference, in the sentence
LEAST_RATIO = 0.01  #: of a step; smaller parts are not mentioned
_LONGEST = 48  #: letters of a name
_KINDS = {
    "computation": "computing",
    "exposed_communication": "exposed communication",
    "exposed_memory": "exposed copies",
    "host_wait": "waiting for the host",
    "kernel_wait": "between kernels",
    "other": "other waits",
    "host": "on the host",
}


def verdict(outcomes: Mapping[str, Outcome], whole: bool, late: str = "") -> Verdict:
    """The sentences, and the rows of the parts that they name.

    Args:
        outcomes: of the comparison.
        whole: recordings were compared, not steps.
        late: what to say of a rank that others wait for, if there is a difference.
    """
    step: FigureRow | None = next((row for row in _rows(outcomes, "diff_figures") if row.figure == "wall_ns"), None)
    if step is None:
        return Verdict()
    unit = "The recording" if whole else "A step"
    sums: dict[str, list[PartRow]] = {}
    for row in _rows(outcomes, "diff_waterfall"):
        sums.setdefault(_of_part(row), []).append(row)
    changes = {name: sum(row.delta_per_step_ns for row in rows) for name, rows in sums.items()}
    large = [name for name, ns in changes.items() if abs(ns) >= LEAST_RATIO * step.control]
    parts = sorted(large, key=lambda name: -abs(changes[name]))[:PARTS]
    text = [_of_step(step, unit)]
    if parts:
        said = (f"{signed_text(changes[name], 'ns')} {name}" for name in parts)
        text.append(f"Its largest parts: {', '.join(said)}.")
    if late and not _is_none(step):
        text.append(late)
    rows = (row for name in parts for row in sorted(sums[name], key=lambda row: -abs(row.delta_per_step_ns)))
    return Verdict(text, list(rows))


def _rows(outcomes: Mapping[str, Outcome], table: str) -> Sequence[Any]:
    outcome = outcomes.get(table)
    return outcome.rows if isinstance(outcome, Findings) else ()


def _is_none(step: FigureRow) -> bool:
    """Whether no difference can be told: there is none, or it may have either sign."""
    if not step.delta or step.verdict != "within_noise" or step.low is None or step.high is None:
        return not step.delta
    return step.low * step.high <= 0


def _of_step(row: FigureRow, unit: str) -> str:
    if not row.delta:
        return f"No difference: {unit.lower()} is as long on both sides."
    size = value_text(abs(row.delta), "ns")
    share = "" if row.change_ratio is None else f" ({abs(100 * row.change_ratio):.1f} %)"
    faster = f"{unit} is {size}{share} {'faster' if row.delta < 0 else 'slower'}"
    if row.verdict in ("improvement", "regression", "different"):
        return f"{faster}."
    if row.verdict == "within_noise" and row.low is not None and row.high is not None and row.low * row.high > 0:
        noise = f"{signed_text(row.low, 'ns')} to {signed_text(row.high, 'ns')}"
        return f"{faster}, {noise}: likely, but not certain among all figures compared."
    if row.verdict == "within_noise" and row.low is not None and row.high is not None:
        noise = f"{signed_text(row.low, 'ns')} to {signed_text(row.high, 'ns')}"
        change = "" if row.change_ratio is None else f" ({100 * row.change_ratio:+.1f} %)"
        return f"No difference beyond noise: {signed_text(row.delta, 'ns')}{change}, somewhere from {noise}."
    return f"{faster}; whether beyond noise cannot be told from one step on each side."


def _of_part(row: PartRow) -> str:
    """What a part is: rows of which the same is said are one part."""
    names = row.control_names or row.test_names
    name = names[0] if row.kind.startswith("host") and names else row.operator or (names[0] if names else "")
    name = " ".join(name.split())
    name = name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"
    kind = _KINDS.get(row.kind, row.kind)
    return kind + (f" ({name})" if name else "")
