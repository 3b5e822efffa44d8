"""Do kernels run for long whose grids leave most of the device without work?

A device is busy while any kernel runs. A grid with fewer blocks than the device has SMs leaves the others idle, and no
row of the timeline shows that. What would be saved is not known: it depends on whether the work can be cut into more
blocks, or other work run beside it. So this is only mentioned. Collectives are not meant, which use few SMs on purpose.

**What to do**: larger batches; kernels that also split the reduced dimension (split-K, FlashDecoding); independent
work on another stream.
"""

from __future__ import annotations

import numpy as np

from augment import facts
from augment.core import Trace, text
from augment.diagnosis import judging, rule

NAME = "small_grids"
LEAST = 0.10  #: of a step


class SmallGrids(rule.Seen, frozen=True):
    """Kernels that fill less than half of the SMs."""

    small_ns: int  #: per step
    filled_ratio: float  #: of the SMs, the mean over their time
    longest: str  #: the kernel with most of the time
    ADVICE = "Give each kernel more work ({more_work}), or run independent work beside it"

    def title(self, words: text.Words) -> str:
        name = text.short(self.longest)
        share = f"{text.percent(words.ratio(self.small_ns))} of {words.a_step}"
        return f"Kernels such as {name} fill {text.percent(self.filled_ratio)} of the SMs for {share}"

    def fine(self, words: text.Words, saved_ns: int) -> str:
        return f"larger grids would save {words.share(self.small_ns, 'at most ')}"


def check(trace: Trace) -> rule.Answer:
    """Add up the kernels of the steps whose grids are small."""
    fills, work = facts.gpu.occupancy(trace), facts.gpu.work(trace)
    if not fills.is_known or len(work) < 2:
        return rule.NotApplicable("no kernel says its occupancy, or there is only one")
    places = np.flatnonzero(facts.gpu.small_grids(trace) & judging.work_in_steps(trace))
    dur = work.end[places] - work.ts[places]
    small = int(dur.sum()) // judging.measure(trace).count
    if not small:
        return rule.Fine("no kernel fills less than half of the SMs")
    names = trace.events.name[work.row[places]]
    longest = trace.strings[int(np.bincount(names, dur).argmax())]
    seen = SmallGrids(small, float((fills.filled[places] * dur).sum() / dur.sum()), longest)
    if judging.measure(trace).ratio(small) < LEAST:
        return rule.Fine(seen)
    spans = rule.Spans(work.ts[places], work.end[places], work.row[places])
    return rule.Found(seen, spans, "medium", severity="info")
