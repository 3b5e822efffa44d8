"""Are most of the tokens rejected that a draft proposes?

An engine with speculative decoding verifies several drafted tokens of each sequence in a step, and keeps those that the
model would have chosen, with one of its own. Names with sums tell how many: the cache of the next step has grown by
what was kept, where it has the same sequences and no prompts. The rule fires where less than a quarter of the drafted
tokens are kept, and a step yields less than one and a half tokens of a sequence: long drafts pay even if most of each
is rejected. What a rejected token has cost in the draft and its verification, and how long steps without drafts would
be, is not in the recording, so nothing is promised.

**What to do**: draft fewer tokens; a draft that fits the model and the requests; no drafts for large batches.
"""

from __future__ import annotations

import numpy as np

from augment import arrays
from augment.core import Trace, text
from augment.diagnosis import rule, served

NAME = "rejected_drafts"
LEAST_KEPT, LEAST_YIELD, LEAST_STEPS = 0.25, 1.5, 3  #: of drafted tokens; tokens of a step; steps that tell them


class RejectedDrafts(rule.Seen, frozen=True):
    """Drafted tokens that are not kept, of the steps whose kept tokens are known."""

    engine: str
    kept_ratio: float  #: of the drafted tokens
    drafted: float  #: for each sequence, the median
    kept: float  #: tokens of a sequence in a step, with the model's own
    step_count: int  #: not per step

    def title(self, words: text.Words) -> str:
        return (
            f"{text.percent(1 - self.kept_ratio)} of the drafted tokens are rejected: {self.drafted:.1f} are drafted "
            f"for each sequence, and a step yields {self.kept:.2f} tokens for it"
        )

    def fine(self, words: text.Words, saved_ns: int) -> str:
        return f"{text.percent(self.kept_ratio)} of the drafted tokens are kept: {self.kept:.2f} tokens a step"

    def advice(self, words: text.Words) -> str:
        return f"Draft fewer tokens ({served.option_of('draft', self.engine)}), or none for large batches"


def check(trace: Trace) -> rule.Answer:
    """Sum up what is drafted and kept."""
    if (steady := served.steady_steps(trace)) is None:
        return served.NO_ENGINE
    steps, places = steady
    drafts = [
        place
        for place in places.tolist()
        if steps.batches[place].phase == "decode"
        and steps.batches[place].decode_tokens > steps.batches[place].decode_requests > 0
    ]
    if not drafts:
        return rule.NotApplicable("no step verifies drafts")
    known = np.array([place for place in drafts if steps.accepted[place] >= 0], np.int64)
    if len(known) < LEAST_STEPS:
        return rule.NoData("the lengths of sequences, which tell what is kept of drafts", "steps named with sums (sk)")
    requests = np.array([steps.batches[place].decode_requests for place in known.tolist()], np.float64)
    drafted = np.array([steps.batches[place].decode_tokens for place in known.tolist()], np.float64) - requests
    kept = steps.accepted[known] - requests
    seen = RejectedDrafts(
        engine=steps.batches[int(known[0])].engine,
        kept_ratio=float(kept.sum() / drafted.sum()),
        drafted=float(arrays.median(drafted / requests)),
        kept=float((kept + requests).sum() / requests.sum()),
        step_count=len(known),
    )
    if seen.kept_ratio >= LEAST_KEPT or seen.kept >= LEAST_YIELD:
        return rule.Fine(seen)
    worst = known[kept < LEAST_KEPT * drafted]
    spans = rule.Spans(steps.windows.start[worst], steps.windows.end[worst], np.full(len(worst), -1, np.int64))
    return rule.Found(seen, spans, "medium", severity="info")
