"""Do gathers of parameters begin later than they could?

FSDP gathers the parameters of the next unit while it computes this one. A gather that begins only when computation
already waits for it was asked for too late, if its stream was free before, and the optimizer was done with the
parameters: the first gather of a step cannot begin earlier. Nor does the first of a backward pass, for which no unit
before it asks. The prediction takes that exposed part of the gathers out.
Other gathers carry what was just computed (tensor, sequence and expert parallelism, servers, sharded
optimizers) and cannot begin earlier: only those count that FSDP or ZeRO-3 launches, or whose group also scatters
gradients, in the backward pass alone.

**What to do**: FSDP2: ``set_modules_to_forward_prefetch`` and ``set_modules_to_backward_prefetch`` (two units ahead);
FSDP1: ``forward_prefetch=True``, ``backward_prefetch=BackwardPrefetch.BACKWARD_PRE``, ``limit_all_gathers`` with care.
"""

from __future__ import annotations

import numpy as np

from augment import facts
from augment.core import RankInJob, Trace, text
from augment.diagnosis import judging, rule

NAME = "late_gathers"


class LateGathers(rule.Seen, frozen=True):
    """Gathers of parameters that begin too late."""

    gather_count: float
    exposed_ns: int  #: per step, that they could have begun earlier
    CURE = "prefetching them"
    ADVICE = (
        "Prefetch further ahead: set_modules_to_forward_prefetch and set_modules_to_backward_prefetch (FSDP2), "
        "forward_prefetch=True and BACKWARD_PRE (FSDP1)"
    )

    def title(self, words: text.Words) -> str:
        late, ns = f"{words.often(self.gather_count, 'gather')} begin too late", text.time(self.exposed_ns)
        return f"{late}: computation waits {ns}{words.each(self.gather_count)} for them though their stream was free"

    def fine(self, words: text.Words, saved_ns: int) -> str:
        return f"prefetching gathers that could begin earlier would save {words.share(saved_ns)}"

    def in_job(self, job: RankInJob, saved_ns: int) -> tuple[rule.Seen, int]:
        of_transfers = saved_ns * job.transfer_ns // max(job.wait_ns + job.transfer_ns, 1)  # the rest is for late ranks
        return self, min(of_transfers, job.most_saved_ns)


def check(trace: Trace) -> rule.Answer:
    """Predict steps whose gathers begin as soon as their stream is free."""
    every, work = facts.collectives.kernels(trace), facts.gpu.work(trace)
    if not len(every):
        return rule.NotApplicable("no step gathers parameters")
    chosen = np.flatnonzero(judging.work_in_steps(trace)[every.place] & facts.collectives.gathers_of_parameters(trace))
    if not len(chosen):
        return rule.NotApplicable("no gather is known to be of parameters, as FSDP's and ZeRO-3's are")
    chosen = chosen[~facts.collectives.opens_pass(trace)[chosen]]
    place = every.place[chosen]
    starts = np.array([stream.start for stream in work.streams])
    first = np.isin(place, starts)
    before = np.where(first, work.ts[place], work.end[np.maximum(place - 1, 0)])
    # when the optimizer's work that began before each gather was done
    of_optimizer = np.flatnonzero(facts.gpu.in_optimizer(trace))
    of_optimizer = of_optimizer[np.argsort(work.ts[of_optimizer], kind="stable")]
    done = np.concatenate((np.full(1, np.iinfo(np.int64).min // 2), np.maximum.accumulate(work.end[of_optimizer])))
    updated = done[np.searchsorted(work.ts[of_optimizer], work.ts[place])]
    free = np.maximum(work.ts[place] - np.maximum(before, updated), 0)
    less = np.minimum(every.exposed_ns[chosen], free)
    cut = facts.critical.without_work(trace, place, less)
    saved = judging.saved_a_step(trace, cut)
    late = less > 0
    exposed = int(less.sum()) // judging.measure(trace).count
    seen = LateGathers(gather_count=int(late.sum()) / judging.measure(trace).count, exposed_ns=exposed)
    spans = rule.Spans(every.ts[chosen[late]], every.end[chosen[late]], work.row[place[late]])
    return judging.judged(trace, seen, saved, spans=spans, confidence="medium", cut=cut, at_most=True)
