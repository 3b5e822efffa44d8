"""Which steps of control and test are compared with each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from augment.comparison.regions import offer, regions_of
from augment.derived.steps.step_windows import StepWindows, region_windows, step_windows
from augment.errors import UsageError
from augment.trace import Diagnostic, Trace

StepChoice = int | tuple[int, int] | None  #: of both sides, of each, or all


@dataclass(frozen=True, slots=True)
class ChosenSteps:
    """Windows of equal number: the first of ``control`` is compared with the first of ``test``, and so on.

    ``whole`` says that they are whole recordings, not steps.
    """

    control: StepWindows
    test: StepWindows
    whole: bool
    diagnostics: tuple[Diagnostic, ...] = ()


def choose(control: Trace, test: Trace, step: StepChoice = None, region: str | None = None) -> ChosenSteps:
    """The steps to compare: by number if ``step`` is given, else by position as many as both have.

    If one side has no steps, the recordings are compared as wholes. With a ``region``, the occurrences of the
    annotation of that name, or of those that match it as a pattern, are the steps, numbered from 0.

    Raises:
        UsageError: a side has no step of that number, or no work at all.
    """
    sides = windows_in(control, region), windows_in(test, region)
    for trace, found in zip((control, test), sides, strict=True):
        if not len(found):
            raise UsageError(f"{trace.source.name}: holds no operator, launch or GPU work that could be compared")
    if step is not None:
        numbers = step if isinstance(step, tuple) else (step, step)
        chosen = [_numbered(*one) for one in zip((control, test), sides, numbers, strict=True)]
        return ChosenSteps(chosen[0], chosen[1], whole=False)
    have = [bool((found.number >= 0).any()) for found in sides]
    if not all(have):
        wholes = [_joined(found) for found in sides]
        offered = offer(regions_of(control), regions_of(test))
        return ChosenSteps(wholes[0], wholes[1], whole=True, diagnostics=_without_steps(have, offered))
    count = min(map(len, sides))
    left_out = max(map(len, sides)) - count
    message = "steps have no counterpart: one side recorded more, and its last are not compared"
    told = [Diagnostic("steps_without_counterpart", left_out, message)] if left_out else []
    first = np.arange(count)
    return ChosenSteps(sides[0].take(first), sides[1].take(first), whole=False, diagnostics=tuple(told))


def windows_in(trace: Trace, region: str | None = None) -> StepWindows:
    """The steps of a trace, or the occurrences of a region.

    Raises:
        UsageError: there is no such region.
    """
    if region is None:
        return step_windows(trace)
    found = region_windows(trace, region)
    if not len(found):
        raise UsageError(f"{trace.source.name}: has no annotation or operator that is called {region!r} or matches it")
    return found


def _numbered(trace: Trace, found: StepWindows, number: int) -> StepWindows:
    places = np.flatnonzero(found.number == number)[:1]
    if not len(places):
        known = ", ".join(str(one) for one in found.number.tolist() if one >= 0)
        raise UsageError(f"{trace.source.name}: has no step {number} ({f'it has {known}' if known else 'it has none'})")
    return found.take(places)


def _joined(found: StepWindows) -> StepWindows:
    """From the first to the last."""
    first, last = np.array([0]), np.array([len(found) - 1])
    head, tail = found.take(first), found.take(last)
    return StepWindows(np.array([-1], np.int64), head.begin, tail.finish, head.start, tail.end)


def _without_steps(have: list[bool], offered: str) -> tuple[Diagnostic, ...]:
    if not any(have) and not offered:
        return ()
    lacking = "neither side has a" if not any(have) else f"the {'test' if have[0] else 'control'} has no"
    message = f"{lacking} ProfilerStep: the recordings are compared as wholes"
    return (Diagnostic("no_steps", 1, f"{message}; {offered}" if offered else message),)
