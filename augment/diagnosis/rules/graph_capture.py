"""Are graphs captured while recording?

While a stream captures a CUDA graph, launches are written down and nothing runs, so the device seems to wait for the
host. Then the graph is instantiated. Both belong to the start; in steady steps, something changes that graphs depend
on, such as a shape. The prediction takes captures and instantiations out of the steps.

**What to do**: record after the captures (``warmup`` in the profiler's schedule). In steady steps: capture a few sizes
once, and pad to them; with ``torch.compile``, ``TORCH_LOGS=cudagraphs,recompiles`` says why graphs are made again.
"""

from __future__ import annotations

from augment.arrays.intervals import total, union
from augment.core.text import Words, counted, time
from augment.core.trace import Trace
from augment.diagnosis.host_causes import capturing
from augment.diagnosis.judging import judged
from augment.diagnosis.measure import measure, within_steps
from augment.diagnosis.rule import (
    Answer,
    NotApplicable,
    Seen,
    Spans,
)
from augment.facts.gpu.gpu_work import gpu_work

NAME = "graph_capture"
_STEADY = "Capture a few sizes once and pad to them; {graph_logs} says why graphs are made again"
_ONCE = "Record after the captures, with a warmup in the profiler's schedule: steady steps do not have them"


class Captures(Seen, frozen=True):
    """Captures of graphs."""

    capture_count: float
    capture_ns: int  #: per step
    in_every_step: bool

    def title(self, words: Words) -> str:
        capture = f"Graphs are captured for {time(self.capture_ns)} {words.per_step}"
        return f"{capture}, while the {words.gpu} runs none of them"

    def cure(self, words: Words) -> str:
        return "avoiding that"

    def fine(self, words: Words, saved_ns: int) -> str:
        often = f"{counted(self.capture_count, 'capture')} of graphs {words.per_step}"
        return f"{often} ({time(self.capture_ns)}): costs {words.share(saved_ns)}"

    def advice(self, words: Words) -> str:
        return words.fill(_STEADY if self.in_every_step else _ONCE)


def check(trace: Trace) -> Answer:
    """Predict steps in which no graph is made."""
    if not len(gpu_work(trace)):
        return NotApplicable("no {gpu} work was recorded that the host could hold up")
    cause = capturing(trace)
    if cause is None:
        return NotApplicable("no graph is captured in the steps")
    which, parts = within_steps(trace, cause.spans.start, cause.spans.end)
    steps = measure(trace).count
    steady = len(which) >= steps > 1
    spent = total(union(parts.start, parts.end)) // steps
    return judged(
        trace,
        Captures(capture_count=len(which) / steps, capture_ns=spent, in_every_step=steady),
        cause.saved_ns,
        spans=Spans(parts.start, parts.end, cause.spans.row[which]),
        confidence="high" if steady else "medium",
        cut=cause.cut,
    )
