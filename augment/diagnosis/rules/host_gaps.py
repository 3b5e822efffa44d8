"""Does the host do something long that is no launching?

A stretch of 1 ms and more counts in which a thread that launches work is in one operator that launches nothing,
whatever views it consists of, or in no operator at all, however many frames of Python were recorded meanwhile: garbage
collection, logging, checkpoints, tokenizing, work on the CPU, waiting for a lock. So does the time between the end of
the backward pass on its thread and the next that the main thread does, and before. What holds most of the time names
it. Fetching batches, calls of the runtime, and compilation that names itself have rules of their own; frames of a
compiler, and what ends with a call that loads code (``cuModuleLoad``), are said to compile. Asking ``cudaEventQuery``
again and again while devices idle is a stall. The prediction takes these stretches out of the steps. A function that
waits (``sleep``, ``poll``, ``recv``) is no cause: without steps the run may be a server without requests, and the
finding is merely possible; so it is where the host stalls in nothing that was recorded, nor lines of Python, nor any of
a training. Without steps, an operator that takes long at its first call alone sets a library up; a
range called a warm-up says so itself, and is merely possible, too. An operator that launches a kernel for the first
time, and takes more than four times as long as others of its name, loads that kernel or chooses an algorithm: all its
time counts here, also in shorter stretches. Operators nested in themselves are those that a dispatch mode or a tensor
subclass sends through Python.

**What to do**: record with ``with_stack=True`` to see the lines. Move the work out of the step or to another thread;
``gc.freeze()`` after start-up, or ``gc.disable()`` and ``gc.collect()`` every so many steps.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np
from msgspec.structs import replace

from augment import arrays, facts
from augment.core import Category, RankInJob, Trace, text
from augment.diagnosis import host_causes, judging, rule
from augment.diagnosis.captures import compiled_in
from augment.diagnosis.first_calls import at_first_calls, cold_times
from augment.diagnosis.standstills import frame_around, names_of, system_calls

NAME = "host_gaps"
#: functions that wait for something outside of the process, or for another thread
_WAITING = re.compile(
    r"\b(?:\w*sleep|p?select\d*|p?poll|epoll\w*|recv\w*|accept\d?|acquire|wait\w*|\w+_\w*wait|futex|kqueue|get_nowait"
    r"|zmq_\w+)\b|queue\.py.*\bget\b|threading\.py.*\bjoin\b|futures/\w+\.py.*\bresult\b"
)
LONG_NS = 20_000_000  #: no Python between launches takes so long
USUAL_COUNT = 3  #: calls that tell how long an operator usually takes
_WARMING = re.compile(r"\bwarm[\s_-]*up", re.IGNORECASE)  #: a range of what a program does once
Why = Literal[
    "compiles", "waits", "warmup", "first_calls", "operators", "redispatched", "unusual", "long", "line", "unknown"
]
_ADVICE: dict[Why, str] = {
    "compiles": "Code is compiled here (by torch.compile, Triton or NVRTC), once for each kernel and shape: run some "
    "steps before the recording begins ({schedule}); if it goes on, shapes change",
    "waits": "The host waits here for something that is not in the trace: requests, other processes, a lock or a "
    "timer. If the run is meant to be busy, look at what it waits for",
    "warmup": "This is the program's own warm-up, which loads and initializes once: judge what comes after it "
    "(--region with the name of a range of it), or record only that",
    "first_calls": "These operators are slow only at their first call in the recording: libraries are "
    "initializing and kernels are loaded. Run some steps before the recording begins ({schedule})",
    "operators": "Do this less often or on another thread; in operators of the model itself it is Python, the "
    "dispatcher or the compiler's guards ({stacks} shows which): fewer and larger operators, or {graphs}",
    "redispatched": "Most of this is in operators nested in themselves: a dispatch mode or a tensor subclass (DTensor, "
    "FlopCounterMode, functional tensors) runs Python for every call. Leave it out of the step, or compile the step",
    "unusual": "These operators usually take microseconds: the thread gets no CPU (other processes, or its loader's "
    "workers, on the same cores: compare nproc and taskset -p with them), or waits for a lock; perf sched shows which",
    "long": "The host does more here than launch work: {stacks} shows which line waits or computes. Do that less often "
    "or on another thread; what happens once (compiling, capturing graphs) belongs in a warmup",
    "line": "The host does more here than launch work: this line waits or computes. Do that less often or on another "
    "thread; what happens once (compiling, capturing graphs) belongs in a warmup",
    "unknown": "Record with {stacks} to see what it is: garbage collection (record_python_gc_info), logging, "
    "checkpoints, work on the CPU, or waiting for requests or other processes",
}


class HostGaps(rule.Seen, frozen=True):
    """Long stretches of the host."""

    longest_ns: int
    longest_idle_ns: int  #: of the longest, while devices idle
    slices: list[str]  #: what they are in, with most of the time first; empty: no recorded operator
    why: Why
    calls: Sequence[str] = ()  #: of the operating system that the time is in, if they were recorded, with their share
    idle_ns: int = 0  #: of the devices meanwhile, per step, where no saving is promised

    def title(self, words: text.Words) -> str:
        named = text.listed([name for name in self.slices if name])
        outside = "" if all(self.slices) else "outside recorded operators"
        parts = (named and f"in {named}", outside)[:: 1 if all(self.slices[:1]) else -1]  # first what takes most
        where = ", and ".join(filter(None, parts))
        ways = {"compiles": "while code is compiled", "first_calls": "on first calls"}
        doing = ways.get(self.why, "without launching work")
        idles = f"; meanwhile the {words.gpu} idles {words.saving(self.idle_ns)}" if self.idle_ns else ""
        return f"The host stalls for up to {text.time(self.longest_ns)} at a time {doing}, {where}{idles}"

    is_of_host = True

    def in_job(self, job: RankInJob, saved_ns: int) -> tuple[rule.Seen, int]:
        shared = job.shared
        if shared is not None and shared.reason.where != "memory" and shared.reason.name in self.slices:
            return self, shared.gain_ns
        return self, max(saved_ns - job.held_ns, 0)

    def fine(self, words: text.Words, saved_ns: int) -> str:
        longest = f" (in the longest, of {text.time(self.longest_ns)}, the {words.gpu} works for most of the time)"
        works = 2 * self.longest_idle_ns < self.longest_ns
        return f"removing long stalls of the host would save {words.share(saved_ns)}{longest * works}"

    def advice(self, words: text.Words) -> str:
        return words.fill(_ADVICE[self.why])

    def evidence(self, words: text.Words) -> Sequence[str]:
        return [f"in calls of the operating system: {text.listed(self.calls)}"] if self.calls else []


def check(trace: Trace) -> rule.Answer:
    """Predict steps without these stretches."""
    if not len(facts.gpu.work(trace)):
        return rule.NotApplicable("no {gpu} work was recorded that the host could hold up")
    cause = host_causes.stalling(trace)
    if cause is None:
        return rule.NotApplicable("the host does nothing long but launching")
    spans = cause.spans
    which, parts = judging.within_steps(trace, spans.start, spans.end)
    pieces = rule.Spans(parts.start, parts.end, spans.row[which])
    idle = judging.idle_ns(trace, pieces)  # what the host does while the devices work holds nothing up
    idle = idle if idle.any() else parts.end - parts.start
    held = np.flatnonzero(2 * idle >= parts.end - parts.start)
    if len(held) and 2 * idle[held].sum() >= idle.sum():  # those that cost most of their time are named and shown
        pieces, idle = pieces.take(held), idle[held]
        parts = arrays.Intervals(pieces.start, pieces.end)
    # What a thread does in no operator while another is in one is waiting for it
    outside = (pieces.row < 0) | (trace.events.category[pieces.row] != Category.CPU_OP)
    operators, every = pieces.take(~outside), arrays.Intervals(pieces.start, pieces.end)
    which, _, both = arrays.clip(every, arrays.union(operators.start, operators.end))
    alone = idle - outside * arrays.sums(which, both.end - both.start, len(idle))
    names, spent = names_of(trace, pieces.row, np.maximum(alone, 0)), system_calls(trace, pieces)
    lengths = int((parts.end - parts.start).sum())
    calls = [f"{name} ({text.percent(ns / lengths)})" for name, ns in spent.most_common(3) if 10 * ns >= lengths]
    waits = _WAITING.search(names[0]) is not None
    if not waits and (around := frame_around(trace, pieces.row, parts.end - parts.start)):
        names = [around]
    inside, whole = names[0], arrays.union(parts.start, parts.end)
    if not inside and 2 * spent.total() > lengths:  # nothing else was recorded of the time
        names = [name for name, _ in spent.most_common()]
        waits = _WAITING.search(names[0]) is not None
    unknown = judging.measure(trace).unit == "recording"  # a server without requests waits, too
    longest = int((whole.end - whole.start).max())
    why: Why = "unknown" if not inside else "long" if longest >= LONG_NS else "operators"
    if why == "long" and len(trace.events.slices_of(Category.PYTHON_FUNCTION)):
        why = "line"
    if why == "operators" and _usually_short(trace, pieces):
        why = "unusual"
    elif inside and _redispatched(trace, parts):
        why = "redispatched"
    if 2 * (took := pieces.end - pieces.start)[compiled_in(trace, pieces)].sum() > took.sum():
        why = "compiles"
    elif waits:
        why = "waits"
    elif unknown and _WARMING.search(inside):
        why = "warmup"
    elif (unknown or (why == "unusual" and judging.measure(trace).count == 1)) and _at_first(trace, spans):
        why = "first_calls"
    sure: rule.Confidence = "high" if inside and why not in ("waits", "unusual") and not cause.inferred else "medium"
    if (unknown and why in ("waits", "warmup")) or (facts.steps.is_served(trace) and why in ("waits", "unknown")):
        sure = "low"
    sure = "low" if host_causes.may_lack_requests(trace) else sure
    most = pieces.take(np.array([(pieces.end - pieces.start).argmax()]))
    of_longest = int((most.end - most.start)[0]), int(judging.idle_ns(trace, most)[0])
    seen = HostGaps(*of_longest, slices=names, why=why, calls=calls)
    ratio = judging.measure(trace).ratio(cause.saved_ns)
    if why == "first_calls" and ratio >= rule.LEAST_RATIO:  # a cleaner recording makes no run faster
        seen = replace(seen, idle_ns=int(idle.sum()) // judging.measure(trace).count)
        return rule.Found(seen, pieces, "low" if sure == "low" else "medium", severity=rule.severity_of(ratio))
    return judging.judged(trace, seen, cause.saved_ns, spans=pieces, confidence=sure, cut=cause.cut)


def _redispatched(trace: Trace, parts: arrays.Intervals) -> bool:
    """Whether most of the time of the stretches is in operators directly in one of their name, as a fifth of the
    operators there are: those that consist of others are not dispatched themselves."""
    places, stacks = facts.host.places_of(trace, Category.CPU_OP).place, facts.host.stacks(trace)
    when, ts = arrays.union(parts.start, parts.end), trace.events.ts[stacks.row[places]]
    places = places[host_causes.inside_of(when, ts, ts + 1)]
    rows, outer = stacks.row[places], stacks.parent[places]
    again = rows[(outer >= 0) & (trace.events.name[stacks.row[outer]] == trace.events.name[rows])]
    if 5 * len(again) < len(rows):
        return False
    _, _, inside = arrays.clip(when, arrays.union(trace.events.ts[again], trace.events.end[again]))
    return bool(2 * (inside.end - inside.start).sum() > (when.end - when.start).sum())


def _usually_short(trace: Trace, spans: rule.Spans) -> bool:
    """Whether most of the time of the stretches is in operators that usually take less than a tenth."""
    operators, time_of = trace.events.slices_of(Category.CPU_OP), spans.end - spans.start
    names, usual = trace.events.name[np.maximum(spans.row, 0)], np.zeros(len(spans), np.bool_)
    for name in arrays.distinct(names[spans.row >= 0]).tolist():
        calls = operators[trace.events.name[operators] == name]
        if len(calls) >= USUAL_COUNT:
            usual |= (names == name) & (spans.row >= 0) & (time_of > 10 * np.median(trace.events.dur[calls]))
    return bool(2 * time_of[usual].sum() > time_of.sum())


def _at_first(trace: Trace, spans: rule.Spans) -> bool:
    """Whether most of the time of the stretches is in operators at their first call, which are called again, or in
    those that launch a kernel for the first time."""
    again = at_first_calls(trace, spans.row)
    for track in arrays.distinct(trace.events.track[spans.row[spans.row >= 0]]).tolist():
        of_track = np.flatnonzero((spans.row >= 0) & (trace.events.track[spans.row] == track))
        again[of_track] |= host_causes.inside_of(cold_times(trace, track), spans.start[of_track], spans.end[of_track])
    time_of = spans.end - spans.start
    return bool(2 * time_of[again].sum() > time_of.sum())
