"""The collectives of a rank: their groups and bytes, and the progress of the rank over time."""

from __future__ import annotations

# fmt: off
# ruff: noqa: I001
from augment.facts.collectives.collective_kernels import (
    SMALL_BYTES, ARGS, Collectives, Group, carries_activations, collectives as kernels, exposed_ns,
    gathers_of_parameters, opens_pass, trains,
)
from augment.facts.collectives.rank_progress import HostCollectives, host_collectives
from augment.facts.collectives.recorded_by_library import (
    DifferingRanks, NetworkOfLog, joined_records, network_of_log as network,
)

__all__ = [
    "ARGS", "SMALL_BYTES", "Collectives", "DifferingRanks", "Group", "HostCollectives", "NetworkOfLog",
    "carries_activations", "exposed_ns", "gathers_of_parameters", "host_collectives", "joined_records", "kernels",
    "network", "opens_pass", "trains",
]
# fmt: on
