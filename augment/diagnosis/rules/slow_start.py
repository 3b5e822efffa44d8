"""Is the first recorded step slower than the others?

It loads kernels, compiles, tunes and fills caches. The other rules leave it out if it takes more than 1.5 times the
median of the others.

**What to do**: nothing, unless the job is short. For a recording give the schedule a ``warmup``: with
``schedule(wait=1, warmup=2, active=3)`` the recorded steps are steady.
"""

from __future__ import annotations

import numpy as np

from augment.arrays.statistics import median
from augment.core.text import Words, time
from augment.core.trace import Trace
from augment.diagnosis.measure import measure
from augment.diagnosis.rule import (
    Answer,
    Fine,
    Found,
    NotApplicable,
    Seen,
    Spans,
)
from augment.facts.steps.step_windows import step_windows

NAME = "slow_start"


class SlowStart(Seen, frozen=True):
    """The first step beside the others."""

    first_ns: int
    times: float  #: as long as the median of the others

    def title(self, words: Words) -> str:
        first = f"The first recorded step takes {time(self.first_ns)}"
        return f"{first}, {self.times:.1f} times as long as the others: it is left out here"

    def fine(self, words: Words, saved_ns: int) -> str:
        return f"the first step takes {self.times:.1f} times as long as the others"

    def advice(self, words: Words) -> str:
        return "Give the profiler's schedule a warmup step, so that only steady steps are recorded"


def check(trace: Trace) -> Answer:
    """Compare the first step with the median of the others."""
    windows = step_windows(trace)
    if measure(trace).unit == "recording" or len(windows) < 3:
        return NotApplicable("fewer than three steps were recorded")
    length = windows.end - windows.start
    factor = float(length[0] / max(median(length[1:]), 1.0))
    if measure(trace).hidden:
        return Fine("the first step began while earlier work ran on the device, and is left out")
    seen = SlowStart(int(length[0]), factor)
    if not measure(trace).warm_up:
        return Fine(seen)
    spans = Spans(windows.start[:1], windows.end[:1], np.full(1, -1, np.int64))
    return Found(seen, spans, "high", severity="info", of_recording=True)
