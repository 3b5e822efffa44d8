"""The JSON Schema of the sidecar, made from the analyses' row declarations."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any

from msgspec import Struct

from augment.core.findings import columns_of
from augment.writers.files import TOLD
from augment.writers.metrics import SCHEMA_VERSION

Schema = dict[str, Any]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_JUDGING = "diagnosis"  #: the analysis that provides the rows of a verdict
_STATUS = ("ok", "partial", "skipped")


def schema(rows: Mapping[str, type[Any]], *, closed: bool = False, more: Mapping[str, Schema] | None = None) -> Schema:
    """The schema of a sidecar.

    Args:
        rows: the class of the rows of each analysis, by the analysis's name.
        closed: also refuse what the schema does not know. A later version may add members, so the published schema
            is open; tests close it, to see what somebody forgot to declare.
        more: members beside the usual, and their schemas. ``rows`` with ``diagnosis`` add the verdict, which has its
            rows, and what a job tells its ranks.
    """
    verdict = {}
    if _JUDGING in rows:
        verdict = {"verdict": verdict_schema(rows[_JUDGING], closed), TOLD: _told_schema(rows[_JUDGING], closed)}
    whole = {
        "$schema": _DIALECT,
        "title": "kineto-augment metrics",
        **_record(
            {
                "schema_version": {"const": SCHEMA_VERSION},
                "tool": _record({"name": {"type": "string"}, "version": {"type": "string"}}, closed),
                "source": source_schema(closed),
                **verdict,
                **(more or {}),
                "analyses": {
                    "type": "object",
                    "properties": {name: _analysis(row, closed) for name, row in rows.items()},
                    "additionalProperties": not closed,
                },
                "diagnostics": _list_of(_diagnostic(closed)),
            },
            closed,
        ),
    }
    optional = ("verdict", TOLD)  # only if the analysis ran; only if the trace was converted with its job
    whole["required"] = [name for name in whole["required"] if name not in optional]
    return whole


def _told_schema(row: type[Any], closed: bool) -> Schema:
    """The schema of what a job tells a rank."""

    def ns(doc: str) -> Schema:
        return {"type": ["integer", "null"], "unit": "ns", "description": f"{doc}; null if unknown"}

    members: dict[str, Schema] = {
        "text": {**_list_of(_type(str)), "description": "about the rank, and what to do; empty if the job cannot tell"},
        "job": {"type": "string", "description": "the verdict of the job"},
        "waits_for": {
            "type": ["string", "null"],
            "description": "the rank that most of the wait is for; null if that is no single one",
        },
        "wait_per_step_ns": ns("communication without computing that waits for late ranks"),
        "transfer_per_step_ns": ns("communication without computing that moves data"),
        "longer_than_peers_per_step_ns": {
            "type": ["integer", "null"],
            "unit": "ns",
            "description": "by how much the own work of a rank that holds the job up exceeds its peers'; else null",
        },
        "verdict": {
            **_list_of(_type(str)),
            "description": "the verdict of the rank where its job is known; empty if the job cannot tell",
        },
        "rows": {
            **_list_of(_row(row, closed)),
            "description": "the answers of rules that differ from those in the analysis diagnosis, in their place",
        },
    }
    return _record(members, closed) | {"description": "what the traces of all ranks of its job tell of the rank"}


def verdict_schema(row: type[Any], closed: bool) -> Schema:
    """The schema of a verdict with rows ``row``: its sentences (none if nothing was judged) and the rows that support
    them.
    """
    return _record({"text": _list_of(_type(str)), "rows": _list_of(_row(row, closed))}, closed)


def source_schema(closed: bool) -> Schema:
    """The schema of the description of an input."""
    window = _record({"first_step": _type(int), "last_step": _type(int), "start_ns": _type(int)}, closed)
    window |= {"type": ["object", "null"], "description": "the steps that alone were analysed; null if all were"}
    device = {"rank": _type(int | None), "device": _type(int | str | None), "name": _type(str)}
    return _record(
        {
            "name": _type(str),
            "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$", "description": "of the file as it was read"},
            "format": {"type": "string", "description": "name of the reader"},
            "events": {"type": "integer", "minimum": 0},
            "ranks": _list_of(_type(int)),
            "rank_from": {"type": ["string", "null"], "description": "what told the rank"},
            "partial": {"type": ["string", "null"], "description": "why the trace is not whole"},
            "devices": _list_of(_record(device, closed)),
            "start_ns": {"type": ["integer", "null"], "description": "time of the first event"},
            "duration_ns": {"type": "integer", "minimum": 0, "description": "from there to the last end"},
            "steps": _list_of(_type(int)),
            "window": window,
        },
        closed,
    )


def _analysis(row: type[Any], closed: bool) -> Schema:
    """The schema of an outcome: with a reason unless it is ok, and without rows if it was skipped."""
    outcome = _record({"status": {"enum": list(_STATUS)}, "rows": _list_of(_row(row, closed))}, closed)
    outcome["properties"]["reason"] = {"type": "string"}
    outcome["if"] = {"properties": {"status": {"const": "ok"}}}
    outcome["else"] = {"required": ["reason"]}
    return outcome


def _row(row: type[Struct], closed: bool) -> Schema:
    fields = {}
    for column in columns_of(row):
        described = {"description": column.doc, **_type(column.type)}
        if column.unit:
            described["unit"] = column.unit
        fields[column.name] = described
    return _record(fields, closed)


def _diagnostic(closed: bool) -> Schema:
    return _record({"code": _type(str), "count": {"type": "integer", "minimum": 0}, "message": _type(str)}, closed)


def _record(properties: dict[str, Schema], closed: bool) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": not closed,
    }


def _list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _type(hint: Any) -> Schema:
    """The schema of the type of one field. A float may be null, because JSON has no NaN."""
    origin = typing.get_origin(hint)
    if origin in (list, tuple) or getattr(origin, "__name__", "") == "Sequence":
        return _list_of(_type(typing.get_args(hint)[0]))
    if origin is dict:
        return {"type": "object"}
    if origin is typing.Literal:
        return {"enum": list(typing.get_args(hint))}
    members = typing.get_args(hint) if origin in (typing.Union, UnionType) else (hint,)
    names: list[str] = []
    for member in members:
        names += [name for name in _NAMES[member] if name not in names]
    return {"type": names[0] if len(names) == 1 else names}


_NAMES: dict[Any, tuple[str, ...]] = {
    bool: ("boolean",),
    int: ("integer",),
    float: ("number", "null"),
    str: ("string",),
    NoneType: ("null",),
}
