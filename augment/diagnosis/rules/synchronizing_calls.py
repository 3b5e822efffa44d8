"""Does the host wait for the device within a step?

``loss.item()``, ``tensor.cpu()``, ``nonzero()`` and boolean masks, ``print(tensor)``, copies from pageable memory and
``torch.cuda.synchronize()`` make the host wait until the device is done. Meanwhile it launches nothing, so that the
device then waits for the host. The prediction lets these calls return at once; where the device has work enough,
nothing is saved and nothing is found. Nor where most steps wait for the data loader's workers: the host would only wait
longer for the batch. The prediction is that of steps that go on: without waits, the host is further ahead from step to
step. Where the traces of all ranks are known, what a rank waits for late ones is not saved. Where ranks communicate, no
more is promised than the idle time that the host explains: a collective waits for the other ranks all the same.

**What to do**: take the call out of the step, or do it every so many steps; keep values on the device
(``torch.where`` in place of a mask); copy with ``non_blocking=True`` and read the result a step later.
``torch.cuda.set_sync_debug_mode("warn")`` names the lines.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from augment import facts
from augment.core import Trace, text
from augment.diagnosis import first_calls, host_causes, judging, rule

NAME = "synchronizing_calls"


class SynchronizingCalls(rule.Seen, frozen=True):
    """Calls in which the host waits for the device."""

    call_count: float
    wait_ns: int  #: per step
    callers: list[str]  #: the longest first
    lines: list[str]  #: of the user's program
    long_ns: int = 0  #: per step, the idle time in waits for the host of 1 ms and more, if that is most of it

    is_of_host = True
    CURE = "avoiding that"

    def _waits(self, words: text.Words) -> str:
        return f"host waits for the {words.gpu} in {words.often(self.call_count, 'call')}"

    def title(self, words: text.Words) -> str:
        return f"The {self._waits(words)}, longest in {text.listed(self.callers)}"

    def fine(self, words: text.Words, saved_ns: int) -> str:
        waits = f"{self._waits(words)} ({text.time(self.wait_ns)}{words.each(self.call_count)})"
        return f"the {waits}; {self.cure(words)} would save {words.share(saved_ns)}"

    def advice(self, words: text.Words) -> str:
        way = (
            f"Move the call out of the step, or make it only every few steps; keep the value on the {words.gpu}; copy "
            "with non_blocking=True and read it a step later"
        )
        return way + text.called_from(self.lines)

    def evidence(self, words: text.Words) -> Sequence[str]:
        lines = [] if self.lines else [f"{words.stacks} would record the Python line"]
        idle = f"most of the {words.gpu}'s waiting for the host ({text.time(self.long_ns)} {words.per_step})"
        idle += " is in stretches of 1 ms and more, in which the host works on"
        doubt = "where that work needs a call's result, avoiding the call does not shorten them"
        return [*lines, *([f"{idle}; {doubt}"] if self.long_ns else [])]


def check(trace: Trace) -> rule.Answer:
    """Predict steps in which no call waits."""
    calls = first_calls.waiting_calls(trace)
    if not len(calls):
        return rule.NotApplicable("no call of a step waits for the {gpu}")
    cut = facts.critical.without_waits(trace, calls)
    saved = judging.saved_unwaited(trace, cut)
    spans = rule.Spans.of(trace, calls)
    # the place of the call that costs most idle time: of the gap in which it returns, as much as it had made the host
    # wait. None if none costs any
    cost, waited = np.zeros(len(spans), np.int64), spans.end - spans.start
    long = all_of_it = 0
    for idle in judging.idle_in_steps(trace):
        gap = np.searchsorted(idle.start, spans.end, "right") - 1
        inside = np.flatnonzero(gap >= 0)
        inside = inside[spans.end[inside] <= idle.end[gap[inside]]]
        length = (idle.end - idle.start)[gap[inside]]
        cost[inside] = np.maximum(cost[inside], np.minimum(length, waited[inside]))
        by_host = (idle.end - idle.start)[idle.category == facts.waits.GapCategory.HOST_WAIT]
        long, all_of_it = long + int(by_host[by_host >= host_causes.LONG_NS].sum()), all_of_it + int(by_host.sum())
    confidence, shown = judging.confidence_in(trace, saved), (int(cost.argmax()) if cost.any() else None)
    late = 2 * long > all_of_it  # the host may need what it waited for
    confidence = "low" if late and host_causes.may_lack_requests(trace) else confidence
    seen = SynchronizingCalls(
        call_count=len(calls) / judging.measure(trace).count,
        wait_ns=int((spans.end - spans.start).sum()) // judging.measure(trace).count,
        callers=facts.host.callers(trace, calls),
        lines=facts.host.python_lines(trace, judging.longest(spans, 64).row),
        long_ns=long // judging.measure(trace).count if late else 0,
    )
    return judging.judged(trace, seen, saved, spans=spans, confidence=confidence, cut=cut, at_most=late, shown=shown)
