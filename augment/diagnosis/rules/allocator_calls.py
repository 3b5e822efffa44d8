"""Does the allocator ask the driver for memory in steady steps?

PyTorch keeps memory that it once had, so that steady steps call neither ``cudaMalloc`` nor ``cudaFree``, which wait for
the device. If they do, sizes change from step to step, memory is short and given back (a retry), or ``empty_cache`` is
called. The prediction lets these calls take no time and wait for nothing.

**What to do**: ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``; no ``torch.cuda.empty_cache()`` in the step; pad
to a few sizes; leave more memory free. Reserve pinned memory once.
"""

from __future__ import annotations

import re

import numpy as np

from augment.derived.critical.savings import joined, without_waits
from augment.diagnosis.judging import judged
from augment.diagnosis.measure import host_cut, measure, rows_in_steps, saved_a_step
from augment.diagnosis.rule import Answer, Fine, NotApplicable, Spans
from augment.diagnosis.rules.synchronizing_calls import callers
from augment.diagnosis.wording import a_step, count, listed, of_a_step, shorter, time
from augment.trace import LAUNCHES, Trace, derived

NAME = "allocator_calls"
_CALLS = re.compile(
    r"^(?:cuda|hip)(?:Malloc|Free)(?:Host|Managed)?$|^(?:cuda|hip)HostAlloc$|^cuMem(?:Alloc|Free|Create|Map)"
)


@derived  # launch_bound asks, too
def check(trace: Trace) -> Answer:
    """Predict steps without these calls."""
    events = trace.events
    calls = events.slices_of(*LAUNCHES)
    if not len(calls):
        return NotApplicable("no call of the runtime was recorded")
    named = np.array([_CALLS.search(name) is not None for name in trace.strings], np.bool_)
    rows = rows_in_steps(trace, calls[named[events.name[calls]]])
    if not len(rows):
        return Fine("no step asks the driver for memory")
    spans = Spans.of(trace, rows)
    cut = joined([host_cut(trace, events.track[rows], spans.start, spans.end), without_waits(trace, rows)])
    saved = saved_a_step(trace, cut)
    often = count(len(rows) / measure(trace).count, "call")
    spent = int((spans.end - spans.start).sum()) // measure(trace).count
    names = listed(sorted(set(trace.names_of(rows))))
    return judged(
        trace,
        saved,
        fine=Fine(f"{often} {a_step(trace)} of {names} ({time(spent)}) cost {of_a_step(trace, saved)}"),
        title=f"{often} of {names} {a_step(trace)} take the host {time(spent)}, most in "
        f"{listed(callers(trace, rows))}; otherwise " + shorter(trace, saved),
        advice="Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, no empty_cache() in steps, pad to a few sizes",
        spans=spans,
        confidence="high",
        cut=cut,
    )
