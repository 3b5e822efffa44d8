"""Is the first recorded step slower than the others?

It loads kernels, compiles, tunes and fills caches. The other rules leave it out if it takes more than 1.5 times the
median of the others.

**What to do**: nothing, unless the job is short. For a recording give the schedule a ``warmup``: with
``schedule(wait=1, warmup=2, active=3)`` the recorded steps are steady.
"""

from __future__ import annotations

import numpy as np

from augment import arrays, facts
from augment.core import Trace, text
from augment.diagnosis import judging, rule

NAME = "slow_start"


class SlowStart(rule.Seen, frozen=True):
    """The first step beside the others."""

    first_ns: int
    times: float  #: as long as the median of the others
    ADVICE = "Give the profiler's schedule a warmup step, so that only steady steps are recorded"

    def title(self, words: text.Words) -> str:
        first = f"The first recorded step takes {text.time(self.first_ns)}"
        return f"{first}, {self.times:.1f} times as long as the others: it is left out here"

    def fine(self, words: text.Words, saved_ns: int) -> str:
        return f"the first step takes {self.times:.1f} times as long as the others, so it is no warm-up"


def check(trace: Trace) -> rule.Answer:
    """Compare the first step with the median of the others."""
    windows = judging.like_first(trace, facts.steps.recorded_windows(trace))
    if judging.measure(trace).unit == "recording" or len(windows) < 3:
        return rule.NotApplicable("fewer than three steps were recorded")
    length = windows.end - windows.start
    factor = float(length[0] / max(arrays.median(length[1:]), 1.0))
    if judging.measure(trace).hidden:
        return rule.Fine("the first step began while earlier work ran on the {gpu}, and is left out")
    seen = SlowStart(int(length[0]), factor)
    if not judging.measure(trace).warm_up:
        later = "some later steps are as slow as the first"
        return rule.Fine(seen) if factor <= judging.WARM_UP else rule.NotApplicable(later)
    spans = rule.Spans(windows.start[:1], windows.end[:1], np.full(1, -1, np.int64))
    return rule.Found(seen, spans, "high", severity="info", of_recording=True)
