"""What is recorded beside a trace, attached to it: an execution trace of PyTorch's ``ExecutionTraceObserver``, a trace
of the capture of the CUDA graphs that it replays, and the raw file of PyTorch's ``export_memory_timeline``.

::

    trace = augment.with_execution_trace(augment.read("rank0.json.gz"), "et_rank0.json")
    augment.write(augment.augment(trace))  # see the analysis execution_trace

    links = augment.link_execution_trace(trace, "et_rank0.json")
    for row, node in zip(links.row, links.node):
        attribute(links.nodes[node], "op_schema")

    trace = augment.with_graph_capture(augment.read("decode.json.gz"), "capture_bs32.json.gz")
    augment.write(augment.augment(trace))  # operators of graphs' kernels have shapes, operations and roofs

    trace = augment.with_memory_timeline(augment.read("rank0.json.gz"), "rank0.raw.json.gz")
    augment.write(augment.augment(trace))  # see the analysis memory_timeline

A memory timeline (``*.raw.json.gz``) is a list of ``[time, action, bytes, category]``; bytes are negative where memory
is freed or leaves its category. PyTorch's profiler classifies the tensors from its record of the whole program; a trace
alone does not contain the categories.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from augment.arrays import Int64s
from augment.core import ExecutionNodes, GraphCapture, MemoryChanges, Trace
from augment.errors import UnknownFormat
from augment.facts.host.execution_links import ExecutionLinks, Node, attribute, execution_links
from augment.facts.memory.memory_events import CATEGORIES, held_by_category
from augment.readers import read
from augment.readers.containers import read_document
from augment.readers.limits import UNLIMITED, Limits

__all__ = ["CATEGORIES", "ExecutionLinks", "attribute", "link_execution_trace", "read_memory_timeline"]


def execution_nodes(path: str, limits: Limits = UNLIMITED) -> ExecutionNodes:
    """What :func:`read_nodes` reads."""
    return ExecutionNodes(read_nodes(path, limits))


def with_nodes(trace: Trace, nodes: Sequence[Node]) -> Trace:
    """``trace`` with the ``nodes`` of an execution trace."""
    return trace.changed(ExecutionNodes(nodes))


def read_nodes(path: str | os.PathLike[str], limits: Limits = UNLIMITED) -> list[Node]:
    """The nodes of the execution trace at ``path``, plain or compressed.

    Raises:
        InputError: the file cannot be read.
        UnknownFormat: the file is not an execution trace.
    """
    path = os.fspath(path)
    document = read_document(path, limits)
    nodes = document.get("nodes") if isinstance(document, dict) else None
    if not isinstance(nodes, list):
        raise UnknownFormat(path, "not an execution trace: it has no nodes; record one with ExecutionTraceObserver")
    return [node for node in nodes if isinstance(node, dict)]


def link_execution_trace(trace: Trace, path: str | os.PathLike[str]) -> ExecutionLinks:
    """The links between the nodes of the execution trace at ``path`` and the events of ``trace``.

    Raises:
        InputError: the file cannot be read.
        UnknownFormat: the file is not an execution trace.
    """
    return execution_links(with_nodes(trace, read_nodes(path)))


def graph_capture(path: str, limits: Limits = UNLIMITED) -> GraphCapture:
    """The trace at ``path``, of the capture of graphs.

    Raises:
        InputError: the file cannot be read.
        UnknownFormat: the file is not a trace.
    """
    return GraphCapture(read(path, limits=limits))


def read_memory_timeline(path: str | os.PathLike[str]) -> dict[str, Int64s]:
    """``ts`` (int64 ns, strictly ascending), and for each category the allocated bytes from then on (int64).

    Memory allocated before the recording has a negative time; it counts from the first moment of the recording.

    Raises:
        InputError: the file cannot be read.
        UnknownFormat: the file is not a memory timeline.
    """
    changes = memory_changes(os.fspath(path))
    recorded = changes.ts[changes.ts >= 0]
    ts, held = held_by_category(changes, int(recorded.min()) if len(recorded) else 0)
    return {"ts": ts, **dict(zip(CATEGORIES, held.T, strict=True))}


def memory_changes(path: str, limits: Limits = UNLIMITED) -> MemoryChanges:
    """The rows of the memory timeline at ``path``, plain or compressed, as four integer columns.

    Raises:
        InputError: the file cannot be read.
        UnknownFormat: the file is not a memory timeline.
    """
    document = read_document(path, limits)
    problem = "not a memory timeline, which is a list of [time, action, bytes, category] (*.raw.json.gz)"
    try:
        rows = np.array(document if document != [] else np.empty((0, 4), np.int64))
    except (ValueError, OverflowError) as error:
        raise UnknownFormat(path, problem) from error
    if rows.ndim != 2 or rows.shape[1] != 4 or rows.dtype != np.int64:
        raise UnknownFormat(path, problem)
    if len(rows) and not ((rows[:, 3] >= 0) & (rows[:, 3] < len(CATEGORIES))).all():
        raise UnknownFormat(path, f"a memory timeline with categories beyond the {len(CATEGORIES)} known")
    return MemoryChanges(*np.ascontiguousarray(rows.T))
