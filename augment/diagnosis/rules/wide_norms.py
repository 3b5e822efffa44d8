"""Do norms and softmax work on FP32 although products work on 16-bit numbers?

Autocast runs layer norm, softmax and losses in FP32: they read and write twice as many bytes, with casts around them.
The prediction lets these kernels take half of their time. Whether the numbers allow it is not in a trace.

**What to do**: fused norms and losses that compute in FP32 but read and write BF16 (``torch.compile``, Liger, Apex,
``F.rms_norm``); a model in BF16 with FP32 master weights.
"""

from __future__ import annotations

import re

import numpy as np

from augment.arrays.ordering import is_any
from augment.core.text import Words, time
from augment.core.trace import Trace
from augment.diagnosis.judging import judged
from augment.diagnosis.measure import measure, saved_a_step, work_in_steps
from augment.diagnosis.rule import (
    Answer,
    NotApplicable,
    Seen,
    Spans,
)
from augment.facts.critical.what_if import without_work
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.gpu.kernel_families import kernel_families
from augment.facts.names.name_masks import matching

NAME = "wide_norms"
_HALF = re.compile(r"bf16|bfloat16|BFloat16|fp16|f16|half|Half|hmma|s16816|s1688|_h_|nvjet_(?:tst|hsh|tss)")
_WIDE = re.compile(r"<(?:\d+, *)*float\b")


class WideNorms(Seen, frozen=True):
    """Norms and softmax in FP32."""

    norm_ns: int  #: per step

    def title(self, words: Words) -> str:
        norms = f"Norms and softmax take {time(self.norm_ns)} {words.per_step} in FP32"
        return f"{norms}, between products of 16-bit numbers"

    def cure(self, words: Words) -> str:
        return "halving that"

    def fine(self, words: Words, saved_ns: int) -> str:
        return f"norms and softmax in FP32 take {words.share(self.norm_ns)}"

    def advice(self, words: Words) -> str:
        return "Use fused norms and losses that read and write BF16 (torch.compile, F.rms_norm), or a BF16 model"


def check(trace: Trace) -> Answer:
    """Predict steps whose norms and softmax move half the bytes."""
    work, families = gpu_work(trace), kernel_families(trace)
    name = trace.events.name[work.row]
    inside = work_in_steps(trace)
    of = {family: place for place, family in enumerate(families.names)}
    products = inside & is_any(families.family, [of[name] for name in ("gemm", "attention") if name in of])
    half = matching(trace, _HALF)
    if not (products & half[name]).any():
        return NotApplicable("no product of 16-bit numbers runs in the steps")
    wide = matching(trace, _WIDE)
    norms = is_any(families.family, [of[name] for name in ("norm", "softmax") if name in of])
    places = np.flatnonzero(inside & norms & wide[name])
    dur = np.maximum(work.end[places] - work.ts[places], 0)
    cut = without_work(trace, places, dur // 2)
    saved = saved_a_step(trace, cut)
    seen = WideNorms(int(dur.sum()) // measure(trace).count)
    spans = Spans(work.ts[places], work.end[places], work.row[places])
    return judged(trace, seen, saved, spans=spans, confidence="low", cut=cut)
