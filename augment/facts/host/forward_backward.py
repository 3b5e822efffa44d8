"""The operator of the forward pass that each operator of the backward pass belongs to.

The ``fwdbwd`` flows link the two. In traces without these flows, mostly older ones, the sequence numbers do, from which
Kineto makes the flows: a node of the autograd graph has the number of the operator that created it.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from augment.arrays.ordering import each, is_any
from augment.arrays.types import NO_INDEX, EventRows, Int32s, Int64s
from augment.core.context import derived
from augment.core.trace import Category, Trace
from augment.facts.host.call_stacks import call_stacks, thread_bounds
from augment.facts.host.enclosing import around_moments
from augment.facts.source.arg_columns import arg_columns

_BEGIN, _ENDS = ord("s"), (ord("f"), ord("t"))


class ForwardBackward(Struct, frozen=True):
    """Equal-length columns: the operator ``backward`` differentiates ``forward``."""

    forward: EventRows  #: several may be the same
    backward: EventRows  #: ascending and distinct

    def __len__(self) -> int:
        return len(self.backward)

    def forward_of(self, backward: Int64s) -> Int64s:
        """The forward operator of each row; :data:`NO_INDEX` where there is none."""
        if not len(self):
            return np.full(len(backward), NO_INDEX, np.int64)
        place = np.minimum(np.searchsorted(self.backward, backward), len(self) - 1)
        return np.where(self.backward[place] == backward, self.forward[place], NO_INDEX)


@derived(until="breakdowns")
def forward_backward(trace: Trace) -> ForwardBackward:
    """The pairs linked by flows or, without flows, by sequence numbers."""
    linked = _by_flows(trace)
    return linked if len(linked) else _by_sequence_number(trace)


def _by_flows(trace: Trace) -> ForwardBackward:
    """The pairs linked by flows. Ends of flows outside operators, or without a beginning, are ignored."""
    events = trace.events
    sparse = events.flow_id
    rows = sparse.rows[:]
    chosen = events.category[rows] == Category.FWDBWD
    rows, ids = rows[chosen], sparse.values[chosen]
    begins = events.phase[rows] == _BEGIN
    known = begins | is_any(events.phase[rows], _ENDS)
    rows, ids, begins = rows[known], ids[known], begins[known]
    order = np.lexsort((~begins, events.ts[rows], ids))
    rows, ids, begins = rows[order], ids[order], begins[order]
    last = np.maximum.accumulate(np.where(begins, np.arange(len(rows)), -1))  # the beginning before each end
    ends = np.flatnonzero(~begins & (last >= 0))
    ends = ends[ids[last[ends]] == ids[ends]]
    operator = _operators_at(trace, events.track[rows], events.ts[rows])
    forward, backward = operator[last[ends]], operator[ends]
    linked = (forward != NO_INDEX) & (backward != NO_INDEX) & (forward != backward)
    backward, first = np.unique(backward[linked], return_index=True)
    return ForwardBackward(forward[linked][first], backward)


def _by_sequence_number(trace: Trace) -> ForwardBackward:
    """The pairs linked by sequence numbers: each operator with a forward thread, and the last earlier one of its number
    without a forward thread."""
    args = arg_columns(trace)
    numbers = args.ints("Sequence number")
    rows, number = numbers.rows[:], numbers.values[:]
    rows, number = rows[number >= 0], number[number >= 0]
    is_backward = args.ints("Fwd thread id").at(rows, 0) > 0
    order = np.argsort(number, kind="stable")  # rows of one number stay in the order of time
    rows, number, is_backward = rows[order], number[order], is_backward[order]
    last = np.maximum.accumulate(np.where(is_backward, -1, np.arange(len(rows))))
    ends = np.flatnonzero(is_backward & (last >= 0))
    ends = ends[number[last[ends]] == number[ends]]
    ends = ends[np.argsort(rows[ends])]
    return ForwardBackward(rows[last[ends]], rows[ends])


def _operators_at(trace: Trace, track: Int32s, ts: Int64s) -> Int64s:
    """The operator that each arrow binds to: the outermost one that begins at its moment, else the innermost around
    it."""
    stacks, events = call_stacks(trace), trace.events
    is_op = events.category[stacks.row] == Category.CPU_OP
    bounds = thread_bounds(trace)
    rows, _ = around_moments(trace, ts, track, (Category.CPU_OP,))
    for index, asked in each(track, len(trace.tracks)):
        low, high = bounds[index : index + 2]
        place = low + np.flatnonzero(is_op[low:high])
        if not len(place):
            continue
        start = events.ts[stacks.row[place]]
        where = np.searchsorted(start, ts[asked])
        here = np.minimum(where, len(place) - 1)
        rows[asked] = np.where(start[here] == ts[asked], stacks.row[place[here]], rows[asked])
    return rows
