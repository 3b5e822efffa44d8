"""Runs analyses over a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from augment.analyses import Analysis
from augment.annotations import Ends, Flows
from augment.bounds import bounded
from augment.derived.steps.window import rows_in_whole, within
from augment.findings import AugmentedTrace, Outcome, Skipped, Window
from augment.request import Request
from augment.tables import with_tables
from augment.trace import COMPLETE, Trace, derived

Progress = Callable[[str, int, int], None]  #: called with an analysis's name, the number of analyses done, and of all


def augment(
    trace: Trace, request: Request | None = None, *, progress: Progress | None = None, **fields: Any
) -> AugmentedTrace:
    """Run all analyses, or those of a request.

    Args:
        trace: the trace to analyse; it is not changed.
        request: what to run; None means all analyses.
        progress: called before each analysis.
        fields: fields of :class:`augment.request.Request` that replace those of ``request``: ``only=["steps"]``,
            ``skip=[…]``, ``options={"idle_time_breakdown": {…}}``, ``steps=(3, 5)``.

    Raises:
        UsageError: an analysis, option or step does not exist, or a value differs in type from the option's default.
    """
    request = Request.of(request, fields)
    analyses = request.analyses()
    outcomes = {}
    trace = with_tables(trace, *request.tables, peaks=request.peaks)
    part = trace if request.steps is None else within(trace, *request.steps)
    window = None if request.steps is None else Window(*request.steps, int(part.events.ts[0]))
    for done, analysis in enumerate(analyses):
        if progress:
            progress(analysis.NAME, done, len(analyses))
        outcome = _outcome(part, analysis, request.options.get(analysis.NAME, {}))
        outcomes[analysis.NAME] = outcome if part is trace else _of_whole(outcome, part)
    return AugmentedTrace(trace, outcomes, window, {analysis.NAME: analysis.ROW for analysis in analyses})


def _outcome(trace: Trace, analysis: Analysis, options: Mapping[str, Any]) -> Outcome:
    for group in analysis.NEEDS:
        if not any(category in present_categories(trace) for category in group):
            return Skipped(f"no event of category {_listed([category.name.lower() for category in group], 'or')}")
    outcome = analysis.analyze(trace, **options)
    return outcome if isinstance(outcome, Skipped) else bounded(outcome, trace.source.event_count)


def _of_whole(outcome: Outcome, part: Trace) -> Outcome:
    """``outcome`` with flow ends that refer to rows of the whole trace, which is what writers write."""

    def moved(ends: Ends) -> Ends:
        return ends if ends.track else Ends(rows_in_whole(part, ends.rows))

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


def _listed(names: list[str], conjunction: str) -> str:
    """``a, b or c``."""
    return f" {conjunction} ".join(filter(None, (", ".join(names[:-1]), names[-1])))
