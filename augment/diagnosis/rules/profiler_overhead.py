"""Does the profiler itself distort what it records?

Kineto and nsys record their own work as slices of category ``overhead``: requesting and flushing buffers,
instrumenting. What stands beside it, the driver does with or without a profiler, and is not counted: loading kernels
and modules, compiling, a full command buffer. What lies on a thread that launches work delays that work. On an unknown
thread (CUDA 13 records it on thread 0) it counts if no thread that launches begins or ends anything meanwhile, none
waits for a device, and devices idle. Figures of such a recording are to be read with care, so this comes first.

**What to do**: record fewer steps; leave out ``with_stack``, ``profile_memory`` and ``record_shapes``; give the
schedule a ``warmup`` step.
"""

from __future__ import annotations

from collections.abc import Sequence

from augment import arrays, facts
from augment.core import Category, Trace, text
from augment.diagnosis import first_calls, host_causes, judging, rule

NAME = "profiler_overhead"
TOLD_RATIO, GRAVE_RATIO = 0.03, 0.10  #: shares of a step: worth saying, and distorting


class ProfilerOverhead(rule.Seen, frozen=True):
    """The profiler's own work on threads that launch."""

    overhead_ns: int  #: per step
    slices: list[str]
    ADVICE = "Read all figures with care; {less}"

    def title(self, words: text.Words) -> str:
        overhead = f"{text.time(self.overhead_ns)}, {words.share(self.overhead_ns)}"
        return f"The profiler itself takes {overhead}, on the threads that launch work"

    def fine(self, words: text.Words, saved_ns: int) -> str:
        return f"pauses of the profiler itself take {words.share(self.overhead_ns)}"

    def evidence(self, words: text.Words) -> Sequence[str]:
        return [text.listed(self.slices)]


def check(trace: Trace) -> rule.Answer:
    """Measure the profiler's own slices that hold up the threads that launch."""
    events = trace.events
    rows = events.slices_of(Category.OVERHEAD)
    if not len(rows[~facts.names.matching(trace, first_calls.DRIVERS_OWN)[events.name[rows]]]):
        return rule.NotApplicable("the profiler recorded nothing of its own work")
    if not len(facts.gpu.work(trace)):
        return rule.NotApplicable("no {gpu} work was recorded that the profiler could hold up")
    spans = rule.Spans.of(trace, host_causes.profiler_slices(trace))
    which, parts = judging.within_steps(trace, spans.start, spans.end)
    whole = arrays.union(parts.start, parts.end)
    ns = arrays.total(whole) // judging.measure(trace).count
    ratio = judging.measure(trace).ratio(ns)
    seen = ProfilerOverhead(ns, sorted(set(trace.names_of(spans.row[which]))))
    if ratio < TOLD_RATIO:
        return rule.Fine(seen)
    return rule.Found(
        seen,
        rule.Spans(parts.start, parts.end, spans.row[which]),
        "high",
        severity="warning" if ratio >= GRAVE_RATIO else "info",
        first=ratio >= GRAVE_RATIO,
    )
