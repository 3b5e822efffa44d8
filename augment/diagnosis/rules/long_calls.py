"""Does a single call of the runtime hold up the host, although the device has nothing to do?

The first call that needs the device creates its context, which takes seconds, whatever its name says
(``cudaDeviceGetStreamPriorityRange``, ``cudaFree(0)``). The first use of a kernel or library loads it, within an
ordinary launch. Other single calls wait for a lock of the driver, launch a large graph, or look for an operator's
program anew (``aclopCompileAndExecute`` on Ascend). The rule names calls of 0.1 ms and more during which devices idle
for 0.1 ms or half of the time, and says for how long they idle in them; calls that wait for a device, copies, and
steady requests for memory have rules of their own. The prediction takes these calls out of the steps. Nothing is
predicted of first launches of kernels that take ten times as long as any launch of a known kernel: they load it, once,
which is merely possible below 0.1 s; nor, without steps, of calls that do
nothing but load (``cuLibraryLoadData``, ``cuModuleLoadData``).

**What to do**: if they happen once, run some steps before the recording begins: steady steps do not have them. If they
come back in every step, find out what asks for them.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from msgspec.structs import replace

from augment import arrays, facts
from augment.core import Trace, text
from augment.diagnosis import first_calls, host_causes, judging, rule

NAME = "long_calls"
MOSTLY = 0.5  #: of a step: the recording shows the loading of kernels
MANY = 10  #: in a step: they are no first use of anything
_ONCE = (
    "Run some steps before the recording begins ({schedule}): the first use of the device "
    "creates its context, and the first use of a kernel or library loads it; steady steps do not do that"
)
_AT_START = "; CUDA_MODULE_LOADING=EAGER loads all at the start instead"
_OF_ASCEND = "Turn off the compiling of operators at run time (torch.npu.set_compile_mode(jit_compile=False))"
_IF_ONCE = "; if only the first steps compile, record later ones ({schedule})"
_OF_GRAPHS = "Launching large graphs takes the host this long: prepare the next step meanwhile, or launch it earlier"


class LongCalls(rule.Seen, frozen=True):
    """Single long calls of the runtime."""

    call_count: float
    calls: list[tuple[str, int]]  #: names, and the ns in which devices idle in them; the longest first
    in_every_step: bool
    lines: list[str]  #: of the user's program
    is_once: bool = False  #: a single call, in a recording of a single step
    is_loading: bool = False  #: loading of modules, in calls of their own or first launches
    step_count: int = 1
    launches: bool = False  #: most of them are launches of kernels

    def title(self, words: text.Words) -> str:
        if self.is_loading:
            idle = sum(ns for _, ns in self.calls) / self.step_count
            what = "The first launches of some kernels, which load them, hold"
            if round(self.call_count * self.step_count) == 1:
                what = "The first launch of a kernel, which loads it, holds"
            if self.in_calls_of_its_own:
                what = "The loading of kernels and libraries at their first use holds"
            return f"{what} up the host while the {words.gpu} idles, for {words.share(idle)}: {self._calls}"
        if "aclop" in self.calls[0][0]:
            compiles, others = ([each for each in self.calls if ("aclop" in each[0]) == of] for of in (True, False))
            s = "s" * (len(compiles) == 1)
            beside = f"; so {'does' if len(others) == 1 else 'do'} {_listed(others)}" if others else ""
            what = f"which compile{s} operators that are not cached, hold{s} up the host while the {words.gpu} idles"
            return f"{_listed(compiles)}, {what}{self._in_steps}{beside}"
        which = "Single" if self.call_count <= MANY else "Long"
        spent = text.listed([f"{text.time(ns)} in {name}" for name, ns in self.calls])
        return f"{which} runtime calls hold up the host while the {words.gpu} idles, for {spent}{self._in_steps}"

    @property
    def in_calls_of_its_own(self) -> bool:
        """Whether some of the calls do nothing but load."""
        return any("aunch" not in name for name, _ in self.calls)

    @property
    def _calls(self) -> str:
        return _listed(self.calls) + self._in_steps

    @property
    def _in_steps(self) -> str:
        return f" in {self.step_count} steps" if self.step_count > 1 else ""

    def cure(self, words: text.Words) -> str:
        return "avoiding that" if self.is_loading or self.call_count * self.step_count <= 1 else "avoiding them"

    def fine(self, words: text.Words, saved_ns: int) -> str:
        often = words.often(self.call_count, "long runtime call")
        calls = _listed(self.calls) if words.each(self.call_count) else self._calls
        return f"{often} ({calls}); {self.cure(words)} would save {words.share(saved_ns)}"

    def advice(self, words: text.Words) -> str:
        longest = self.calls[0][0]
        if "aclop" in longest:
            return words.fill(_OF_ASCEND if self.in_every_step else _OF_ASCEND + _IF_ONCE)
        if self.is_loading:
            return words.fill(_ONCE + (_AT_START if longest.startswith("cu") else ""))
        if "GraphLaunch" in longest:
            return _OF_GRAPHS
        if self.launches and self.call_count > MANY:
            return f"{words.use_graphs}: each of these calls launches a kernel{text.called_from(self.lines)}"
        if self.is_once:
            return f"Record several steps: one cannot tell if the call takes long again{text.called_from(self.lines)}"
        often = "in every step" if self.in_every_step else words.often(self.call_count, "time")
        if self.in_every_step or self.call_count > MANY:
            return f"Find out what calls it {often}{text.called_from(self.lines)}"
        return words.fill(_ONCE)


def _listed(calls: list[tuple[str, int]]) -> str:
    return text.listed([f"{name} ({text.time(ns)})" for name, ns in calls])


def check(trace: Trace) -> rule.Answer:
    """Predict steps without these calls."""
    if not len(facts.gpu.work(trace)):
        return rule.NotApplicable("no {gpu} work was recorded that the host could hold up")
    cause = host_causes.calling(trace)
    if cause is None:
        return rule.NotApplicable("no call of the runtime takes long while the {gpu} idles")
    loads, idle = np.isin(cause.spans.row, first_calls.loading_calls(trace)), judging.idle_ns(trace, cause.spans)
    # of calls for memory only those are here that create a context
    loads |= facts.names.matching(trace, facts.names.CALLS_FOR_MEMORY)[trace.events.name[cause.spans.row]]
    is_loading = bool(2 * idle[loads].sum() > idle.sum())
    chosen = loads if is_loading else ~loads
    rows, idle, steps = cause.spans.row[chosen], idle[chosen], judging.measure(trace).count
    steady = len(rows) >= steps > 1
    spans, spent, codes = rule.Spans.of(trace, rows), Counter[str](), trace.events.name[rows]
    for code in arrays.distinct(codes).tolist():  # a loop over names; processes of one file may load at a time
        of_name = codes == code
        passes = arrays.total(arrays.union(spans.start[of_name], spans.end[of_name]))
        spent[text.short(trace.strings[code])] += min(int(idle[of_name].sum()), passes)
    calls = spent.most_common()
    lines = facts.host.python_lines(trace, judging.longest(spans, 64).row)
    once = len(rows) == steps == 1 and judging.measure(trace).unit == "step" and "GraphLaunch" not in calls[0][0]
    launches = 2 * int(np.isin(rows, facts.gpu.work(trace).launch).sum()) > len(rows)
    seen = LongCalls(len(rows) / steps, calls, steady, lines, once, is_loading, steps, launches)
    cut = judging.host_cut(trace, trace.events.track[rows], spans.start, spans.end)
    saved = judging.saved_by_host(trace, cut)
    # a step alone that is mostly loading shows nothing of the run
    mostly = is_loading and steps == 1 and judging.measure(trace).ratio(int(idle.sum())) >= MOSTLY
    may_be = idle.max() < first_calls.CONTEXT_NS and not seen.in_calls_of_its_own if is_loading else once
    confidence: rule.Confidence = "low" if may_be else "high" if steady and not is_loading else "medium"
    answer = judging.judged(trace, seen, saved, spans=spans, confidence=confidence, cut=cut, shown=int(idle.argmax()))
    if not is_loading or not isinstance(answer, rule.Found):
        return answer
    severity = rule.severity_of(judging.measure(trace).ratio(saved))
    return replace(answer, saved_ns=None, cut=None, severity=severity, first=mostly)
