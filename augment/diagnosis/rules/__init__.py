"""The registry of rules. To add a rule: add a module to this folder and two lines to this file."""

from __future__ import annotations

from augment.diagnosis.rule import Rule
from augment.diagnosis.rules import (
    allocator_calls,
    clock_drop,
    data_loading,
    elementwise_chains,
    exposed_communication,
    exposed_copies,
    host_gaps,
    late_gathers,
    launch_bound,
    long_calls,
    low_roofline,
    matrix_units,
    memory_capacity,
    pageable_copies,
    partial_recording,
    pipeline_bubble,
    profiler_overhead,
    recompilation,
    slow_start,
    small_collectives,
    step_outliers,
    straggling_rank,
    synchronizing_calls,
    unaligned_shapes,
    unfused_optimizer,
    wide_norms,
)

RULES: tuple[Rule, ...] = (
    partial_recording,
    profiler_overhead,
    data_loading,
    synchronizing_calls,
    pageable_copies,
    exposed_copies,
    allocator_calls,
    long_calls,
    launch_bound,
    host_gaps,
    recompilation,
    exposed_communication,
    small_collectives,
    late_gathers,
    pipeline_bubble,
    straggling_rank,
    matrix_units,
    unaligned_shapes,
    elementwise_chains,
    unfused_optimizer,
    wide_norms,
    low_roofline,
    slow_start,
    step_outliers,
    clock_drop,
    memory_capacity,
)

__all__ = ["RULES", "Rule"]
