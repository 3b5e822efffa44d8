"""Does the host wait for the device within a step?

``loss.item()``, ``tensor.cpu()``, ``nonzero()`` and boolean masks, ``print(tensor)``, copies from pageable memory and
``torch.cuda.synchronize()`` make the host wait until the device is done. Meanwhile it launches nothing, so that the
device then waits for the host. The prediction lets these calls return at once; where the device has work enough,
nothing is saved and nothing is found. Nor where most steps wait for the data loader's workers: the host would only wait
longer for the batch. The prediction is that of steps that go on: without waits, the host is further ahead from step to
step. If the host works on for 1 ms and more after a call that may give it something, while the device idles, it may
need that: where most of the saving rests on such calls, only what is saved without them is promised. Where the traces
of all ranks are known, what a rank waits for late ones is not saved. Where ranks communicate, no more is promised than
the idle time that the host explains: a collective waits for the other ranks all the same.

**What to do**: take the call out of the step, or do it every so many steps; keep values on the device
(``torch.where`` in place of a mask); copy with ``non_blocking=True`` and read the result a step later.
``torch.cuda.set_sync_debug_mode("warn")`` names the lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from augment import arrays, facts
from augment.core import LAUNCHES, RankInJob, Trace, text
from augment.diagnosis import first_calls, host_causes, judging, rule

NAME = "synchronizing_calls"
_TO_HOST = re.compile("DtoH|CopyDeviceToHost|Memcpy D2[MH]")
_WORK = "the host's long work after them (1 ms or more, stalls included)"
_WHOLE_DEVICE = re.compile(r"^(?:cuda|hip)DeviceSynchronize|^(?:cu|hip)CtxSynchronize")


class SynchronizingCalls(rule.Seen, frozen=True):
    """Calls in which the host waits for the device."""

    call_count: float
    wait_ns: int  #: per step
    callers: list[str]  #: the longest first
    lines: list[str]  #: of the user's program
    possible_ns: int = 0  #: what is saved if the host needs no result; 0 where that is what is promised

    is_of_host = True
    CURE = "avoiding that"

    @property
    def at_least(self) -> bool:
        return self.possible_ns > 0

    def in_job(self, job: RankInJob, saved_ns: int) -> tuple[rule.Seen, int]:
        return self, max(saved_ns - job.wait_ns, 0)  # also where all hosts are slow: it may wait for a late rank's data

    def _waits(self, words: text.Words) -> str:
        return f"host waits for the {words.gpu} in {words.often(self.call_count, 'call')}"

    def title(self, words: text.Words) -> str:
        return f"The {self._waits(words)}, longest in {text.listed(self.callers)}"

    def fine(self, words: text.Words, saved_ns: int) -> str:
        waits = f"{self._waits(words)} ({text.time(self.wait_ns)}{words.each(self.call_count)})"
        return f"the {waits}; {self.cure(words)} would save {words.share(saved_ns)}"

    def advice(self, words: text.Words) -> str:
        way = "Move the call out of the step, or make it only every few steps; keep the value on the {gpu}; copy with "
        return words.fill(way + "non_blocking=True and read it a step later") + text.called_from(self.lines)

    def evidence(self, words: text.Words) -> Sequence[str]:
        more = f"up to {words.saving(self.possible_ns)} if {_WORK} does not need their results"
        return [more] * self.at_least + [f"{words.stacks} would record the Python line"] * (not self.lines)


def check(trace: Trace) -> rule.Answer:
    """Predict steps in which no call waits."""
    calls = first_calls.waiting_calls(trace)
    if not len(calls):
        return rule.NotApplicable("no call of a step waits for the {gpu}")
    spans = rule.Spans.of(trace, calls)
    # the idle time that each call costs, and since when: of the gap in which it returns, no more than the host waited
    cost, since, waited = np.zeros(len(spans), np.int64), spans.end.copy(), spans.end - spans.start
    for idle in judging.idle_in_steps(trace):
        gap = np.searchsorted(idle.start, spans.end, "right") - 1
        inside = np.flatnonzero((gap >= 0) & (spans.end <= np.append(idle.end, 0)[gap]))
        ns = np.minimum((idle.end - idle.start)[gap[inside]], waited[inside])
        inside, ns = inside[ns > cost[inside]], ns[ns > cost[inside]]
        since[inside], cost[inside] = idle.start[gap[inside]], ns
    needed = may_be_needed(trace, spans)
    cut, sure = (facts.critical.without_waits(trace, each) for each in (calls, calls[~needed]))
    saved = judging.saved_unwaited(trace, cut)
    certain = judging.saved_unwaited(trace, sure) if needed.any() else saved
    whole, possible, unsure = judging.measure(trace), 0, 2 * certain < saved
    at_most = certain < rule.CLEARLY_LESS * saved
    if unsure and whole.ratio(certain) >= rule.LEAST_RATIO:
        possible, saved, cut, unsure, at_most, cost[needed] = saved, certain, sure, False, False, 0
    beyond = f"or less if {_WORK} needs their results" if unsure else ""
    seen = SynchronizingCalls(
        call_count=len(calls) / whole.count,
        wait_ns=int(waited.sum()) // whole.count,
        callers=facts.host.callers(trace, calls),
        lines=facts.host.python_lines(trace, judging.longest(spans, 64).row),
        possible_ns=possible,
    )
    shown = int(cost.argmax()) if cost.any() else None
    sure_of = "low" if unsure else judging.confidence_in(trace, saved)
    answer = judging.judged(trace, seen, saved, spans=spans, confidence=sure_of, cut=cut, at_most=at_most, shown=shown)
    drawn = rule.Spans(since, since + cost, calls).take(cost > 0)
    return replace(answer, beyond=beyond, drawn=drawn) if isinstance(answer, rule.Found) else answer


_NEEDING_NOTHING = (host_causes.fetching, host_causes.collecting, host_causes.compiling, host_causes.starving)


def may_be_needed(trace: Trace, spans: rule.Spans) -> arrays.Bools:
    """Whether the host may work with what each call gave it, for long, while a device idles: those that return then, or
    the last before. Runtime calls of threads that launch, fetches, garbage, compilation and standstills do not count. A
    wait for the whole device gives nothing without a copy to the host since the wait before, unless the host may be a
    server's without requests."""
    needed, work, order = np.zeros(len(spans), np.bool_), facts.gpu.work(trace), np.argsort(spans.end, kind="stable")
    copied = np.sort(work.end[facts.names.matching(trace, _TO_HOST)[trace.events.name[work.row]]])
    gives = np.diff(np.searchsorted(copied, spans.end[order]), prepend=0) > 0
    gives |= ~facts.names.matching(trace, _WHOLE_DEVICE)[trace.events.name[spans.row[order]]]
    order = order[gives | host_causes.may_lack_requests(trace)]
    returned, known = spans.end[order], (each(trace) for each in _NEEDING_NOTHING)
    calls = trace.events.slices_of(*LAUNCHES)
    calls = calls[arrays.is_any(trace.events.track[calls], facts.critical.launching_tracks(trace))]
    other = rule.Spans.joined([rule.Spans.of(trace, calls), *(each.spans for each in known if each is not None)])
    for idle in judging.idle_in_steps(trace):
        places = np.flatnonzero(idle.category == facts.waits.GapCategory.HOST_WAIT)
        waits = arrays.Intervals(idle.start[places], idle.end[places])
        which, _, parts = arrays.clip(waits, arrays.union(other.start, other.end))
        rest = waits.end - waits.start - arrays.sums(which, parts.end - parts.start, len(places))
        first, stop = (np.searchsorted(returned, side[rest >= host_causes.LONG_NS], "right") for side in waits)
        needed[order[arrays.expand(np.clip(first, 0, np.maximum(stop - 1, 0)), stop)[1]]] = True
    return needed
