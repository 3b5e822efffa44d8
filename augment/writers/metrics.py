"""The sidecar: every metric of a trace as JSON, ``STEM.metrics.json``.

``source.start_ns`` is the time of the first event and ``source.duration_ns`` from there to the last end of one,
whatever their phase: the span of the recording. ``source.steps`` are the numbers of the ``ProfilerStep#n``
annotations that occur. A number that does not exist, such as a mean of nothing, is ``null``.

What the job tells a rank is known only when all its ranks are converted. The sidecar then gets a member of its own, at
a seam as in the other outputs; without it, the sidecar is as it was written.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from augment.core.annotations import SliceTrack
from augment.core.findings import AugmentedTrace, Findings, Outcome, Window
from augment.core.trace import Diagnostic, Trace
from augment.facts.steps.steps import step_numbers
from augment.version import __version__
from augment.writers import seams
from augment.writers.files import METRICS_SUFFIX, TOLD, replacing
from augment.writers.seams import Addable, Seam

NAME = "metrics"  #: of the seam; users cannot choose this writer, because the sidecar is always written
SUFFIX = METRICS_SUFFIX
SCHEMA_VERSION = "1.0"
DISTRIBUTION = "kineto-augment"


class ReportedTrack(SliceTrack, frozen=True):
    """A track of a job in the timeline of a rank; ``reported`` is what its metrics then say of the job."""

    reported: Mapping[str, Any] = msgspec.field(default_factory=dict)


class MetricsSeam(Seam, frozen=True, tag=NAME):
    """The sidecar had ``size`` bytes; a member can be added at byte ``at``."""

    SUFFIX = SUFFIX

    size: int

    def with_tracks(self, old: BinaryIO, new: BinaryIO, annotations: Sequence[Addable]) -> None:
        """See :meth:`Seam.with_tracks`; what a :class:`ReportedTrack` says is added."""
        seams.copy(old, new, self.at)
        for member in [each.reported for each in annotations if isinstance(each, ReportedTrack)][:1]:
            new.write(b",\n  " + _json(TOLD) + b": " + _members({k: _json(v) for k, v in member.items()}, b"  "))
        rest = self.size - self.at
        old.seek(-rest, os.SEEK_END)
        seams.copy(old, new, rest)


def write(augmented: AugmentedTrace, path: Path, more: Sequence[Diagnostic] = ()) -> MetricsSeam:
    """Write the sidecar to ``path``. ``more`` are diagnostics of the other writers of the trace.

    Raises:
        OutputError: ``path`` cannot be written.
    """
    content = encode(document(augmented, more))
    with replacing(path, augmented.trace.source.path) as file:
        file.write(content)
    return MetricsSeam(content.index(b',\n  "analyses": '), len(content))  # in texts, ends of lines are escaped


def as_read(augmented: AugmentedTrace) -> dict[str, Any]:
    """The sidecar as one that was written and read again: rows are dicts."""
    decoded: dict[str, Any] = msgspec.json.decode(encode(document(augmented)))
    return decoded


def document(augmented: AugmentedTrace, more: Sequence[Diagnostic] = ()) -> dict[str, Any]:
    """The sidecar as plain data. Its rows are the row objects of the analyses."""
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": tool(),
        "source": source_of(augmented.trace, augmented.window),
        **_verdict(augmented),
        "analyses": {name: analysis_of(outcome) for name, outcome in augmented.outcomes.items()},
        "diagnostics": [*augmented.diagnostics, *more],
    }


def _verdict(augmented: AugmentedTrace) -> dict[str, Any]:
    """The verdict, if an analysis that can give one ran."""
    verdict = augmented.verdict
    return {} if not verdict.text else {"verdict": {"text": verdict.text, "rows": verdict.rows}}


def encode(sidecar: dict[str, Any]) -> bytes:
    """``sidecar`` as readable JSON: a line for each member, metric row and diagnostic."""
    members = {name: _json(value) for name, value in sidecar.items()}
    members["source"] = _members({name: _json(value) for name, value in sidecar["source"].items()}, b"  ")
    if "verdict" in sidecar:
        parts = {
            name: _lines(each, b"    ") if isinstance(each, Sequence) else _json(each)
            for name, each in sidecar["verdict"].items()
        }
        members["verdict"] = _members(parts, b"  ")
    texts = {name: _analysis_text(outcome) for name, outcome in sidecar["analyses"].items()}
    members["analyses"] = _members(texts, b"  ")
    members["diagnostics"] = _lines(sidecar["diagnostics"], b"  ")
    return _members(members, b"") + b"\n"


def _analysis_text(analysis: dict[str, Any]) -> bytes:
    head = _json({name: value for name, value in analysis.items() if name != "rows"})
    return head[:-1] + b',"rows":' + _lines(analysis["rows"], b"    ") + b"}"


def _members(values: dict[str, bytes], indent: bytes) -> bytes:
    """A JSON object with a line for each of ``values``, which are JSON."""
    return b"{%s\n%s}" % (b",".join(b"\n%s  %s: %s" % (indent, _json(k), v) for k, v in values.items()), indent)


def _lines(values: Sequence[Any], indent: bytes) -> bytes:
    """A JSON array with a line for each of ``values``."""
    if not values:
        return b"[]"
    separator = b",\n%s  " % indent  # line ends occur only between values: in strings they are escaped
    return b"[%s%s\n%s]" % (separator[1:], _ENCODER.encode_lines(values)[:-1].replace(b"\n", separator), indent)


def _json(value: Any) -> bytes:
    return _ENCODER.encode(value)


def _plain_number(value: Any) -> Any:
    """A numpy scalar as a Python number."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no part of a metric row")


_ENCODER = msgspec.json.Encoder(enc_hook=_plain_number)  # writes NaN and Infinity as null


def tool() -> dict[str, str]:
    """The program that wrote the sidecar, and its version."""
    return {"name": DISTRIBUTION, "version": __version__}


def analysis_of(outcome: Outcome) -> dict[str, Any]:
    """The sidecar's entry for one analysis."""
    if not isinstance(outcome, Findings):
        return {"status": "skipped", "reason": outcome.reason, "rows": []}
    if outcome.partial is not None:
        return {"status": "partial", "reason": outcome.partial, "rows": outcome.rows}
    return {"status": "ok", "rows": outcome.rows}


def source_of(trace: Trace, window: Window | None = None) -> dict[str, Any]:
    """The sidecar's description of its input. If ``window`` is given, only that part was analysed."""
    source = trace.source
    start_ns, duration_ns = _extent(trace)
    return {
        "name": source.label,
        "sha256": source.sha256,
        "format": source.format,
        "events": source.event_count,
        "ranks": sorted({track.rank for track in trace.tracks if track.rank is not None}),
        "rank_from": source.rank_from,
        "partial": trace.partial,
        "devices": [{"rank": trace.rank, "device": device, "name": name} for device, name in source.devices],
        "start_ns": start_ns,
        "duration_ns": duration_ns,
        "steps": step_numbers(trace),
        "window": window,
    }


def _extent(trace: Trace) -> tuple[int | None, int]:
    """First start and total length, ns, of all events with a time."""
    if not len(trace.events):
        return None, 0
    start = int(trace.events.ts[0])
    return start, int(trace.events.end.max()) - start
