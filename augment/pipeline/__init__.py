"""Runs analyses over a trace."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from msgspec.structs import replace

from augment.analyses import Analysis, diagnosis
from augment.arrays import EventRow
from augment.core import COMPLETE, STAGES, AugmentedTrace, Ends, Flows, Outcome, Skipped, Stage, Trace, Window, derived
from augment.core.bounds import bounded
from augment.core.threads import Threads
from augment.diagnosis.ranking import stage_of_rule
from augment.diagnosis.rules import RULES
from augment.errors import AugmentError
from augment.facts.steps.window import rows_in_whole, within
from augment.pipeline.request import Request
from augment.readers import read
from augment.readers.attachments.tables import with_tables

Progress = Callable[[str, int, int], None]  #: called with an analysis's name, the number of analyses done, and of all

THREADS_FROM = 50_000  #: events; with fewer, threads cost more than they save
#: the analyses of each stage but the breakdowns, which are all others. They begin in this order, so that the fewest
#: facts are held while some take much memory
STAGE_OF: dict[str, Stage] = {
    "critical_path_operators": "critical path",
    "critical_path": "critical path",
    "diagnosis": "diagnosis",
    "cost": "diagnosis",  # waits for the diagnosis: nothing else that takes memory is begun beside that
    "roofline": "operations",
    "inference_steps": "operations",
    "inference_phases": "operations",
    "step_efficiency": "operations",
    "model_flops": "operations",
    "operator_breakdown": "breakdowns",  # before the others: it takes much memory, as does what comes last
    "idle_time_breakdown": "idle time",
}


def augment(
    trace: Trace | str | os.PathLike[str],
    request: Request | None = None,
    *,
    progress: Progress | None = None,
    threads: int = 1,
    later: Literal["summary", "writing"] | None = None,
    **fields: Any,
) -> AugmentedTrace:
    """Run all analyses, or those of a request.

    Args:
        trace: the trace to analyse, which is not changed; or the path of a file with one.
        request: what to run; None means all analyses.
        progress: called before each analysis; with several threads by any of them, but never by two at once.
        threads: how many analyses of a large trace may run at once. The results do not depend on it.
        later: the first stage that follows. Facts of a large trace that neither it nor analyses to come request are
            dropped, which saves memory. None keeps all facts.
        fields: fields of :class:`augment.pipeline.request.Request` that replace those of ``request``:
            ``only=["steps"]``, ``skip=[…]``, ``options={"idle_time_breakdown": {…}}``, ``steps=(3, 5)``.

    Raises:
        InputError: the file cannot be read.
        UsageError: an analysis, option or step does not exist, or a value differs in type from the option's default.

    An error of this program in an analysis is the outcome of that analysis (``failed``); the others are made.
    """
    request = Request.of(request, fields)
    trace = trace if isinstance(trace, Trace) else read(trace)
    analyses = request.analyses()
    trace = with_tables(trace, *request.tables, peaks=request.peaks, region=request.region)
    part = trace if request.steps is None else within(trace, *request.steps)
    window = None if request.steps is None else Window(*request.steps, int(part.events.ts[0]))
    is_large = len(part.events) >= THREADS_FROM
    begun, beginning = 0, threading.Lock()
    shared = Threads(threads if is_large else 1)
    planned: list[Stage] = []
    if later and is_large:
        for each in analyses:
            planned += [_stage(each), *(map(stage_of_rule, RULES) if each is diagnosis else ())]
        planned.append(later)
    examined = replace(part, context=part.context.of_run(shared, planned))

    def run(analysis: Analysis) -> Outcome:
        nonlocal begun
        with beginning:
            if progress:
                progress(analysis.NAME, begun, len(analyses))
            begun += 1
        outcome = _outcome(examined, analysis, request.options.get(analysis.NAME, {}))
        outcome = outcome if part is trace else _of_whole(outcome, part)
        examined.context.end(_stage(analysis))
        return outcome

    outcomes = _each(analyses, run, shared)
    rows = {analysis.NAME: analysis.Row for analysis in analyses}
    if "step_figures" in request.only:  # for scripts of before 0.3: what is asked for by this name is there by it
        made = outcomes["steps"]
        outcomes["step_figures"] = made if isinstance(made, Skipped) else replace(made, annotations=(), diagnostics=())
        rows["step_figures"] = rows["steps"]
    return AugmentedTrace(trace, outcomes, window, rows)


def _stage(analysis: Analysis) -> Stage:
    return STAGE_OF.get(analysis.NAME, "breakdowns")


def _each(analyses: Sequence[Analysis], run: Callable[[Analysis], Outcome], threads: Threads) -> dict[str, Outcome]:
    """The outcomes in the order of the analyses, which several threads run if there are to be several."""
    names = [*STAGE_OF]

    def turn(analysis: Analysis) -> tuple[int, int]:
        return STAGES.index(_stage(analysis)), names.index(analysis.NAME) if analysis.NAME in names else len(names)

    ordered = sorted(analyses, key=turn)
    outcomes = threads.all([partial(run, analysis) for analysis in ordered])
    of_name = {analysis.NAME: outcome for analysis, outcome in zip(ordered, outcomes, strict=True)}
    return {analysis.NAME: of_name[analysis.NAME] for analysis in analyses}


def _outcome(trace: Trace, analysis: Analysis, options: Mapping[str, Any]) -> Outcome:
    for group in analysis.NEEDS:
        if not any(category in present_categories(trace) for category in group):
            return Skipped.without(group)
    try:
        outcome = analysis.analyze(trace, **options)
    except (AugmentError, MemoryError):
        raise
    except Exception as error:
        because = f"internal error, {type(error).__name__}: {error}; please report what augment run --debug shows"
        return Skipped(because, traceback=traceback.format_exc())
    return outcome if isinstance(outcome, Skipped) else bounded(outcome, trace.source.event_count)


def _of_whole(outcome: Outcome, part: Trace) -> Outcome:
    """``outcome`` with flow ends that refer to rows of the whole trace, which is what writers write."""

    def moved(ends: Ends) -> Ends:
        return ends if ends.track else Ends(rows_in_whole(part, ends.rows.astype(EventRow, copy=False)))

    if isinstance(outcome, Skipped):
        return outcome
    drawn = [
        replace(annotation, out=moved(annotation.out), into=moved(annotation.into))
        if isinstance(annotation, Flows)
        else annotation
        for annotation in outcome.annotations
    ]
    return replace(outcome, annotations=drawn)


@derived
def present_categories(trace: Trace) -> frozenset[int]:
    """The categories that have at least one slice."""
    occurs = np.zeros(256, np.bool_)
    occurs[trace.events.category[trace.events.phase == COMPLETE]] = True
    return frozenset(np.flatnonzero(occurs).tolist())
