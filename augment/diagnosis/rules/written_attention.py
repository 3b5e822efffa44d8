"""Is attention written out, as two batched products with a softmax between them?

Written out, the scores of each token for each other are written to memory, and read again by the softmax and all that
scales or masks them. ``scaled_dot_product_attention`` never writes them. It is found in the forward pass by operators
and shapes: a batched product, a softmax over what it made, and a batched product of that. What is saved is a bound: no
kernel between the products touches scores any more, and the products are as fast as the device's peak. How grave it is
follows from the former alone, and so does whether it is told at all. The backward pass is not counted.

**What to do**: ``torch.nn.functional.scaled_dot_product_attention`` (in Transformers ``attn_implementation="sdpa"``),
``flex_attention`` for scores of your own; not where the weights of attention themselves are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from msgspec import Struct

from augment import arrays, facts
from augment.core import Trace, text
from augment.diagnosis import judging, rule

NAME = "written_attention"
_PRODUCTS = {"aten::bmm": (0, 1), "aten::baddbmm": (1, 2)}  #: the places of the factors
_SOFTMAX = ("aten::_softmax", "aten::_safe_softmax")
_BACKWARD = "aten::_softmax_backward_data"
MOST_BETWEEN = 16  #: kernels between the two products: scale, mask, casts, softmax, dropout


class WrittenAttention(rule.Seen, frozen=True):
    """Attention whose scores are written to memory."""

    attention_count: float
    scores: list[int]  #: the shape of those of the first
    scores_ns: int  #: per step, of the kernels between the products that touch scores
    product_ns: int  #: per step
    trains: bool  #: there is a backward pass
    CURE = "using scaled_dot_product_attention"
    ADVICE = (
        'Use torch.nn.functional.scaled_dot_product_attention (Transformers: attn_implementation="sdpa"), unless '
        "attention weights are needed"
    )

    def title(self, words: text.Words) -> str:
        number = words.often(self.attention_count, "attention")
        times = f"{text.time(self.scores_ns)} softmax and masks, {text.time(self.product_ns)} products"
        times += words.each(self.attention_count)
        writes = "writes its" if self.attention_count == 1 else "write their"
        return f"{number} {writes} scores ({'x'.join(map(str, self.scores))}) to memory ({times})"

    def fine(self, words: text.Words, saved_ns: int) -> str:
        return f"scaled_dot_product_attention would save {words.share(saved_ns)}"

    def evidence(self, words: text.Words) -> Sequence[str]:
        return ["the backward pass, which is not counted, would gain, too"] if self.trains else []


class _Attention(Struct, frozen=True):
    """The shape of the ``scores``, and places of ``gpu_work``: of both ``products``, and of what is ``between``."""

    scores: facts.operators.Shape
    products: arrays.Places
    between: arrays.Places


def check(trace: Trace) -> rule.Answer:
    """Predict steps in which no scores are written."""
    work, gpu = facts.operators.work(trace), facts.gpu.work(trace)
    if not len(gpu):
        return rule.NotApplicable("no {gpu} work was recorded")
    if not work.recorded:
        return rule.NoData("no shapes of operators were recorded", "record with {shapes}")
    # the work in the steps by the thread that launched it and the stream, in order of launches
    launched = np.flatnonzero((gpu.launch != arrays.NO_INDEX) & judging.work_in_steps(trace))
    launched = launched[np.argsort(trace.events.ts[gpu.launch[launched]], kind="stable")]
    stream = np.searchsorted([each.start for each in gpu.streams], launched, side="right")
    (tracks, _), lane = arrays.combinations(trace.events.track[gpu.launch[launched]], stream)
    lanes = [launched[member] for _, member in arrays.each(lane, len(tracks))]
    attentions = [each for places in lanes for each in _attentions(work, places)]
    if not attentions:
        return rule.NotApplicable("no attention in the steps is written out")
    products, between = (
        np.concatenate([getattr(each, name) for each in attentions]) for name in ("products", "between")
    )
    dur, steps = np.maximum(gpu.end - gpu.ts, 0), judging.measure(trace).count
    # How long products take at the device's peak, ns; as long as they do where it is unknown
    peaks = [peak for peak in facts.operators.limits(trace).values() if peak is not None]
    least = []
    for kind, ns in zip(work.kind[work.owner[products]].tolist(), dur[products].tolist(), strict=True):
        each = work.works[kind]
        rate = max((peak.tflops.get(each.number, 0.0) for peak in peaks), default=0.0)
        least.append(int((each.flops or 0) / rate / 1000) if rate else ns)
    least_ns = np.array(least, np.int64)
    less = np.maximum(dur[products] - least_ns, 0)
    seen = WrittenAttention(
        attention_count=len(attentions) / steps,
        scores=[*attentions[0].scores],
        scores_ns=int(dur[between].sum()) // steps,
        product_ns=int(dur[products].sum()) // steps,
        trains=any(call.operator == _BACKWARD for call in work.calls),
    )
    surely = judging.saved_a_step(trace, facts.critical.without_work(trace, between, dur[between]))
    if judging.measure(trace).ratio(surely) < rule.LEAST_RATIO:
        return rule.Fine(seen, surely)
    touched = np.concatenate((between, products))
    cut = facts.critical.without_work(trace, touched, np.concatenate((dur[between], less)))
    spans = rule.Spans(gpu.ts[between], gpu.end[between], gpu.row[between])
    severity = rule.severity_of(judging.measure(trace).ratio(surely))
    saved = judging.saved_a_step(trace, cut)
    return rule.Found(seen, spans, "medium", saved, cut, severity, at_most=bool(less.any()))


def _attentions(work: facts.operators.OperatorWork, places: arrays.Places) -> list[_Attention]:
    """The attentions among the work of a thread and a stream."""
    attentions, between, first, is_softmax = list[_Attention](), list[int](), -1, False
    scores: facts.operators.Shape = ()
    for place in places.tolist():
        owner = int(work.owner[place])
        call = work.calls[work.kind[owner]] if owner >= 0 else None
        factors = _PRODUCTS.get(call.operator) if call is not None else None
        if call is None:
            continue
        if factors is None:
            touches = bool(scores) and any(call.has(at) and prod(call.dims[at]) == prod(scores) for at in call.tensors)
            is_softmax |= touches and call.operator in _SOFTMAX
            between += [place] if touches else []
            continue
        weights = tuple(call.dims[factors[0]]) if call.has(factors[0]) else ()
        if is_softmax and weights == scores and len(between) <= MOST_BETWEEN:
            attentions.append(_Attention(scores, np.array([first, place]), np.array(between)))
        batched = all(call.has(at) and len(call.dims[at]) == 3 for at in factors)
        scores = (*call.dims[factors[0]][:2], call.dims[factors[1]][2]) if batched else ()  # what the product makes
        first, between, is_softmax = place, [], False
    return attentions
