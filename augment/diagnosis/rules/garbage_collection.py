"""Does Python collect garbage in the steps?

Python's cyclic collector stops the process whenever enough objects have been made; with many objects a full collection
takes tens of milliseconds, at another moment on each rank. PyTorch records collections as ``Python GC`` if asked to;
explicit calls of ``gc.collect()`` show with stacks. The prediction takes both out of the steps.

**What to do**: ``gc.collect(); gc.freeze()`` after start-up, so that objects that stay are not looked at again; or
``gc.disable()``, and ``gc.collect()`` every so many steps on all ranks at once; no ``gc.collect()`` in the step.
``torch._C._profiler._ExperimentalConfig(record_python_gc_info=True)`` with ``with_stack=True`` records collections.
"""

from __future__ import annotations

from augment.core.text import Words, called_from, counted, time
from augment.core.trace import Trace
from augment.diagnosis.host_causes import collecting
from augment.diagnosis.judging import judged
from augment.diagnosis.measure import longest, measure
from augment.diagnosis.rule import (
    Answer,
    NotApplicable,
    Seen,
)
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.host.call_stacks import python_lines

NAME = "garbage_collection"


class Collections(Seen, frozen=True):
    """Collections of Python's garbage."""

    collection_count: float
    longest_ns: int
    lines: list[str]  #: of the user's program

    def title(self, words: Words) -> str:
        often = f"{counted(self.collection_count, 'time')} {words.per_step}"
        return f"Python collects garbage {often}, for up to {time(self.longest_ns)}"

    def cure(self, words: Words) -> str:
        return "avoiding that"

    def fine(self, words: Words, saved_ns: int) -> str:
        return f"{self.title(words)}: costs {words.share(saved_ns)}"

    def advice(self, words: Words) -> str:
        way = (
            "Call gc.freeze() after start-up, or gc.disable() and gc.collect() every so many steps on all ranks at once"
        )
        return way + called_from(self.lines)


def check(trace: Trace) -> Answer:
    """Predict steps without collections."""
    if not len(gpu_work(trace)):
        return NotApplicable("no {gpu} work was recorded that the host could hold up")
    cause = collecting(trace)
    if cause is None:
        return NotApplicable("no collection of Python's garbage was recorded")
    spans = cause.spans
    seen = Collections(
        collection_count=len(spans) / measure(trace).count,
        longest_ns=int((spans.end - spans.start).max()),
        lines=python_lines(trace, longest(spans, 64).row),
    )
    return judged(trace, seen, cause.saved_ns, spans=spans, confidence="high", cut=cause.cut)
