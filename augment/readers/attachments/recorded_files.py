"""Execution traces of PyTorch's ``ExecutionTraceObserver``, attached to the traces recorded with them.

::

    trace = augment.with_execution_trace(augment.read("rank0.json.gz"), "et_rank0.json")
    augment.write(augment.augment(trace))  # see the analysis execution_trace

    links = augment.link_execution_trace(trace, "et_rank0.json")
    for row, node in zip(links.row, links.node):
        attribute(links.nodes[node], "op_schema")
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from augment.core.attachments import ExecutionNodes
from augment.core.trace import Trace
from augment.errors import UnknownFormat
from augment.facts.host.execution_links import ExecutionLinks, Node, attribute, execution_links
from augment.readers.document import read_document

__all__ = ["ExecutionLinks", "attribute", "link_execution_trace", "with_execution_trace"]


def with_execution_trace(trace: Trace, path: str | os.PathLike[str]) -> Trace:
    """``trace`` with the nodes of the execution trace at ``path``, plain or compressed.

    Raises:
        InputError: the file cannot be read.
        UnknownFormat: the file is not an execution trace.
    """
    return with_nodes(trace, read_nodes(path))


def with_nodes(trace: Trace, nodes: Sequence[Node]) -> Trace:
    """``trace`` with the ``nodes`` of an execution trace."""
    return trace.changed(ExecutionNodes(nodes))


def read_nodes(path: str | os.PathLike[str]) -> list[Node]:
    """The nodes of the execution trace at ``path``, plain or compressed.

    Raises:
        InputError: the file cannot be read.
        UnknownFormat: the file is not an execution trace.
    """
    path = os.fspath(path)
    document = read_document(path)
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
    return execution_links(with_execution_trace(trace, path))
