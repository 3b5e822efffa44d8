"""The critical path: the graph of dependencies, the path through it, and the time that shorter events would save."""

from __future__ import annotations

# fmt: off
from augment.core import Trace
from augment.facts.critical.critical_graph import CriticalGraph, critical_graph
from augment.facts.critical.handovers import main_track
from augment.facts.critical.longest_path import BoundBy, CriticalPath, critical_path, host_kinds
from augment.facts.critical.what_if import Cut, fused, joined, without_waits, without_work

__all__ = [
    "BoundBy", "Cut", "fused", "graph", "host_kinds", "joined", "main_track", "path", "without_waits", "without_work",
]
# fmt: on


def graph(trace: Trace) -> CriticalGraph:
    """What waits for what: calls, work and events as a graph of dependencies."""
    return critical_graph(trace)


def path(trace: Trace) -> CriticalPath:
    """The chain of calls and work that decides how long the recording takes."""
    return critical_path(trace)
