"""What did ``torch.compile`` compile, when, for how long, and why again?

The input is logs of ``TORCH_TRACE``, beside the trace or alone (``--torch-trace``); without any it is skipped. A row is
one compilation of one frame, in the order of the log. ``compile_id`` is that of the slices
``Torch-Compiled Region: 1/0``: the frame, and how often it was compiled before; ``aot`` is a compilation ahead of time
(AOTInductor). ``guard`` is the condition that no earlier compilation met, so that the frame was compiled again.

``compile_ns`` is the time in which the compiler worked, also what it compiled later, such as the backward pass. It is
drawn as ``Compiler's log`` where log and trace overlap; both have Unix times.

**What to do**: what compiles in steady steps costs them; mark sizes and numbers that change as dynamic. At a graph
break the device may wait for Python. See [logs of the compiler](compile-logs.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from augment import facts
from augment.core import Diagnostic, Findings, OfRank, Skipped, SliceTrack, Texts, Trace, column, records, source_code

NAME = "compilations"
NEEDS = ()


class Row(OfRank, frozen=True):
    """One compilation."""

    compile_id: Annotated[str, column("Its id: the frame, and how often it was compiled before.")]
    function: Annotated[str | None, column("The function that was compiled.")]
    source: Annotated[str | None, column("Where that begins.")]
    guard: Annotated[str | None, column("Why it was compiled again: the condition that failed.")]
    guard_source: Annotated[str | None, column("Where that condition comes from, if logged.")]
    graph_breaks: Annotated[list[str], column("Where and why the compiler ended a graph.", key=False)]
    cache: Annotated[str | None, column("What the compiler's caches said, if logged.")]
    failure: Annotated[str | None, column("The error that ended it.")]
    start_ns: Annotated[int | None, column("When it began, after the first event; null if not joined by time.", "ns")]
    compile_ns: Annotated[int, column("How long the compiler worked on it.", "ns")]
    step: Annotated[int | None, column("The step in which it began.")]
    region_count: Annotated[int, column("Number of calls of the compiled code in the trace.", "count")]


def analyze(trace: Trace) -> Findings | Skipped:
    """List the compilations, and draw those of the trace's time."""
    logged = facts.host.logged_compilations(trace)
    if logged is None or isinstance(logged, str):
        return Skipped(logged or "no log of the compiler is given beside the trace: see --torch-trace")
    if not logged.compilations:
        return Skipped("the log has no compilation")
    joined = not logged.why_apart and len(trace.events) > 0
    windows, called = facts.steps.windows(trace), facts.host.compiled_regions(trace)
    rows = []
    for each in logged.compilations:
        breaks = [(source_code.label(why.line), why.reason) for why in each.breaks]
        start = each.spans[0].start_ns if joined and each.spans else None
        place = -1 if start is None else int(windows.of_host(np.array([start]))[0])
        rows.append(
            Row(
                rank=trace.rank,
                compile_id=each.compile_id,
                function=each.function or None,
                source=source_code.label(each.line),
                guard=each.guard or None,
                guard_source=source_code.label(each.guard_line),
                graph_breaks=[f"{where}: {reason}" if where else reason for where, reason in breaks],
                cache=", ".join(dict.fromkeys(each.caches)) or None,
                failure=each.failure or None,
                start_ns=None if start is None else start - int(trace.events.ts[0]),
                compile_ns=each.compile_ns,
                step=int(windows.number[place]) if place >= 0 and windows.number[place] >= 0 else None,
                region_count=len(called.get(each.compile_id, ())),
            )
        )
    bad = logged.unreadable_records
    notes = [Diagnostic("compile_log_unreadable", bad, "records of the compiler's log are no JSON")] if bad else []
    partial = logged.why_apart if logged.why_apart and len(trace.events) else None
    return Findings(rows, [_track(trace, logged.compilations)] if joined else [], notes, partial)


def _track(trace: Trace, compilations: Sequence[records.Compilation]) -> SliceTrack:
    """The time of each compilation, under the thread that drives the recording; of those at once, the first."""
    spans: list[tuple[records.CompileSpan, records.Compilation]] = sorted(
        ((span, each) for each in compilations for span in each.spans), key=lambda pair: pair[0].start_ns
    )
    shown, until = [], -1
    for span, each in spans:
        if span.start_ns >= until:
            shown.append((span, each))
            until = span.end_ns
    track = facts.critical.main_track(trace)
    return SliceTrack(
        analysis=NAME,
        name="Compiler's log",
        under=max(track, 0),
        ts=np.array([span.start_ns for span, _ in shown], np.int64),
        dur=np.array([span.end_ns - span.start_ns for span, _ in shown], np.int64),
        names=Texts.of(" ".join(("compile", each.compile_id, each.function)).strip() for _, each in shown),
        args={
            "guard": Texts.of(each.guard or None for _, each in shown),
            "line": Texts.of(source_code.label(each.line) or None for _, each in shown),
            "graph breaks": np.array([len(each.breaks) for _, each in shown], np.int64),
        },
        description="when torch.compile worked, by its own log (TORCH_TRACE)",
        of_process=True,
    )
