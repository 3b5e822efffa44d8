"""Is anything compiled in steps that should be steady?

``torch.compile`` compiles again when a shape, a type or a value that it took as constant changes. Recordings show it as
slices of Dynamo and Inductor. The prediction takes them out of the steady steps. A single step may be the first of
all, which has to compile: then this is merely possible.

With a log of the compiler (``--torch-trace``), the evidence names the guards that failed.

**What to do**: ``TORCH_LOGS=recompiles`` says why, too; mark sizes that change (``torch._dynamo.mark_dynamic``,
``dynamic=True``), pad batches to a few sizes, keep Python numbers out of compiled functions. Record after more steps.
"""

from __future__ import annotations

import msgspec
import numpy as np

from augment import facts
from augment.core import Trace, records, source_code, text
from augment.diagnosis import captures, host_causes, judging, rule

NAME = "recompilation"
_MOST_NAMED = 3


class Compilations(rule.Seen, frozen=True):
    """Work of the compiler in steady steps."""

    longest_ns: int
    slices: list[str]
    guards: list[str] = msgspec.field(default_factory=list)  #: conditions that failed, by the compiler's log
    CURE = "avoiding that"
    ADVICE = "TORCH_LOGS=recompiles says why; mark sizes that change as dynamic, or pad batches to a few sizes"

    def title(self, words: text.Words) -> str:
        return f"Code is compiled during steps ({text.listed(self.slices)}, up to {text.time(self.longest_ns)})"

    def fine(self, words: text.Words, saved_ns: int) -> str:
        return f"avoiding compilation would save {words.share(saved_ns)}"

    def evidence(self, words: text.Words) -> list[str]:
        return self.guards[:_MOST_NAMED]


def check(trace: Trace) -> rule.Answer:
    """Predict steps in which nothing is compiled."""
    logged = _logged_in_steps(trace)
    if not len(captures.compilations(trace)):
        if not logged:
            return rule.NotApplicable("nothing was compiled while recording")
        start, end = np.array([(span.start_ns, span.end_ns) for span, _ in logged], np.int64).T
        seen = Compilations(int((end - start).max()), ["the compiler's log"], [said for _, said in logged if said])
        spans = rule.Spans(start, end, np.full(len(logged), -1, np.int64))
        return rule.Found(seen, spans, "high" if judging.measure(trace).count > 1 else "low", severity="info")
    cause = host_causes.compiling(trace)
    if cause is None:
        return rule.NotApplicable("without steps it cannot be said whether compilation goes on")
    spans = cause.spans
    names = sorted({text.short(name) for name in trace.names_of(spans.row)})
    seen = Compilations(longest_ns=int((spans.end - spans.start).max(initial=0)), slices=names)
    seen = msgspec.structs.replace(seen, guards=[*dict.fromkeys(said for _, said in logged if said)])
    # a single step may be the first, which has to compile
    confidence: rule.Confidence = "high" if judging.measure(trace).count > 1 else "low"
    return judging.judged(trace, seen, cause.saved_ns, spans=spans, confidence=confidence, cut=cause.cut)


def _logged_in_steps(trace: Trace) -> list[tuple[records.CompileSpan, str]]:
    """What the compiler's log says was compiled in steady steps, with the guard that had failed, in words."""
    logged, whole = facts.host.logged_compilations(trace), judging.measure(trace)
    if logged is None or isinstance(logged, str) or logged.why_apart or whole.unit == "recording":
        return []
    chosen: list[tuple[records.CompileSpan, str]] = []
    for each in logged.compilations:
        where = source_code.label(each.guard_line or each.line)
        said = f"guard `{text.short(each.guard)}` failed{f' ({where})' if where else ''}" if each.guard else ""
        starts = np.array([span.start_ns for span in each.spans], np.int64)
        chosen += [(each.spans[place], said) for place in np.flatnonzero(whole.windows.of_host(starts) >= 0).tolist()]
    return chosen
