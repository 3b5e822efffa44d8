"""Do norms and softmax work on FP32 although products work on 16-bit numbers?

Autocast runs layer norm, softmax and losses in FP32: they read and write twice as many bytes, with casts around them.
The prediction lets these kernels take half of their time. Whether the numbers allow it is not in a trace.

**What to do**: fused norms and losses that compute in FP32 but read and write BF16 (``torch.compile``, Liger, Apex,
``F.rms_norm``); a model in BF16 with FP32 master weights.
"""

from __future__ import annotations

import re

import numpy as np

from augment import facts
from augment.core import Trace, text
from augment.diagnosis import judging, rule

NAME = "wide_norms"
_HALF = re.compile(r"bf16|bfloat16|BFloat16|fp16|f16|half|Half|hmma|s16816|s1688|_h_|nvjet_(?:tst|hsh|tss)")
_WIDE = re.compile(r"<(?:\d+, *)*float\b")


class WideNorms(rule.Seen, frozen=True):
    """Norms and softmax in FP32."""

    norm_ns: int  #: per step
    CURE = "halving that"
    ADVICE = "Use fused norms and losses that read and write BF16 (torch.compile, F.rms_norm), or a BF16 model"

    def title(self, words: text.Words) -> str:
        norms = f"Norms and softmax take {text.time(self.norm_ns)} {words.per_step} in FP32"
        return f"{norms}, between products of 16-bit numbers"

    def fine(self, words: text.Words, saved_ns: int) -> str:
        of = "operators of norms and softmax in FP32 (none that are written out)"
        return f"{of} at twice the speed would save {words.share(saved_ns)}"


def check(trace: Trace) -> rule.Answer:
    """Predict steps whose norms and softmax move half the bytes."""
    work, families = facts.gpu.work(trace), facts.gpu.families(trace)
    name = trace.events.name[work.row]
    inside = judging.work_in_steps(trace)
    products = inside & families.is_any(("gemm", "attention"))
    half = facts.names.matching(trace, _HALF)
    if not (products & half[name]).any():
        return rule.NotApplicable("no product of 16-bit numbers runs in the steps")
    wide = facts.names.matching(trace, _WIDE)
    norms = families.is_any(("norm", "softmax"))
    places = work.where(inside & norms & wide[name])
    dur = np.maximum(work.end[places] - work.ts[places], 0)
    cut = facts.critical.without_work(trace, places, dur // 2)
    saved = judging.saved_a_step(trace, cut)
    seen = WideNorms(int(dur.sum()) // judging.measure(trace).count)
    spans = rule.Spans(work.ts[places], work.end[places], work.row[places])
    return judging.judged(trace, seen, saved, spans=spans, confidence="low", cut=cut)
