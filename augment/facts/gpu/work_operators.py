"""The operator that launched each piece of GPU work: the innermost one around its launch."""

from __future__ import annotations

from augment.arrays.types import Int64s
from augment.core.context import derived
from augment.core.trace import Trace
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.host.queued_tasks import operators_around


@derived(until="rules")
def work_operators(trace: Trace) -> Int64s:
    """The row of the innermost operator around the launch of each place of ``gpu_work``, or which put the launch on a
    queue; ``NO_INDEX`` where unknown."""
    return operators_around(trace, gpu_work(trace).launch)
