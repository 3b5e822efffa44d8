"""The metrics of a job, ``job.metrics.json``, in the shape of a rank's sidecar; ``source`` lists the job's traces."""

from __future__ import annotations

from typing import Any

from augment.core import Findings
from augment.core.jsontext import storable
from augment.job import answer, roles
from augment.job.answer import Answer
from augment.job.rank_answers import cures
from augment.job.roles import Together
from augment.job.verdict import Row as VerdictRow
from augment.writers import metrics

ROWS = {**answer.ROWS, **roles.ROWS}  #: the rows of each question to a job, or to roles together


def document(result: Answer | Together, name: str, window: str = "", world_size: int | None = None) -> dict[str, Any]:
    """The sidecar as plain data; its rows are those of the analyses.

    Args:
        name: the job's name.
        window: the name of the recording, if the job has several.
        world_size: the number of ranks of the job, if known.
    """
    found_out = (outcome for outcome in result.outcomes.values() if isinstance(outcome, Findings))
    more = [diagnostic for findings in found_out for diagnostic in findings.diagnostics]
    return {
        "schema_version": metrics.SCHEMA_VERSION,
        "tool": metrics.tool(),
        "source": {
            "name": storable(name),
            "window": storable(window),
            "world_size": world_size,
            "ranks": sorted({summary.rank for summary in result.summaries if summary.rank is not None}),
            "traces": [
                {"name": summary.name, "sha256": summary.sha256, "rank": summary.rank} for summary in result.summaries
            ],
        },
        "verdict": {
            "text": list(result.verdict.text),
            "rows": list(result.verdict.rows),
            "joined": result.verdict.joined,
            "label": result.judgement.label if isinstance(result, Answer) else "",
            "severity": result.judgement.severity[0] if isinstance(result, Answer) else "",
            "confidence": result.judgement.severity[1] if isinstance(result, Answer) else "",
            "cures": cures(result) if isinstance(result, Answer) else [],
        },
        "analyses": {question: metrics.analysis_of(outcome) for question, outcome in result.outcomes.items()},
        "diagnostics": [*result.diagnostics, *more],
    }


def content(result: Answer | Together, name: str, window: str = "", world_size: int | None = None) -> bytes:
    """The content of the file."""
    return metrics.encode(document(result, name, window, world_size))


def job_schema(*, closed: bool = False) -> metrics.Schema:
    """The JSON Schema of the sidecar of a job."""
    verdict = metrics.verdict_schema(VerdictRow, closed)
    verdict["properties"]["joined"] = {
        "type": "boolean",
        "description": "whether anything shows that the traces are ranks of one job; missing from older files",
    }
    verdict["properties"]["label"] = {
        "type": "string",
        "description": "what holds the job up and what a fix saves, in few words; empty if nothing does, missing from "
        "older files",
    }
    verdict["properties"]["severity"] = {
        "type": "string",
        "description": "how grave that is, by what it costs or saves: high, warning or info; empty if nothing is "
        "named, missing from older files",
    }
    verdict["properties"]["confidence"] = {
        "type": "string",
        "description": "the confidence of what is most grave: high, medium or low; empty if nothing is named, missing "
        "from older files",
    }
    verdict["properties"]["cures"] = {
        "type": "array",
        "items": {"type": "string"},
        "description": "what to do about what the verdict names first, from the findings of a rank that has it; empty "
        "if none says so, missing from older files",
    }
    more = {"verdict": verdict}
    whole = metrics.schema(ROWS, closed=closed, more=more) | {"title": "kineto-augment job"}
    rank = {"type": ["integer", "null"]}
    trace = metrics.record_schema({"name": {"type": "string"}, "sha256": {"type": "string"}, "rank": rank}, closed)
    whole["properties"]["source"] = metrics.record_schema(
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
