"""The queue on which PyTorch for Ascend puts operators, and the thread that executes them.

``torch_npu`` executes operators on a thread of its own: an operator is put on a queue (``Enqueue``), and the other
thread takes it from there (``Dequeue@…``) and calls the runtime. Before a thread waits for a device, it waits until the
queue is empty (``MakeSureQueueEmpty`` in ``NPUQueue.cpp``), of which the trace has no slice.
"""

from __future__ import annotations

import numpy as np

from augment.arrays.ordering import distinct, each, is_among
from augment.arrays.types import Bools, Int64s
from augment.derived.host.host_segments import host_segments
from augment.derived.names.matching import starting
from augment.derived.waits.dependencies import Kind, Waits, dependencies_of, joined_waits
from augment.derived.waits.sync_calls import sync_calls
from augment.records import dataclass
from augment.trace import LAUNCHES, Category, Trace, derived


@dataclass(frozen=True, slots=True)
class QueuedTasks:
    """Equal-length int64 columns, rows of the event table, ascending time of ``taken``: each task's ``put`` (the slice
    ``Enqueue``) and ``taken`` (the slice ``Dequeue@…``, on another thread)."""

    put: Int64s
    taken: Int64s

    def __len__(self) -> int:
        return len(self.put)


@derived
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
    begin = _begins_of(trace, begins, ends)
    put, taken = put[begin[begin >= 0]], taken[begin >= 0]
    known = events.track[put] != events.track[taken]
    put, taken = put[known], taken[known]
    order = np.argsort(events.ts[taken], kind="stable")
    return QueuedTasks(put[order], taken[order])


def _begins_of(trace: Trace, begins: Int64s, ends: Int64s) -> Int64s:
    """The place in ``begins`` of the latest that begins at or before each of ``ends`` with its number, in its process:
    numbers of several ranks in a file may be equal. -1 for none."""
    events, arrows = trace.events, np.concatenate((begins, ends))
    codes: dict[object, int] = {}
    process = np.array([codes.setdefault(track.pid, len(codes)) for track in trace.tracks], np.int64)
    of, number = process[events.track[arrows]], events.flow_id.at(arrows, 0)
    is_end = np.arange(len(arrows)) >= len(begins)
    order = np.lexsort((is_end, events.ts[arrows], number, of))
    last = np.maximum.accumulate(np.where(is_end[order], -1, np.arange(len(order))))
    begin = order[np.maximum(last, 0)]
    same = (last >= 0) & (of[begin] == of[order]) & (number[begin] == number[order])
    places = np.full(len(ends), -1, np.int64)
    places[order[is_end[order]] - len(begins)] = np.where(same, begin, -1)[is_end[order]]
    return places


def _slices_at(trace: Trace, arrows: Int64s, named: Bools) -> tuple[Int64s, Int64s]:
    """Those of ``arrows`` with which a slice of a name in ``named`` begins on their thread, and these slices."""
    events = trace.events
    rows = events.slices_of(Category.CPU_OP)
    rows = rows[named[events.name[rows]]]
    row = np.full(len(arrows), -1, np.int64)
    for track, index in each(events.track[arrows], len(trace.tracks)):
        of_track = rows[events.track[rows] == track]
        place = np.searchsorted(events.ts[of_track], events.ts[arrows[index]])
        begins = place < len(of_track)
        begins[begins] = events.ts[of_track[place[begins]]] == events.ts[arrows[index[begins]]]
        row[index[begins]] = of_track[place[begins]]
    return arrows[row >= 0], row[row >= 0]


def task_queues(trace: Trace) -> Waits:
    """A thread waits for its next task until that has been put on the queue; threads that wait for a device wait first
    until all tasks put so far are done."""
    tasks = queued_tasks(trace)
    return joined_waits([_taken(trace, tasks), _emptied(trace, tasks)] if len(tasks) else [])


def _taken(trace: Trace, tasks: QueuedTasks) -> Waits:
    """Each task begins after it was put; until then its thread waits."""
    events = trace.events
    begin, end, track = events.ts[tasks.taken], events.end[tasks.taken], events.track[tasks.taken]
    there = dependencies_of(
        Kind.HANDOVER,
        tasks.put,
        tasks.taken,
        from_at=(events.track[tasks.put], np.minimum(events.end[tasks.put], begin)),
        to_at=(track, begin),
    )
    order = np.argsort(track, kind="stable")
    before, after = order[:-1], order[1:]
    waits = (track[before] == track[after]) & (end[before] < begin[after])
    return Waits(there, track[after[waits]], end[before[waits]], begin[after[waits]])


def _emptied(trace: Trace, tasks: QueuedTasks) -> Waits:
    """Before a call that waits for a device, a thread waits until all tasks put so far are done, if they were done
    between its last change and the call. With several queues, it is unknown for which it waits."""
    events = trace.events
    queues = distinct(events.track[tasks.taken])
    calls = np.sort(sync_calls(trace).row)
    calls = calls[np.isin(events.category[calls], LAUNCHES) & ~is_among(events.track[calls], queues)]
    if len(queues) != 1 or not len(calls):
        return joined_waits([])
    put = np.maximum.accumulate(events.end[tasks.put])
    done = np.maximum.accumulate(events.end[tasks.taken])
    count = np.searchsorted(put, events.ts[calls], side="right")
    calls, count = calls[count > 0], count[count > 0]
    begun, at = _changed_before(trace, calls), done[count - 1]
    waited = (begun < at) & (at <= events.ts[calls])
    calls, begun, at, last = calls[waited], begun[waited], at[waited], tasks.taken[count[waited] - 1]
    track = events.track[calls]
    then = dependencies_of(Kind.HANDOVER, last, calls, from_at=(events.track[last], at), to_at=(track, at))
    return Waits(then, track, begun, at)


def _changed_before(trace: Trace, rows: Int64s) -> Int64s:
    """When the innermost slice of the thread of each of ``rows`` last changed before it began, ns."""
    events, segments = trace.events, host_segments(trace)
    changed = events.ts[rows]
    for track, index in each(events.track[rows], len(trace.tracks)):
        ts = segments.ts[segments.of(track)]
        place = np.searchsorted(ts, events.ts[rows[index]]) - 1
        changed[index] = np.where(place >= 0, ts[np.maximum(place, 0)], changed[index])
    return changed
