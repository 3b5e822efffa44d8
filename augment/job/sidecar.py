"""The metrics of a job, ``job.metrics.json``: of the shape of a rank's; ``source`` tells of the job's traces."""

from __future__ import annotations

from typing import Any

from augment.findings import Findings
from augment.job.answer import ROWS, Answer
from augment.jsontext import storable
from augment.writers.metrics import SCHEMA_VERSION, analysis_of, encode, tool
from augment.writers.metrics_schema import Schema, schema

SUFFIX = ".metrics.json"


def document(found: Answer, name: str, window: str = "", world_size: int | None = None) -> dict[str, Any]:
    """The sidecar as plain data; its rows are still the questions' own.

    Args:
        name: what the job is called.
        window: which of its recordings it is, if it has several.
        world_size: how many ranks it had, if known.
    """
    found_out = (outcome for outcome in found.outcomes.values() if isinstance(outcome, Findings))
    more = [one for findings in found_out for one in findings.diagnostics]
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": tool(),
        "source": {
            "name": storable(name),
            "window": storable(window),
            "world_size": world_size,
            "ranks": sorted({one.rank for one in found.summaries if one.rank is not None}),
            "traces": [{"name": one.name, "sha256": one.sha256, "rank": one.rank} for one in found.summaries],
        },
        "analyses": {question: analysis_of(outcome) for question, outcome in found.outcomes.items()},
        "diagnostics": [*found.diagnostics, *more],
    }


def content(found: Answer, name: str, window: str = "", world_size: int | None = None) -> bytes:
    """The file."""
    return encode(document(found, name, window, world_size))


def job_schema(*, closed: bool = False) -> Schema:
    """The JSON Schema of the sidecar of a job."""
    whole = schema(ROWS, closed=closed) | {"title": "kineto-augment job"}
    rank = {"type": ["integer", "null"]}
    trace = _record({"name": {"type": "string"}, "sha256": {"type": "string"}, "rank": rank}, closed)
    whole["properties"]["source"] = _record(
        {
            "name": {"type": "string"},
            "window": {"type": "string", "description": "which recording of the job; empty if there is one"},
            "world_size": {"type": ["integer", "null"]},
            "ranks": {"type": "array", "items": {"type": "integer"}},
            "traces": {"type": "array", "items": trace, "minItems": 1},
        },
        closed,
    )
    return whole


def _record(properties: dict[str, Any], closed: bool) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties),
            "additionalProperties": not closed}  # fmt: skip
