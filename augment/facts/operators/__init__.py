"""Operations and bytes of operators, the peaks of devices, and the share of the peak that a step achieved."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from augment.core.trace import Identity, Trace
    from augment.facts.operators.captured_graphs import GraphWork
    from augment.facts.operators.operator_work import OperatorWork
    from augment.facts.operators.peaks import Peak
    from augment.facts.operators.roofline_bounds import Roofs


def work(trace: Trace) -> OperatorWork:
    """The operators that count, with their operations and bytes."""
    from augment.facts.operators.operator_work import operator_work

    return operator_work(trace)


def bounds(trace: Trace) -> Roofs:
    """What the device's peaks allow each of them, and what it took."""
    from augment.facts.operators.roofline_bounds import roofs

    return roofs(trace)


def limits(trace: Trace) -> dict[Identity, Peak | None]:
    """The peak of each device that has work; None where unknown."""
    from augment.facts.operators.peaks import device_peaks

    return device_peaks(trace)


def graphs(trace: Trace) -> GraphWork:
    """The captured operators of the kernels of CUDA graphs."""
    from augment.facts.operators.captured_graphs import graph_work

    return graph_work(trace)
