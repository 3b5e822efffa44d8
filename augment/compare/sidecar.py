"""The sidecar of a comparison, ``STEM.diff.metrics.json``, in the same shape as that of a trace.

``source`` describes the test and ``control`` the control, for several ranks the first; ``compared`` lists every pair of
ranks with the compared steps. The analyses are the tables of the comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from augment.compare.calls import Side
from augment.compare.core import Diff
from augment.compare.diff_rows import ROWS
from augment.core.trace import Diagnostic
from augment.writers.metrics import (
    SCHEMA_VERSION,
    Schema,
    analysis_of,
    schema,
    source_of,
    source_schema,
    tool,
    verdict_schema,
    write_sidecar,
)
from augment.writers.metrics import (
    SUFFIX as METRICS_SUFFIX,
)

SUFFIX = f".diff{METRICS_SUFFIX}"


def document(diff: Diff, diagnostics: Sequence[Diagnostic] = ()) -> dict[str, Any]:
    """The sidecar as plain data, with the rows of the comparison. ``diagnostics`` are those of writers."""
    first = diff.pairs[0]
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": tool(),
        "source": source_of(first.test.trace),
        "control": source_of(first.control.trace),
        "verdict": {"text": diff.verdict.text, "rows": diff.verdict.rows},
        "compared": [{"control": _side(pair.control), "test": _side(pair.test)} for pair in diff.pairs],
        "analyses": {name: analysis_of(outcome) for name, outcome in diff.outcomes.items()},
        "diagnostics": [*first.test.trace.diagnostics, *diff.diagnostics, *diagnostics],
    }


def write(diff: Diff, path: Path, diagnostics: Sequence[Diagnostic] = ()) -> None:
    """Write the sidecar to ``path``; ``diagnostics`` list what writers changed.

    Raises:
        OutputError: ``path`` cannot be written.
    """
    write_sidecar(document(diff, diagnostics), path, diff.pairs[0].test.trace.source.path)


def diff_schema(*, closed: bool = False) -> Schema:
    """The JSON Schema of the sidecar of a comparison."""
    side = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "sha256": {"type": "string"},
            "rank": {"type": ["integer", "null"]},
            "steps": {"type": "array", "items": {"type": "integer"}, "description": "empty for a whole recording"},
        },
        "required": ["name", "sha256", "rank", "steps"],
        "additionalProperties": not closed,
    }
    pair = {"type": "object", "properties": {"control": side, "test": side}, "required": ["control", "test"]}
    more = {
        "control": source_schema(closed),
        "verdict": verdict_schema(ROWS["diff_waterfall"], closed),
        "compared": {"type": "array", "items": pair, "minItems": 1},
    }
    return schema(ROWS, closed=closed, more=more) | {"title": "kineto-augment comparison"}


def _side(side: Side) -> dict[str, Any]:
    source = side.trace.source
    steps = [number for number in side.steps.number.tolist() if number >= 0]
    return {"name": source.label, "sha256": source.sha256, "rank": side.trace.rank, "steps": steps}
