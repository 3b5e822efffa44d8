"""Writes the files of a comparison: annotated traces of the test's ranks, overlays, and the sidecar."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from augment import facts
from augment.analyses import steps, temporal_breakdown
from augment.arrays import NO_INDEX, Int64s
from augment.compare.calls import Side
from augment.compare.core import Diff, Pair
from augment.compare.diff_rows import ROWS
from augment.compare.diff_timeline import VERDICT, drawn
from augment.core import AugmentedTrace, Diagnostic, Findings, Outcome, SliceTrack, Trace, jsontext, output_files
from augment.core.bounds import bounded
from augment.errors import OutputError
from augment.facts.source.several_ranks import on_clock
from augment.writers import DEFAULT, metrics, writer_named
from augment.writers.perfetto.packets import Links
from augment.writers.perfetto.several import FirstView, Several, TraceGroup

_CONTROL, _TEST = "control", "test"  #: what ends names of tracks
_VERDICT = "What changed in the"  #: the comparison's verdict, whose track is among the test's; ``test`` ends the name
OVERLAY_SUFFIX = ".diff.overlay.pftrace"
ARROW_COUNT = 100


class Drawing(Struct, frozen=True):
    """What to draw, and how.

    ``formats`` are names of writers; empty means Perfetto's own. ``label`` names the control, ``test_label`` the test;
    empty means its STEM, or the name of its folder. Differences below ``min_delta_ns`` are not drawn; if it is None,
    only those that make up 1 % of a step are. ``arrow_count`` limits the arrows between the traces of an ``overlay``.
    """

    formats: Sequence[str] = ()
    label: str = ""
    min_delta_ns: int | None = None
    overlay: bool = False
    arrow_count: int = ARROW_COUNT
    test_label: str = ""


def write_all(
    diff: Diff, folder: Path, name: str, drawing: Drawing, stage: Callable[[str], None] = lambda _: None
) -> list[Path]:
    """Write the comparison into ``folder``.

    Args:
        diff: the comparison.
        folder: the output folder; it is created if necessary.
        name: the name of the test, and so of the sidecar.
        drawing: what else to write.
        stage: called before each long operation.

    Returns:
        The files written, the sidecar last.

    Raises:
        OutputError: a file cannot be written, or two ranks have files of the same name.
    """
    # refuse ranks that would overwrite each other's files
    taken: dict[str, str] = {}
    for pair in diff.pairs:
        source = pair.test.trace.source
        other = taken.setdefault(output_files.stem(source.name), source.path)
        if other != source.path:
            advice = "compare them separately, with --test-rank"
            raise OutputError(f"{source.path}: would write the same outputs as {other}; {advice}")
    written: list[Path] = []
    diagnostics: list[Diagnostic] = []
    stage("writing")
    for pair in diff.pairs:
        source, label = pair.test.trace.source, drawing.label or output_files.stem(pair.control.trace.source.label)
        augmented = drawn(pair, label, drawing.min_delta_ns, diff.verdict.text)
        for form in drawing.formats or (DEFAULT,):
            writer = writer_named(form)
            suffix = writer.SUFFIX.replace(".augmented", ".diff")
            written.append(output_files.output_path(source.name, folder, suffix))
            diagnostics += writer.write_seamed(augmented, written[-1]).diagnostics
        if drawing.overlay:
            labels = label, output_files.stem(source.label)
            written.append(output_files.output_path(source.name, folder, OVERLAY_SUFFIX))
            diagnostics += write_overlay(pair, augmented, labels, written[-1], drawing.arrow_count)
    path = folder / (name + output_files.DIFF_METRICS_SUFFIX)
    diagnostics = list(dict.fromkeys(diagnostics))  # several files, one trace
    control, test = _compared(diff)
    names = drawing.label or output_files.stem(control.source.label), drawing.test_label or name
    runs = dict(zip(("control", "test"), map(jsontext.storable, names), strict=True))
    metrics.write_sidecar({**document(diff, diagnostics), "runs": runs}, path, test.source.path)
    return [*written, path]


# Writes both traces of a comparison into one file, each as a group of tracks; a step in the middle begins together.
#
# For that, the control's times are shifted by whole nanoseconds; the test's are unchanged. The file says which step to
# show first, and which rows of both sides beside each other. Arrows link the calls that differ most, by their own time
# and that of GPU work that they launched themselves, to their partners.


def write_overlay(
    pair: Pair, drawn: AugmentedTrace, labels: tuple[str, str], path: Path, arrow_count: int = ARROW_COUNT
) -> list[Diagnostic]:
    """Write the overlay to ``path``, in Perfetto's native format.

    Args:
        pair: the compared ranks.
        drawn: the test with the differences as annotations.
        labels: the names of control and test.
        path: the output file.
        arrow_count: the maximum number of arrows.

    Raises:
        OutputError: ``path`` cannot be written.
    """
    control, test = pair.control, pair.test
    framed = len(test.steps) // 2
    shift = int(test.steps.begin[framed]) - int(control.steps.begin[framed])
    first = min(int(control.trace.events.ts[0]) + shift, int(test.trace.events.ts[0]))
    lift = max(0, -first)  # Perfetto drops events before time 0
    before = on_clock(AugmentedTrace(control.trace, _bands(control.trace)), lambda ts: ts + (shift + lift))
    # the outcomes with the name of the verdict's track that says whose it is, beside two runs
    renamed = dict(drawn.outcomes)
    for name, outcome in drawn.outcomes.items():
        if isinstance(outcome, Findings):
            tracks = [
                replace(each, name=_VERDICT) if isinstance(each, SliceTrack) and each.name == VERDICT else each
                for each in outcome.annotations
            ]
            renamed[name] = replace(outcome, annotations=tracks)
    now = AugmentedTrace(drawn.trace, {**renamed, **_bands(test.trace)})
    now = on_clock(now, lambda ts: ts + lift) if lift else now
    partner, chosen = pair.alignment.call_of_test, most_changed(pair, arrow_count)
    ids = np.arange(len(chosen), dtype=np.int64)
    number = int(test.steps.number[framed])
    which = "both recordings begin" if number < 0 else f"step {number} of the test and its partner begin"
    description = f"the control, moved by {shift} ns: {which} together"
    with output_files.replacing(path, test.trace.source.path) as file:
        # The verdict, both sides of the compared step with that place, its differences, and the busiest streams
        control_shift = shift + lift
        begin = min(int(control.steps.begin[framed]) + control_shift, int(test.steps.begin[framed]) + lift)
        end = max(int(control.steps.end[framed]) + control_shift, int(test.steps.end[framed]) + lift)
        busiest = [facts.gpu.busiest_stream(side.trace) for side in (control, test)]
        pins = [f"{_VERDICT} {_TEST}"]
        device = re.escape(str(busiest[1].device)) if busiest[1] else ""
        whose, state = (f"GPU {device}", f"GPU state( device {device})?") if busiest[1] else ("host", "GPU state")
        pins += [f"Δ {whose} {row} {_TEST}" for row in ("slower", "faster", "cumulative")]
        pins += [f"{row} {side}" for row in ("Steps", state) for side in (_CONTROL, _TEST)]
        streams = zip(busiest, (_CONTROL, _TEST), strict=True)
        pins += [f"stream {re.escape(str(stream.stream))} {side}" for stream, side in streams if stream]
        first_view = FirstView(pins, (begin, end))
        several = Several(file, first_view)
        links = Links(control.calls.row[partner[chosen]], ids)
        diagnostics = several.add(
            before, TraceGroup(f"control: {labels[0]}", description, _CONTROL, streams_too=True), links
        )
        links = Links(test.calls.row[chosen], ids)
        group = TraceGroup(f"test: {labels[1]}", "the test, on its own clock", _TEST, streams_too=True)
        diagnostics += several.add(now, group, links)
        several.close()
    return diagnostics


def _bands(trace: Trace) -> dict[str, Outcome]:
    """The steps and the states of the devices, which show both sides at a glance."""
    bands = {"steps": steps.analyze(trace)}
    if len(facts.gpu.work(trace)):
        bands["temporal_breakdown"] = temporal_breakdown.analyze(trace)
    return {name: bounded(band, trace.source.event_count) for name, band in bands.items() if isinstance(band, Findings)}


def most_changed(pair: Pair, count: int) -> Int64s:
    """The test's calls that differ most from their partners, without the differences of calls inside them."""
    now, before, partner = pair.test.calls, pair.control.calls, pair.alignment.call_of_test
    met = np.flatnonzero((partner != NO_INDEX) & (now.step >= 0))
    host = now.cpu_self_ns[met] - before.cpu_self_ns[partner[met]]
    gpu = now.gpu_self_ns[met] - before.gpu_self_ns[partner[met]]
    difference = np.maximum(abs(host), abs(gpu))
    order = np.argsort(-difference, kind="stable")[:count]
    return np.sort(met[order[difference[order] > 0]])


# The sidecar of a comparison, ``STEM.diff.metrics.json``, in the same shape as that of a trace.
#
# ``source`` describes the test and ``control`` the control, for several ranks the first; ``compared`` lists every pair
# of ranks with the compared steps. The analyses are the tables of the comparison.


def document(diff: Diff, diagnostics: Sequence[Diagnostic] = ()) -> dict[str, Any]:
    """The sidecar as plain data, with the rows of the comparison. ``diagnostics`` are those of writers."""
    control, test = _compared(diff)
    compared = [
        {"control": _side(pair.control.trace, _steps(pair.control)), "test": _side(pair.test.trace, _steps(pair.test))}
        for pair in diff.pairs
    ]
    return {
        "schema_version": metrics.SCHEMA_VERSION,
        "tool": metrics.tool(),
        "source": metrics.source_of(test),
        "control": metrics.source_of(control),
        "verdict": {"text": diff.verdict.text, "rows": diff.verdict.rows},
        "traces": dict(zip(("control", "test"), diff.trace_counts, strict=True)),
        "compared": compared or [{"control": _side(control, []), "test": _side(test, [])}],
        "analyses": {name: metrics.analysis_of(outcome) for name, outcome in diff.outcomes.items()},
        "diagnostics": [*test.diagnostics, *diff.diagnostics, *diagnostics],
    }


def _compared(diff: Diff) -> tuple[Trace, Trace]:
    """The control and the test; of several ranks the first."""
    return diff.snapshots or (diff.pairs[0].control.trace, diff.pairs[0].test.trace)


def diff_schema(*, closed: bool = False) -> metrics.Schema:
    """The JSON Schema of the sidecar of a comparison."""
    text: metrics.Schema = {"type": "string"}
    steps = {"type": "array", "items": {"type": "integer"}, "description": "empty for a whole recording"}
    side = metrics.record_schema(
        {"name": text, "sha256": text, "rank": {"type": ["integer", "null"]}, "steps": steps}, closed
    )
    pair = {"type": "object", "properties": {"control": side, "test": side}, "required": ["control", "test"]}
    number: metrics.Schema = {"type": "integer"}
    more = {
        "traces": metrics.record_schema({"control": number, "test": number}, closed) | {"description": "how many"},
        "control": metrics.source_schema(closed),
        "verdict": metrics.verdict_schema(ROWS["diff_waterfall"], closed),
        "compared": {"type": "array", "items": pair, "minItems": 1},
        "runs": metrics.record_schema({"control": text, "test": text}, closed)
        | {"description": "what the two sides are called: their folders, where a side has several traces"},
    }
    return metrics.schema(ROWS, closed=closed, more=more) | {"title": "kineto-augment comparison"}


def _side(trace: Trace, steps: list[int]) -> dict[str, Any]:
    return {"name": trace.source.label, "sha256": trace.source.sha256, "rank": trace.rank, "steps": steps}


def _steps(side: Side) -> list[int]:
    return [number for number in side.steps.number.tolist() if number >= 0]
