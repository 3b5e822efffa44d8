"""The queue on which PyTorch for Ascend puts operators, and the operators that its tasks are of.

``torch_npu`` executes operators on a thread of its own: an operator is put on a queue (``Enqueue``), and the other
thread takes it from there (``Dequeue@…``) and calls the runtime.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from augment.arrays import NO_INDEX, Bools, EventRow, EventRows, each, looked_up
from augment.core import Category, Trace, derived
from augment.facts.host.call_stacks import innermost
from augment.facts.names import starting


def operators_around(trace: Trace, rows: EventRows) -> EventRows:
    """The row of the innermost operator around each of ``rows`` (``NO_INDEX`` for none). A task that was taken from a
    queue has the operator that put it there, if that is known."""
    around = innermost(trace, rows, (Category.CPU_OP,))
    tasks = queued_tasks(trace)
    if not len(tasks):
        return around
    order = np.argsort(tasks.taken, kind="stable")
    where, taken = looked_up(tasks.taken[order], around)
    put = tasks.put[order[where[taken]]]
    owner = innermost(trace, put, (Category.CPU_OP,), ~starting(trace, "Enqueue"))
    operators: EventRows = around.copy()
    operators[taken] = np.where(owner == NO_INDEX, around[taken], owner)
    return operators


class QueuedTasks(Struct, frozen=True):
    """Equal-length int64 columns, rows of the event table, ascending time of ``taken``: each task's ``put`` (the slice
    ``Enqueue``) and ``taken`` (the slice ``Dequeue@…``, on another thread)."""

    put: EventRows
    taken: EventRows

    def __len__(self) -> int:
        return len(self.put)


@derived(until="summary")
def queued_tasks(trace: Trace) -> QueuedTasks:
    """The tasks that an arrow leads to: from an ``Enqueue`` to a ``Dequeue`` of another thread."""
    events = trace.events
    puts, takes = starting(trace, "Enqueue"), starting(trace, "Dequeue")
    nothing = QueuedTasks(np.empty(0, np.int64), np.empty(0, np.int64))
    if not puts.any() or not takes.any():
        return nothing
    arrows = events.flow_id.rows[:]
    arrows = arrows[events.category[arrows] == Category.OTHER]
    begins, put = _slices_at(trace, arrows[events.phase[arrows] == ord("s")], puts)
    ends, taken = _slices_at(trace, arrows[events.phase[arrows] == ord("f")], takes)
    # of each end, the latest that begins at or before it with its number, in its process: numbers of several ranks in a
    # file may be equal
    both = np.concatenate((begins, ends))
    codes: dict[object, int] = {}
    process = np.array([codes.setdefault(track.pid, len(codes)) for track in trace.tracks], np.int64)
    of, number = process[events.track[both]], events.flow_id.at(both, 0)
    is_end = np.arange(len(both)) >= len(begins)
    order = np.lexsort((is_end, events.ts[both], number, of))
    last = np.maximum.accumulate(np.where(is_end[order], -1, np.arange(len(order))))
    nearest = order[np.maximum(last, 0)]
    same = (last >= 0) & (of[nearest] == of[order]) & (number[nearest] == number[order])
    begin = np.full(len(ends), -1, np.int64)
    begin[order[is_end[order]] - len(begins)] = np.where(same, nearest, -1)[is_end[order]]
    put, taken = put[begin[begin >= 0]], taken[begin >= 0]
    known = events.track[put] != events.track[taken]
    put, taken = put[known], taken[known]
    order = np.argsort(events.ts[taken], kind="stable")
    return QueuedTasks(put[order], taken[order])


def _slices_at(trace: Trace, arrows: EventRows, named: Bools) -> tuple[EventRows, EventRows]:
    """Those of ``arrows`` with which a slice of a name in ``named`` begins on their thread, and these slices."""
    events = trace.events
    rows = events.slices_of(Category.CPU_OP)
    rows = rows[named[events.name[rows]]]
    row = np.full(len(arrows), -1, EventRow)
    for track, index in each(events.track[arrows], len(trace.tracks)):
        of_track = rows[events.track[rows] == track]
        place = np.searchsorted(events.ts[of_track], events.ts[arrows[index]])
        begins = place < len(of_track)
        begins[begins] = events.ts[of_track[place[begins]]] == events.ts[arrows[index[begins]]]
        row[index[begins]] = of_track[place[begins]]
    return arrows[row >= 0], row[row >= 0]
