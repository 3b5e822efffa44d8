"""HTA's functions of execution traces, on the links of the analysis ``execution_trace``."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from augment.facts.host.execution_links import Node, attribute, execution_links
from augment.facts.steps.window import rows_in_whole
from augment.hta.traces import Trace
from augment.readers.attachments.recorded_files import read_nodes, with_nodes

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("op_schema", "input_shapes", "input_types", "output_shapes", "output_types", "et_node_name")


class ExecutionNode(Struct, frozen=True):
    """A node as it is in the file; None for missing members."""

    id: int
    name: str
    rf_id: int | None
    op_schema: str | None
    input_shapes: Any
    input_types: Any
    output_shapes: Any
    output_types: Any

    @classmethod
    def of(cls, node: Node) -> ExecutionNode:
        """From the JSON of a node, of any schema."""
        values = {name: attribute(node, name) for name in ("rf_id", *COLUMNS[:-1])}
        return cls(id=node["id"], name=str(node.get("name", "")), **values)


class ExecutionTrace:
    """The nodes of a file by ``id``; ``raw`` holds the nodes as they are in the file."""

    def __init__(self, raw: Sequence[Node]) -> None:
        self.raw = raw
        self.nodes = {node["id"]: ExecutionNode.of(node) for node in raw if isinstance(node.get("id"), int)}


def load_execution_trace(et_file: str | os.PathLike[str]) -> ExecutionTrace:
    """The execution trace at ``et_file``, compressed or not.

    Raises:
        InputError: the file cannot be read, or is no execution trace.
    """
    return ExecutionTrace(read_nodes(os.path.expanduser(os.fspath(et_file))))


def correlate_execution_trace(trace: Trace, rank: int, et: ExecutionTrace) -> None:
    """Add the column ``et_node`` to the frame of ``rank``: the ``id`` of each event's node, NaN without a node.

    If no event has a node, a warning is issued and the column is not added.

    Raises:
        UsageError: there is no such rank.
    """
    frame, part = trace.get_trace(rank), trace.of_rank(rank)
    links = execution_links(with_nodes(trace.whole[rank], et.raw))
    if not len(links.row):
        warnings.warn(f"rank {rank}: no et_node: no execution trace node matches an event", stacklevel=2)
        return
    ids = np.array([_number(links.nodes[node].get("id")) for node in links.node.tolist()])
    node_of = np.full(int(links.row[-1]) + 2, math.nan)  # by row of the whole trace; the last: no row
    node_of[links.row] = ids
    rows = rows_in_whole(part, frame["index"].to_numpy(np.int64))
    frame["et_node"] = node_of[np.minimum(rows, len(node_of) - 1)]


def add_et_column(trace_df: pd.DataFrame, et: ExecutionTrace, column: str) -> None:
    """Add the value of ``column`` (one of :data:`COLUMNS`) from each event's node; NaN without a node.

    Without ``et_node``, or for an unknown column, a warning is issued and nothing is added.
    """
    if "et_node" not in trace_df:
        warnings.warn("no et_node: run correlate_execution_trace() first", stacklevel=2)
        return
    if column not in COLUMNS:
        warnings.warn(f"unknown column {column!r}; known: {', '.join(COLUMNS)}", stacklevel=2)
        return
    member = "name" if column == "et_node_name" else column
    values = np.full(len(trace_df), math.nan, object)
    for place, node in enumerate(trace_df["et_node"].tolist()):
        if not math.isnan(node):
            values[place] = getattr(et.nodes[int(node)], member)
    trace_df[column] = values


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int) else math.nan
