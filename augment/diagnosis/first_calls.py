"""Operators at their first call: libraries set themselves up there, and kernels are loaded. Later calls lack it."""

from __future__ import annotations

import numpy as np

from augment.arrays.types import Bools, Int64s
from augment.derived.host.enclosing import innermost
from augment.trace import Category, Trace


def at_first_calls(trace: Trace, rows: Int64s) -> Bools:
    """Which slices ``rows`` lie within the first call in the recording of the innermost operator around them, and that
    operator is called again afterwards; a call within a call of the same name is not another one."""
    events = trace.events
    operators = events.slices_of(Category.CPU_OP)
    around = innermost(trace, rows, (Category.CPU_OP,))
    names = events.name[operators]
    first, last = np.full((2, len(trace.strings)), -1)
    first[names[::-1]], last[names] = operators[::-1], operators
    name = events.name[np.maximum(around, 0)]
    row = first[name]
    end = events.ts[row] + events.dur[row]
    within = (events.track[rows] == events.track[row]) & (events.ts[rows] >= events.ts[row])
    within &= events.ts[rows] + events.dur[rows] <= end
    again: Bools = (around >= 0) & within & (events.ts[last[name]] >= end)
    return again
