"""The steps of a recording: their windows and figures, and traces cut to some steps."""

from __future__ import annotations

# fmt: off
# ruff: noqa: I001
from augment.arrays import Int64s
from augment.core import derived
from augment.core import Trace
from augment.facts.steps.engine_steps import PHASES, Batch, engine_steps
from augment.facts.steps.step_figures import step_figures
from augment.facts.steps.step_windows import (
    StepWindows, Steps, is_served, kinds_of_steps, recorded_windows, step_of_work, step_windows, steps,
    steps_of_gpu_work,
)

__all__ = [
    "PHASES", "StepWindows", "batches", "is_served", "kinds_of_steps", "of_work", "recorded", "recorded_windows",
    "step_figures", "step_of_work", "windows",
]
# fmt: on


def windows(trace: Trace) -> StepWindows:
    """The steps, and the windows in which their work runs on the devices."""
    return step_windows(trace)


@derived(until="summary")
def batches(trace: Trace) -> tuple[Batch, ...]:
    """What the names of an engine's steps say of their batches, in the order of :func:`recorded`; empty of others."""
    if not is_served(trace):
        return ()
    batch_of = engine_steps(trace).batch_of
    return tuple(batch_of[code] for code in trace.events.name[steps(trace).row].tolist())


def recorded(trace: Trace) -> Steps:
    """The host's annotations of steps."""
    return steps(trace)


def of_work(trace: Trace) -> Int64s:
    """The number of the step of each piece of GPU work, by its launch; -1 where there is none."""
    return steps_of_gpu_work(trace)
