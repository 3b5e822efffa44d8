"""Are there many small collectives where a few large ones would do?

Below a megabyte a collective takes as long as an empty one; where sizes were not recorded, one that takes less than
30 µs is such. The prediction joins the small collectives of each kind and group in a step: one of them stays, as long
as the longest, and the operators that launch the others take no time. Those that carry activations, as in inference or
with tensor parallelism, follow from each other and cannot be joined: they are left out.

**What to do**: DDP: larger buckets (``bucket_cap_mb``); FSDP: wrap larger units; own code: ``_foreach`` or
``_coalesced`` collectives, one tensor for many metrics, ``all_reduce`` of the metrics every so many steps.
"""

from __future__ import annotations

import numpy as np

from augment import arrays, facts
from augment.core import RankInJob, Trace, text
from augment.diagnosis import judging, rule

NAME = "small_collectives"
LEAST_COUNT = 4  #: per step, of one kind and group
QUICK_NS = 30_000  #: an empty one takes 10 µs and more


class SmallCollectives(rule.Seen, frozen=True):
    """Small collectives that could be joined."""

    collective_count: float
    kinds: list[str]
    mean_bytes: float | None  #: None if no size was recorded
    median_ns: int = 0  #: of their durations
    by_host: bool = False  #: most of what joining them saves is the host's launches of them
    ADVICE = "Use larger buckets or units (bucket_cap_mb, larger FSDP units); join small tensors before sending them"

    def cure(self, words: text.Words) -> str:
        return "joining them" + ", mostly as the host launches fewer," * self.by_host

    def title(self, words: text.Words) -> str:
        number = words.often(self.collective_count, "collective")
        if self.mean_bytes is None:
            of = f"{text.listed(self.kinds)}, median {text.time(self.median_ns)}"
            short = f"take less than {text.time(QUICK_NS)} each ({of}), about the time of an empty one"
            return f"{number} {short}"
        of = f"{text.listed(self.kinds)}, {text.size(self.mean_bytes)} on average"
        return f"{number} move less than 1 MB each ({of})"

    def fine(self, words: text.Words, saved_ns: int) -> str:
        what = "of a few µs" if self.mean_bytes is None else "below 1 MB"
        often = words.often(self.collective_count, "collective")
        return f"{often} {what}; {self.cure(words)} would save {words.share(saved_ns)}"

    def in_job(self, job: RankInJob, saved_ns: int) -> tuple[rule.Seen, int]:
        return self, min(saved_ns, job.most_saved_ns)


def check(trace: Trace) -> rule.Answer:
    """Predict steps whose small collectives are one of each kind."""
    every = facts.collectives.kernels(trace)
    inside = judging.work_in_steps(trace)[every.place] if len(every) else np.zeros(0, np.bool_)
    if not inside.any():
        return rule.NotApplicable("no communication kernel runs in the steps")
    inside &= ~facts.collectives.carries_activations(trace)
    if not inside.any():
        return rule.NotApplicable("collectives in the steps carry what the next kernels need: they cannot be joined")
    unknown = every.bytes == arrays.NO_VALUE
    quick = unknown & (every.dur < QUICK_NS)
    small = np.flatnonzero(inside & (quick | (~unknown & (every.bytes < facts.collectives.SMALL_BYTES))))
    (kinds, _, _), which = arrays.combinations(every.kind.codes[small], every.group[small], every.step[small])
    often = np.bincount(which, minlength=len(kinds)) if len(small) else np.zeros(0, np.int64)
    most = np.zeros(len(kinds), np.int64)
    np.maximum.at(most, which, every.dur[small])
    many = often[which] >= LEAST_COUNT if len(small) else np.zeros(0, np.bool_)
    small, which = small[many], which[many]
    if not len(small) and unknown[inside].all():
        shapes = facts.operators.work(trace).recorded
        why = ": this version of PyTorch writes none" if shapes else ""
        return rule.NoData(f"no sizes of collectives were recorded{why}", "" if shapes else "record with {shapes}")
    if not len(small):
        return rule.Fine(f"fewer than {LEAST_COUNT} collectives of a kind and group per step are below 1 MB")
    less = every.dur[small] - most[which] // np.maximum(often[which], 1)
    calls = facts.gpu.work(trace).launch[every.place[small]]
    _, first, inverse = np.unique(which, return_index=True, return_inverse=True)
    more = np.flatnonzero((calls != arrays.NO_INDEX) & (np.arange(len(small)) != first[inverse]))
    around = facts.host.operators_around(trace, calls[more])
    around = arrays.distinct(around[around >= 0])
    ended = trace.events.ts[around] + trace.events.dur[around]
    on_host = judging.host_cut(trace, trace.events.track[around], trace.events.ts[around], ended)
    on_device = facts.critical.without_work(trace, every.place[small], np.maximum(less, 0))
    cut = facts.critical.joined([on_device, on_host])
    saved, without_launches = judging.saved_a_step(trace, cut), judging.saved_a_step(trace, on_device)
    seen = SmallCollectives(
        collective_count=len(small) / judging.measure(trace).count,
        kinds=sorted({every.kind.values[code] for code in every.kind.codes[small].tolist()}),
        mean_bytes=None if unknown[small].any() else float(every.bytes[small].mean()),
        median_ns=int(np.median(every.dur[small])),
        by_host=2 * without_launches < saved,
    )
    spans = rule.Spans(every.ts[small], every.end[small], facts.gpu.work(trace).row[every.place[small]])
    return judging.judged(trace, seen, saved, spans=spans, confidence="medium", cut=cut, at_most=True)
