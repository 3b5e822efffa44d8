"""The sidecar: every metric of a trace as JSON, ``STEM.metrics.json``.

``source.start_ns`` is the time of the first event and ``source.duration_ns`` from there to the last end of one,
whatever their phase: the span of the recording. ``source.steps`` are the numbers of the ``ProfilerStep#n``
annotations that occur. A number that does not exist, such as a mean of nothing, is ``null``.

What the job tells a rank is known only when all its ranks are converted. The sidecar then gets a member of its own, at
a seam as in the other outputs, and its verdict is the job's, beside that of the rank alone; without the job, the
sidecar is as it was written.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, BinaryIO

import msgspec
import numpy as np
from msgspec import Struct

from augment.core import AugmentedTrace, Diagnostic, Findings, Outcome, SliceTrack, Trace, Window, columns_of, text
from augment.core.output_files import METRICS_SUFFIX, TOLD, copy_bytes, replacing
from augment.diagnosis.wording import vendor
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.steps.step_windows import step_numbers
from augment.version import __version__
from augment.writers.seams import Addable, Seam

NAME = "metrics"  #: of the seam; users cannot choose this writer, because the sidecar is always written
SCHEMA_VERSION = "1.2"
_ANALYSES, _DIAGNOSIS = b',\n  "analyses": ', b'\n    "diagnosis": '
ROWS_ALONE = "rows_alone"  #: of what a job tells: the rank's own answers in their place
ALONE = "verdict_alone"  #: the member with a rank's verdict without its job


class ReportedTrack(SliceTrack, frozen=True):
    """A track of a job in the timeline of a rank; ``reported`` is what its metrics then say of the job."""

    reported: Mapping[str, Any] = msgspec.field(default_factory=dict)


class MetricsSeam(Seam, frozen=True, tag=NAME):
    """The member ``verdict`` begins ``at`` a byte of the sidecar, with a value of ``verdict_size`` bytes (0: there is
    none), before the analyses. There it is, too, under another name, where the job has a verdict; and rows of the
    diagnosis that the job tells otherwise stand in the place of the rank's own, which are then among what it tells."""

    SUFFIX = METRICS_SUFFIX

    verdict_size: int

    def with_tracks(self, old: BinaryIO, new: BinaryIO, annotations: Sequence[Addable]) -> None:
        """See :meth:`Seam.with_tracks`; what a :class:`ReportedTrack` says is added."""
        copy_bytes(old, new, self.at)
        content = old.read()
        until = content.index(_ANALYSES)  # in texts, ends of lines are escaped
        alone, analyses = content[until - self.verdict_size : until], content[until:]
        marked = content[: until - self.verdict_size].find(b"\n    " + _json(ROWS_ALONE) + b": ")
        if marked >= 0:
            rows_alone = msgspec.json.decode(content[marked:].partition(b": ")[2].partition(b"\n")[0].rstrip(b","))
            analyses = _replaced(analyses, rows_alone)[0]
        name = "verdict"
        for member in [each.reported for each in annotations if isinstance(each, ReportedTrack)][:1]:
            if alone and member["verdict"]:
                rows = found_in_job(msgspec.json.decode(alone)["rows"], member["rows"])
                new.write(b',\n  "verdict": ' + _verdict({"text": member["verdict"], "rows": rows}))
                name = ALONE
            analyses, rows_alone = _replaced(analyses, member["rows"])
            members = {k: _json(v) for k, v in member.items()} | {ROWS_ALONE: _json(rows_alone)}
            new.write(b",\n  " + _json(TOLD) + b": " + _members(members, b"  "))
        if alone:
            new.write(b",\n  " + _json(name) + b": " + alone)
        new.write(analyses)


def _replaced(analyses: bytes, rows: Sequence[Mapping[str, Any]]) -> tuple[bytes, list[dict[str, Any]]]:
    """The analyses of a sidecar with these ``rows`` of the diagnosis in place of those of their rules; and those."""
    of_rule, before = {row["rule"]: row for row in rows}, list[dict[str, Any]]()
    start = analyses.find(_DIAGNOSIS)
    if not of_rule or start < 0:
        return analyses, before
    stop = analyses.index(b"\n    ", start + len(_DIAGNOSIS))
    while analyses[stop : stop + 7] == b"\n      ":  # a line for each row
        stop = analyses.index(b"\n    ", stop + 1)
    lines = analyses[start:stop].split(b"\n")
    for place, line in enumerate(lines):
        if line.startswith(b"      {"):
            row = msgspec.json.decode(line.rstrip(b","))
            if row["rule"] in of_rule:
                before.append(row)
                lines[place] = b"      " + _json(of_rule[row["rule"]]) + b"," * line.endswith(b",")
    return analyses[:start] + b"\n".join(lines) + analyses[stop:], before


def found_in_job(found_alone: Sequence[dict[str, Any]], told_rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was found, as rows of the diagnosis: by a rank alone, but where the job tells otherwise; what only the job
    finds comes first."""
    known = {row["rule"]: row for row in told_rows}
    judged = [known.get(row["rule"], row) for row in found_alone]
    ruled = {row["rule"] for row in judged}
    more = [row for row in known.values() if row["rule"] not in ruled]
    return [row for row in (*more, *judged) if row["status"] == "found"]


def write(augmented: AugmentedTrace, path: Path, more: Sequence[Diagnostic] = ()) -> MetricsSeam:
    """Write the sidecar to ``path``. ``more`` are diagnostics of the other writers of the trace.

    Raises:
        OutputError: ``path`` cannot be written.
    """
    content = write_sidecar(document(augmented, more), path, augmented.trace.source.path)
    until = content.index(_ANALYSES)  # in texts, ends of lines are escaped
    opening = b',\n  "verdict": '
    at = content.find(opening, 0, until)
    size = until - at - len(opening) if at >= 0 else 0
    return MetricsSeam(at if at >= 0 else until, size)


def as_read(augmented: AugmentedTrace) -> dict[str, Any]:
    """The sidecar as one that was written and read again: rows are dicts."""
    return msgspec.json.decode(encode(document(augmented)), type=dict[str, Any])


def document(augmented: AugmentedTrace, more: Sequence[Diagnostic] = ()) -> dict[str, Any]:
    """The sidecar as plain data. Its rows are the row objects of the analyses."""
    verdict = augmented.verdict
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": tool(),
        "source": source_of(augmented.trace, augmented.window),
        **({"verdict": {"text": verdict.text, "rows": verdict.rows}} if verdict.text else {}),
        "analyses": {name: analysis_of(outcome) for name, outcome in augmented.outcomes.items()},
        "diagnostics": [*augmented.diagnostics, *more],
    }


def write_sidecar(sidecar: dict[str, Any], path: Path, source: str) -> bytes:
    """Write a sidecar to ``path``, never over its ``source``; returns what was written.

    Raises:
        OutputError: ``path`` cannot be written.
    """
    content = encode(sidecar)
    with replacing(path, source) as file:
        file.write(content)
    return content


def encode(sidecar: dict[str, Any]) -> bytes:
    """``sidecar`` as readable JSON: a line for each member, metric row and diagnostic."""
    forms: dict[str, Callable[[Any], bytes]] = {
        "source": lambda source: _members({name: _json(value) for name, value in source.items()}, b"  "),
        "verdict": _verdict,
        "analyses": lambda known: _members({name: _with_rows(each) for name, each in known.items()}, b"  "),
        "diagnostics": lambda known: _lines(known, b"  "),
    }
    return _members({name: forms.get(name, _json)(value) for name, value in sidecar.items()}, b"") + b"\n"


def _with_rows(analysis: Mapping[str, Any]) -> bytes:
    """An analysis as readable JSON: its rows come last."""
    head = _json({name: value for name, value in analysis.items() if name != "rows"})
    return head[:-1] + b',"rows":' + _lines(analysis["rows"], b"    ") + b"}"


def _verdict(verdict: Mapping[str, Any]) -> bytes:
    """A verdict as readable JSON."""
    parts = {
        k: _lines(each, b"    ") if isinstance(each, (list, tuple)) else _json(each) for k, each in verdict.items()
    }
    return _members(parts, b"  ")


def _members(values: dict[str, bytes], indent: bytes) -> bytes:
    """A JSON object with a line for each of ``values``, which are JSON."""
    return b"{%s\n%s}" % (b",".join(b"\n%s  %s: %s" % (indent, _json(k), v) for k, v in values.items()), indent)


def _lines(values: Sequence[Any], indent: bytes) -> bytes:
    """A JSON array with a line for each of ``values``."""
    if not values:
        return b"[]"
    separator = b",\n%s  " % indent  # line ends occur only between values: in strings they are escaped
    return b"[%s%s\n%s]" % (separator[1:], _ENCODER.encode_lines(values)[:-1].replace(b"\n", separator), indent)


def _plain_number(value: Any) -> Any:
    """A numpy scalar as a Python number."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no part of a metric row")


_ENCODER = msgspec.json.Encoder(enc_hook=_plain_number)  # writes NaN and Infinity as null
_json = _ENCODER.encode


def tool() -> dict[str, str]:
    """The program that wrote the sidecar, and its version."""
    return {"name": "kineto-augment", "version": __version__}


def analysis_of(outcome: Outcome) -> dict[str, Any]:
    """The sidecar's entry for one analysis."""
    if not isinstance(outcome, Findings):
        return {"status": outcome.status, "reason": outcome.reason, "rows": []}
    if outcome.partial is not None:
        return {"status": "partial", "reason": outcome.partial, "rows": outcome.rows}
    return {"status": "ok", "rows": outcome.rows}


def source_of(trace: Trace, window: Window | None = None) -> dict[str, Any]:
    """The sidecar's description of its input. If ``window`` is given, only that part was analysed."""
    source, events = trace.source, trace.events
    start_ns = int(events.ts[0]) if len(events) else None
    working = {each.device for each in gpu_work(trace).devices}
    known = working <= {device for device, _ in source.devices}  # ROCm may number them otherwise
    return {
        "name": source.label,
        "sha256": source.sha256,
        "format": source.format,
        "events": source.event_count,
        "ranks": sorted({track.rank for track in trace.tracks if track.rank is not None}),
        "rank_from": source.rank_from,
        "partial": trace.partial,
        "devices": [
            {"rank": trace.rank, "device": device, "name": name, "works": device in working if known else None}
            for device, name in source.devices
        ],
        "accelerator": text.words_of(vendor(trace)).gpu,
        "start_ns": start_ns,
        "duration_ns": trace.extent_ns,
        "recorded_ns": trace.recorded_ns,
        "steps": step_numbers(trace),
        "window": window,
    }


Schema = dict[str, Any]

_WITH_VERDICT = "diagnosis"  #: the analysis that provides the rows of a verdict
_STATUS = ("ok", "partial", "skipped", "failed")


def schema(rows: Mapping[str, type[Any]], *, closed: bool = False, more: Mapping[str, Schema] | None = None) -> Schema:
    """The JSON Schema of a sidecar, made from the row declarations of analyses.

    Args:
        rows: the class of the rows of each analysis, by the analysis's name.
        closed: also refuse what the schema does not know. A later version may add members, so the published schema
            is open; tests close it, to see what somebody forgot to declare.
        more: members beside the usual, and their schemas. ``rows`` with ``diagnosis`` add the verdict, which has its
            rows, and what a job tells its ranks.
    """
    verdict = {}
    if _WITH_VERDICT in rows:
        verdict = {
            "verdict": verdict_schema(rows[_WITH_VERDICT], closed),
            ALONE: verdict_schema(rows[_WITH_VERDICT], closed)
            | {"description": "the verdict of the rank without its job, where `verdict` is what the job tells"},
            TOLD: _told_schema(rows[_WITH_VERDICT], closed),
        }
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kineto-augment metrics",
        **record_schema(
            {
                "schema_version": {"const": SCHEMA_VERSION},
                "tool": record_schema({"name": {"type": "string"}, "version": {"type": "string"}}, closed),
                "source": source_schema(closed),
                **verdict,
                **(more or {}),
                "analyses": {
                    "type": "object",
                    "properties": {name: _analysis(row, closed) for name, row in rows.items()},
                    "additionalProperties": not closed,
                },
                "diagnostics": _list_of(
                    record_schema(
                        {"code": _type(str), "count": {"type": "integer", "minimum": 0}, "message": _type(str)}, closed
                    )
                ),
            },
            closed,
        ),
    }
    optional = ("verdict", ALONE, TOLD)  # only if the analysis ran; only if the trace was converted with its job
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
            "description": "the answers of rules that the job tells otherwise, as in the analysis diagnosis",
        },
        "steps": {
            **_list_of(_type(int)),
            "description": "the steps by which the job is judged, where the rank alone is by others; else empty",
        },
        ROWS_ALONE: {**_list_of(_row(row, closed)), "description": "the answers of the rank alone, in their place"},
    }
    return record_schema(members, closed) | {"description": "what the traces of all ranks of its job tell of the rank"}


def verdict_schema(row: type[Any], closed: bool) -> Schema:
    """The schema of a verdict with rows ``row``: its sentences (none if nothing was judged) and the rows that support
    them.
    """
    return record_schema({"text": _list_of(_type(str)), "rows": _list_of(_row(row, closed))}, closed)


def source_schema(closed: bool) -> Schema:
    """The schema of the description of an input."""
    window = record_schema({"first_step": _type(int), "last_step": _type(int), "start_ns": _type(int)}, closed)
    window |= {"type": ["object", "null"], "description": "the steps that alone were analysed; null if all were"}
    device = {"rank": _type(int | None), "device": _type(int | str | None), "name": _type(str)}
    device["works"] = {"type": ["boolean", "null"], "description": "whether work on it was recorded"}
    return record_schema(
        {
            "name": _type(str),
            "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$", "description": "of the file as it was read"},
            "format": {"type": "string", "description": "name of the reader"},
            "events": {"type": "integer", "minimum": 0},
            "ranks": _list_of(_type(int)),
            "rank_from": {"type": ["string", "null"], "description": "what told the rank"},
            "partial": {"type": ["string", "null"], "description": "why the trace is not whole"},
            "devices": _list_of(record_schema(device, closed)),
            "accelerator": {"type": "string", "description": "what a device is called: GPU, NPU, MTIA device"},
            "start_ns": {"type": ["integer", "null"], "description": "time of the first event"},
            "duration_ns": {"type": "integer", "minimum": 0, "description": "from there to the last end"},
            "recorded_ns": {"type": "integer", "minimum": 0, "description": "to the end of the last slice"},
            "steps": _list_of(_type(int)),
            "window": window,
        },
        closed,
    )


def _analysis(row: type[Any], closed: bool) -> Schema:
    """The schema of an outcome: with a reason unless it is ok, and without rows if it was skipped."""
    outcome = record_schema({"status": {"enum": list(_STATUS)}, "rows": _list_of(_row(row, closed))}, closed)
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
    return record_schema(fields, closed)


def record_schema(properties: dict[str, Schema], closed: bool) -> Schema:
    """The schema of an object that has all of these members, and no others if it is ``closed``."""
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
