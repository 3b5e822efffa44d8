"""Counters of the cumulative difference within each step; they begin each step at 0.

For the main thread: by how much later than in the control calls begin and end, relative to the start of the step. For a
device: the sum of the differences of its GPU work so far, including added and deleted work.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from augment.arrays.types import NO_INDEX, Int64s
from augment.compare.alignment import main_thread
from augment.compare.core import Pair
from augment.compare.deleted import moments_of_work
from augment.compare.marks import NAME, Rows
from augment.core.annotations import CounterTrack
from augment.facts.gpu.gpu_work import gpu_work

_ROW = "cumulative"
_SCALE = "time"
_LATE = "by how much later than in the control calls begin and end, relative to the start of the step"
_SUM = "sum of the differences of GPU work from the start of the step on"


def counter_of_main_thread(pair: Pair, rows: Rows) -> Iterator[CounterTrack]:
    """The counter of the main thread; none where nothing differs."""
    test, control, partner = pair.test, pair.control, pair.alignment.call_of_test
    thread = main_thread(test)
    met = np.flatnonzero((partner != NO_INDEX) & (test.calls.thread == thread) & (test.calls.step >= 0))
    if thread == NO_INDEX or not len(met):
        return
    step = np.tile(test.calls.step[met], 2).astype(np.int64)
    begin = test.trace.events.ts[test.calls.row[met]]
    was = control.trace.events.ts[control.calls.row[partner[met]]]
    ts = np.concatenate((begin, begin + test.calls.cpu_ns[met]))
    was = np.concatenate((was, was + control.calls.cpu_ns[partner[met]]))
    late = (ts - test.steps.begin[step]) - (was - control.steps.begin[step])
    windows = test.steps.begin, np.maximum(test.steps.begin, test.steps.finish - 1)
    ts = np.clip(ts, windows[0][step], windows[1][step])
    order = np.argsort(ts, kind="stable")
    yield from _counter(rows.of_host(_ROW), thread, windows, (ts[order], late[order]), _LATE)


def counters_of_devices(pair: Pair, rows: Rows) -> Iterator[CounterTrack]:
    """The counter of each device; none where nothing differs."""
    gpu, before = gpu_work(pair.test.trace), gpu_work(pair.control.trace).devices
    work, other, alignment = pair.test.work, pair.control.work, pair.alignment
    delta = work.ns - np.append(other.ns, 0)[alignment.work_of_test]
    gone = (alignment.work_of_control == NO_INDEX) & (other.step >= 0)
    moment = moments_of_work(pair)
    steps = pair.test.steps
    for place, device in enumerate(gpu.devices):
        places = device.start + np.flatnonzero(work.step[device.places] >= 0)
        lost = np.flatnonzero(gone[before[place].places]) + before[place].start if place < len(before) else places[:0]
        step = np.concatenate((work.step[places], other.step[lost])).astype(np.int64)
        ts = np.concatenate((gpu.end[places], moment[lost]))
        change = np.concatenate((delta[places], -other.ns[lost]))
        ts = np.clip(ts, steps.start[step], steps.end[step])
        order = np.lexsort((ts, step))
        value, step = np.cumsum(change[order]), step[order]
        first = np.searchsorted(step, step)
        value -= np.append(0, value)[first]
        name = rows.of_device(device.device, _ROW)
        yield from _counter(name, device.track, (steps.start, steps.end), (ts[order], value), _SUM)


def _counter(
    name: tuple[str, str], under: int, windows: tuple[Int64s, Int64s], points: tuple[Int64s, Int64s], description: str
) -> Iterator[CounterTrack]:
    """A counter of ``points``, ascending times and values, with 0 at the start of each window and after its end."""
    if not points[1].any():
        return
    start, end = windows
    zeros = np.zeros(len(start), np.int64)
    ts, value = np.concatenate((end + 1, start, points[0])), np.concatenate((zeros, zeros, points[1]))
    order = np.argsort(ts, kind="stable")
    ts, value = ts[order], value[order]
    last = np.append(ts[1:] != ts[:-1], True)  # the last point of each moment
    ts, value = ts[last], value[last]
    changed = np.append(True, value[1:] != value[:-1])
    yield CounterTrack(NAME, name[0], under, ts[changed], value[changed] / 1e6, "ms", description, _SCALE, name[1])
