"""Do matrix products of 16-bit numbers have sizes that fit the matrix units badly?

Tensor cores work on tiles. With sizes that are no multiples of 8 (16-bit numbers), products need slower kernels or
padding. Only the sizes matter along which numbers lie together in memory: as a kernel's name says how its factors lie
(``_tn``), a batch of 788 rows is no such size. How much a padded product would gain cannot be told from a trace, so
there is no prediction.

**What to do**: pad the vocabulary to a multiple of 64 (50257 to 50304), hidden and head sizes to multiples of 64, and
batches or sequences to multiples of 8.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from augment import arrays, facts
from augment.core import Trace, text
from augment.diagnosis import judging, rule

NAME = "unaligned_shapes"
LEAST_RATIO = 0.05  #: of a step's time, in such products
_LAYOUT = re.compile(r"_([nt][nt])n?(?:_|$)", re.IGNORECASE)
#: the sizes along which the factors and the product of such a kernel lie, as in unfit_sizes; of any other all count
_ALONG, _ANY = {"tn": 6, "nn": 6, "nt": 5}, 7


class UnalignedShapes(rule.Seen, frozen=True):
    """Products of 16-bit numbers with sizes that fit badly."""

    product_ns: int  #: per step
    operators: list[str]  #: with their sizes; most of the time first
    ADVICE = "Pad these sizes to multiples of 64 (such as a vocabulary of 50257 to 50304), or at least of 8"

    def title(self, words: text.Words) -> str:
        products = f"Matrix products with sizes that are not multiples of {facts.operators.MULTIPLE}"
        return f"{products} take {words.share(self.product_ns)}, most in {text.listed(self.operators)}"

    def fine(self, words: text.Words, saved_ns: int) -> str:
        if words.ratio(self.product_ns) < text.LEAST_SHARE:
            return f"16-bit products of sizes that are not multiples of {facts.operators.MULTIPLE} take next to no time"
        return f"padding products with unaligned sizes would save {words.share(self.product_ns, 'at most ')}"


def check(trace: Trace) -> rule.Answer:
    """Look at the sizes of products."""
    work = facts.operators.work(trace)
    if not len(facts.gpu.work(trace)):
        return rule.NotApplicable("no {gpu} work was recorded")
    if not work.recorded:
        return rule.NoData("no shapes of operators were recorded", "record with {shapes}")
    on_roof, places = facts.operators.bounds(trace), np.flatnonzero(work.owner >= 0)
    inside = np.zeros(len(work), np.bool_)
    inside[work.owner[places[judging.work_in_steps(trace)[places]]]] = True
    half = np.array([each.number in ("bf16", "fp16") and each.is_product for each in work.works], np.bool_)
    if not (inside & half[work.kind]).any():
        return rule.NotApplicable("no product of 16-bit numbers runs in the steps")
    gpu, kernel = facts.gpu.work(trace), on_roof.kernel
    unfit = np.array([facts.operators.unfit_sizes(call) for call in work.calls]) * half
    names = np.where(kernel >= 0, trace.events.name[gpu.row[kernel]], -1)
    along = np.full(len(trace.strings) + 1, _ANY)  # by name; the last is of no kernel
    for name in arrays.distinct(names[names >= 0]).tolist():
        if layout := _LAYOUT.search(trace.strings[name]):
            along[name] = _ALONG.get(layout[1].lower(), _ANY)
    chosen = np.flatnonzero(inside & ((unfit[work.kind] & along[names]) > 0))
    if not len(chosen):
        which = " that matter" if unfit[work.kind[inside]].any() else ""
        return rule.Fine(f"all sizes of 16-bit products{which} are multiples of {facts.operators.MULTIPLE}")
    ns = int(on_roof.ns[chosen].sum()) // judging.measure(trace).count
    spent: Counter[str] = Counter()
    for kind, dur in zip(work.kind[chosen].tolist(), on_roof.ns[chosen].tolist(), strict=True):
        spent[f"{work.calls[kind].operator} {facts.operators.sizes_text(work.calls[kind])}"] += dur
    seen = UnalignedShapes(ns, [name for name, _ in spent.most_common()])
    if judging.measure(trace).ratio(ns) < LEAST_RATIO:
        return rule.Fine(seen)
    kernels = kernel[chosen]
    spans = judging.longest(rule.Spans(gpu.ts[kernels], gpu.end[kernels], gpu.row[kernels]), 64)
    return rule.Found(seen, spans, "low", severity="info")
