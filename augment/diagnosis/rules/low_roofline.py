"""Which shapes of operators stay far below what the device can do?

The [roofline](analyses.md#roofline) holds each operator against its device's peak. This rule takes those that reach
less than 40 % of their roof, and predicts steps in which they reach 70 %, about what good kernels do. Operators that
are too short to be judged are left out, and those whose operations can only be bounded.

**What to do**: larger or aligned sizes, fewer but larger batched products, ``torch.compile(mode="max-autotune")``; for
convolutions another memory layout (``channels_last``), for attention another backend; measure the shape alone first.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from augment import arrays, facts
from augment.core import Trace, text
from augment.diagnosis import judging, rule

NAME = "low_roofline"
LOW, GOOD = 0.40, 0.70
_WAYS = {
    "attention": "another backend of attention (torch.nn.attention.sdpa_kernel) or a larger batch",
    "convolution": "larger or aligned sizes of convolutions, channels_last, torch.backends.cudnn.benchmark=True",
    "gemm": "larger or aligned sizes of products, torch.compile(mode='max-autotune')",
}


class LowRoofline(rule.Seen, frozen=True):
    """Matrix products far below their roofline bound."""

    reached_ratio: float
    operators: list[str]  #: with their shapes; most of the time first
    families: list[str]  #: of the kernels of the first two

    def title(self, words: text.Words) -> str:
        where = text.listed(self.operators, 2)
        reached = text.percent(self.reached_ratio)
        return f"Matrix products reach {reached} of their roofline bound; most of their time is in {where}"

    def cure(self, words: text.Words) -> str:
        return f"reaching {text.percent(GOOD)}"

    def fine(self, words: text.Words, saved_ns: int) -> str:
        low = f"matrix products below {text.percent(LOW)} of their roofline bound"
        return f"speeding up {low} would save {words.share(saved_ns)}"

    def advice(self, words: text.Words) -> str:
        ways = dict.fromkeys(_WAYS.get(family, _WAYS["gemm"]) for family in self.families)
        return f"Try {'; '.join(ways)}; first time it alone"


def check(trace: Trace) -> rule.Answer:
    """Predict steps whose slow shapes are as fast as good kernels."""
    work, gpu = facts.operators.work(trace), facts.gpu.work(trace)
    if not len(facts.gpu.work(trace)):
        return rule.NotApplicable("no {gpu} work was recorded")
    if not work.recorded:
        return rule.NoData("no shapes of operators were recorded", "record with {shapes}")
    if not any(facts.operators.limits(trace).values()):
        return rule.NoData("the peaks of the {gpu} are unknown", facts.operators.peak_options(trace))
    on_roof, places = facts.operators.bounds(trace), gpu.where(work.owner >= 0)
    places = places[judging.work_in_steps(trace)[places]]
    sure = [each.is_product and each.most_flops in (None, each.flops) for each in work.works]
    product = np.array(sure, np.bool_)
    bounded = arrays.is_any(on_roof.bound, (facts.operators.Bound.COMPUTE, facts.operators.Bound.MEMORY))
    judged_ones = product[work.kind] & bounded & (on_roof.ns > 0)
    if not judged_ones.any() and (product[work.kind] & (on_roof.number < 0)).any():
        return rule.NoData(*facts.operators.UNTOLD_UNITS)
    if not judged_ones.any():
        return rule.NotApplicable("no matrix product has a roofline bound")
    ratio = np.where(judged_ones, on_roof.roof_ns / np.maximum(on_roof.ns, 1), np.inf)
    slow = ratio < LOW
    less = np.where(slow, 1 - np.where(slow, ratio, 0) / GOOD, 0.0)
    slow_work = places[slow[work.owner[places]]]
    dur = np.maximum(gpu.end[slow_work] - gpu.ts[slow_work], 0)
    cut = facts.critical.without_work(trace, slow_work, (dur * less[work.owner[slow_work]]).astype(np.int64))
    saved = judging.saved_a_step(trace, cut)
    chosen = arrays.distinct(work.owner[slow_work])
    kinds = work.kind[chosen]
    total = arrays.sums(kinds, on_roof.ns[chosen], len(work.calls))
    spent, families, family_of = Counter[str](), facts.operators.work_families(trace), dict[str, str]()
    name_of = dict[int, str]()
    kernel = on_roof.kernel[chosen]
    for kind, place in dict(zip(kinds.tolist(), kernel.tolist(), strict=True)).items():
        call = work.calls[kind]
        shapes = " × ".join("x".join(map(str, call.dims[at])) for at in call.tensors[:2])
        name_of[kind] = f"{call.operator} {shapes}"
        spent[name_of[kind]] += int(total[kind])
        family_of[name_of[kind]] = families.names[families.family[place]]
    share = float(np.nansum(on_roof.roof_ns[chosen]) / max(int(on_roof.ns[chosen].sum()), 1))
    most = [name for name, _ in spent.most_common()]
    seen = LowRoofline(share, [text.short(name) for name in most], [family_of[name] for name in most[:2]])
    spans = rule.Spans(gpu.ts[kernel], gpu.end[kernel], gpu.row[kernel])
    named = np.isin(kinds, [kind for kind, name in name_of.items() if name in most[:1]])
    shown = int(np.where(named, spans.end - spans.start, -1).argmax()) if len(spans) else None
    return judging.judged(trace, seen, saved, spans=spans, confidence="low", cut=cut, shown=shown)
