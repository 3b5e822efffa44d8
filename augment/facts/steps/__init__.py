"""The steps of a recording: their windows and figures, and traces cut to some steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from augment.arrays.types import Int64s
    from augment.core.trace import Trace
    from augment.facts.steps.step_windows import Steps, StepWindows


def windows(trace: Trace) -> StepWindows:
    """The steps, and the windows in which their work runs on the devices."""
    from augment.facts.steps.step_windows import step_windows

    return step_windows(trace)


def recorded(trace: Trace) -> Steps:
    """The host's annotations of steps."""
    from augment.facts.steps.step_windows import steps

    return steps(trace)


def of_work(trace: Trace) -> Int64s:
    """The number of the step of each piece of GPU work, by its launch; -1 where there is none."""
    from augment.facts.steps.step_windows import steps_of_gpu_work

    return steps_of_gpu_work(trace)
