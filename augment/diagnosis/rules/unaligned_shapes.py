"""Do matrix products of 16-bit numbers have sizes that fit the matrix units badly?

Tensor cores work on tiles. With sizes that are no multiples of 8 (16-bit numbers), products need slower kernels or
padding. How much a padded product would gain cannot be told from a trace, so there is no prediction.

**What to do**: pad the vocabulary to a multiple of 64 (50257 to 50304), hidden and head sizes to multiples of 64, and
batches or sequences to multiples of 8.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from augment.core.text import Words, listed
from augment.core.trace import Trace
from augment.diagnosis.measure import longest, measure, work_in_steps
from augment.diagnosis.rule import Answer, Fine, Found, NoData, NotApplicable, Seen, Spans
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.operators.matrix_products import MULTIPLE, is_unfit, sizes_text
from augment.facts.operators.operator_work import operator_work
from augment.facts.operators.roofline_bounds import roofs

NAME = "unaligned_shapes"
LEAST_RATIO = 0.05  #: of a step's time, in such products


class UnalignedShapes(Seen, frozen=True):
    """Products of 16-bit numbers with sizes that fit badly."""

    product_ns: int  #: per step
    operators: list[str]  #: with their sizes; most of the time first

    def title(self, words: Words) -> str:
        return f"{self._products(words)}, most in {listed(self.operators)}"

    def fine(self, words: Words, saved_ns: int) -> str:
        return self._products(words)

    def _products(self, words: Words) -> str:
        return f"Products with sizes that are no multiples of {MULTIPLE} take {words.share(self.product_ns)}"

    def advice(self, words: Words) -> str:
        return "Pad these sizes to multiples of 64 (a vocabulary of 50257 to 50304), or at least of 8"


def check(trace: Trace) -> Answer:
    """Look at the sizes of products."""
    work = operator_work(trace)
    if not len(gpu_work(trace)):
        return NotApplicable("no {gpu} work was recorded")
    if not work.recorded:
        return NoData("no shapes of operators were recorded", "record with record_shapes=True")
    on_roof, places = roofs(trace), np.flatnonzero(work.owner >= 0)
    inside = np.zeros(len(work), np.bool_)
    inside[work.owner[places[work_in_steps(trace)[places]]]] = True
    half = np.array([each.number in ("bf16", "fp16") and each.is_product for each in work.works], np.bool_)
    if not (inside & half[work.kind]).any():
        return NotApplicable("no product of 16-bit numbers runs in the steps")
    unfit = np.array([is_unfit(call) for call in work.calls], np.bool_) & half
    chosen = np.flatnonzero(inside & unfit[work.kind])
    ns = int(on_roof.ns[chosen].sum()) // measure(trace).count
    spent: Counter[str] = Counter()
    for kind, dur in zip(work.kind[chosen].tolist(), on_roof.ns[chosen].tolist(), strict=True):
        spent[f"{work.calls[kind].operator} {sizes_text(work.calls[kind])}"] += dur
    seen = UnalignedShapes(ns, [name for name, _ in spent.most_common()])
    if measure(trace).ratio(ns) < LEAST_RATIO:
        return Fine(seen)
    kernels = on_roof.kernel[chosen]
    gpu = gpu_work(trace)
    spans = longest(Spans(gpu.ts[kernels], gpu.end[kernels], gpu.row[kernels]), 64)
    return Found(seen, spans, "low", severity="info")
