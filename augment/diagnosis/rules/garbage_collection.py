"""Does Python collect garbage in the steps?

Python's cyclic collector stops the process whenever enough objects have been made; with many objects a full collection
takes tens of milliseconds, at another moment on each rank. PyTorch records collections as ``Python GC`` if asked to;
explicit calls of ``gc.collect()`` show with stacks. The prediction takes both out of the steps.

**What to do**: ``gc.collect(); gc.freeze()`` after start-up, so that objects that stay are not looked at again; or
``gc.disable()``, and ``gc.collect()`` every so many steps on all ranks at once; no ``gc.collect()`` in the step.
``torch._C._profiler._ExperimentalConfig(record_python_gc_info=True)`` with ``with_stack=True`` records collections.
"""

from __future__ import annotations

from augment import facts
from augment.core import Trace, text
from augment.diagnosis import host_causes, judging, rule

NAME = "garbage_collection"


class Collections(rule.Seen, frozen=True):
    """Collections of Python's garbage."""

    collection_count: float
    longest_ns: int
    lines: list[str]  #: of the user's program
    CURE = "avoiding that"

    def title(self, words: text.Words) -> str:
        often = words.often(self.collection_count, "time")
        return f"Python collects garbage {often}, for up to {text.time(self.longest_ns)}"

    def advice(self, words: text.Words) -> str:
        way = "Call gc.freeze() after start-up, or gc.disable() and gc.collect() every few hundred steps on all ranks"
        return way + text.called_from(self.lines)


def check(trace: Trace) -> rule.Answer:
    """Predict steps without collections."""
    if not len(facts.gpu.work(trace)):
        return rule.NotApplicable("no {gpu} work was recorded that the host could hold up")
    cause = host_causes.collecting(trace)
    if cause is None:
        return rule.NotApplicable("no collection of Python's garbage was recorded")
    spans = cause.spans
    seen = Collections(
        collection_count=len(spans) / judging.measure(trace).count,
        longest_ns=int((spans.end - spans.start).max()),
        lines=facts.host.python_lines(trace, judging.longest(spans, 64).row),
    )
    return judging.judged(trace, seen, cause.saved_ns, spans=spans, confidence="high", cut=cause.cut)
