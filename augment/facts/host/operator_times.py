"""The time that each operator takes itself."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from augment.arrays.ordering import sums
from augment.arrays.types import EventRows, Int64s, StackIndexes
from augment.core.context import derived
from augment.core.trace import Category, Trace
from augment.facts.host.call_stacks import call_stacks, is_of
from augment.facts.host.enclosing import directly_around


class OperatorTimes(Struct, frozen=True):
    """Equal-length columns: a row for each call of an operator."""

    place: StackIndexes  #: ascending
    row: EventRows  #: its event
    self_ns: Int64s  #: its duration without the operators directly within it


@derived(until="breakdowns")
def operator_times(trace: Trace) -> OperatorTimes:
    """Every call of an operator on the call stacks."""
    place = np.flatnonzero(is_of(trace, (Category.CPU_OP,)))
    row = call_stacks(trace).row[place]
    dur, outer = trace.events.dur[row], directly_around(trace, place)
    inside = outer >= 0
    return OperatorTimes(place, row, dur - sums(outer[inside], dur[inside], len(place)))
