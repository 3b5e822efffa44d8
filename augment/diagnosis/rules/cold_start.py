"""Does the recording show the start of a process rather than its run?

The first call that needs the device creates its context, which takes seconds; the first launch of a kernel loads it,
and libraries choose an algorithm for each new shape. Steps that come later have none of that. A recording is called a
cold start if, for most of the judged time, the device idles while operators load kernels: operators that launch a
kernel for the first time and take more than four times as long as others of their name, which launch known kernels.
And it takes evidence that this is why: a call of the runtime before the first launch that takes 0.1 s and more (one
that gives back or asks for memory: 1 s), which only the creation of a context does; or so many first launches among
the slow operators that chance has less than one in 1,000; or, without several steps, a first launch of a kernel in
which devices idle for 0.1 s and more, ten times as long as in any launch of a known kernel. With such evidence, shorter
first launches count as well, also in operators that are called once. Where a context is created, fewer than 16 pieces
of GPU work are enough. What the time of later steps is cannot be told, so nothing is predicted, and what other rules
say is merely possible. In a recording with three steps and more a slow first one is left out (`slow_start`) instead.

**What to do**: record later steps, with ``schedule(wait=1, warmup=2, active=3)``.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from augment import arrays
from augment.core import Trace, text
from augment.diagnosis import first_calls, judging, rule

NAME = "cold_start"


class ColdStart(rule.Seen, frozen=True):
    """What the start of the process takes."""

    loading_ns: int  #: of the judged time, in operators that load kernels
    judged_ns: int
    operators: list[tuple[str, int]]  #: these by name, with the ns in them; the longest first
    context: tuple[str, int] | None  #: the call that creates the device's context, and its ns
    ADVICE = (
        "Record later steps, which do none of this again: call prof.step() in each, with schedule(wait=1, "
        "warmup=2, active=3), or run some before the profiler starts"
    )

    def title(self, words: text.Words) -> str:
        parts = []
        if self.context is not None:
            parts.append(f"{self.context[0]} creates the {words.gpu}'s context ({text.time(self.context[1])})")
        if self.operators:
            named = text.listed([f"{name} ({text.time(ns)})" for name, ns in self.operators])
            share = f"{text.percent(self.loading_ns / self.judged_ns)} of {text.time(self.judged_ns)}"
            parts.append(f"loading kernels and libraries takes {share}, in {named}")
        return f"This is a cold start, not a steady run: {', and '.join(parts)}"


def check(trace: Trace) -> rule.Answer:
    """Say what is loaded."""
    start = first_calls.cold_start(trace)
    if start is None:
        return rule.NotApplicable("the recording does not mostly load kernels for the first time")
    spans, names = start.spans, Counter[str]()
    for name, ns in zip(trace.names_of(spans.row), (spans.end - spans.start).tolist(), strict=True):
        names[text.short(name)] += ns
    whole, calls = judging.measure(trace), np.array([start.context], arrays.EventRow)
    context = None
    if start.context != arrays.NO_INDEX:
        context = trace.names_of(calls)[0], int(trace.events.dur[start.context])
    seen = ColdStart(
        arrays.total(arrays.union(spans.start, spans.end)), whole.length_ns * whole.count, names.most_common(), context
    )
    drawn = spans if len(spans) else rule.Spans.of(trace, calls)
    return rule.Found(seen, drawn, "high", severity="info", first=True)
