"""What of a rank's job the profiler records: it begins and ends at moments of the host, whatever is queued then.

As Kineto does it: an operation is recorded if it ran within the window, though its launch may have been before; then
its call and its external id are missing, while the end of its arrow is there. Host slices that are open when the
recording begins or ends are not in the file.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.options import JobOptions
from simulator.program import Bools, Int64s, Kept, Program
from simulator.timing import StepTimes

BEFORE_NS, AFTER_NS = -(1 << 62), 1 << 62


@dataclass(frozen=True, slots=True)
class Played:
    """A step as the rank's clock has it."""

    number: int
    program: Program
    times: StepTimes  #: on the shared clock
    host: Int64s
    start: Int64s
    end: Int64s


@dataclass(frozen=True, slots=True)
class Window:
    """The recorded time, on the rank's clock."""

    begin: int
    finish: int

    def holds(self, start: Int64s, end: Int64s) -> Bools:
        """Whether each of these times is inside."""
        return (start >= self.begin) & (end <= self.finish)


def window_of(options: JobOptions, rank: int, steps: list[Played]) -> Window:
    """The window of ``rank``."""
    first, last = options.window_of(rank)
    begin = BEFORE_NS if first == 0 else _moment(steps, first)
    return Window(begin, AFTER_NS if last >= len(steps) else _moment(steps, last))


def _moment(steps: list[Played], place: float) -> int:
    """The host's time so many steps after the job's begin."""
    host = steps[min(int(place), len(steps) - 1)].host
    return int(host[int((place - int(place)) * (len(host) - 1))])


def kept_of(step: Played, window: Window, lost_every: int | None = None) -> Kept:
    """What of a step is recorded; every so many collectives have lost their kernel."""
    program = step.program
    first, last = program.slice_times(step.host)
    slices = window.holds(first, last)
    ops = window.holds(step.start, step.end)
    if lost_every:
        collectives = np.flatnonzero([op.collective for op in program.ops])
        number = step.number * len(collectives) + np.arange(len(collectives))
        ops[collectives[number % lost_every == lost_every - 1]] = False
    calls = np.array([(op.launch, op.launch_end) for op in program.ops], np.int64)
    launched = window.holds(step.host[calls[:, 0]], step.host[calls[:, 1]])
    note_times, notes = _notes(step, ops & launched)
    points = window.holds(step.host, step.host)
    points[program.host_pairs[:, 0]] = slices  # an arrow is recorded with the slice that it begins or ends at
    kept = {"host": points, "start": ops, "host_dur": slices, "gpu_dur": ops, "note_dur": notes}
    texts = [bool(kept[kind][index]) for kind, index in program.anchors]
    return Kept(texts, ops, launched, slices, note_times)


def _notes(step: Played, ops: Bools) -> tuple[tuple[Int64s, Int64s], Bools]:
    """Start and end of each annotation on the device, over what was recorded with its launch; whether there is any."""
    pairs = step.program.note_pairs
    first, last = step.start[pairs[:, 0]], step.end[pairs[:, 1]]
    there = np.zeros(len(pairs), np.bool_)
    for place, (begin, end) in enumerate(pairs.tolist()):
        within = np.flatnonzero(ops[begin : end + 1]) + begin
        there[place] = len(within)
        if len(within):
            first[place], last[place] = step.start[within[0]], step.end[within[-1]]
    return (first, last), there
