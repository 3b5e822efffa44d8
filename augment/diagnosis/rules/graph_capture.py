"""Are graphs captured while recording?

While a stream captures a CUDA graph, launches are written down and nothing runs, so the device seems to wait for the
host. Then the graph is instantiated. Both belong to the start; in steady steps, something changes that graphs depend
on, such as a shape. The prediction takes captures and instantiations out of the steps.

**What to do**: record after the captures (``warmup`` in the profiler's schedule). In steady steps: capture a few sizes
once, and pad to them; with ``torch.compile``, ``TORCH_LOGS=cudagraphs,recompiles`` says why graphs are made again.
"""

from __future__ import annotations

from augment.arrays.intervals import total, union
from augment.derived.gpu.gpu_work import gpu_work
from augment.diagnosis.captures import captures
from augment.diagnosis.judging import judged
from augment.diagnosis.measure import host_cut, measure, saved_by_host, within_steps
from augment.diagnosis.rule import Answer, Confidence, Fine, NotApplicable, Spans
from augment.diagnosis.wording import a_step, count, of_a_step, shorter, time
from augment.trace import Trace, derived

NAME = "graph_capture"
_STEADY = "Capture a few sizes once and pad to them; TORCH_LOGS=cudagraphs,recompiles says why graphs are made again"
_ONCE = "Record after the captures, with a warmup in the profiler's schedule: steady steps do not have them"


@derived  # launch_bound asks, too
def check(trace: Trace) -> Answer:
    """Predict steps in which no graph is made."""
    if not len(gpu_work(trace)):
        return NotApplicable("no GPU work was recorded that the host could hold up")
    spans = captures(trace)
    which, parts = within_steps(trace, spans.start, spans.end)
    if not len(which):
        return NotApplicable("no graph is captured in the steps")
    cut = host_cut(trace, trace.events.track[spans.row], spans.start, spans.end)
    saved = saved_by_host(trace, cut)
    spent = union(parts.start, parts.end)
    ns = total(spent) // measure(trace).count
    often = count(len(which) / measure(trace).count, "capture")
    steady = len(which) >= measure(trace).count > 1
    confidence: Confidence = "high" if steady else "medium"
    return judged(
        trace,
        saved,
        fine=Fine(f"{often} of graphs {a_step(trace)} ({time(ns)}) cost {of_a_step(trace, saved)}"),
        title=f"Graphs are captured for {time(ns)} {a_step(trace)}, while the GPU runs nothing of them; otherwise "
        + shorter(trace, saved),
        advice=_STEADY if steady else _ONCE,
        spans=Spans(parts.start, parts.end, spans.row[which]),
        confidence=confidence,
        cut=cut,
    )
