"""Are graphs captured while recording?

While a stream captures a CUDA graph, launches are written down and nothing runs, so the device seems to wait for the
host. Then the graph is instantiated. Both belong to the start; in steady steps, something changes that graphs depend
on, such as a shape. The prediction takes captures and instantiations out of the steps.

**What to do**: record after the captures (``warmup`` in the profiler's schedule). In steady steps: capture a few sizes
once, and pad to them; with ``torch.compile``, ``TORCH_LOGS=cudagraphs,recompiles`` says why graphs are made again.
"""

from __future__ import annotations

from augment import arrays, facts
from augment.core import Trace, text
from augment.diagnosis import host_causes, judging, rule

NAME = "graph_capture"
_STEADY = "Capture a few sizes once and pad to them; {graph_logs} says why graphs are made again"
_MOSTLY = (
    "This recording mostly captures graphs: record steady steps to judge the run, and name this file beside"
    " that trace with --graph-capture, which gives its graphs operators and shapes"
)
_ONCE = "Record after the captures, with a warmup in the profiler's schedule: steady steps do not have them"


class Captures(rule.Seen, frozen=True):
    """Captures of graphs."""

    capture_count: float
    capture_ns: int  #: per step
    in_every_step: bool
    mostly: bool  #: they are more than half of a recording without steps

    def title(self, words: text.Words) -> str:
        capture = f"Graphs are captured for {text.time(self.capture_ns)} {words.per_step}"
        return f"{capture}, while the {words.gpu} runs none of them"

    def cure(self, words: text.Words) -> str:
        return "avoiding that"

    def fine(self, words: text.Words, saved_ns: int) -> str:
        often = f"{text.counted(self.capture_count, 'capture')} of graphs {words.per_step}"
        return f"{often} ({text.time(self.capture_ns)}); {self.cure(words)} would save {words.share(saved_ns)}"

    def advice(self, words: text.Words) -> str:
        return words.fill(_STEADY if self.in_every_step else _MOSTLY if self.mostly else _ONCE)


def check(trace: Trace) -> rule.Answer:
    """Predict steps in which no graph is made."""
    if not len(facts.gpu.work(trace)):
        return rule.NotApplicable("no {gpu} work was recorded that the host could hold up")
    cause = host_causes.capturing(trace)
    if cause is None:
        return rule.NotApplicable("no graph is captured in the steps")
    which, parts = judging.within_steps(trace, cause.spans.start, cause.spans.end)
    measured = judging.measure(trace)
    steps = measured.count
    steady = len(which) >= steps > 1
    spent = arrays.total(arrays.union(parts.start, parts.end)) // steps
    return judging.judged(
        trace,
        Captures(
            capture_count=len(which) / steps,
            capture_ns=spent,
            in_every_step=steady,
            mostly=measured.unit == "recording" and 2 * spent > measured.length_ns,
        ),
        cause.saved_ns,
        spans=rule.Spans(parts.start, parts.end, cause.spans.row[which]),
        confidence="high" if steady else "medium",
        cut=cause.cut,
    )
