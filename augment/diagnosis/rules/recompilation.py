"""Is anything compiled in steps that should be steady?

``torch.compile`` compiles again when a shape, a type or a value that it took as constant changes. Recordings show it as
slices of Dynamo and Inductor. The prediction takes them out of the steady steps. A single step may be the first of
all, which has to compile: then this is merely possible.

**What to do**: ``TORCH_LOGS=recompiles`` says why; mark sizes that change (``torch._dynamo.mark_dynamic``,
``dynamic=True``), pad batches to a few sizes, keep Python numbers out of compiled functions. Record after more steps.
"""

from __future__ import annotations

from augment.core import text
from augment.core.trace import Trace
from augment.diagnosis import host_causes, judging, rule

NAME = "recompilation"


class Compilations(rule.Seen, frozen=True):
    """Work of the compiler in steady steps."""

    longest_ns: int
    slices: list[str]

    def title(self, words: text.Words) -> str:
        return f"Steps compile ({text.listed(self.slices)}, up to {text.time(self.longest_ns)})"

    def cure(self, words: text.Words) -> str:
        return "avoiding that"

    def fine(self, words: text.Words, saved_ns: int) -> str:
        return f"avoiding compilation would save {words.share(saved_ns)}"

    def advice(self, words: text.Words) -> str:
        return "TORCH_LOGS=recompiles says why; mark sizes that change as dynamic, or pad batches to a few sizes"


def check(trace: Trace) -> rule.Answer:
    """Predict steps in which nothing is compiled."""
    if not len(host_causes.compilations(trace)):
        return rule.NotApplicable("nothing was compiled while recording")
    cause = host_causes.compiling(trace)
    if cause is None:
        return rule.NotApplicable("without steps it cannot be said whether compilation goes on")
    spans = cause.spans
    names = sorted({text.short(name) for name in trace.names_of(spans.row)})
    seen = Compilations(longest_ns=int((spans.end - spans.start).max(initial=0)), slices=names)
    # a single step may be the first, which has to compile
    confidence: rule.Confidence = "high" if judging.measure(trace).count > 1 else "low"
    return judging.judged(trace, seen, cause.saved_ns, spans=spans, confidence=confidence, cut=cause.cut)
