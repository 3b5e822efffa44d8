"""HTA's critical path analysis: of all instances of an annotation, one, or some that follow each other."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from augment.derived.critical_path import BoundBy, critical_path
from augment.derived.window import between
from augment.errors import UsageError
from augment.hta.frames import events_frame, pandas
from augment.hta.traces import Trace, overlaid
from augment.pipeline import augment
from augment.trace import COMPLETE, Category
from augment.trace import Trace as Events
from augment.writers import chrome

if TYPE_CHECKING:
    import pandas as pd

Instance = int | tuple[int, int] | None
_ANNOTATIONS = (Category.USER_ANNOTATION, Category.CPU_OP, Category.PYTHON_FUNCTION)

#: HTA's words; where it has none, ours
_BOUND_BY = {
    BoundBy.CPU_OPERATOR: "cpu_bound",
    BoundBy.RUNTIME_CALL: "cpu_bound",
    BoundBy.OUTSIDE_OPERATORS: "cpu_bound",
    BoundBy.THREAD_HANDOVER: "cpu_bound",
    BoundBy.DATA_LOADING: "data_loading",
    BoundBy.LAUNCH_DELAY: "gpu_kernel_launch_overhead",
    BoundBy.KERNEL_COMPUTATION: "gpu_compute_bound",
    BoundBy.KERNEL_MEMORY: "gpu_compute_bound",
    BoundBy.KERNEL_COMMUNICATION: "gpu_communication_bound",
    BoundBy.KERNEL_GAP: "gpu_kernel_kernel_overhead",
    BoundBy.SYNC: "sync",
    BoundBy.IDLE: "idle",
}
_TYPES = {
    BoundBy.LAUNCH_DELAY: "critical_path_kernel_launch_delay",
    BoundBy.KERNEL_GAP: "critical_path_kernel_kernel_delay",
    BoundBy.SYNC: "critical_path_sync_dependency",
    BoundBy.IDLE: "critical_path_dependency",
    BoundBy.THREAD_HANDOVER: "critical_path_dependency",
    BoundBy.OUTSIDE_OPERATORS: "critical_path_dependency",
}
_OPERATOR = "critical_path_operator"


class CPGraph:
    """A critical path, as HTA's users ask for it. ``events`` is the part of the trace that was looked at.

    It is no ``networkx.DiGraph``: nodes and edges are columns of :func:`augment.derived.critical_graph.critical_graph`.
    """

    def __init__(self, events: Events, origin_ns: int) -> None:
        self.events = events
        self._origin_ns = origin_ns

    @cached_property
    def trace_df(self) -> pd.DataFrame:
        """The slices that were looked at."""
        return events_frame(self.events, self._origin_ns)

    @property
    def critical_path_events_set(self) -> set[int]:
        """The slices on the path, by ``index`` in :attr:`trace_df`."""
        rows = critical_path(self.events).row
        return set(rows[rows >= 0].tolist())

    def critical_path(self) -> bool:
        """Whether there is a path."""
        return len(critical_path(self.events)) > 0

    def get_critical_path_breakdown(self) -> pd.DataFrame | None:
        """A row for each piece of the path, in order; None without a path."""
        path = critical_path(self.events)
        if not len(path):
            return None
        kinds = [BoundBy(kind) for kind in path.bound_by.tolist()]
        pieces = pandas().DataFrame(
            {
                "event_idx": path.row,
                "duration": path.dur / 1000,
                "type": [_TYPES.get(kind, _OPERATOR) for kind in kinds],
                "bound_by": [_BOUND_BY[kind] for kind in kinds],
            }
        )
        told = self.trace_df[["s_name", "cat", "pid", "tid", "stream", "index"]]
        joined = pieces.merge(told, how="left", left_on="event_idx", right_on="index")
        return joined[["event_idx", "duration", "type", "s_name", "cat", "pid", "tid", "stream", "index", "bound_by"]]

    def summary(self) -> pd.Series:
        """The share of the path's length, in percent, by what it is bound by."""
        breakdown = self.get_critical_path_breakdown()
        if breakdown is None:
            return pandas().Series(dtype=float, name="duration")
        return breakdown.groupby("bound_by")["duration"].sum() / breakdown["duration"].sum() * 100


def critical_path_analysis(t: Trace, rank: int, annotation: str, instance: Instance) -> tuple[CPGraph, bool]:
    """The path within the chosen instances of what has ``annotation`` in its name; of all, if that is empty.

    Raises:
        UsageError: there is no such annotation or instance.
    """
    trace = t.of_rank(rank)
    graph = CPGraph(trace if not annotation else _within(trace, annotation, instance), t.min_ts)
    return graph, graph.critical_path()


def _within(trace: Events, annotation: str, instance: Instance) -> Events:
    events = trace.events
    codes = [code for code, name in enumerate(trace.strings) if annotation in name]
    rows = np.flatnonzero(np.isin(events.name, codes) & (events.phase == COMPLETE))
    on_host = rows[np.isin(events.category[rows], _ANNOTATIONS)]
    first, last = instance if isinstance(instance, tuple) else (instance or 0, instance or 0)
    if not 0 <= first <= last < len(on_host):
        asked = first if first == last else f"{first} to {last}"
        raise UsageError(f"{trace.source.path}: {annotation!r} occurs {len(on_host)} times: no instance {asked}")
    chosen = on_host[first : last + 1]
    return between(trace, int(events.ts[chosen].min()), int((events.ts[chosen] + events.dur[chosen]).max()))


def overlay_critical_path_analysis(t: Trace, rank: int, graph: CPGraph, output_dir: str) -> str:
    """Write the whole trace with the path on a track of its own; the file."""
    path = overlaid(output_dir, "overlaid_critical_path_", t.trace_files[rank])
    chrome.write(augment(graph.events, only=["critical_path"]), Path(path))
    return path
