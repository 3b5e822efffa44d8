"""Are graphs captured while recording?

While a stream captures a CUDA graph, launches are written down and nothing runs, so the device seems to wait for the
host. Then the graph is instantiated. Both belong to the start; in steady steps, something changes that graphs depend
on, such as a shape. The prediction takes captures and instantiations out of the steps, and the host's long stretches in
frames that prepare them, or in an operator that takes more than four times as long as those of its name that capture
nothing. A recording that is mostly a capture shows no run: no saving is told, and no rule finds anything in it.

**What to do**: record after the captures (``warmup`` in the profiler's schedule). In steady steps: capture a few sizes
once, and pad to them; with ``torch.compile``, ``TORCH_LOGS=cudagraphs,recompiles`` says why graphs are made again.
Where operators of the same sizes are captured each time, padding does not help.
"""

from __future__ import annotations

import numpy as np

from augment import arrays, facts
from augment.core import LAUNCHES, Trace, text
from augment.diagnosis import captures, host_causes, judging, rule

NAME = "graph_capture"
IN_TURN = 4
_AGAIN = "Find out why graphs are made again: {graph_logs} says so; "
_STEADY = f"{_AGAIN}if sizes change, capture a few once and pad to them"
_SAME = f"{_AGAIN}the sizes are not the reason: the same are captured each time"
_MOSTLY = (
    "Record steady steps to judge the run, and pass this file beside their trace (--graph-capture FILE): it gives "
    "graphs their operators and shapes"
)
_ONCE = "Record after the captures, with a warmup in the profiler's schedule: steady steps do not have them"


class Captures(rule.Seen, frozen=True):
    """Captures of graphs."""

    capture_count: float
    capture_ns: int  #: per step
    in_every_step: bool
    mostly: bool  #: devices idle in them for more than half of all, and no graph runs that is made again and again
    around_ns: int = 0  #: of it, in stalls beside the captures themselves
    again: bool = False  #: an operator captures more than once
    same: bool = False  #: operators of the same sizes are captured each time
    operator: str = ""  #: that captures in most of them
    calls: tuple[tuple[int, int], ...] = ()  #: of it that capture, and others: how many, and their median in ns
    in_turn: bool = False  #: each second one of at least :data:`IN_TURN` calls of it captures
    CURE = "avoiding that"

    def title(self, words: text.Words) -> str:
        if self.mostly:
            spent = f"{text.time(self.capture_ns)} of {text.time(words.length_ns)}"
            beside = " and the host's stalls in the same calls" * (self.around_ns > 0)
            return f"This recording captures graphs, it does not show a run: captures{beside} take {spent}"
        often = f"once {words.per_step}" if self.capture_count == 1 else words.often(self.capture_count, "time")
        each = words.each(self.capture_count)
        capture = f"Graphs are captured {often} ({text.time(self.capture_ns - self.around_ns)}{each})"
        if self.around_ns:
            return f"{capture}; in the same calls the host stalls for {text.time(self.around_ns)} more{each}"
        return f"{capture}, while the {words.gpu} runs none of them"

    def evidence(self, words: text.Words) -> list[str]:
        calls = [f"{text.counted(count, 'call')} of {text.time(ns)}" for count, ns in self.calls]
        said = f"{text.short(self.operator)}: {' with a capture, '.join(calls)} without{', alternating' * self.in_turn}"
        return [said] if len(calls) > 1 else []

    def fine(self, words: text.Words, saved_ns: int) -> str:
        often = words.often(self.capture_count, "capture", of=" of graphs")
        spent = text.time(self.capture_ns) + words.each(self.capture_count)
        return f"{often} ({spent}); {self.cure(words)} would save {words.share(saved_ns)}"

    def advice(self, words: text.Words) -> str:
        again = _SAME if self.same else _STEADY
        return words.fill(_MOSTLY if self.mostly else again if self.in_every_step or self.again else _ONCE)


def check(trace: Trace) -> rule.Answer:
    """Predict steps in which no graph is made."""
    if not len(facts.gpu.work(trace)):
        return rule.NotApplicable("no {gpu} work was recorded that the host could hold up")
    cause = host_causes.capturing(trace)
    if cause is None:
        return rule.NotApplicable("no graph is captured in the steps")
    which, parts = judging.within_steps(trace, cause.spans.start, cause.spans.end)
    measured = judging.measure(trace)
    steps = measured.count
    made, events, (around, others) = captures.captures(trace), trace.events, captures.capturing_operators(trace)
    inside = judging.within_steps(trace, made.start, made.end)[1]
    count = int(np.bincount(events.name[judging.rows_in_steps(trace, made.row)], minlength=1).max()) or 1
    steady, again = 2 * count >= steps > 1, len(around) > len(arrays.distinct(events.name[around]))
    longest = events.name[around[events.dur[around].argmax()]] if len(around) else -1
    every = np.sort(np.concatenate((around, others)))  # by time, as rows are
    taken = arrays.is_among(every[events.name[every] == longest], around)
    calls_ns = [events.dur[rows[events.name[rows] == longest]] for rows in (around, others)]
    place, kind, *_ = facts.operators.counted(trace)
    ts = events.ts[facts.host.stacks(trace).row[place]]
    order = np.argsort(ts, kind="stable")
    bounds = np.searchsorted(ts[order], (made.start, made.end)).T.tolist()
    sizes = [kind[order[first:stop]].tolist() for first, stop in bounds if stop > first]
    spent, alone = (arrays.total(arrays.union(each.start, each.end)) // steps for each in (parts, inside))
    calls = trace.events.slices_of(*LAUNCHES)
    runs = facts.names.matching(trace, facts.names.GRAPH_LAUNCH)[trace.events.name[calls]].any()
    spans = rule.Spans(parts.start, parts.end, cause.spans.row[which])
    most = 2 * judging.idle_ns(trace, spans).sum() > measured.length_ns * steps
    seen = Captures(
        capture_count=count / steps,
        capture_ns=spent,
        in_every_step=steady,
        mostly=bool(most and (steady or steps == 1) and not (runs and (steady or again))),
        around_ns=spent - alone,
        again=again,
        same=len(sizes) >= count > 1 and all(each == sizes[0] for each in sizes),
        operator=trace.strings[longest] if len(around) else "",
        in_turn=len(taken) >= IN_TURN and bool((taken[1:] != taken[:-1]).all()),
        calls=tuple((len(ns), int(arrays.median(ns))) for ns in calls_ns if len(ns)),
    )
    if seen.mostly:
        return rule.Found(seen, spans, "high", severity="info", first=True)
    confidence: rule.Confidence = "high" if steady else "medium"
    return judging.judged(trace, seen, cause.saved_ns, spans=spans, confidence=confidence, cut=cause.cut)
