"""Chooses the steps of control and test to compare."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from augment.compare.regions import offer, regions_of
from augment.core.trace import Diagnostic, Trace
from augment.errors import UsageError
from augment.facts.steps.step_windows import StepWindows, recorded_windows, region_windows

StepChoice = int | tuple[int, int] | None  #: the step of both sides, one per side, or all


class ChosenSteps(Struct, frozen=True):
    """Equally many windows per side: the first of ``control`` is compared with the first of ``test``, and so on.

    ``whole`` says that they are whole recordings, not steps.
    """

    control: StepWindows
    test: StepWindows
    whole: bool
    diagnostics: tuple[Diagnostic, ...] = ()


def choose(control: Trace, test: Trace, step: StepChoice = None, region: str | None = None) -> ChosenSteps:
    """The steps to compare: by number if ``step`` is given, else by position, as many as both sides have.

    If a side has no steps, whole recordings are compared. With a ``region``, the occurrences of the annotation with
    that name, or matching that pattern, are the steps, numbered from 0.

    Raises:
        UsageError: a side has no step of that number, or no work at all.
    """
    sides = windows_in(control, region), windows_in(test, region)
    for trace, windows in zip((control, test), sides, strict=True):
        if not len(windows):
            raise UsageError(f"{trace.source.name}: holds no operator, launch or GPU work that could be compared")
    if step is not None:
        numbers = step if isinstance(step, tuple) else (step, step)
        chosen = [_numbered(*arguments) for arguments in zip((control, test), sides, numbers, strict=True)]
        return ChosenSteps(chosen[0], chosen[1], whole=False)
    have = [bool((windows.number >= 0).any()) for windows in sides]
    if not all(have):
        wholes = [_joined(windows) for windows in sides]
        offered = offer(regions_of(control), regions_of(test))
        return ChosenSteps(wholes[0], wholes[1], whole=True, diagnostics=_without_steps(have, offered))
    count = min(map(len, sides))
    left_out = max(map(len, sides)) - count
    message = "steps without counterpart: one side recorded more steps, and its last ones are not compared"
    diagnostics = [Diagnostic("steps_without_counterpart", left_out, message)] if left_out else []
    first = np.arange(count)
    return ChosenSteps(sides[0].take(first), sides[1].take(first), whole=False, diagnostics=tuple(diagnostics))


def windows_in(trace: Trace, region: str | None = None) -> StepWindows:
    """The steps of a trace, or the occurrences of a region.

    Raises:
        UsageError: there is no such region.
    """
    if region is None:
        return recorded_windows(trace)
    occurrences = region_windows(trace, region)
    if not len(occurrences):
        raise UsageError(f"{trace.source.name}: has no annotation or operator that matches {region!r}")
    return occurrences


def _numbered(trace: Trace, windows: StepWindows, number: int) -> StepWindows:
    places = np.flatnonzero(windows.number == number)[:1]
    if not len(places):
        known = ", ".join(str(number) for number in windows.number.tolist() if number >= 0)
        raise UsageError(f"{trace.source.name}: has no step {number} ({f'it has {known}' if known else 'it has none'})")
    return windows.take(places)


def _joined(windows: StepWindows) -> StepWindows:
    """One window from the first to the last."""
    first, last = np.array([0]), np.array([len(windows) - 1])
    head, tail = windows.take(first), windows.take(last)
    return StepWindows(np.array([-1], np.int64), head.begin, tail.finish, head.start, tail.end)


def _without_steps(have: list[bool], offered: str) -> tuple[Diagnostic, ...]:
    if not any(have) and not offered:
        return ()
    lacking = "neither side has a" if not any(have) else f"the {'test' if have[0] else 'control'} has no"
    message = f"{lacking} ProfilerStep: whole recordings are compared"
    return (Diagnostic("no_steps", 1, f"{message}; {offered}" if offered else message),)
