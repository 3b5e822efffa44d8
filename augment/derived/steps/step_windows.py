"""When each step is at work, on the host and on the devices: the windows that figures per step are of."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from augment.arrays.types import Int64s, Places
from augment.derived.gpu.before_recording import before_recording
from augment.derived.gpu.gpu_work import gpu_work
from augment.derived.gpu.launches import NO_ROW
from augment.derived.steps.steps import steps
from augment.trace import GPU_WORK, LAUNCHES, Category, Trace, derived

#: what a recording without steps begins and ends with
_WORK = (Category.CPU_OP, Category.USER_ANNOTATION, *LAUNCHES, *GPU_WORK)


@dataclass(frozen=True, slots=True)
class StepWindows:
    """Equal-length int64 columns, ascending, a step a row; of a recording without steps one row, ``number`` -1.

    ``begin`` and ``finish`` are the host's ``ProfilerStep#n``. ``start`` and ``end`` are the window: a step starts
    when the host has begun it *and* all work launched before, also before the recording, is done; it is over when the
    host has left it *and* the work launched until then is done. So windows do not overlap, and no work of a host that
    runs ahead is lost. Where the host waits for the device at the end of each step, the window is the annotation.
    """

    number: Int64s
    begin: Int64s
    finish: Int64s
    start: Int64s
    end: Int64s

    def __len__(self) -> int:
        return len(self.number)

    def take(self, places: Places) -> StepWindows:
        """Some of the steps."""
        return StepWindows(*(column[places] for column in self.columns))

    @property
    def backlog(self) -> Int64s:
        """How long, from the step's begin, the device still works on what was launched before: before the window."""
        return self.start - self.begin

    @property
    def columns(self) -> tuple[Int64s, ...]:
        """In the order of the fields."""
        return self.number, self.begin, self.finish, self.start, self.end

    def of_host(self, ts: Int64s) -> Int64s:
        """The place of the step that the host is in at each moment, int64; -1 where there is none."""
        if not len(self):
            return np.full(len(ts), -1, np.int64)
        place = np.searchsorted(self.begin, ts, side="right") - 1
        return np.where((place >= 0) & (ts < self.finish[place]), place, -1)


@derived
def step_windows(trace: Trace) -> StepWindows:
    """The windows of every step; of a trace without steps the whole recording; none of a trace without work."""
    found = steps(trace)
    return windows_of(trace, found.number, found.ts, found.end) if len(found) else _whole(trace)


def region_windows(trace: Trace, name: str) -> StepWindows:
    """The windows of every occurrence of the annotation or operator ``name``, numbered from 0, as if they were steps.

    Where nothing has that name it is a pattern: ``*`` stands for any characters, ``?`` for one. Of two that overlap the
    first counts; there may be none.
    """
    events = trace.events
    rows = events.slices_of(Category.USER_ANNOTATION, Category.CPU_OP)
    rows = rows[np.isin(events.name[rows], _codes(trace, name))]
    ts, end = events.ts[rows], events.ts[rows] + events.dur[rows]
    first = np.ones(len(rows), np.bool_)
    first[1:] = ts[1:] >= np.maximum.accumulate(end)[:-1]
    return windows_of(trace, np.arange(int(first.sum()), dtype=np.int64), ts[first], end[first])


def _codes(trace: Trace, name: str) -> list[int]:
    """The strings that are ``name``, or, if none is, that match it."""
    same = [code for code, text in enumerate(trace.strings) if text == name]
    if same or not set(name) & {"*", "?"}:
        return same
    wanted = re.compile(re.escape(name).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)
    return [code for code, text in enumerate(trace.strings) if wanted.fullmatch(text)]


def windows_of(trace: Trace, number: Int64s, begin: Int64s, finish: Int64s) -> StepWindows:
    """The windows of steps that the host began and left at those times, ascending and disjoint."""
    work = gpu_work(trace)
    launched = _launched(trace)
    order = np.argsort(launched, kind="stable")
    done = np.maximum.accumulate(np.concatenate(([np.iinfo(np.int64).min], work.end[order])))
    start = np.maximum(begin, done[np.searchsorted(launched[order], begin, side="left")])
    end = np.maximum(finish, done[np.searchsorted(launched[order], finish, side="left")])
    return StepWindows(number, begin, finish, start, np.maximum(start, end))


def _launched(trace: Trace) -> Int64s:
    """When each piece of ``gpu_work`` was launched; long ago if before the recording, and its start if nobody knows."""
    work = gpu_work(trace)
    launched: Int64s = work.ts.copy()
    known = work.launch != NO_ROW
    launched[known] = trace.events.ts[work.launch[known]]
    launched[before_recording(trace)] = np.iinfo(np.int64).min
    return launched


def step_of_work(trace: Trace, windows: StepWindows) -> Int64s:
    """The place of the step that each piece of ``gpu_work`` belongs to, in which the host launched it; -1 for none.

    Work without a known launch belongs to no step: it was launched before the recording, or nothing tells when. But if
    no launch is known at all, or there are no steps, it belongs to that in which it begins.
    """
    work = gpu_work(trace)
    launched = work.launch != NO_ROW
    moment = np.where(launched, trace.events.ts[work.launch], work.ts) if len(work) else work.ts
    step = windows.of_host(moment)
    if launched.any() and (windows.number >= 0).any():
        step[~launched] = -1
    return step


def _whole(trace: Trace) -> StepWindows:
    rows = trace.events.slices_of(*_WORK)
    count = min(len(rows), 1)
    start = trace.events.ts[rows[:1]]
    end = np.full(count, (trace.events.ts[rows] + trace.events.dur[rows]).max(initial=0), np.int64)
    end = np.maximum(end, start)
    return StepWindows(np.full(count, -1, np.int64), start, end + 1, start, end)
