"""Does the host wait for the device within a step?

``loss.item()``, ``tensor.cpu()``, ``nonzero()`` and boolean masks, ``print(tensor)``, copies from pageable memory and
``torch.cuda.synchronize()`` make the host wait until the device is done. Meanwhile it launches nothing, so that the
device then waits for the host. The prediction lets these calls return at once; where the device has work enough,
nothing is saved and nothing is found.

**What to do**: take the call out of the step, or do it every so many steps; keep values on the device
(``torch.where`` in place of a mask); copy with ``non_blocking=True`` and read the result a step later.
``torch.cuda.set_sync_debug_mode("warn")`` names the lines.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from augment.arrays.types import Bools, Int64s
from augment.derived.critical.savings import without_waits
from augment.derived.host.enclosing import innermost, outermost
from augment.derived.names.matching import STEP, starting
from augment.diagnosis.judging import judged
from augment.diagnosis.measure import confidence_in, longest, measure, saved_a_step
from augment.diagnosis.places import python_lines
from augment.diagnosis.rule import Answer, Fine, NotApplicable, Spans
from augment.diagnosis.waiting import waiting_calls
from augment.diagnosis.wording import a_step, called_from, count, listed, of_a_step, short, shorter, time
from augment.trace import Category, Trace

NAME = "synchronizing_calls"


def check(trace: Trace) -> Answer:
    """Predict steps in which no call waits."""
    calls = waiting_calls(trace)
    if not len(calls):
        return NotApplicable("no call of a step waits for the GPU")
    cut = without_waits(trace, calls)
    saved, spans = saved_a_step(trace, cut), Spans.of(trace, calls)
    waited = int((spans.end - spans.start).sum()) // measure(trace).count
    often = count(len(calls) / measure(trace).count, "call")
    whom = callers(trace, calls)
    lines = python_lines(trace, longest(spans, 64).row)
    return judged(
        trace,
        saved,
        fine=Fine(
            f"the host waits for the GPU in {often} {a_step(trace)} ({time(waited)}): costs {of_a_step(trace, saved)}"
        ),
        title=f"The host waits for the GPU in {often} {a_step(trace)}, longest in {listed(whom)}; without that, "
        + shorter(trace, saved),
        advice="Take the call out of the step or do it every so many steps; keep the value on the GPU; copy with "
        "non_blocking=True and read it a step later" + called_from(lines),
        spans=spans,
        confidence=confidence_in(trace, saved),
        cut=cut,
        evidence=[f"called from {line}" for line in lines] or ["with_stack=True would record the Python line"],
    )


def callers(trace: Trace, calls: Int64s) -> list[str]:
    """What waits, by the outermost operator around each of ``calls``, else by the call; the longest first."""
    around = outermost(trace, calls, (Category.CPU_OP,), _no_step(trace))
    inner = innermost(trace, calls, (Category.USER_ANNOTATION,), _no_step(trace))
    named = np.where(around >= 0, around, np.where(inner >= 0, inner, calls))
    spent: Counter[str] = Counter()
    for name, ns in zip(trace.names_of(named), trace.events.dur[calls].tolist(), strict=True):
        spent[short(name)] += ns
    return [name for name, _ in spent.most_common()]


def _no_step(trace: Trace) -> Bools:
    return ~starting(trace, STEP)
