"""What everything else is made of: the trace, findings and annotations, and how facts are computed.

Its names are loaded when they are first used. What few need is in modules of its own: texts, threads, records of
libraries and others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # fmt: off
    from augment.core.annotations import (  # noqa: I001
        Annotation, ArgColumn, CounterTrack, Ends, Flows, InstantTrack, SliceTrack, Texts, byte_unit, in_unit,
        row_count,
    )
    from augment.core.attachments import (
        Cause, ExecutionNodes, GraphCapture, LateRank, MemoryChanges, MemorySnapshot, RankInJob, Reason, RequestSpans,
        SharedWait, Where, tables_of,
    )
    from augment.core.context import STAGES, Context, Stage, derived
    from augment.core.findings import (
        AugmentedTrace, OfDevice, Findings, Outcome, OfRank, Skipped, Verdict, Window, column, columns_of,
    )
    from augment.core.trace import (
        COMPLETE, GPU_WORK, LAUNCHES, NO_CORRELATION, ON_DEVICE, Category, Diagnostic, EventTable, Identity,
        Source, SparseColumn, Trace, Track,
    )
    # fmt: on

_MODULES = ("trace", "findings", "annotations", "context", "attachments")
# fmt: off
__all__ = [
    "COMPLETE", "GPU_WORK", "LAUNCHES", "NO_CORRELATION", "ON_DEVICE", "STAGES", "Annotation", "ArgColumn",
    "AugmentedTrace", "Category", "Cause", "Context", "CounterTrack", "Diagnostic", "Ends", "EventTable",
    "ExecutionNodes", "Findings", "Flows", "GraphCapture", "Identity", "InstantTrack", "LateRank", "MemoryChanges",
    "MemorySnapshot", "OfDevice", "OfRank", "Outcome", "RankInJob", "Reason", "RequestSpans", "SharedWait", "Skipped",
    "SliceTrack", "Source", "SparseColumn", "Stage", "Texts", "Trace", "Track", "Verdict", "Where", "Window",
    "byte_unit", "column", "columns_of", "derived", "in_unit", "row_count", "tables_of",
]
# fmt: on


def __getattr__(name: str) -> Any:
    """One of the names, from the first module that has it."""
    if name in __all__:
        for module in _MODULES:
            value = getattr(import_module(f"{__name__}.{module}"), name, None)
            if value is not None:
                globals()[name] = value
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
