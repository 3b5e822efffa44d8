"""Does this pipeline stage wait for other stages?

In pipeline parallelism a stage waits in ``Send`` and ``Recv`` kernels for its neighbours: at the start and end of each
step (the bubble), and whenever stages take unequal times. The prediction lets these kernels take no time: no schedule
and no balance saves more. What is waiting and what transfer one trace cannot tell; with the traces of all stages the
evidence says what their job would gain if communication took no time.

**What to do**: more microbatches; an interleaved or zero-bubble schedule; move layers from slow stages to fast ones.
The figures of the whole job tell imbalance from bubble.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from augment import facts
from augment.core import RankInJob, Trace, text
from augment.diagnosis import judging, rule

NAME = "pipeline_bubble"


class PipelineBubble(rule.Seen, frozen=True):
    """Waiting for other pipeline stages."""

    exposed_ns: int  #: per step
    transfer_gain_ns: int | None = None  #: of a step of the job, if communication took no time; None if unknown
    CURE = "removing that wait"
    ADVICE = "Use more microbatches or an interleaved schedule; balance the stages: the job's figures tell how"

    def title(self, words: text.Words) -> str:
        return f"This stage waits {text.time(self.exposed_ns)} {words.per_step} for messages of other stages"

    def fine(self, words: text.Words, saved_ns: int) -> str:
        return f"removing the waits for other stages would save {words.share(saved_ns)}"

    def in_job(self, job: RankInJob, saved_ns: int) -> tuple[rule.Seen, int]:
        return replace(self, transfer_gain_ns=job.transfer_gain_ns), saved_ns

    def evidence(self, words: text.Words) -> Sequence[str]:
        if self.transfer_gain_ns is None:
            return ()
        return [f"if communication took no time, a step of the job would be {text.time(self.transfer_gain_ns)} shorter"]


def check(trace: Trace) -> rule.Answer:
    """Predict steps in which no message is waited for."""
    every = facts.collectives.kernels(trace)
    inside = judging.work_in_steps(trace)[every.place] if len(every) else np.zeros(0, np.bool_)
    chosen = every.where(inside & every.is_message)
    if not len(chosen):
        return rule.NotApplicable("no message between stages was recorded")
    cut = facts.critical.without_work(trace, every.place[chosen], every.dur[chosen])
    saved = judging.saved_a_step(trace, cut)
    exposed = facts.collectives.exposed_ns(trace, chosen, every.ts[chosen]) // judging.measure(trace).count
    row = facts.gpu.work(trace).row[every.place[chosen]]
    spans = rule.Spans(every.ts[chosen], every.end[chosen], row)
    seen = PipelineBubble(exposed)
    return judging.judged(trace, seen, saved, spans=spans, confidence="medium", cut=cut, at_most=True)
