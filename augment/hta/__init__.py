"""HTA's API on this library's figures: change the import, and a notebook runs on.

    from augment.hta import TraceAnalysis  # was: from hta.trace_analysis import TraceAnalysis

Names, arguments, defaults, frames and columns are HTA's, times in microseconds; the figures are those of our analyses.
``docs/hta.md`` lists where they differ and why. Only shapes are made here: no figure is computed that an analysis or a
derived fact has. pandas (``pip install 'kineto-augment[hta]'``) is loaded by the first frame, networkx by the first
critical path, and plotly (``[plots]``) by the first plot: without it, ``visualize=True`` warns and draws nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from augment.hta.analysis import TraceAnalysis
from augment.hta.counters import TimeSeriesTypes
from augment.hta.execution_trace import add_et_column, correlate_execution_trace, load_execution_trace
from augment.hta.memory import MemoryAnalysis
from augment.hta.trace_filter import (
    CompositeFilter,
    CPUOperatorFilter,
    Filter,
    FirstIterationFilter,
    GPUKernelFilter,
    IterationFilter,
    IterationIndexFilter,
    MemCopyEventFilter,
    NameFilter,
    QueryFilter,
    RankFilter,
    TimeRangeFilter,
    ZeroDurationFilter,
)
from augment.hta.tracediff import DeviceType, LabeledTrace, TraceDiff
from augment.hta.traces import Trace
from augment.hta.utils import CUDA_SASS_INSTRUCTION_COUNTER_FLOPS, flatten_column_names, shorten_name

if TYPE_CHECKING:
    from augment.hta.cp_graph import CPEdge, CPEdgeType, CPGraph, CPNode, restore_cpgraph

__all__ = [
    "CUDA_SASS_INSTRUCTION_COUNTER_FLOPS",
    "CPEdge",
    "CPEdgeType",
    "CPGraph",
    "CPNode",
    "CPUOperatorFilter",
    "CompositeFilter",
    "DeviceType",
    "Filter",
    "FirstIterationFilter",
    "GPUKernelFilter",
    "IterationFilter",
    "IterationIndexFilter",
    "LabeledTrace",
    "MemCopyEventFilter",
    "MemoryAnalysis",
    "NameFilter",
    "QueryFilter",
    "RankFilter",
    "TimeRangeFilter",
    "TimeSeriesTypes",
    "Trace",
    "TraceAnalysis",
    "TraceDiff",
    "ZeroDurationFilter",
    "add_et_column",
    "correlate_execution_trace",
    "flatten_column_names",
    "load_execution_trace",
    "restore_cpgraph",
    "shorten_name",
]


def __getattr__(name: str) -> object:
    """What needs networkx, when it is first asked for (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from augment.hta import cp_graph

    value: object = getattr(cp_graph, name)
    return value
