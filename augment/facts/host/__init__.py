"""The host: call stacks, enclosing slices, modules, phases of training."""

from __future__ import annotations

# fmt: off
# ruff: noqa: I001
from augment.arrays import Bytes, EventRows
from augment.core import Trace
from augment.facts.host.call_stacks import (
    CallStacks, OperatorTimes, call_stacks, callers, crossing_diagnostics, in_compiled, innermost, operator_times,
    outermost, places_of, python_lines,
)
from augment.facts.host.compile_logs import LoggedCompilations, logged_compilations as _logged, regions as _regions
from augment.facts.host.occupancy import host_segments
from augment.facts.host.queued_tasks import operators_around
from augment.facts.host.training_phases import (
    ForwardBackward, Modules, TrainingPhase, forward_backward, modules, training_phases,
)

__all__ = [
    "TrainingPhase", "backward", "callers", "compiled_regions", "crossing_diagnostics", "host_segments", "in_compiled",
    "innermost", "logged_compilations", "module_calls", "operator_calls", "operators_around", "outermost", "phases",
    "places_of", "python_lines", "stacks",
]
# fmt: on


def stacks(trace: Trace) -> CallStacks:
    """The call trees of every thread: operators, annotations, Python functions and runtime calls."""
    return call_stacks(trace)


def operator_calls(trace: Trace) -> OperatorTimes:
    """Every call of an operator, and its time without the operators within it."""
    return operator_times(trace)


def module_calls(trace: Trace) -> Modules:
    """The calls of modules, and their paths among modules."""
    return modules(trace)


def backward(trace: Trace) -> ForwardBackward:
    """Which operator of backward differentiates which of forward."""
    return forward_backward(trace)


def phases(trace: Trace) -> Bytes | None:
    """The phase of training of each call stack: forward, backward, optimizer; None where it cannot be known."""
    return training_phases(trace)


def logged_compilations(trace: Trace) -> LoggedCompilations | str | None:
    """What logs of the compiler say of the trace's process; why there is nothing; None without a log."""
    return _logged(trace)


def compiled_regions(trace: Trace) -> dict[str, EventRows]:
    """The calls of each region that torch.compile made, by its compile id."""
    return _regions(trace)
