"""Does the host wait for the device within a step?

``loss.item()``, ``tensor.cpu()``, ``nonzero()`` and boolean masks, ``print(tensor)``, copies from pageable memory and
``torch.cuda.synchronize()`` make the host wait until the device is done. Meanwhile it launches nothing, so that the
device then waits for the host. The prediction lets these calls return at once; where the device has work enough,
nothing is saved and nothing is found. Nor where most steps wait for the data loader's workers: the host would only wait
longer for the batch. The prediction is that of steps that go on: without waits, the host is further ahead from step to
step. Where the traces of all ranks are known, what a rank waits for late ones is not saved.

**What to do**: take the call out of the step, or do it every so many steps; keep values on the device
(``torch.where`` in place of a mask); copy with ``non_blocking=True`` and read the result a step later.
``torch.cuda.set_sync_debug_mode("warn")`` names the lines.
"""

from __future__ import annotations

from collections.abc import Sequence

from augment.core.text import Words, called_from, counted, listed, time
from augment.core.trace import Trace
from augment.diagnosis.host_causes import is_paced_by_workers
from augment.diagnosis.judging import judged
from augment.diagnosis.measure import confidence_in, longest, measure, saved_ahead
from augment.diagnosis.rule import (
    Answer,
    NotApplicable,
    Seen,
    Spans,
)
from augment.diagnosis.waiting import waiting_calls
from augment.facts.critical.what_if import without_waits
from augment.facts.host.call_stacks import callers, python_lines

NAME = "synchronizing_calls"


class SynchronizingCalls(Seen, frozen=True):
    """Calls in which thost waits for the device."""

    call_count: float
    wait_ns: int  #: per step
    callers: list[str]  #: the longest first
    lines: list[str]  #: of the user's program

    @property
    def is_of_host(self) -> bool:
        return True

    def _waits(self, words: Words) -> str:
        calls = f"{counted(self.call_count, 'call')} {words.per_step}"
        return f"host waits for the {words.gpu} in {calls}"

    def title(self, words: Words) -> str:
        return f"The {self._waits(words)}, longest in {listed(self.callers)}"

    def cure(self, words: Words) -> str:
        return "avoiding that"

    def fine(self, words: Words, saved_ns: int) -> str:
        return f"the {self._waits(words)} ({time(self.wait_ns)}): costs {words.share(saved_ns)}"

    def advice(self, words: Words) -> str:
        way = (
            f"Take the call out of the step or do it every so many steps; keep the value on the {words.gpu}; copy with "
            "non_blocking=True and read it a step later"
        )
        return way + called_from(self.lines)

    def evidence(self, words: Words) -> Sequence[str]:
        return [f"called from {line}" for line in self.lines] or ["with_stack=True would record the Python line"]


def check(trace: Trace) -> Answer:
    """Predict steps in which no call waits."""
    calls = waiting_calls(trace)
    if not len(calls):
        return NotApplicable("no call of a step waits for the {gpu}")
    cut = without_waits(trace, calls)
    saved = 0 if is_paced_by_workers(trace) else saved_ahead(trace, cut)
    spans = Spans.of(trace, calls)
    seen = SynchronizingCalls(
        call_count=len(calls) / measure(trace).count,
        wait_ns=int((spans.end - spans.start).sum()) // measure(trace).count,
        callers=callers(trace, calls),
        lines=python_lines(trace, longest(spans, 64).row),
    )
    return judged(trace, seen, saved, spans=spans, confidence=confidence_in(trace, saved), cut=cut)
