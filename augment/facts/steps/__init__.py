"""The steps of a recording: their windows and figures, and traces cut to some steps."""

from __future__ import annotations

# fmt: off
# ruff: noqa: I001
from augment.facts.steps.engine_steps import PHASES
from augment.facts.steps.step_figures import StepFigures, StepIdle, step_figures, memory_peaks, step_idle
from augment.facts.steps.step_windows import (
    StepWindows, batches, is_served, phases, recorded_windows, step_of_work, step_windows as windows, steps as
    recorded, steps_of_gpu_work as of_work, updates, whole_steps, region_windows,
)

__all__ = [
    "PHASES", "StepFigures", "StepIdle", "StepWindows", "batches", "is_served", "memory_peaks", "of_work", "phases",
    "recorded", "recorded_windows", "region_windows", "step_figures", "step_idle", "step_of_work", "updates",
    "whole_steps", "windows",
]
# fmt: on
