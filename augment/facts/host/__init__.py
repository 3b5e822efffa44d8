"""The host: call stacks, enclosing slices, modules, phases of training."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from augment.arrays.types import Bytes
    from augment.core.trace import Trace
    from augment.facts.host.call_stacks import CallStacks, OperatorTimes
    from augment.facts.host.training_phases import ForwardBackward, Modules


def stacks(trace: Trace) -> CallStacks:
    """The call trees of every thread: operators, annotations, Python functions and runtime calls."""
    from augment.facts.host.call_stacks import call_stacks

    return call_stacks(trace)


def operator_calls(trace: Trace) -> OperatorTimes:
    """Every call of an operator, and its time without the operators within it."""
    from augment.facts.host.call_stacks import operator_times

    return operator_times(trace)


def module_calls(trace: Trace) -> Modules:
    """The calls of modules, and their paths among modules."""
    from augment.facts.host.training_phases import modules

    return modules(trace)


def backward(trace: Trace) -> ForwardBackward:
    """Which operator of backward differentiates which of forward."""
    from augment.facts.host.training_phases import forward_backward

    return forward_backward(trace)


def phases(trace: Trace) -> Bytes | None:
    """The phase of training of each call stack: forward, backward, optimizer; None where it cannot be known."""
    from augment.facts.host.training_phases import training_phases

    return training_phases(trace)
