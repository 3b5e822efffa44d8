"""Does the device wait for the data loader?

PyTorch annotates each fetch of a batch, ``enumerate(DataLoader)#…__next__``. The prediction takes these fetches out of
the steps: the host would have the batch at once. Taking a batch that workers have ready costs the host its own time,
some ten launches' worth where this was recorded: fetches from workers of up to 64 median launches are left to
`launch_bound`. If only one of several takes longer, that may be a host that stands still, and it is merely possible
that the workers are the reason. The first fetch of an epoch waits longer, as workers begin to load
only then: PyTorch draws a seed (``aten::random_``) for each iterator, between the fetch before it and its first.

A batch of workers comes at a moment of the clock. Where at least half of the steps wait for one, and what that costs is
grave, workers decide how long steps are: two fetches in a row that wait are as far apart as they need for a batch, and
no other cure promises more than that leaves. Workers behind another cause are not seen: a ready batch shows no pace.

**What to do**: with `_SingleProcessDataLoaderIter`, load in other processes (``num_workers`` above 0). With workers,
they are too slow: more of them, a larger ``prefetch_factor``, ``persistent_workers=True``, less work per sample. But
if most is the first fetch of an epoch, look at later steps before. Use ``pin_memory=True`` and copy with
``non_blocking=True``.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from augment import arrays, facts
from augment.core import Category, RankInJob, Trace, text
from augment.diagnosis import host_causes, judging, rule

NAME = "data_loading"


Why = Literal["no_workers", "slow_workers", "single_fetch", "first_of_epoch"]
_ADVICE: dict[Why, str] = {
    "no_workers": "The main process loads the data itself: give DataLoader num_workers above 0 (start with 4 to 8), "
    "pin_memory=True and persistent_workers=True",
    "slow_workers": "The workers are too slow: raise num_workers or prefetch_factor, do less work per sample (decode "
    "and augment ahead of time or on the {gpu}), pin_memory=True",
    "single_fetch": "Only one fetch took long: workers, or a host that stood still? Record more steps",
    "first_of_epoch": "Most of it is the first fetch of an epoch, when the workers only begin to load: look at later "
    "steps before adding workers; if epochs are short, persistent_workers=True",
}


class Fetches(rule.Seen, frozen=True):
    """Fetches of batches."""

    fetch_ns: int  #: of the host, per step
    idle_ns: int  #: the part of it in which no device works
    host_alone: bool  #: no work of a device was recorded
    why: Why
    pace_ns: int = 0  #: of its workers, for the batches of a step, where most steps wait for them

    is_of_host = True
    CURE = "having them ready"

    def in_job(self, job: RankInJob, saved_ns: int) -> tuple[rule.Seen, int]:
        shared = job.shared
        if shared is not None and shared.reason.name.startswith(facts.names.FETCH):
            return self, shared.gain_ns
        return super().in_job(job, saved_ns)

    def title(self, words: text.Words) -> str:
        whole, idle = text.time(self.fetch_ns), text.time(self.idle_ns)
        fetch = f"The host fetches batches for {whole} {words.per_step}"
        if self.host_alone:
            return f"{fetch} and computes nothing meanwhile"
        part = "none" if not self.idle_ns else "all" if idle == whole else idle
        return f"{fetch}, {part} of it while the {words.gpu} idles"

    def fine(self, words: text.Words, saved_ns: int) -> str:
        fetch = f"fetching batches takes the host {text.time(self.fetch_ns)} {words.per_step}"
        return f"{fetch}; {self.cure(words)} would save {words.share(saved_ns)}"

    def advice(self, words: text.Words) -> str:
        return words.fill(_ADVICE[self.why])


def check(trace: Trace) -> rule.Answer:
    """Predict steps whose batches are there at once."""
    cause = host_causes.fetching(trace)
    if cause is None and len(rows := judging.fetches_in_steps(trace)):
        took = text.time(trace.events.dur[rows].mean())
        ready = f"every batch is there when it is fetched: taking one costs the host {took}"
        return rule.Fine(f"{ready}; whether workers would keep up with shorter steps does not show")
    if cause is None:
        return rule.NotApplicable("no step fetches a batch from a torch.utils.data.DataLoader")
    spans, alone = cause.spans, not len(facts.gpu.work(trace))
    times = (spans.end - spans.start, judging.idle_ns(trace, spans))
    fetch, idle = (int(ns.sum()) // judging.measure(trace).count for ns in times)
    saved = fetch if alone else cause.saved_ns
    seen = Fetches(fetch, idle, alone, _why(trace, spans.row), host_causes.workers_pace_ns(trace))
    confidence: rule.Confidence = "low" if seen.why == "single_fetch" else "medium" if alone else "high"
    return judging.judged(trace, seen, saved, spans=spans, confidence=confidence, cut=cause.cut)


def _why(trace: Trace, rows: arrays.EventRows) -> Why:
    """Why the fetches ``rows`` take long."""
    if not any("MultiProcessing" in name for name in trace.names_of(rows)):
        return "no_workers"
    dur, first = trace.events.dur[rows], _first_of_iterators(trace, rows)
    if 2 * dur[first].sum() > dur.sum():
        return "first_of_epoch"
    return "single_fetch" if len(rows) == 1 < len(judging.fetches_in_steps(trace)) else "slow_workers"


def _first_of_iterators(trace: Trace, rows: arrays.EventRows) -> arrays.Bools:
    """Which fetches are an iterator's first: its thread drew a seed, in no operator, after the fetch before."""
    events = trace.events
    operators = events.slices_of(Category.CPU_OP)
    drawn = operators[facts.names.starting(trace, _DRAW)[events.name[operators]]]
    of_step = facts.names.starting(trace, facts.names.STEP, facts.names.FETCH)
    drawn = drawn[facts.host.outermost(trace, drawn, (Category.CPU_OP,), ~of_step) == drawn]
    first, every_fetch = np.zeros(len(rows), np.bool_), facts.names.fetches(trace)
    for thread in set(events.track[rows].tolist()):
        seeds, every = (events.ts[each[events.track[each] == thread]] for each in (drawn, every_fetch))
        places = np.flatnonzero(events.track[rows] == thread)
        before = np.searchsorted(every, events.ts[rows[places]], side="left") - 1
        since = np.where(before >= 0, every[np.maximum(before, 0)], np.iinfo(np.int64).min)
        first[places] = np.searchsorted(seeds, events.ts[rows[places]]) > np.searchsorted(seeds, since)
    return first


_DRAW = "aten::random_"
