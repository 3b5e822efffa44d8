"""Do convolutions turn tensors from one memory layout into the other and back?

Matrix units want the channels of a tensor side by side (NHWC), PyTorch lays it out image by image (NCHW) unless told
otherwise. cuDNN and MIOpen then convert what a convolution reads and writes, with kernels of their own. The prediction
takes these out of the steps. It is a limit, as other kernels may be slower with the other layout.

**What to do**: ``memory_format=torch.channels_last`` for the model and its input; on ROCm PyTorch gives MIOpen that
layout only with ``PYTORCH_MIOPEN_SUGGEST_NHWC=1``.
"""

from __future__ import annotations

import re

import numpy as np

from augment import facts
from augment.core import Trace, text
from augment.diagnosis import judging, rule

NAME = "layout_conversions"
_CONVERTS = re.compile(r"nchwToNhwc|nhwcToNchw|^batched_transpose_\d")  #: cuDNN's kernels, and MIOpen's


class LayoutConversions(rule.Seen, frozen=True):
    """Conversions of layouts around convolutions."""

    kernel_count: float
    convert_ns: int  #: per step
    CURE = "NHWC throughout"
    ADVICE = "{channels_last}"

    def title(self, words: text.Words) -> str:
        takes = f"takes {text.time(self.convert_ns)} {words.per_step} ({text.counted(self.kernel_count, 'kernel')})"
        return f"Converting tensors of convolutions between NCHW and NHWC {takes}"

    def fine(self, words: text.Words, saved_ns: int) -> str:
        return f"conversions between NCHW and NHWC for convolutions cost {words.share(saved_ns)}"


def check(trace: Trace) -> rule.Answer:
    """Predict steps without conversions."""
    work, converts = facts.gpu.work(trace), facts.names.matching(trace, _CONVERTS)
    places = work.where(judging.work_in_steps(trace) & converts[trace.events.name[work.row]])
    if not len(places):
        return rule.NotApplicable("no kernel converts the layout of tensors")
    dur, count = np.maximum(work.end[places] - work.ts[places], 0), judging.measure(trace).count
    cut = facts.critical.without_work(trace, places, dur)
    seen, saved = LayoutConversions(len(places) / count, int(dur.sum()) // count), judging.saved_a_step(trace, cut)
    spans = rule.Spans(work.ts[places], work.end[places], work.row[places])
    return judging.judged(trace, seen, saved, spans=spans, confidence="medium", cut=cut, at_most=True)
