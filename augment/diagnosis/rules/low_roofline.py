"""Which shapes of operators stay far below what the device can do?

The [roofline](analyses.md#roofline) holds each operator against its device's peak. This rule takes those that reach
less than 40 % of their roof, and predicts steps in which they reach 70 %, about what good kernels do. Operators that
are too short to be judged are left out, and those whose operations can only be bounded.

**What to do**: larger or aligned sizes, another memory layout (``channels_last``), fewer but larger batched products,
``torch.compile(mode="max-autotune")``; measure the shape alone before changing much.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from augment.arrays.ordering import distinct, is_any
from augment.arrays.types import Int32s, Int64s
from augment.core.text import Words, listed, percent, short
from augment.core.trace import Trace
from augment.diagnosis.judging import judged
from augment.diagnosis.measure import saved_a_step, work_in_steps
from augment.diagnosis.rule import (
    Answer,
    NoData,
    NotApplicable,
    Seen,
    Spans,
)
from augment.facts.critical.what_if import without_work
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.operators.matrix_products import UNKNOWN_DEVICE
from augment.facts.operators.operator_work import OperatorWork, operator_work
from augment.facts.operators.peaks import device_peaks
from augment.facts.operators.roofline_bounds import Bound, roofs

NAME = "low_roofline"
LOW, GOOD = 0.40, 0.70


class LowRoofline(Seen, frozen=True):
    """Matrix products far below their roofline bound."""

    reached_ratio: float
    operators: list[str]  #: with their shapes; most of the time first

    def title(self, words: Words) -> str:
        where = listed(self.operators, 2)
        return f"Products reach {percent(self.reached_ratio)} of their roofline bound, most of the time in {where}"

    def cure(self, words: Words) -> str:
        return f"reaching {percent(GOOD)}"

    def fine(self, words: Words, saved_ns: int) -> str:
        return f"matrix products below {percent(LOW)} of their roofline bound would save {words.share(saved_ns)}"

    def advice(self, words: Words) -> str:
        return "Try larger or aligned sizes, channels_last, torch.compile(mode='max-autotune'); measure the shape"


def check(trace: Trace) -> Answer:
    """Predict steps whose slow shapes are as fast as good kernels."""
    work, gpu = operator_work(trace), gpu_work(trace)
    if not len(gpu_work(trace)):
        return NotApplicable("no {gpu} work was recorded")
    if not work.recorded:
        return NoData("no shapes of operators were recorded", "record with record_shapes=True")
    if not any(device_peaks(trace).values()):
        return NoData("the peaks of the device are unknown", UNKNOWN_DEVICE)
    on_roof, places = roofs(trace), np.flatnonzero(work.owner >= 0)
    places = places[work_in_steps(trace)[places]]
    sure = [each.is_product and each.most_flops in (None, each.flops) for each in work.works]
    product = np.array(sure, np.bool_)
    judged_ones = product[work.kind] & is_any(on_roof.bound, (Bound.COMPUTE, Bound.MEMORY)) & (on_roof.ns > 0)
    if not judged_ones.any():
        return NotApplicable("no matrix product has a roofline bound")
    ratio = np.where(judged_ones, on_roof.roof_ns / np.maximum(on_roof.ns, 1), np.inf)
    slow = ratio < LOW
    less = np.where(slow, 1 - np.where(slow, ratio, 0) / GOOD, 0.0)
    slow_work = places[slow[work.owner[places]]]
    dur = np.maximum(gpu.end[slow_work] - gpu.ts[slow_work], 0)
    cut = without_work(trace, slow_work, (dur * less[work.owner[slow_work]]).astype(np.int64))
    saved = saved_a_step(trace, cut)
    chosen = distinct(work.owner[slow_work])
    spent = _times(work, chosen, on_roof.ns)
    share = float(np.nansum(on_roof.roof_ns[chosen]) / max(int(on_roof.ns[chosen].sum()), 1))
    kernel = on_roof.kernel[chosen]
    seen = LowRoofline(reached_ratio=share, operators=[short(name) for name, _ in spent.most_common()])
    spans = Spans(gpu.ts[kernel], gpu.end[kernel], gpu.row[kernel])
    return judged(trace, seen, saved, spans=spans, confidence="low", cut=cut)


def _times(work: OperatorWork, owners: Int32s, ns: Int64s) -> Counter[str]:
    """How long the operators at ``owners`` take, by operator and shapes."""
    kinds = work.kind[owners]
    total = np.zeros(len(work.calls), np.int64)
    np.add.at(total, kinds, ns[owners])
    spent: Counter[str] = Counter()
    for kind in dict.fromkeys(kinds.tolist()):
        call = work.calls[kind]
        shapes = " × ".join("x".join(map(str, call.dims[at])) for at in call.tensors[:2])
        spent[f"{call.operator} {shapes}"] += int(total[kind])
    return spent
