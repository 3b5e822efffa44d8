"""Marks what the test lacks: one mark for each deleted call or piece of GPU work, where it would have been.

The mark of a deleted call or piece of work is drawn after the partner of its predecessor: among its siblings, or on its
stream. Without such a predecessor it is drawn at the start of its parent's partner; without that, at the same offset in
the step as in the control. Marks at the same moment are merged; the merged mark is named after the longest item.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from augment.arrays.ordering import each
from augment.arrays.types import NO_INDEX, Int32s, Int64s
from augment.compare.alignment import main_thread
from augment.compare.core import Pair
from augment.compare.marks import LEFT_OUT, Change, Marks, Rows, delta_args, marked, texts_at, tracks_of
from augment.compare.threshold import Threshold
from augment.core.annotations import ArgColumn, SliceTrack, Texts
from augment.core.text import first_of
from augment.facts.gpu.gpu_work import gpu_work

_LEGEND = "what the control has and the test lacks, where it would have been"
_ROW = "deleted"
_MOST_NAMES = 10  #: names listed in a mark


def moments_of_work(pair: Pair) -> Int64s:
    """Where each piece of the control's work would have been in the test, int64 ns; undefined outside of steps."""
    control, test = gpu_work(pair.control.trace), gpu_work(pair.test.trace)
    work, steps = pair.control.work, len(pair.control.steps)
    partner = pair.alignment.work_of_control
    sizes = np.array([stream.stop - stream.start for stream in control.streams], np.int64)
    stream = np.repeat(np.arange(len(sizes)), sizes)
    end = np.append(test.end, NO_INDEX)[partner]
    return _after(stream * (steps + 1) + work.step, end, _shifted(pair, control.ts, work.step))


def deleted_calls(pair: Pair, rows: Rows, least: Threshold) -> Iterator[SliceTrack]:
    """The tracks of the marks of deleted outermost calls, under threads."""
    calls, partner = pair.control.calls, pair.alignment.call_of_control
    parent = np.append(partner, NO_INDEX)[calls.parent]
    known = (calls.parent == NO_INDEX) | (parent != NO_INDEX)
    larger = np.maximum(calls.cpu_ns, calls.gpu_ns)
    gone = np.flatnonzero((partner == NO_INDEX) & (calls.step >= 0) & known & least.calls(calls.name, larger))
    if not len(gone):
        return
    moment = _moments_of_calls(pair, parent)[gone]
    under = _threads(pair)[calls.thread[gone]]
    known = np.flatnonzero(under != NO_INDEX)
    for thread, places in each(under[known], len(pair.test.trace.tracks)):
        index = known[places]
        chosen = gone[index]
        ns = {"": calls.cpu_ns[chosen], "gpu_": calls.gpu_ns[chosen]}
        marks = _marks(pair, calls.row[chosen], moment[index], ns)
        yield from tracks_of(marks, rows.of_host(_ROW), thread, f"compared with {rows.label}: {_LEGEND}")


def _moments_of_calls(pair: Pair, parent: Int64s) -> Int64s:
    """Where each call of the control would have been in the test, int64 ns; ``parent`` is the partner of its parent."""
    calls, events = pair.control.calls, pair.control.trace.events
    test_calls, times = pair.test.calls, pair.test.trace.events
    begin = np.append(times.ts[test_calls.row], NO_INDEX)
    end = np.append(times.ts[test_calls.row] + test_calls.cpu_ns, NO_INDEX)[pair.alignment.call_of_control]
    fallback = np.where(parent != NO_INDEX, begin[parent], _shifted(pair, events.ts[calls.row], calls.step))
    outermost = len(calls) + 1 + calls.thread.astype(np.int64) * (len(pair.control.steps) + 1) + calls.step
    return _after(np.where(calls.parent == NO_INDEX, outermost, calls.parent), end, fallback)


def deleted_work(pair: Pair, least: Threshold) -> dict[int, list[Marks]]:
    """The marks of deleted GPU work, by the place of the test's device under which they are drawn."""
    work, control = pair.control.work, gpu_work(pair.control.trace)
    devices = gpu_work(pair.test.trace).devices
    alone = pair.alignment.work_of_control == NO_INDEX
    gone = np.flatnonzero(alone & (work.step >= 0) & least.work(work.name, work.ns))
    made: dict[int, list[Marks]] = {}
    if not len(gone) or not devices:
        return made
    moment = moments_of_work(pair)
    for place, device in enumerate(control.devices):
        first, last = np.searchsorted(gone, (device.start, device.stop)).tolist()
        index = gone[first:last]
        marks = _marks(pair, work.row[index], moment[index], {"": work.ns[index]})
        made.setdefault(min(place, len(devices) - 1), []).append(marks)
    return made


def _marks(pair: Pair, row: Int64s, moment: Int64s, ns: dict[str, Int64s]) -> Marks:
    """One mark per moment; ``ns`` are the times of what is gone, by prefix of their args' names."""
    trace = pair.control.trace
    order = np.lexsort((-ns[""], moment))
    row, moment = row[order], moment[order]
    first = np.flatnonzero(np.append(True, moment[1:] != moment[:-1])[: len(row)])
    count = np.diff(first, append=len(row))
    args: dict[str, ArgColumn] = {}
    for prefix, column in ns.items():
        total = np.add.reduceat(column[order], first) if len(first) else first.astype(np.int64)
        args |= delta_args(total, -total, prefix)
    several = np.flatnonzero(count > 1)
    lists = [
        _frequent(trace.names_of(row[start : start + size]))
        for start, size in zip(first[several].tolist(), count[several].tolist(), strict=True)
    ]
    codes = np.full(len(first), LEFT_OUT, np.int32)
    codes[several] = np.arange(len(several), dtype=np.int32)
    args |= {"count": count.astype(np.int64), "names": Texts(codes, lists)}
    change = np.full(len(first), Change.DELETED, np.int64)
    names = texts_at(row[first], trace.events.name, trace.strings)
    return marked(moment[first], np.zeros(len(first), np.int64), change, names, args)


def _frequent(names: list[str]) -> str:
    """The names with counts, the most frequent first: ``12 × mm, add``."""
    parts = [f"{count} × {name}" if count > 1 else name for name, count in Counter(names).most_common()]
    return first_of(parts, _MOST_NAMES)


def _threads(pair: Pair) -> Int64s:
    """The test's thread on which the calls of each track of the control are compared; its main thread by default."""
    calls, partner = pair.control.calls, pair.alignment.call_of_control
    thread = np.full(len(pair.control.trace.tracks), main_thread(pair.test), np.int64)
    met = np.flatnonzero(partner != NO_INDEX)
    thread[calls.thread[met]] = pair.test.calls.thread[partner[met]]
    return thread


def _shifted(pair: Pair, ts: Int64s, step: Int32s) -> Int64s:
    """``ts`` of the control at the same offset in the test's step."""
    shift = pair.test.steps.start - pair.control.steps.start
    shifted: Int64s = ts + np.append(shift, 0)[step]
    return shifted


def _after(group: Int64s, end: Int64s, fallback: Int64s) -> Int64s:
    """The ``end`` (ns; NO_INDEX: none) of the nearest predecessor in the group that has one, else ``fallback``."""
    order = np.argsort(group, kind="stable")
    place = np.arange(len(order))
    ends, groups = end[order], group[order]
    first = np.maximum.accumulate(np.where(np.append(True, groups[1:] != groups[:-1])[: len(order)], place, 0))
    last = np.maximum.accumulate(np.where(ends != NO_INDEX, place, LEFT_OUT))
    moment = np.empty(len(order), np.int64)
    moment[order] = np.where(last >= first, ends[last], fallback[order])
    return moment
