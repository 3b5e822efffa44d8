"""The registry of analyses. To add an analysis: add a module to this folder and two lines to this file."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct

from augment.analyses import (
    activity_over_time,
    before_recording,
    collective_records,
    collectives,
    communication_computation_overlap,
    communicators,
    compilations,
    cost,
    critical_path,
    critical_path_operators,
    cupti_counters,
    diagnosis,
    energy,
    execution_trace,
    frequent_kernel_patterns,
    gpu_time_by_annotation,
    gpu_time_by_module,
    gpu_time_by_phase,
    hardware_activity,
    idle_time_breakdown,
    inference_phases,
    inference_steps,
    kernel_breakdown,
    kernel_family_breakdown,
    kernel_occupancy,
    kernel_type_breakdown,
    launch_outliers,
    launch_statistics,
    memory_at_peak,
    memory_bandwidth,
    memory_profile,
    memory_snapshot,
    memory_timeline,
    model_flops,
    operator_breakdown,
    operator_launch_delay,
    queue_length,
    requests,
    roofline,
    source_lines,
    step_efficiency,
    steps,
    telemetry,
    temporal_breakdown,
    user_annotation_breakdown,
)
from augment.core import Category, Outcome


class Analysis(Protocol):
    """The interface of an analysis module. The module's docstring becomes its section of docs/analyses.md."""

    @property
    def NAME(self) -> str:  # noqa: N802
        """Its name: in the sidecar, on the command line, and as the category of its annotations."""

    @property
    def NEEDS(self) -> tuple[tuple[Category, ...], ...]:  # noqa: N802
        """Groups of categories. The analysis is skipped unless the trace has a slice of each group."""

    @property
    def Row(self) -> type[Struct]:  # noqa: N802
        """The class of its metric rows."""

    @property
    def analyze(self) -> Callable[..., Outcome]:
        """``analyze(trace, *, option=default, …)``. The name of an option ends with its unit."""


ANALYSES: tuple[Analysis, ...] = (
    diagnosis,
    temporal_breakdown,
    activity_over_time,
    before_recording,
    idle_time_breakdown,
    communication_computation_overlap,
    collectives,
    kernel_type_breakdown,
    kernel_breakdown,
    kernel_family_breakdown,
    kernel_occupancy,
    roofline,
    memory_bandwidth,
    queue_length,
    launch_statistics,
    launch_outliers,
    operator_launch_delay,
    frequent_kernel_patterns,
    user_annotation_breakdown,
    memory_profile,
    memory_at_peak,
    memory_timeline,
    memory_snapshot,
    steps,
    inference_steps,
    inference_phases,
    requests,
    step_efficiency,
    model_flops,
    critical_path,
    critical_path_operators,
    gpu_time_by_annotation,
    gpu_time_by_phase,
    gpu_time_by_module,
    source_lines,
    operator_breakdown,
    execution_trace,
    collective_records,
    communicators,
    compilations,
    telemetry,
    energy,
    cost,
    cupti_counters,
    hardware_activity,
)


def options_of(analysis: Analysis) -> dict[str, Any]:
    """The options of an analysis and their defaults."""
    parameters = inspect.signature(analysis.analyze).parameters.values()
    return {option.name: option.default for option in parameters if option.kind is inspect.Parameter.KEYWORD_ONLY}


__all__ = ["ANALYSES", "Analysis", "Outcome", "options_of"]
