"""HTA's API on this library's figures: change the import, and a notebook runs on.

    from augment.hta import TraceAnalysis  # was: from hta.trace_analysis import TraceAnalysis

Names, arguments, defaults, frames and columns are HTA's, times in microseconds; the figures are those of our analyses.
``docs/hta.md`` lists where they differ and why. Only shapes are made here: no figure is computed that an analysis or a
derived fact has. pandas (``pip install 'kineto-augment[hta]'``) is loaded by the first frame, and plotly (``[plots]``)
by the first plot: without it, ``visualize=True`` warns and draws nothing.
"""

from augment.hta.analysis import TraceAnalysis
from augment.hta.counters import TimeSeriesTypes
from augment.hta.critical_path import CPGraph
from augment.hta.memory import MemoryAnalysis
from augment.hta.tracediff import DeviceType, LabeledTrace, TraceDiff
from augment.hta.traces import Trace

__all__ = [
    "CPGraph",
    "DeviceType",
    "LabeledTrace",
    "MemoryAnalysis",
    "TimeSeriesTypes",
    "Trace",
    "TraceAnalysis",
    "TraceDiff",
]
