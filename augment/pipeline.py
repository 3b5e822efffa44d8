"""Run analyses over a trace."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from augment.analyses import ANALYSES, Analysis
from augment.annotations import Ends, Flows
from augment.derived.window import rows_in_whole, within
from augment.errors import UsageError, expect_known
from augment.findings import AugmentedTrace, Outcome, Skipped, Window
from augment.trace import COMPLETE, Trace, derived

Options = Mapping[str, Mapping[str, Any]]  #: {analysis: {option: value}}
Progress = Callable[[str, int, int], None]  #: called with an analysis's name, how many are done, and of how many


def augment(
    trace: Trace,
    *,
    only: Collection[str] = (),
    skip: Collection[str] = (),
    options: Options | None = None,
    steps: tuple[int, int] | None = None,
    progress: Progress | None = None,
) -> AugmentedTrace:
    """Ask every analysis, or ``only`` some, or all but those to ``skip``.

    Args:
        trace: what to analyse; it is not changed.
        only: names of analyses; empty means all.
        skip: names of analyses.
        options: of analyses, as ``augment list`` shows them.
        steps: the numbers of the first and the last step to analyse, as :func:`within` has them; None means all.
        progress: called before each analysis.

    Raises:
        UsageError: an analysis, option or step that does not exist, or a value of another type than the option's
            default.
    """
    options = options or {}
    asked = chosen(only, skip, options)
    outcomes = {}
    part = trace if steps is None else within(trace, *steps)
    window = None if steps is None else Window(*steps, int(part.events.ts[0]))
    for done, analysis in enumerate(asked):
        if progress:
            progress(analysis.NAME, done, len(asked))
        outcome = _outcome(part, analysis, options.get(analysis.NAME, {}))
        outcomes[analysis.NAME] = outcome if part is trace else _of_whole(outcome, part)
    return AugmentedTrace(trace, outcomes, window)


def chosen(only: Collection[str], skip: Collection[str], options: Options) -> list[Analysis]:
    """The analyses that :func:`augment` would ask, in order.

    Raises:
        UsageError: as :func:`augment`: so a command can say so before it has read a large trace.
    """
    known = {analysis.NAME: analysis for analysis in ANALYSES}
    for name in (*only, *skip, *options):
        expect_known(name, known, "analysis")
    for name, values in options.items():
        _check_options(known[name], values)
    return [one for one in ANALYSES if (not only or one.NAME in only) and one.NAME not in skip]


def options_of(analysis: Analysis) -> dict[str, Any]:
    """The options of an analysis and their defaults."""
    parameters = inspect.signature(analysis.analyze).parameters.values()
    return {one.name: one.default for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY}


def _outcome(trace: Trace, analysis: Analysis, options: Mapping[str, Any]) -> Outcome:
    for group in analysis.NEEDS:
        if not any(category in present_categories(trace) for category in group):
            return Skipped(f"no event of category {_listed([one.name.lower() for one in group], 'or')}")
    return analysis.analyze(trace, **options)


def _of_whole(outcome: Outcome, part: Trace) -> Outcome:
    """With arrows that lead to rows of the whole trace, which is what is written."""

    def moved(ends: Ends) -> Ends:
        return ends if ends.track else Ends(rows_in_whole(part, ends.rows))

    if isinstance(outcome, Skipped):
        return outcome
    drawn = [replace(one, out=moved(one.out), into=moved(one.into)) if isinstance(one, Flows) else one
             for one in outcome.annotations]  # fmt: skip
    return replace(outcome, annotations=drawn)


@derived
def present_categories(trace: Trace) -> frozenset[int]:
    """The categories of which there is a slice."""
    occurs = np.zeros(256, np.bool_)
    occurs[trace.events.category[trace.events.phase == COMPLETE]] = True
    return frozenset(np.flatnonzero(occurs).tolist())


def _check_options(analysis: Analysis, values: Mapping[str, Any]) -> None:
    known = options_of(analysis)
    for name, value in values.items():
        expect_known(name, known, f"option of {analysis.NAME}")
        default = known[name]
        if type(value) is not type(default):
            wanted = type(default).__name__
            raise UsageError(f"{analysis.NAME}: {name} must be of type {wanted} (such as {default!r}), not {value!r}")


def _listed(names: list[str], conjunction: str) -> str:
    """``a, b or c``."""
    return f" {conjunction} ".join(filter(None, (", ".join(names[:-1]), names[-1])))
