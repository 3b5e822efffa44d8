"""The steps of a recording: its ``ProfilerStep#n`` annotations on the host."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from augment.arrays import NO_INDEX, EventRows, Int64s, distinct, where_in
from augment.core.context import derived
from augment.core.trace import Category, Trace
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.gpu.launched_work import before_recording

_STEP = re.compile(r"ProfilerStep\s*#\s*([0-9]{1,18})")  # at most 18 digits fit 64 bits
#: categories of the annotation; the oldest recordings have it as an operator. The GPU's copy is no step.
_ON_HOST = (Category.USER_ANNOTATION, Category.CPU_OP)


class Steps(Struct, frozen=True):
    """The host's annotations of steps: equal-length columns, ascending ``ts``."""

    number: Int64s  #: of ``ProfilerStep#n``
    row: EventRows  #: the annotation
    ts: Int64s  #: ns
    end: Int64s  #: ns

    def __len__(self) -> int:
        return len(self.row)

    def at(self, ts: Int64s) -> Int64s:
        """The place of the step in which each moment lies, int64; -1 where there is none."""
        place = where_in(self.ts, ts, side="right") - 1
        if not len(self):
            return np.full(len(ts), -1, np.int64)
        inside = (place >= 0) & (ts < self.end[place])
        return np.where(inside, place, -1)


@derived(until="summary")
def steps(trace: Trace) -> Steps:
    """The steps of the trace. Of two that overlap (two threads annotate one step), the first counts."""
    events = trace.events
    rows, number_of = _told(trace)
    ts, end = events.ts[rows], events.ts[rows] + events.dur[rows]
    kept = []
    last_end = None
    for place, (start, stop) in enumerate(
        zip(ts.tolist(), end.tolist(), strict=True)
    ):  # a loop over steps, which are few
        if last_end is None or start >= last_end:
            kept.append(place)
            last_end = stop
    number = np.array([number_of[code] for code in events.name[rows[kept]].tolist()], np.int64)
    return Steps(number, rows[kept], ts[kept], end[kept])


def step_numbers(trace: Trace) -> list[int]:
    """The number of every step annotation in the trace, also of those that overlap others; ascending."""
    rows, number_of = _told(trace)
    return sorted({number_of[code] for code in distinct(trace.events.name[rows]).tolist()})


@derived
def _told(trace: Trace) -> tuple[Int64s, dict[int, int]]:
    """The rows of the annotations, ascending, and the step's number for the code of each name."""
    number_of = {code: int(match[1]) for code, name in enumerate(trace.strings) if (match := _STEP.fullmatch(name))}
    rows = trace.events.slices_of(*_ON_HOST)
    return rows[np.isin(trace.events.name[rows], list(number_of))], number_of


@derived(until="summary")
def steps_of_gpu_work(trace: Trace) -> Int64s:
    """The place in :func:`steps` of each piece of ``gpu_work(trace)``, int64; -1 for none.

    The work belongs to the step in which it was launched, however much later it runs; to none if it was launched before
    the recording; and if its launch is unknown, to the step in which it begins.
    """
    work = gpu_work(trace)
    step = steps(trace).at(np.where(work.launch == NO_INDEX, work.ts, trace.events.ts[work.launch]))
    step[before_recording(trace)] = -1
    return step
