"""Do gathers of parameters begin later than they could?

FSDP gathers the parameters of the next unit while it computes this one. A gather that begins only when computation
already waits for it was asked for too late, if its stream was free before, and the optimizer was done with the
parameters: the first gather of a step cannot begin earlier. The prediction takes that exposed part of the gathers out.
Other gathers carry what was just computed (tensor, sequence and expert parallelism, servers, sharded
optimizers) and cannot begin earlier: only those count that FSDP or ZeRO-3 launches, or whose group also scatters
gradients, in the backward pass alone.

**What to do**: FSDP2: ``set_modules_to_forward_prefetch`` and ``set_modules_to_backward_prefetch`` (two units ahead);
FSDP1: ``forward_prefetch=True``, ``backward_prefetch=BackwardPrefetch.BACKWARD_PRE``, ``limit_all_gathers`` with care.
"""

from __future__ import annotations

import numpy as np

from augment.arrays.types import Int64s
from augment.core.attachments import RankInJob
from augment.core.text import Words, counted, time
from augment.core.trace import Trace
from augment.diagnosis.judging import judged
from augment.diagnosis.measure import measure, saved_a_step, work_in_steps
from augment.diagnosis.rule import (
    Answer,
    NotApplicable,
    Seen,
    Spans,
)
from augment.facts.collectives.collective_kernels import collectives
from augment.facts.collectives.collective_roles import gathers_of_parameters
from augment.facts.critical.what_if import without_work
from augment.facts.gpu.gpu_time import in_optimizer
from augment.facts.gpu.gpu_work import gpu_work

NAME = "late_gathers"


class LateGathers(Seen, frozen=True):
    """Gathers of parameters that begin too late."""

    gather_count: float
    exposed_ns: int  #: per step, that they could have begun earlier

    def title(self, words: Words) -> str:
        late = f"{counted(self.gather_count, 'gather')} {words.per_step} begin too late"
        return f"{late}: computation waits {time(self.exposed_ns)} for them though their stream was free"

    def cure(self, words: Words) -> str:
        return "prefetching them"

    def fine(self, words: Words, saved_ns: int) -> str:
        return f"gathers that could begin earlier cost {words.share(saved_ns)}"

    def advice(self, words: Words) -> str:
        return (
            "Prefetch further ahead: set_modules_to_forward_prefetch and set_modules_to_backward_prefetch (FSDP2), "
            "forward_prefetch=True and BACKWARD_PRE (FSDP1)"
        )

    def in_job(self, job: RankInJob) -> tuple[Seen, int | None]:
        return self, job.most_saved_ns


def check(trace: Trace) -> Answer:
    """Predict steps whose gathers begin as soon as their stream is free."""
    every, work = collectives(trace), gpu_work(trace)
    if not len(every):
        return NotApplicable("no step gathers parameters")
    chosen = np.flatnonzero(work_in_steps(trace)[every.place] & gathers_of_parameters(trace))
    if not len(chosen):
        return NotApplicable("no gather is known to be of parameters, as FSDP's and ZeRO-3's are")
    place = every.place[chosen]
    starts = np.array([stream.start for stream in work.streams])
    first = np.isin(place, starts)
    before = np.where(first, work.ts[place], work.end[np.maximum(place - 1, 0)])
    free = np.maximum(work.ts[place] - np.maximum(before, _updated(trace, work.ts[place])), 0)
    less = np.minimum(every.exposed_ns[chosen], free)
    cut = without_work(trace, place, less)
    saved = saved_a_step(trace, cut)
    late = less > 0
    exposed = int(less.sum()) // measure(trace).count
    seen = LateGathers(gather_count=int(late.sum()) / measure(trace).count, exposed_ns=exposed)
    spans = Spans(every.ts[chosen[late]], every.end[chosen[late]], work.row[place[late]])
    return judged(trace, seen, saved, spans=spans, confidence="medium", cut=cut, at_most=True)


def _updated(trace: Trace, moments: Int64s) -> Int64s:
    """When the optimizer's work that began before each moment was done, int64 ns."""
    work = gpu_work(trace)
    places = np.flatnonzero(in_optimizer(trace))
    places = places[np.argsort(work.ts[places], kind="stable")]
    done = np.concatenate((np.full(1, np.iinfo(np.int64).min // 2), np.maximum.accumulate(work.end[places])))
    updated: Int64s = done[np.searchsorted(work.ts[places], moments)]
    return updated
