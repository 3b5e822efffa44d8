"""The host: call stacks, enclosing slices, modules, phases of training."""

from __future__ import annotations

# fmt: off
# ruff: noqa: I001
from augment.facts.host.call_stacks import (
    call_stacks as stacks, callers, crossing_diagnostics, in_compiled, innermost, operator_times as operator_calls,
    outermost, owners, places_of, python_lines, directly_around, enclosing, call_paths, is_of, thread_bounds,
    around_moments, nesting, outermost_of, within_compiled,
)
from augment.facts.host.compile_logs import logged_compilations, regions as compiled_regions
from augment.facts.host.occupancy import host_segments, occupants
from augment.facts.host.queued_tasks import operators_around
from augment.facts.host.training_phases import (
    TrainingPhase, forward_backward as backward, modules as module_calls, training_phases as phases,
)
from augment.facts.host.execution_links import ExecutionLinks, Node, attribute, execution_links

__all__ = [
    "ExecutionLinks", "Node", "TrainingPhase", "around_moments", "attribute", "backward", "call_paths",
    "callers", "compiled_regions", "crossing_diagnostics", "directly_around", "enclosing", "execution_links",
    "host_segments", "in_compiled", "innermost", "is_of", "logged_compilations", "module_calls", "nesting",
    "occupants", "operator_calls", "operators_around", "outermost", "outermost_of", "owners", "phases", "places_of",
    "python_lines", "stacks", "thread_bounds", "within_compiled",
]
# fmt: on
