"""The collectives of a rank: their groups and bytes, and the progress of the rank over time."""

from __future__ import annotations

# fmt: off
from augment.core import Trace
from augment.facts.collectives.collective_kernels import (
    SMALL_BYTES,
    UNKNOWN,
    Collectives,
    Group,
    carries_activations,
    collectives,
    exposed_ns,
    gathers_of_parameters,
    trains,
)
from augment.facts.collectives.rank_progress import HostCollectives, host_collectives
from augment.facts.collectives.recorded_by_library import DifferingRanks, NetworkOfLog, joined_records, network_of_log

__all__ = [
    "SMALL_BYTES",
    "UNKNOWN",
    "Collectives",
    "DifferingRanks",
    "Group",
    "HostCollectives",
    "NetworkOfLog",
    "carries_activations",
    "exposed_ns",
    "gathers_of_parameters",
    "host_collectives",
    "joined_records",
    "kernels",
    "network",
    "trains",
]
# fmt: on


def kernels(trace: Trace) -> Collectives:
    """The communication kernels: kind, group, bytes, and how long nothing is computed meanwhile."""
    return collectives(trace)


def network(trace: Trace) -> NetworkOfLog | None:
    """How NCCL joins the ranks, as its log beside the trace says; None without one."""
    return network_of_log(trace)
