"""HTA's critical path analysis, within one instance of an annotation or several consecutive ones."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from augment.arrays import Int64s
from augment.core.trace import COMPLETE, Category
from augment.core.trace import Trace as Events
from augment.errors import UsageError
from augment.hta.traces import Trace, overlaid
from augment.pipeline import augment
from augment.writers import chrome

if TYPE_CHECKING:
    from augment.hta.cp_graph import CPGraph

Instance = int | tuple[int, int] | None
_ANNOTATIONS = (Category.USER_ANNOTATION, Category.CPU_OP, Category.PYTHON_FUNCTION)


def critical_path_analysis(t: Trace, rank: int, annotation: str, instance: Instance) -> tuple[CPGraph, bool] | None:
    """The critical path within instances of the events whose name contains ``annotation``; empty: the whole trace.

    None, with a warning, if no event on the host has such a name.

    Raises:
        UsageError: there is no such instance, or no networkx.
    """
    from augment.hta.cp_graph import CPGraph

    part = t
    if annotation:
        # The rows on the host with ``annotation`` in their names
        trace = t.of_rank(rank)
        events = trace.events
        codes = [code for code, name in enumerate(trace.strings) if annotation in name]
        rows = np.flatnonzero(np.isin(events.name[:], codes) & (events.phase == COMPLETE))
        instances: Int64s = rows[np.isin(events.category[rows], _ANNOTATIONS)]
        if not len(instances):
            warnings.warn(f"rank {rank}: no critical path: no name on the host contains {annotation!r}", stacklevel=3)
            return None
        part = t.clipped(rank, *_window(t.of_rank(rank), annotation, instances, instance))
    graph = CPGraph(part, t, rank)
    return graph, graph.critical_path()


def _window(trace: Events, annotation: str, instances: Int64s, instance: Instance) -> tuple[int, int]:
    """The start and end of the instances, ns."""
    events = trace.events
    first, last = instance if isinstance(instance, tuple) else (instance or 0, instance or 0)
    if not 0 <= first <= last or first >= len(instances):  # a range may end beyond the last, as in HTA
        asked = first if first == last else f"{first} to {last}"
        raise UsageError(f"{trace.source.path}: no instance {asked}: {annotation!r} occurs {len(instances)} times")
    chosen = instances[first : last + 1]
    return int(events.ts[chosen].min()), int((events.ts[chosen] + events.dur[chosen]).max())


def overlay_critical_path_analysis(t: Trace, rank: int, graph: CPGraph, output_dir: str) -> str:
    """Write the whole trace with the path on a separate track; returns the file."""
    path = overlaid(output_dir, "overlaid_critical_path_", t.trace_files[rank])
    chrome.write(augment(graph.events, only=["critical_path"]), Path(path))
    return path
