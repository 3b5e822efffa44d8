"""The collectives of a rank: their groups and bytes, and the progress of the rank over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from augment.core.trace import Trace
    from augment.facts.collectives.instances import Collectives, Waits


def kernels(trace: Trace) -> Collectives:
    """The communication kernels: kind, group, bytes, and how long nothing is computed meanwhile."""
    from augment.facts.collectives.instances import collectives

    return collectives(trace)


def waited(trace: Trace) -> Waits:
    """How long each of them waited for late ranks, as far as the job's other traces are known."""
    from augment.facts.collectives.instances import waits_of_job

    return waits_of_job(trace)
