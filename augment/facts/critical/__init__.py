"""The critical path: the graph of dependencies, the path through it, and the time that shorter events would save."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from augment.core.trace import Trace
    from augment.facts.critical.critical_graph import CriticalGraph
    from augment.facts.critical.longest_path import CriticalPath


def graph(trace: Trace) -> CriticalGraph:
    """What waits for what: calls, work and events as a graph of dependencies."""
    from augment.facts.critical.critical_graph import critical_graph

    return critical_graph(trace)


def path(trace: Trace) -> CriticalPath:
    """The chain of calls and work that decides how long the recording takes."""
    from augment.facts.critical.longest_path import critical_path

    return critical_path(trace)
