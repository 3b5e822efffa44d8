"""Are there many small collectives where a few large ones would do?

Below a megabyte a collective takes as long as an empty one. The prediction joins the small collectives of each kind and
group in a step: one of them stays, as long as the longest. Those that carry activations, as in inference or with tensor
parallelism, follow from each other and cannot be joined: they are left out.

**What to do**: DDP: larger buckets (``bucket_cap_mb``); FSDP: wrap larger units; own code: ``_foreach`` or
``_coalesced`` collectives, one tensor for many metrics, ``all_reduce`` of the metrics every so many steps.
"""

from __future__ import annotations

import numpy as np

from augment.arrays.ordering import combinations
from augment.core.attachments import RankInJob
from augment.core.text import Words, counted, listed, size
from augment.core.trace import Trace
from augment.diagnosis.judging import judged
from augment.diagnosis.measure import measure, saved_a_step, work_in_steps
from augment.diagnosis.rule import (
    Answer,
    NoData,
    NotApplicable,
    Seen,
    Spans,
)
from augment.facts.collectives.collective_kernels import UNKNOWN, collectives
from augment.facts.collectives.collective_roles import SMALL_BYTES, carries_activations
from augment.facts.critical.what_if import without_work
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.operators.operator_work import operator_work

NAME = "small_collectives"
LEAST_COUNT = 4  #: per step, of one kind and group


class SmallCollectives(Seen, frozen=True):
    """Small collectives that could be joined."""

    collective_count: float
    kinds: list[str]
    mean_bytes: float

    @property
    def _number(self) -> str:
        return counted(self.collective_count, "collective")

    def title(self, words: Words) -> str:
        of = f"{listed(self.kinds)}, {size(self.mean_bytes)} on average"
        return f"{self._number} {words.per_step} move less than 1 MB each ({of})"

    def cure(self, words: Words) -> str:
        return "joining them"

    def fine(self, words: Words, saved_ns: int) -> str:
        return f"{self._number} {words.per_step} below 1 MB: costs {words.share(saved_ns)}"

    def advice(self, words: Words) -> str:
        return "Use larger buckets or units (bucket_cap_mb, larger FSDP units); join small tensors before sending them"

    def in_job(self, job: RankInJob) -> tuple[Seen, int | None]:
        return self, job.most_saved_ns


def check(trace: Trace) -> Answer:
    """Predict steps whose small collectives are one of each kind."""
    every = collectives(trace)
    inside = work_in_steps(trace)[every.place] if len(every) else np.zeros(0, np.bool_)
    if not inside.any():
        return NotApplicable("no communication kernel runs in the steps")
    if (every.bytes[inside] == UNKNOWN).all():
        shapes = operator_work(trace).recorded
        why = " beside the shapes of operators: this PyTorch writes none" if shapes else ""
        return NoData(f"no sizes of collectives were recorded{why}", "" if shapes else "record with record_shapes=True")
    inside &= ~carries_activations(trace)
    if not inside.any():
        return NotApplicable("collectives in the steps carry what the next kernels need: they cannot be joined")
    small = np.flatnonzero(inside & (every.bytes != UNKNOWN) & (every.bytes < SMALL_BYTES))
    (kinds, _, _), which = combinations(every.kind.codes[small], every.group[small], every.step[small])
    often = np.bincount(which, minlength=len(kinds)) if len(small) else np.zeros(0, np.int64)
    most = np.zeros(len(kinds), np.int64)
    np.maximum.at(most, which, every.dur[small])
    many = often[which] >= LEAST_COUNT if len(small) else np.zeros(0, np.bool_)
    small, which = small[many], which[many]
    less = every.dur[small] - most[which] // np.maximum(often[which], 1)
    cut = without_work(trace, every.place[small], np.maximum(less, 0))
    saved = saved_a_step(trace, cut)
    seen = SmallCollectives(
        collective_count=len(small) / measure(trace).count,
        kinds=sorted({every.kind.values[code] for code in every.kind.codes[small].tolist()}),
        mean_bytes=float(every.bytes[small].mean()) if len(small) else 0.0,
    )
    spans = Spans(every.ts[small], every.end[small], gpu_work(trace).row[every.place[small]])
    return judged(trace, seen, saved, spans=spans, confidence="medium", cut=cut, at_most=True)
