"""The calls of the steps in which the host waits for a device."""

from __future__ import annotations

import numpy as np

from augment.arrays.ordering import distinct
from augment.arrays.types import Int64s
from augment.derived.critical.critical_graph import critical_graph
from augment.derived.waits.dependencies import Kind
from augment.diagnosis.measure import rows_in_steps
from augment.trace import Trace, derived


@derived
def waiting_calls(trace: Trace) -> Int64s:
    """The rows of the calls that waited, ascending."""
    graph = critical_graph(trace)
    calls = distinct(graph.to_row[graph.kind == Kind.SYNC].astype(np.int64))
    return rows_in_steps(trace, calls[calls >= 0])
