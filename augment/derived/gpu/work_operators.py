"""The operator that launched each piece of GPU work: the innermost one around its launch."""

from __future__ import annotations

from augment.arrays.types import Int64s
from augment.derived.gpu.gpu_work import gpu_work
from augment.derived.host.enclosing import innermost
from augment.trace import Category, Trace, derived


@derived
def work_operators(trace: Trace) -> Int64s:
    """The row of the innermost operator around the launch of each place of ``gpu_work``; ``NO_ROW`` where unknown."""
    return innermost(trace, gpu_work(trace).launch, [Category.CPU_OP])
