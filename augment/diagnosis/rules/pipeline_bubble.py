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

from augment.core.attachments import RankInJob
from augment.core.text import Words, time
from augment.core.trace import Trace
from augment.diagnosis.judging import judged
from augment.diagnosis.measure import measure, saved_a_step, work_in_steps
from augment.diagnosis.rule import (
    Answer,
    NotApplicable,
    Seen,
    Spans,
)
from augment.facts.collectives.collective_kernels import collectives, exposed_ns
from augment.facts.critical.what_if import without_work
from augment.facts.gpu.gpu_work import gpu_work

NAME = "pipeline_bubble"


class PipelineBubble(Seen, frozen=True):
    """Waiting for other pipeline stages."""

    exposed_ns: int  #: per step
    transfer_gain_ns: int | None = None  #: of a step of the job, if communication took no time; None if unknown

    def title(self, words: Words) -> str:
        return f"This stage waits {time(self.exposed_ns)} {words.per_step} for messages of other stages"

    def cure(self, words: Words) -> str:
        return "removing that wait"

    def fine(self, words: Words, saved_ns: int) -> str:
        return f"waiting for other stages costs {words.share(saved_ns)}"

    def advice(self, words: Words) -> str:
        return "Use more microbatches or an interleaved schedule; balance the stages: the job's figures tell how"

    def in_job(self, job: RankInJob) -> tuple[Seen, int | None]:
        return replace(self, transfer_gain_ns=job.transfer_gain_ns), None

    def evidence(self, words: Words) -> Sequence[str]:
        if self.transfer_gain_ns is None:
            return ()
        return [f"if communication took no time, a step of the job would be {time(self.transfer_gain_ns)} shorter"]


def check(trace: Trace) -> Answer:
    """Predict steps in which no message is waited for."""
    every = collectives(trace)
    inside = work_in_steps(trace)[every.place] if len(every) else np.zeros(0, np.bool_)
    chosen = np.flatnonzero(inside & every.is_message)
    if not len(chosen):
        return NotApplicable("no message between stages was recorded")
    cut = without_work(trace, every.place[chosen], every.dur[chosen])
    saved = saved_a_step(trace, cut)
    exposed = exposed_ns(trace, chosen, every.ts[chosen]) // measure(trace).count
    row = gpu_work(trace).row[every.place[chosen]]
    spans = Spans(every.ts[chosen], every.end[chosen], row)
    return judged(trace, PipelineBubble(exposed), saved, spans=spans, confidence="medium", cut=cut, at_most=True)
