"""The critical path: the graph of dependencies, the path through it, and the time that shorter events would save."""

from __future__ import annotations

# fmt: off
# ruff: noqa: I001
from augment.facts.critical.critical_graph import CriticalGraph, critical_graph as graph
from augment.facts.critical.handovers import launching_tracks, main_track
from augment.facts.critical.longest_path import BoundBy, critical_path as path, delay_kinds, host_kinds
from augment.facts.critical.what_if import (
    Cut, busy_host_ns, earlier_ns, fused, joined, saved_ns, taken_of_work, without_waits, without_work,
)

__all__ = [
    "BoundBy", "CriticalGraph", "Cut", "busy_host_ns", "delay_kinds", "earlier_ns", "fused", "graph", "host_kinds",
    "joined", "launching_tracks", "main_track", "path", "saved_ns", "taken_of_work", "without_waits", "without_work",
]
# fmt: on
