"""The collectives of a rank: their groups and bytes, and the progress of the rank over time."""

from __future__ import annotations

# fmt: off
from augment.core.trace import Trace
from augment.facts.collectives.collective_kernels import UNKNOWN, Collectives, Group, collectives, exposed_ns
from augment.facts.collectives.collective_roles import SMALL_BYTES, carries_activations, gathers_of_parameters, trains

__all__ = [
    "SMALL_BYTES",
    "UNKNOWN",
    "Collectives",
    "Group",
    "carries_activations",
    "exposed_ns",
    "gathers_of_parameters",
    "kernels",
    "trains",
]
# fmt: on


def kernels(trace: Trace) -> Collectives:
    """The communication kernels: kind, group, bytes, and how long nothing is computed meanwhile."""
    return collectives(trace)
