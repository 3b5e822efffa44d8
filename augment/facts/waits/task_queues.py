"""What threads wait for at the queue on which PyTorch for Ascend puts operators.

Before a thread waits for a device, it waits until the queue is empty (``MakeSureQueueEmpty`` in ``NPUQueue.cpp``), of
which the trace has no slice.
"""

from __future__ import annotations

import numpy as np

from augment.arrays.ordering import distinct, each, is_among
from augment.arrays.types import Int64s
from augment.core.trace import LAUNCHES, Trace
from augment.facts.host.host_segments import host_segments
from augment.facts.host.queued_tasks import QueuedTasks, queued_tasks
from augment.facts.waits.dependencies import CallWaits, DependencyKind, dependencies_of, joined_waits
from augment.facts.waits.sync_calls import sync_calls


def task_queues(trace: Trace) -> CallWaits:
    """A thread waits for its next task until that has been put on the queue; threads that wait for a device wait first
    until all tasks put so far are done."""
    tasks = queued_tasks(trace)
    return joined_waits([_taken(trace, tasks), _emptied(trace, tasks)] if len(tasks) else [])


def _taken(trace: Trace, tasks: QueuedTasks) -> CallWaits:
    """Each task begins after it was put; until then its thread waits."""
    events = trace.events
    begin, end, track = events.ts[tasks.taken], events.end[tasks.taken], events.track[tasks.taken]
    there = dependencies_of(
        DependencyKind.HANDOVER,
        tasks.put,
        tasks.taken,
        from_at=(events.track[tasks.put], np.minimum(events.end[tasks.put], begin)),
        to_at=(track, begin),
    )
    order = np.argsort(track, kind="stable")
    before, after = order[:-1], order[1:]
    waits = (track[before] == track[after]) & (end[before] < begin[after])
    return CallWaits(there, track[after[waits]], end[before[waits]], begin[after[waits]])


def _emptied(trace: Trace, tasks: QueuedTasks) -> CallWaits:
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
    then = dependencies_of(DependencyKind.HANDOVER, last, calls, from_at=(events.track[last], at), to_at=(track, at))
    return CallWaits(then, track, begun, at)


def _changed_before(trace: Trace, rows: Int64s) -> Int64s:
    """When the innermost slice of the thread of each of ``rows`` last changed before it began, ns."""
    events, segments = trace.events, host_segments(trace)
    changed = events.ts[rows]
    for track, index in each(events.track[rows], len(trace.tracks)):
        ts = segments.ts[segments.of(track)]
        place = np.searchsorted(ts, events.ts[rows[index]]) - 1
        changed[index] = np.where(place >= 0, ts[np.maximum(place, 0)], changed[index])
    return changed
