"""The work that steps of optimizers launch."""

from __future__ import annotations

import numpy as np

from augment.arrays.types import NO_INDEX, Bools
from augment.core.context import derived
from augment.core.trace import Category, Trace
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.host.enclosing import innermost
from augment.facts.names.matching import starting

_STEP = "Optimizer.step#"


@derived
def steps_of_optimizers(trace: Trace) -> Bools:
    """For each string whether it names a step of an optimizer."""
    return starting(trace, _STEP)


@derived(until="rules")
def in_optimizer(trace: Trace) -> Bools:
    """Whether each piece of ``gpu_work`` was launched in a step of an optimizer."""
    work = gpu_work(trace)
    inside = np.zeros(len(work), np.bool_)
    known = np.flatnonzero(work.launch != NO_INDEX)
    if steps_of_optimizers(trace).any() and len(known):
        around = innermost(trace, work.launch[known], (Category.USER_ANNOTATION,), steps_of_optimizers(trace))
        inside[known] = around >= 0
    return inside
