"""Do many kernels read and write what one could do at once?

Additions, activations, casts and the like read a tensor, do little, and write it back: memory bounds them. Several in a
row can be one kernel. The prediction keeps of each chain (three or more such kernels one after the other on a stream)
the longest kernel alone, as fused it reads and writes about as much. Steps of optimizers have a rule of their own, and
kernels that a compiler made (Triton's of ``torch.compile``) are left out: it chose not to join them.

**What to do**: ``torch.compile`` fuses them; fused operators (``F.scaled_dot_product_attention``, fused layer norm or
cross entropy) replace whole chains.
"""

from __future__ import annotations

import re

import numpy as np

from augment.arrays.ordering import is_any, run_starts
from augment.arrays.types import Bools, Int64s, Places
from augment.core.text import Words, counted, time
from augment.core.trace import Trace
from augment.diagnosis.judging import judged
from augment.diagnosis.measure import measure, saved_a_step, work_in_steps
from augment.diagnosis.rule import (
    Answer,
    NotApplicable,
    Seen,
    Spans,
)
from augment.facts.critical.what_if import fused
from augment.facts.gpu.gpu_time import in_optimizer
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.gpu.kernel_families import kernel_families
from augment.facts.names.name_masks import matching

NAME = "elementwise_chains"
LEAST_LENGTH = 3
_FAMILIES = ("elementwise",)
_COMPILED = re.compile(r"^triton_|[Ff]us(?:ed|ion)|CudaCodeGen")  #: a compiler made these, and chose not to join them


class Chains(Seen, frozen=True):
    """Chains of elementwise kernels."""

    chain_count: float
    kernel_count: float
    gpu_ns: int  #: per step

    def title(self, words: Words) -> str:
        chains = f"{counted(self.chain_count, 'chain')} of elementwise kernels {words.per_step}"
        return f"{chains} ({counted(self.kernel_count, 'kernel')}, {time(self.gpu_ns)}) could be one kernel each"

    def cure(self, words: Words) -> str:
        return "fusing them"

    def fine(self, words: Words, saved_ns: int) -> str:
        chains = f"{counted(self.chain_count, 'chain')} of elementwise kernels {words.per_step}"
        return f"fusing {chains} would save {words.share(saved_ns)}"

    def advice(self, words: Words) -> str:
        return "torch.compile fuses them; or use fused operators (scaled_dot_product_attention, fused norms, losses)"


def check(trace: Trace) -> Answer:
    """Predict steps whose chains are fused."""
    work, families = gpu_work(trace), kernel_families(trace)
    simple = is_any(families.family, [place for place, name in enumerate(families.names) if name in _FAMILIES])
    fused_already = matching(trace, _COMPILED)
    simple &= work_in_steps(trace) & ~in_optimizer(trace) & ~fused_already[trace.events.name[work.row]]
    if not simple.any():
        return NotApplicable("no elementwise kernel runs in the steps")
    start, stop = _chains(simple, np.array([stream.start for stream in work.streams]))
    dur = np.maximum(work.end - work.ts, 0)
    less = np.zeros(len(work), np.int64)
    kept = _longest_of_each(dur, start, stop)
    places = np.concatenate(
        [np.arange(low, high) for low, high in zip(start.tolist(), stop.tolist(), strict=True)] or [start]
    )
    less[places] = dur[places]
    less[kept] = 0
    cut = fused(trace, places, less[places])
    saved = saved_a_step(trace, cut)
    total = int(dur[places].sum()) // measure(trace).count
    steps = measure(trace).count
    ends = work.end[stop - 1] if len(stop) else np.empty(0, np.int64)
    return judged(
        trace,
        Chains(chain_count=len(start) / steps, kernel_count=len(places) / steps, gpu_ns=total),
        saved,
        spans=Spans(work.ts[start], ends, work.row[start]),
        confidence="medium",
        cut=cut,
    )


def _chains(simple: Bools, streams: Int64s) -> tuple[Places, Places]:
    """First and last place, plus 1, of each long run of simple kernels on one stream."""
    group = np.cumsum(np.isin(np.arange(len(simple)), streams)) * 2 + simple
    start = run_starts(group)
    stop = np.append(start[1:], len(simple))
    long = simple[start] & (stop - start >= LEAST_LENGTH)
    return start[long], stop[long]


def _longest_of_each(dur: Int64s, start: Places, stop: Places) -> Places:
    """The place of the longest kernel of each chain."""
    return np.array([low + int(dur[low:high].argmax()) for low, high in zip(start, stop, strict=True)], np.intp)
