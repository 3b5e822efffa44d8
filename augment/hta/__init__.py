"""HTA's API on top of this library's analyses: to move a notebook over, change only its import.

    from augment.hta import TraceAnalysis  # was: from hta.trace_analysis import TraceAnalysis

Names, arguments, defaults, frames and columns are HTA's, times are in microseconds. ``docs/hta.md`` lists where the
figures differ from HTA's and why. This package only converts results to HTA's form; analyses and derived facts compute
the figures. The first frame loads pandas (``pip install 'kineto-augment[hta]'``), the first critical path networkx, and
the first plot plotly (``[plots]``). Without plotly, ``visualize=True`` warns and draws nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from augment.hta import traces as execution_trace
from augment.hta.analysis import TraceAnalysis
from augment.hta.counters import MemoryAnalysis, TimeSeriesTypes
from augment.hta.frames import CUDA_SASS_INSTRUCTION_COUNTER_FLOPS, flatten_column_names, shorten_name
from augment.hta.frames import SymbolTable as TraceSymbolTable
from augment.hta.gantt import (
    CallGraph,
    PlotFormat,
    Timeline,
    TimelinePlotSetting,
    align_module_with_kernels,
    plot_timeline_gpu_kernels,
)
from augment.hta.parser_config import ParserConfig
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
from augment.hta.traces import Trace, add_et_column, correlate_execution_trace, load_execution_trace

if TYPE_CHECKING:
    from augment.hta.cp_graph import CPEdge, CPEdgeType, CPGraph, CPNode, restore_cpgraph

# fmt: off
__all__ = [
    "CUDA_SASS_INSTRUCTION_COUNTER_FLOPS", "CPEdge", "CPEdgeType", "CPGraph", "CPNode", "CPUOperatorFilter",
    "CallGraph", "CompositeFilter", "DeviceType", "Filter", "FirstIterationFilter", "GPUKernelFilter",
    "IterationFilter", "IterationIndexFilter", "LabeledTrace", "MemCopyEventFilter", "MemoryAnalysis", "NameFilter",
    "ParserConfig", "PlotFormat", "QueryFilter", "RankFilter", "TimeRangeFilter", "TimeSeriesTypes", "Timeline",
    "TimelinePlotSetting", "Trace", "TraceAnalysis", "TraceDiff", "TraceSymbolTable", "ZeroDurationFilter",
    "add_et_column", "align_module_with_kernels", "correlate_execution_trace", "execution_trace",
    "flatten_column_names", "load_execution_trace", "plot_timeline_gpu_kernels", "restore_cpgraph", "shorten_name",
]
# fmt: on


def __getattr__(name: str) -> object:
    """Import the names that need networkx on first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from augment.hta import cp_graph

    value: object = getattr(cp_graph, name)
    return value
