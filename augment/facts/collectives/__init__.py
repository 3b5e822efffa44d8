"""The collectives of a rank: their groups and bytes, and the progress of the rank over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from augment.core.trace import Trace
    from augment.facts.collectives.collective_kernels import Collectives


def kernels(trace: Trace) -> Collectives:
    """The communication kernels: kind, group, bytes, and how long nothing is computed meanwhile."""
    from augment.facts.collectives.collective_kernels import collectives

    return collectives(trace)
