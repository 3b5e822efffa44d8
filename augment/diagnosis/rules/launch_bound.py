"""Is the host too slow in launching?

A launch takes the host 5 to 20 µs with all that Python and PyTorch do around it. If kernels are shorter than that, the
device finishes each before the next is launched. The prediction lets operators, runtime calls and the Python between
them take no time on the host, which CUDA graphs come close to. Stretches of 1 ms and more are not launching and stay,
and so does what other rules name: longer fetches of batches, calls of the allocator, single long calls, compilation,
captures of graphs, standstills, and operators that launch a kernel for the first time and take far longer for it than
others of their name. Calls that wait for the device stay, too. No more is saved than the time in which the device idles
while the thread that launches its next work is busy with launching: a host that reads a file meanwhile is not too slow
in launching. But where a faster host would get so far ahead that such another matter passes while the device still
works, more is saved, and "at least" says so. What a device takes between two kernels anyway, a microsecond or as the
recording shows, remains.

Launches that return only when their kernels are done (``CUDA_LAUNCH_BLOCKING=1``) are told as such.

**What to do**: CUDA graphs (``torch.compile(mode="reduce-overhead")`` or ``torch.cuda.graph``) launch many kernels in
one call; ``torch.compile`` fuses small kernels into fewer; a larger batch makes kernels longer. An inference engine
captures graphs itself, unless an option forbids it. A graph holds no call that waits for the device: where a step has
such calls between its launches, the advice names them. Recording stacks (``with_stack``) makes the host slower than it
is: record once without them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct, field

from augment import arrays, facts
from augment.core import Category, Trace, source_code, text
from augment.diagnosis import first_calls, host_causes, judging, rule, served

NAME = "launch_bound"
GRAPH = 4  #: kernels of one launch, on average, where graphs are launched already
SKEWED = 0.1  #: share of work that seems to begin before its launch, from which on clocks cannot be trusted
_COMPILED = 254  #: beside the kinds of BoundBy: the part of operators, and of what is outside, that torch.compile made
_OUTSIDE = "outside operators (Python, or not recorded)"
#: what launching consists of, and what its parts are called
_PARTS = {
    facts.critical.BoundBy.CPU_OPERATOR: "in operators",
    facts.critical.BoundBy.OUTSIDE_OPERATORS: _OUTSIDE,
    facts.critical.BoundBy.RUNTIME_CALL: "in runtime calls",
    _COMPILED: "in compiled regions (guards, Python around their kernels)",
    facts.critical.BoundBy.DATA_LOADING: "in fetches of batches",
}
_NO_LAUNCHING = (facts.critical.BoundBy.CPU_OPERATOR, facts.critical.BoundBy.OUTSIDE_OPERATORS)  #: if it takes long
NAMED_RATIO = 0.005  #: of the wait; a part below is not told
_BLOCK = 1 << 16  #: stretches that are looked at at once, as a trace may have millions


class _Short(Struct, frozen=True):
    """Short stretches of the host beside waits: equal-length columns. ``track``, ``start`` and ``end`` in ns, ``kind``,
    a :class:`BoundBy`, and ``row``, the innermost slice (-1: none). By track, then time; disjoint on each."""

    track: arrays.Int32s
    start: arrays.Int64s
    end: arrays.Int64s
    kind: arrays.Bytes
    row: arrays.Int32s

    def of(self, track: int) -> slice:
        """The places of a track."""
        return slice(*np.searchsorted(self.track, (track, track + 1)).tolist())


Launcher = Literal["calls", "compiled_calls", "graphs", "compiling_calls", "waiting_calls"]
_ADVICE: dict[Launcher, str] = {
    "graphs": "The kernels are launched by graphs already: look at what the host does between them (sampling, copies, "
    "Python), prepare the next step while the {gpu} works, or put more into each graph",
    "calls": "{use_graphs}; {fuse}; use a larger batch",
    "compiled_calls": "{use_graphs}, which also skip the guards and the Python of compiled code; use a larger batch",
    "compiling_calls": "Turn off the compiling of operators at run time "
    "(torch.npu.set_compile_mode(jit_compile=False)), use graph mode (torchair), or a larger batch",
    "waiting_calls": "Each launch returns only when its kernel is done: unset CUDA_LAUNCH_BLOCKING (or "
    "HIP_LAUNCH_BLOCKING), which is for debugging, and record again",
}
_LONG = "Most of it is long stretches without a launch (work on the CPU, logging, metrics): look at these first. "
_ZEROS = "Call zero_grad(set_to_none=True), which launches nothing. "
_STACKS = "; stacks were recorded, which slows the host: record without with_stack to be certain"


class LaunchBound(rule.Seen, frozen=True):
    """A host that is too slow in launching; times are per step."""

    wait_ns: int  #: idle time of the device while the host launches
    kernel_count: float
    launch_count: float
    launcher: Launcher
    parts: list[tuple[str, int]]  #: of the wait: where the host is, and ns
    operators: list[tuple[str, int]]  #: those, and Python functions outside of them, with most of the time, and ns
    zeroing_ns: int  #: of the wait: while gradients are set to zero
    long_ns: int  #: of the wait: in single stretches without a call of 0.2 ms and more, which are no launching
    kernel_ns: int  #: the median kernel
    call_ns: int  #: the median call that launches one
    has_stacks: bool
    hides_more: bool  #: a host that launches faster would have other delays, of its own, while the device works
    engine: str | None = None  #: that serves
    prefill_tokens: int = 0  #: the most of a step, where most of an engine's steps only prefill
    kernel_gap_ns: int = 0  #: of the wait: what counts as gaps between kernels, which the host or the device may decide
    apart_ns: int = 0  #: the median from a launch to the next of its thread
    wait_count: float = 0  #: calls of a step, between its launches, that wait for a device
    waiting: list[str] = field(default_factory=list)  #: what makes them, the longest first
    CURE = "removing that idle time"

    @property
    def at_least(self) -> bool:
        return self.hides_more and not self.has_stacks

    is_of_host = True

    def title(self, words: text.Words) -> str:
        number = text.counted(self.kernel_count, "kernel")
        launches = text.counted(self.launch_count, "launch", "launches")
        does = f"launches {number}" + f" in {launches}" * (self.launcher == "graphs")
        does += ", and waits for each" * (self.launcher == "waiting_calls")
        if 2 * self.long_ns > self.wait_ns:
            does = f"does other things between the launches of {number}"
        many = 4 * self.kernel_gap_ns >= self.wait_ns > 0
        gaps = f" ({text.time(self.kernel_gap_ns)} of it between kernels)" * many
        return f"The {words.gpu} idles {text.time(self.wait_ns)} {words.per_step}{gaps} while the host {does}"

    def fine(self, words: text.Words, saved_ns: int) -> str:
        number = words.often(self.kernel_count, "kernel")
        waits = f"removing waits for the launches of {number} would save {words.share(saved_ns)}"
        long = f"a launch takes {text.time(self.call_ns)}, see long_calls; apart from that, "
        return long * (self.call_ns >= facts.names.LONG_CALL_NS) + waits

    def advice(self, words: text.Words) -> str:
        slows = self.launcher in ("calls", "compiled_calls") and self.has_stacks
        first = _ZEROS * (4 * self.zeroing_ns > self.wait_ns) + _LONG * (2 * self.long_ns > self.wait_ns)
        way = words.fill(_ADVICE[self.launcher])
        if self.engine is not None and self.launcher in ("calls", "compiled_calls"):
            options = [served.option_of(cause, self.engine) for cause in ("launch", "eager")]
            if self.prefill_tokens:
                options[1] = served.option_of("eager_prefill", self.engine).format(tokens=f"{self.prefill_tokens:,}")
            way = f"Let the engine launch graphs ({'; '.join(options)}); put more requests in a batch"
        elif self.wait_count >= 1 and words.no_graph_waits and self.launcher in ("calls", "compiled_calls"):
            waits = f"{words.often(self.wait_count, 'call')}, in {text.listed(self.waiting)}"
            way += f"{words.fill(words.no_graph_waits)} ({waits})"
        return first + way + (_STACKS if slows else "")

    def evidence(self, words: text.Words) -> Sequence[str]:
        named = text.listed([f"{name} ({text.time(ns)})" for name, ns in self.operators])
        known = "among operators, " * (_OUTSIDE in [name for name, _ in self.parts[:1]])  # nothing tells of others
        parts = text.listed([f"{text.time(ns)} {where}" for where, ns in self.parts], len(_PARTS))
        pace = f"{text.time(self.apart_ns)} (the call itself takes {text.time(self.call_ns)})"
        return [
            *([f"{known}the {words.gpu} idles longest while the host is in {named}"] if named else []),
            *[f"half of the kernels take {text.time(self.kernel_ns)} at most, but the host launches one every {pace}"]
            * (self.launcher != "graphs" and self.apart_ns > self.kernel_ns),
            *[f"where the host is in that idle time: {parts}"] * bool(self.parts),
            *(["stacks were recorded: the host is slower than usual"] if self.has_stacks else []),
        ]


def check(trace: Trace) -> rule.Answer:
    """Predict steps whose launches cost the host nothing."""
    work = facts.gpu.work(trace)
    if not len(work):
        return rule.NotApplicable("no {gpu} work was recorded")
    kernels = judging.work_in_steps(trace) & (trace.events.category[work.row] == Category.KERNEL)
    places = np.flatnonzero(kernels & (work.launch != arrays.NO_INDEX))
    if not kernels.any():
        return rule.NotApplicable("no kernel runs in the steps")
    if not len(places):
        return rule.NoData("no launch of a kernel was recorded", "record with {calls}")
    waits = _waits(trace, *facts.waits.GapCategory)
    stretches, short = _short_work(trace, waits)
    cut = judging.host_cut(trace, *stretches)
    waited, parts, operators, zeroing, long = _waiting_a_step(trace, waits, short)
    gaps = _waits(trace, facts.waits.GapCategory.KERNEL_WAIT)
    between = sum(int(ns.sum()) for _, _, ns in _launching(trace, gaps, short))
    delays = int(np.minimum(waits.end - waits.start, judging.delay_ns(trace)).sum()) // judging.measure(trace).count
    by_path = judging.saved_a_step(trace, cut)
    saved = min(by_path, max(waited - delays // max(len(facts.gpu.coverage(trace)), 1), 0))
    calls, counts = np.unique(work.launch[places], return_counts=True)
    of_threads = calls[np.argsort(trace.events.track[calls], kind="stable")]
    apart = np.diff(trace.events.ts[of_threads])[np.diff(trace.events.track[of_threads]) == 0]
    stacks = bool((trace.events.category == Category.PYTHON_FUNCTION).any())
    skewed = float(np.mean(trace.events.ts[work.launch[places]] > work.ts[places])) > SKEWED
    within_compiled = facts.host.within_compiled(trace, calls.astype(np.int64))
    launcher: Launcher = "calls"
    lasts = work.end[places] - work.ts[places] >= judging.LASTING_NS
    outlasts = trace.events.end[work.launch[places]] < work.end[places]  # the call that launches it
    graphs = facts.names.matching(trace, facts.names.GRAPH_LAUNCH)[trace.events.name[calls]]
    if len(places) >= min(GRAPH * len(calls), 2 * (len(places) - int(counts[graphs].sum()))):
        launcher = "graphs"
    elif lasts.any() and not skewed and max(outlasts.mean(), outlasts[lasts].mean()) < SKEWED:
        launcher = "waiting_calls"
    elif trace.names_of(calls[:1])[0].startswith("AscendCL@"):
        launcher = "compiling_calls"
    elif 2 * max(dict(parts).get(_PARTS[_COMPILED], 0) / max(waited, 1), within_compiled.mean()) >= 1:
        launcher = "compiled_calls"
    batches, waiting = facts.steps.batches(trace), _between(trace, calls)
    prefills = [batch.prefill_tokens for batch in batches if batch.phase == "prefill"]
    seen = LaunchBound(
        wait_ns=waited,
        kernel_count=len(places) / judging.measure(trace).count,
        launch_count=len(calls) / judging.measure(trace).count,
        launcher=launcher,
        parts=parts,
        operators=operators,
        zeroing_ns=zeroing,
        long_ns=long,
        kernel_ns=int(arrays.median(work.end[places] - work.ts[places])),
        call_ns=int(arrays.median(trace.events.dur[calls])),
        apart_ns=int(arrays.median(apart)) if len(apart) else 0,
        has_stacks=stacks,
        hides_more=judging.measure(trace).ratio(by_path - saved) >= rule.LEAST_RATIO,
        engine=batches[0].engine if batches else None,
        prefill_tokens=max(0, *prefills) if 2 * len(prefills) > len(batches) else 0,
        wait_count=len(waiting) / judging.measure(trace).count,
        waiting=facts.host.callers(trace, waiting),
        kernel_gap_ns=between // (max(len(facts.gpu.coverage(trace)), 1) * judging.measure(trace).count),
    )
    confidence: rule.Confidence = "medium" if stacks or skewed else "high"
    spans = _charged(trace, short)
    return judging.judged(trace, seen, saved, spans=spans, confidence=confidence, cut=cut, at_most=stacks)


def _between(trace: Trace, launches: arrays.EventRows) -> arrays.EventRows:
    """The calls that wait for a device between launches of the same step, which a graph of these would hold, too."""
    calls, ts, windows = first_calls.waiting_calls(trace), trace.events.ts, judging.measure(trace).windows
    if judging.measure(trace).unit == "recording":
        return calls[:0]  # what comes again is not known: they may wait between what graphs would hold
    launched = np.sort(ts[launches])
    step = np.concatenate(([-1], windows.of_host(launched), [-1]))
    place, of_call = np.searchsorted(launched, ts[calls]), windows.of_host(ts[calls])
    within: arrays.EventRows = calls[(step[place] == of_call) & (step[place + 1] == of_call) & (of_call >= 0)]
    return within


def _waiting_a_step(
    trace: Trace, waits: rule.Spans, short: _Short
) -> tuple[int, list[tuple[str, int]], list[tuple[str, int]], int, int]:
    """The time in a step in which a device idles while the thread that launches its next work is in ``short``
    stretches, ns, the mean of all devices; the parts that it consists of; the operators, and functions outside, with
    most of it; how much of it sets gradients to zero, and is in long stretches without a call. Gaps of any category
    count: a kernel may be launched while the one before still runs, and yet come late."""
    each = max(len(facts.gpu.coverage(trace)), 1) * judging.measure(trace).count
    ns_of_kind, ns_of_name, zeroing, long = np.zeros(256), np.zeros(len(trace.strings)), 0.0, 0.0
    zeroes = facts.names.starting(trace, "Optimizer.zero_grad")
    is_frame = np.append(trace.events.category == Category.PYTHON_FUNCTION, False)  # row -1 reads the last entry
    for _, place, ns in _launching(trace, waits, short):
        ns_of_kind += np.bincount(short.kind[place], ns, len(ns_of_kind))
        others = arrays.is_any(short.kind[place], _NO_LAUNCHING)
        long += float(ns[others & (short.end[place] - short.start[place] >= judging.HELD_NS)].sum())
        if zeroes.any():
            rows, within = short.row[place].astype(arrays.EventRow), (Category.CPU_OP, Category.USER_ANNOTATION)
            zeroing += float(ns[facts.host.innermost(trace, rows, within, zeroes) >= 0].sum())
        inside = np.flatnonzero(arrays.is_any(short.kind[place], (facts.critical.BoundBy.CPU_OPERATOR, _COMPILED)))
        around = facts.host.operators_around(trace, short.row[place[inside]].astype(np.int64))
        ns_of_name += np.bincount(trace.events.name[around], ns[inside] * (around >= 0), len(ns_of_name))
        outside = (short.kind[place] == facts.critical.BoundBy.OUTSIDE_OPERATORS) & is_frame[short.row[place]]
        ns_of_name += np.bincount(trace.events.name[short.row[place[outside]]], ns[outside], len(ns_of_name))
    of_kind = {kind: int(ns_of_kind[kind] / each) for kind in _PARTS}
    whole = int(ns_of_kind.sum() / each)
    order = sorted(_PARTS, key=lambda kind: -of_kind[kind])
    where = _PARTS | {facts.critical.BoundBy.OUTSIDE_OPERATORS: "in Python"} if is_frame.any() else _PARTS
    parts = [(where[kind], of_kind[kind]) for kind in order if of_kind[kind] >= NAMED_RATIO * max(whole, 1)]
    most = [int(name) for name in np.argsort(-ns_of_name, kind="stable")[:3] if ns_of_name[name] > 0]
    operators = [(source_code.shown_frame(trace.strings[name]), int(ns_of_name[name] / each)) for name in most]
    return whole, parts, operators, int(zeroing / each), int(long / each)


def _charged(trace: Trace, short: _Short) -> rule.Spans:
    """The waits for the host of which ``short`` stretches are at least half: the others are of other causes."""
    waits = _waits(trace, facts.waits.GapCategory.HOST_WAIT)
    inside = np.zeros(len(waits), np.int64)
    for wait, _, ns in _launching(trace, waits, short):
        inside += arrays.sums(wait, ns, len(waits))
    chosen = 2 * inside >= waits.end - waits.start
    return waits.take(chosen)


def _launching(
    trace: Trace, waits: rule.Spans, short: _Short
) -> Iterator[tuple[arrays.Places, arrays.Places, arrays.Int64s]]:
    """The pieces of waits in which the thread that ends them is in ``short`` stretches, by thread: which wait, which
    stretch, and how long, int64 ns."""
    thread_of = trace.events.track[waits.row]
    for thread in arrays.distinct(thread_of).tolist():
        places, stretches = np.flatnonzero(thread_of == thread), short.of(thread)
        spans = arrays.Intervals(short.start[stretches], short.end[stretches])
        which, where, parts = arrays.clip(arrays.Intervals(waits.start[places], waits.end[places]), spans)
        yield places[which], where + stretches.start, parts.end - parts.start


def _short_work(trace: Trace, waits: rule.Spans) -> tuple[tuple[arrays.Int32s, arrays.Int64s, arrays.Int64s], _Short]:
    """The short stretches of the host's time on the threads that launch: track, start and end, of which those are one
    that touch; and in full, those within which a device waits for the thread, of which ``waits`` tell."""
    segments = facts.host.host_segments(trace)
    owned, nothing = host_causes.owned_times(trace), arrays.Intervals(np.empty(0, np.int64), np.empty(0, np.int64))
    longest_ns = np.zeros(256, np.int64)
    longest_ns[list(_PARTS)] = host_causes.LONG_NS
    longest_call_ns = np.iinfo(np.int64).max if judging.launches_block(trace) else facts.names.LONG_CALL_NS
    longest_ns[facts.critical.BoundBy.RUNTIME_CALL] = longest_call_ns  # calls that block are as long as their kernels
    none, no_ns = np.empty(0, np.int32), np.empty(0, np.int64)
    stretches: list[tuple[arrays.Int32s, arrays.Int64s, arrays.Int64s]] = [(none, no_ns, no_ns)]
    parts: list[tuple[arrays.Int32s, arrays.Int64s, arrays.Int64s, arrays.Bytes, arrays.Int32s]] = [
        (none, no_ns, no_ns, np.empty(0, np.uint8), none)
    ]
    for lane in facts.critical.launching_tracks(trace):
        part = segments.of(lane)
        ts, row = segments.ts[part], segments.row[part]
        free = arrays.subtract(arrays.Intervals(ts[:1], ts[-1:]), owned.get(lane, nothing))
        of_lane = np.flatnonzero(trace.events.track[waits.row] == lane)
        waiting = arrays.union(waits.start[of_lane], waits.end[of_lane])
        for first in range(0, len(ts) - 1, _BLOCK):
            rows, moments = row[first : first + _BLOCK][: len(ts) - 1 - first], ts[first : first + _BLOCK + 1]
            kind, took = facts.critical.host_kinds(trace, rows.astype(np.int64)), np.diff(moments)
            chosen = np.flatnonzero((took < longest_ns[kind]) & (took > 0))
            which, _, short = arrays.clip(arrays.Intervals(moments[chosen], moments[chosen + 1]), free)
            whole = arrays.union(short.start, short.end)
            stretches.append((np.full(len(whole.start), lane, np.int32), whole.start, whole.end))
            beside = np.flatnonzero(np.less(*arrays.touched(short.start, short.end, waiting)))
            of = chosen[which[beside]]
            parts.append((np.full(len(of), lane, np.int32), short.start[beside], short.end[beside], kind[of], rows[of]))
    track, start, end = map(np.concatenate, zip(*stretches, strict=True))
    made = _Short(*map(np.concatenate, zip(*parts, strict=True)))
    made.kind[facts.host.in_compiled(trace, made.row)] = _COMPILED
    return (track, start, end), made


def _waits(trace: Trace, *categories: facts.waits.GapCategory) -> rule.Spans:
    """The gaps of some categories of devices before work with a known launch, in steady steps. If the work begins far
    later than that call has returned, only until then: what is queued does not wait for the host. The usual time from a
    launch to its work counts, as a host that is ahead hides it."""
    parts = []
    for gaps, causes in zip(facts.waits.gaps(trace), facts.waits.causes(trace), strict=True):
        known = facts.gpu.work(trace).launch[gaps.next] != arrays.NO_INDEX
        late = np.flatnonzero(arrays.is_any(causes, categories) & known)
        launched = np.clip(facts.waits.launch_end(trace, gaps.next[late]), gaps.start[late], gaps.end[late])
        held = (gaps.end[late] - launched >= judging.HELD_NS) | (causes[late] == facts.waits.GapCategory.OTHER)
        which, times = judging.within_steps(trace, gaps.start[late], np.where(held, launched, gaps.end[late]))
        parts.append(rule.Spans(times.start, times.end, facts.gpu.work(trace).launch[gaps.next[late]][which]))
    return rule.Spans.joined(parts)
