"""What may be recorded beside a trace, and is attached to it: ``trace.context.attached(MemoryChanges)``. See also
``augment/core/job_waits.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from augment.arrays.types import Int64s
from augment.core.trace import Trace


class ExecutionNodes(Struct, frozen=True):
    """The ``nodes`` of the execution trace recorded with the trace."""

    nodes: Sequence[dict[str, Any]]


class MemoryChanges(Struct, frozen=True):
    """The content of a memory timeline: equal-length int64 columns in the file's order."""

    ts: Int64s  #: absolute ns; negative for memory held before the recording
    action: Int64s  #: the file's number
    size: Int64s  #: bytes; negative where memory is freed or leaves its category
    category: Int64s  #: the file's number


class GraphCapture(Struct, frozen=True):
    """The recording of the capture of the trace's CUDA graphs."""

    trace: Trace


class Tables(Struct, frozen=True):
    """The user's own tables by key: rows that come before the package's (``augment/readers/attachments/tables.py``)."""

    rows: Mapping[str, Sequence[Mapping[str, Any]]]


def tables_of(trace: Trace) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """The rows of the user's own tables by their key; empty without any."""
    tables = trace.context.attached(Tables)
    return tables.rows if tables else {}
