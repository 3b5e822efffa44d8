"""Do prompts hold up sequences that run?

While an engine computes a prompt alone, or beside decodes in one long step, all running sequences wait for their next
token. The rule compares such steps with the median decode: it fires if the longest wait is three times as long, and
waits take 10 % of the time; as a warning if they take 25 %. The prompts have to be computed, so that nothing is
promised; what improves is the longest time between tokens.

**What to do**: compute prompts in smaller chunks beside the decodes, or on other devices (disaggregated prefill).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from augment import arrays
from augment.core import Trace, text
from augment.diagnosis import rule, served

NAME = "prefill_stalls"
LEAST_DECODES, LEAST_TIMES, LEAST_RATIO, GRAVE_RATIO = 5, 3.0, 0.10, 0.25


class PrefillStalls(rule.Seen, frozen=True):
    """Steps with prompts between those that decode."""

    engine: str
    prefill_count: int  #: steps; not per step
    step_count: int
    longest_ns: int  #: that running sequences waited for prompts
    decode_ns: int  #: the median decode
    waiting_ratio: float  #: of the time of all steps
    most_tokens: int | None  #: new tokens of the longest of these steps

    def title(self, words: text.Words) -> str:
        times = text.counted(self.longest_ns / max(self.decode_ns, 1), "decode")
        longest = f"for up to {text.time(self.longest_ns)} (as long as {times})"
        return f"Prefills hold up running sequences {longest}, {text.percent(self.waiting_ratio)} of step time in all"

    def fine(self, words: text.Words, saved_ns: int) -> str:
        return f"prefills hold up running sequences for {text.percent(self.waiting_ratio)} of step time"

    def advice(self, words: text.Words) -> str:
        option = served.option_of("prefill", self.engine)
        return f"Compute prompts in smaller chunks ({option}), or on other devices (disaggregated prefill)"

    def evidence(self, words: text.Words) -> Sequence[str]:
        tokens = "" if self.most_tokens is None else f", up to {self.most_tokens:,} new tokens in one"
        return [f"{self.prefill_count} of {self.step_count} steps have prompts{tokens}"]


def check(trace: Trace) -> rule.Answer:
    """Compare steps that prefill with those that decode alone."""
    if (steady := served.steady_steps(trace)) is None:
        return served.NO_ENGINE
    steps, places = steady
    phase = [steps.batches[place].phase for place in places.tolist()]
    decodes = places[[name == "decode" for name in phase]]
    if len(decodes) < LEAST_DECODES or not {"prefill", "mixed"} & set(phase):
        return rule.NotApplicable("the steps do not both prefill and decode")
    usual = int(arrays.median(steps.wall_ns[decodes]))
    wait, longest, start, end = 0, 0, list[int](), list[int]()
    held, begun = 0, -1
    for place, name in zip(places.tolist(), phase, strict=True):  # a loop over steps, which are few
        window = steps.windows.take(np.array([place]))
        follows = begun >= 0 and bool(window.start[0] == steps.windows.end[place - 1])
        if name == "decode" or not follows:
            if name == "decode" and held > 0 and follows:
                wait, longest = wait + held, max(longest, held)
                start.append(int(steps.windows.end[place - 1]) - held)
                end.append(int(steps.windows.end[place - 1]))
            held, begun = 0, place if name in ("decode", "mixed") else -1
        else:
            held += int(steps.wall_ns[place]) - (usual if name == "mixed" else 0)
    tokens = [steps.batches[place].prefill_tokens for place in places.tolist()]
    seen = PrefillStalls(
        engine=steps.batches[int(places[0])].engine,
        prefill_count=sum(name in ("prefill", "mixed") for name in phase),
        step_count=len(places),
        longest_ns=longest,
        decode_ns=usual,
        waiting_ratio=wait / max(int(steps.wall_ns[places].sum()), 1),
        most_tokens=max(tokens) if max(tokens) > 0 else None,
    )
    if longest < LEAST_TIMES * usual or seen.waiting_ratio < LEAST_RATIO:
        return rule.Fine(seen)
    severity: rule.Severity = "warning" if seen.waiting_ratio >= GRAVE_RATIO else "info"
    spans = rule.Spans(np.array(start, np.int64), np.array(end, np.int64), np.full(len(start), -1, np.int64))
    return rule.Found(seen, spans, "high", severity=severity)
