"""Does the allocator ask the driver for memory in steady steps?

PyTorch keeps memory that it once had, so that steady steps call neither ``cudaMalloc`` nor ``cudaFree``, of which the
latter waits for the device. Why they do shows in the order of the calls:

- In one operator memory is given back and then asked for, once: it is short or fragmented (a retry). Several requests
  after it are those of a library that sets itself up. And where less than half of the device's memory was held, as far
  as this was recorded, it was not short. After a retry, what was given back is asked for again.
- There is such a call for every fourth kernel or more: memory is not kept at all.
- Memory is given back in an operator at its first call in the recording, which is called again without: a library sets
  itself up, as cuBLAS and cuDNN do.
- Memory is given back, and not asked for in the same operator: ``empty_cache``, or a library's own workspace.
- Memory is only asked for: sizes still change from step to step. Without steps, it may be the start of a run.

The prediction lets these calls take no time and wait for nothing.

**What to do**: after a retry, ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``, a smaller batch, pad to a few
sizes. If memory is not kept, unset ``PYTORCH_NO_CUDA_MEMORY_CACHING``. No ``torch.cuda.empty_cache()`` in the step.
Reserve pinned memory once. If a library sets itself up, run some steps before the recording begins.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Literal

import numpy as np

from augment import arrays, facts
from augment.core import LAUNCHES, Category, RankInJob, Trace, text
from augment.diagnosis import first_calls, host_causes, judging, rule

NAME = "allocator_calls"
UNCACHED = 0.25  #: calls for each kernel, from which on memory is not kept
MOSTLY = 0.8  #: of the calls' time: one that takes so much is what matters
UNCACHED_LEAST = 100  #: fewer calls are those of a start
_FREES = re.compile(r"Free")
_PINNED = re.compile(r"Host")
_RETRIES = re.compile(r"M*(F+M)+")  #: an operator's calls, F gives back, M asks: what was given back made room for one
SHORT = 0.5  #: the least share of the device's memory that PyTorch holds when it is short
Why = Literal["not_kept", "retry", "pinned", "set_up", "given_back", "growing", "starting"]
_ADVICE: dict[Why, str] = {
    "retry": "Memory is freed before more is requested, so it is scarce or fragmented: set "
    "{allocator}=expandable_segments:True, pad to a few sizes, or use a smaller batch",
    "not_kept": "Memory is not cached: the driver allocates nearly every tensor. Unset "
    "PYTORCH_NO_CUDA_MEMORY_CACHING (PYTORCH_NO_HIP_MEMORY_CACHING), and check for a custom allocator",
    "given_back": "Memory is returned to the driver though no more is needed: look for "
    "{torch}.empty_cache() in the step, or a library that frees its own workspace, in the operators named",
    "set_up": "These operators free memory only at their first call in the recording: libraries are "
    "initializing. Run some steps before the recording begins ({schedule})",
    "pinned": "Pinned memory is allocated while the {gpu} waits: allocate buffers once and reuse them",
    "growing": "Sizes still change from step to step: pad to a few sizes, or record after more steps",
    "starting": "Memory still grows, as at the start of a run: run some steps before the recording "
    "begins. If that continues, sizes change: pad to a few sizes",
}
_COUNTED = "after the first {gpu} work"


class AllocatorCalls(rule.Seen, frozen=True):
    """Calls that request memory of the driver, or give it back."""

    call_count: float
    calls: list[str]  #: their names
    host_ns: int  #: per step
    callers: list[str]  #: those with most of the time first
    why: Why
    longest: tuple[str, int] = ("", 0)  #: a call that takes most of the time, and its ns per step

    def title(self, words: text.Words) -> str:
        of = f" of {text.listed(self.calls)}"
        often = words.often(self.call_count, "call", of=of)
        if words.unit == "recording":  # of which a part is counted
            often = f"{text.counted(self.call_count, 'call')}{of} {words.fill(_COUNTED)}"
        take = "takes" if round(self.call_count, 1) == 1 else "take"
        name, ns = self.longest
        matters = f" ({text.time(ns)} of it {name})" if name and len(self.calls) > 1 else ""
        callers = [each for each in self.callers if each not in self.calls]  # nothing but the calls was recorded
        where = f", most in {text.listed(callers)}" if callers else ""
        return f"{often} {take} the host {text.time(self.host_ns)}{words.each(self.call_count)}{matters}{where}"

    is_of_host = True

    def in_job(self, job: RankInJob, saved_ns: int) -> tuple[rule.Seen, int]:
        if job.shared is not None and job.shared.reason.where == "memory":
            return self, job.shared.gain_ns
        return self, max(saved_ns - job.held_ns, 0)

    def cure(self, words: text.Words) -> str:
        return "avoiding it" if round(self.call_count, 1) == 1 else "avoiding them"

    def advice(self, words: text.Words) -> str:
        return words.reuse or words.fill(_ADVICE[self.why])


def check(trace: Trace) -> rule.Answer:
    """Predict steps without these calls."""
    if not len(trace.events.slices_of(*LAUNCHES)):
        return rule.NotApplicable("no call of the runtime was recorded")
    if not len(facts.gpu.work(trace)):
        return rule.NotApplicable("no {gpu} work was recorded")
    cause = host_causes.allocating(trace)
    if cause is None:
        return rule.Fine("no step asks the driver for memory")
    spans, rows, steps = cause.spans, cause.spans.row, judging.measure(trace).count
    spent = arrays.sums(trace.events.name[rows], spans.end - spans.start, len(trace.strings))
    matters = MOSTLY * spent.sum() < spent.max()
    seen = AllocatorCalls(
        call_count=len(rows) / steps,
        calls=sorted(set(trace.names_of(rows))),
        host_ns=int((spans.end - spans.start).sum()) // steps,
        callers=facts.host.callers(trace, rows),
        why=_why(trace, rows),
        longest=(trace.strings[int(spent.argmax())], int(spent.max()) // steps) if matters else ("", 0),
    )
    confidence = judging.confidence_in(trace, cause.saved_ns)
    return judging.judged(trace, seen, cause.saved_ns, spans=spans, confidence=confidence, cut=cause.cut)


def _why(trace: Trace, rows: arrays.EventRows) -> Why:
    """Why there are such calls, by their order."""
    worked = facts.gpu.work(trace).row[judging.work_in_steps(trace)]
    kernels = np.count_nonzero(trace.events.category[worked] == Category.KERNEL)
    names, dur = trace.names_of(rows), trace.events.dur[rows]
    frees, pinned = (np.array([pattern.search(name) is not None for name in names]) for pattern in (_FREES, _PINNED))
    if len(rows) >= max(UNCACHED * kernels, UNCACHED_LEAST) and 3 * np.count_nonzero(frees) >= len(rows):
        return "not_kept"
    retried = _retried(trace, rows, frees, pinned)
    rest = ~retried & ~pinned
    # of an operator's first call, in which memory is given back
    around, first = facts.host.innermost(trace, rows, (Category.CPU_OP,)), first_calls.at_first_calls(trace, rows)
    first &= np.isin(around, around[first & frees & rest]) & rest
    growing: Why = "starting" if judging.measure(trace).unit == "recording" else "growing"
    parts: dict[Why, arrays.Bools] = {
        "retry": retried,
        "pinned": pinned & ~retried,
        "set_up": first,
        "given_back": frees & rest & ~first,
        growing: ~frees & rest & ~first,
    }
    return max(parts, key=lambda why: int(dur[parts[why]].sum()))


def _retried(trace: Trace, rows: arrays.EventRows, frees: arrays.Bools, pinned: arrays.Bools) -> arrays.Bools:
    """Which calls belong to an operator in which memory was given back to get more: it asks once after it gave. And
    which ask later: for what was given back."""
    devices = facts.memory.held_by_pytorch(trace)
    known = [(each.peak_reserved, facts.operators.capacity_bytes(trace, each.device)) for each in devices]
    held = max((most / capacity for most, capacity in known if capacity), default=None)
    if held is not None and held < SHORT:
        return np.zeros(len(rows), np.bool_)
    around = facts.host.innermost(trace, rows, (Category.CPU_OP,))
    order = np.lexsort((trace.events.ts[rows], around))
    order = order[(around[order] >= 0) & ~pinned[order]]
    operators, letters = around[order], np.where(frees[order], "F", "M").tolist()
    bounds = np.flatnonzero(np.diff(operators, prepend=-1, append=-1)).tolist()
    retries = [operators[start] for start, stop in pairwise(bounds) if _RETRIES.fullmatch("".join(letters[start:stop]))]
    retried = np.isin(around, retries)
    first = trace.events.ts[rows[retried]].min(initial=np.iinfo(np.int64).max)
    asks: arrays.Bools = ~frees & ~pinned & (trace.events.ts[rows] > first)
    return retried | asks
