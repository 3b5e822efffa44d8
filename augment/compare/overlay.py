"""Writes both traces of a comparison into one file, each as a group of tracks; a step in the middle begins together.

For that, the control's times are shifted by whole nanoseconds; the test's are unchanged. The file says which step to
show first, and which rows of both sides beside each other. Arrows link the calls that
differ most, by their own time and that of GPU work that they launched themselves, to their partners.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from augment.analyses import steps, temporal_breakdown
from augment.arrays.types import NO_INDEX, Int64s
from augment.compare.core import Pair
from augment.compare.diff_timeline import VERDICT
from augment.core.annotations import SliceTrack
from augment.core.bounds import bounded
from augment.core.findings import AugmentedTrace, Findings, Outcome
from augment.core.trace import Diagnostic, Trace
from augment.facts.gpu.gpu_time import busiest_stream
from augment.facts.gpu.gpu_work import Stream, gpu_work
from augment.facts.source.several_ranks import on_clock
from augment.writers.files import replacing
from augment.writers.perfetto.packets import Links
from augment.writers.perfetto.several import FirstView, Several, TraceGroup

_CONTROL, _TEST = "control", "test"  #: what ends names of tracks
_VERDICT = "What changed in the"  #: the comparison's verdict, whose track is among the test's; ``test`` ends the name
SUFFIX = ".diff.overlay.pftrace"
ARROW_COUNT = 100


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
    now = AugmentedTrace(drawn.trace, {**_renamed(drawn.outcomes), **_bands(test.trace)})
    now = on_clock(now, lambda ts: ts + lift) if lift else now
    partner, chosen = pair.alignment.call_of_test, most_changed(pair, arrow_count)
    ids = np.arange(len(chosen), dtype=np.int64)
    number = int(test.steps.number[framed])
    which = "both recordings begin" if number < 0 else f"step {number} of the test and its partner begin"
    description = f"the control, moved by {shift} ns: {which} together"
    with replacing(path, test.trace.source.path) as file:
        several = Several(file, _first_view(pair, framed, shift + lift, lift))
        links = Links(control.calls.row[partner[chosen]], ids)
        diagnostics = several.add(
            before, TraceGroup(f"control: {labels[0]}", description, _CONTROL, streams_too=True), links
        )
        links = Links(test.calls.row[chosen], ids)
        group = TraceGroup(f"test: {labels[1]}", "the test, on its own clock", _TEST, streams_too=True)
        diagnostics += several.add(now, group, links)
        several.close()
    return diagnostics


def _first_view(pair: Pair, step: int, control_shift: int, test_shift: int) -> FirstView:
    """The verdict, both sides of the compared step with that place, its differences, and the busiest streams."""
    control, test = pair.control, pair.test
    begin = min(int(control.steps.begin[step]) + control_shift, int(test.steps.begin[step]) + test_shift)
    end = max(int(control.steps.end[step]) + control_shift, int(test.steps.end[step]) + test_shift)
    busiest = [busiest_stream(side.trace) for side in (control, test)]
    pins = [f"{_VERDICT} {_TEST}"]
    pins += [f"Δ {_device(busiest[1])} {row} {_TEST}" for row in ("slower", "faster", "cumulative")]
    pins += [f"{row} {side}" for row in ("Steps", f"GPU state{_suffix(busiest[1])}") for side in (_CONTROL, _TEST)]
    streams = zip(busiest, (_CONTROL, _TEST), strict=True)
    pins += [f"stream {re.escape(str(stream.stream))} {side}" for stream, side in streams if stream]
    return FirstView(pins, (begin, end))


def _renamed(outcomes: Mapping[str, Outcome]) -> dict[str, Outcome]:
    """The outcomes with the name of the verdict's track that says whose it is, beside two runs."""
    renamed = dict(outcomes)
    for name, outcome in outcomes.items():
        if isinstance(outcome, Findings):
            tracks = [
                replace(each, name=_VERDICT) if isinstance(each, SliceTrack) and each.name == VERDICT else each
                for each in outcome.annotations
            ]
            renamed[name] = replace(outcome, annotations=tracks)
    return renamed


def _device(stream: Stream | None) -> str:
    return "host" if stream is None else f"GPU {re.escape(str(stream.device))}"


def _suffix(stream: Stream | None) -> str:
    return "" if stream is None else f"( device {re.escape(str(stream.device))})?"


def _bands(trace: Trace) -> dict[str, Outcome]:
    """The steps and the states of the devices, which show both sides at a glance."""
    bands = {"steps": steps.analyze(trace)}
    if len(gpu_work(trace)):
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
