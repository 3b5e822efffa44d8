"""The family of each piece of GPU work, where kernels of CUDA graphs also have the operators of the graph's capture."""

from __future__ import annotations

import numpy as np

from augment.core.context import derived
from augment.core.trace import Trace
from augment.facts.gpu.kernel_families import KernelFamilies, families_of, kernel_families
from augment.facts.gpu.work_operators import work_operators
from augment.facts.operators.captured_graphs import graph_work


@derived(until="breakdowns")
def work_families(trace: Trace) -> KernelFamilies:
    """As :func:`kernel_families`, but operators of captures decide, too."""
    graphs = graph_work(trace)
    if not len(graphs.row):
        return kernel_families(trace)
    row = work_operators(trace)
    strings = list(trace.strings)
    operator = np.where(row >= 0, trace.events.name[np.maximum(row, 0)], -1)
    of_call = len(strings) + np.arange(len(graphs.calls))
    strings += [call.operator for call in graphs.calls]
    operator = np.where(graphs.owner >= 0, of_call[graphs.kind[graphs.owner]], operator)
    return families_of(trace, operator, strings)
