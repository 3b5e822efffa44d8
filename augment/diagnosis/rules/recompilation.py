"""Is anything compiled in steps that should be steady?

``torch.compile`` compiles again when a shape, a type or a value that it took as constant changes. Recordings show it as
slices of Dynamo and Inductor. The prediction takes them out of the steady steps. A single step may be the first of
all, which has to compile: then this is merely possible.

**What to do**: ``TORCH_LOGS=recompiles`` says why; mark sizes that change (``torch._dynamo.mark_dynamic``,
``dynamic=True``), pad batches to a few sizes, keep Python numbers out of compiled functions. Record after more steps.
"""

from __future__ import annotations

import re

from augment.arrays.types import Bools
from augment.derived.names.matching import matching
from augment.diagnosis.judging import judged
from augment.diagnosis.measure import host_cut, measure, rows_in_steps, saved_by_host
from augment.diagnosis.rule import Answer, Fine, NotApplicable, Spans
from augment.diagnosis.wording import listed, of_a_step, short, shorter, time
from augment.trace import Category, Trace, derived

NAME = "recompilation"
_COMPILING = re.compile(
    r"\(dynamo_timed\)|^(?:entire_frame_compile|backend_compile|inductor_compile|compile_fx|async_compile\.wait"
    r"|GraphLowering\.|TritonBundler|create_aot_dispatcher_function)"
)
_RUNS = re.compile(r"call_compiled|runtime|CompiledFxGraph|Torch-Compiled Region")  #: these run what is compiled


@derived
def compiles(trace: Trace) -> Bools:
    """For each string of the trace whether it names work of the compiler."""
    return matching(trace, _COMPILING) & ~matching(trace, _RUNS)


@derived  # launch_bound asks, too
def check(trace: Trace) -> Answer:
    """Predict steps in which nothing is compiled."""
    events = trace.events
    rows = events.slices_of(Category.CPU_OP, Category.USER_ANNOTATION)
    rows = rows[compiles(trace)[events.name[rows]]]
    if not len(rows):
        return NotApplicable("nothing was compiled while recording")
    if measure(trace).unit == "recording":
        return NotApplicable("without steps it cannot be said whether compilation goes on")
    rows = rows_in_steps(trace, rows)
    spans = Spans.of(trace, rows)
    cut = host_cut(trace, events.track[rows], spans.start, spans.end)
    saved = saved_by_host(trace, cut)
    names = sorted({short(name) for name in trace.names_of(rows)})
    longest = int((spans.end - spans.start).max(initial=0))
    return judged(
        trace,
        saved,
        fine=Fine(f"compilation costs {of_a_step(trace, saved)} of the steady steps"),
        title=f"Steps compile ({listed(names)}, up to {time(longest)}); otherwise " + shorter(trace, saved),
        advice="TORCH_LOGS=recompiles says why; mark sizes that change as dynamic, or pad batches to a few sizes",
        spans=spans,
        confidence="high"
        if measure(trace).count > 1
        else "low",  # a single step may be the first, which has to compile
        cut=cut,
    )
