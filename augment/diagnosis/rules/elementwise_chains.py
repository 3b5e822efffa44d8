"""Do many kernels read and write what one could do at once?

Additions, activations, casts and the like read a tensor, do little, and write it back: memory bounds them. So does
batch norm once its statistics are known. Several in a row can be one kernel. So can a norm that is written out in such
kernels (RMSNorm: squares, their mean, the root, products): its reductions and casts are part of the chain. The
prediction keeps of each chain (three or more such kernels one after the other on a stream) the longest kernel alone, as
fused it reads and writes about as much. Steps of optimizers have a rule of their own, and kernels that a compiler made
(Triton's of ``torch.compile``) are left out: it chose not to join them.

**What to do**: ``torch.compile`` fuses them; fused operators (``F.scaled_dot_product_attention``, ``F.rms_norm`` of a
recent PyTorch, fused layer norm or cross entropy) replace whole chains.
"""

from __future__ import annotations

import re

import numpy as np

from augment import arrays, facts
from augment.core import Trace, text
from augment.diagnosis import judging, rule

NAME = "elementwise_chains"
LEAST_LENGTH = 3
#: batch norm in inference, or once the statistics of a batch are known, in cuDNN, MIOpen and ATen
_BATCH_NORM = re.compile(r"bn_fw_inf|BatchNormFwdInfer|batch_norm_transform_input")
_ROOT, _BEFORE, _BEHIND = re.compile(r"\br?sqrt_kernel"), 5, 3  #: of a norm, and where its reductions and casts are
_COMPILED = re.compile(r"^triton_|[Ff]us(?:ed|ion)|CudaCodeGen")  #: a compiler made these, and chose not to join them


class Chains(rule.Seen, frozen=True):
    """Chains of elementwise kernels."""

    chain_count: float
    kernel_count: float
    gpu_ns: int  #: per step
    norm_count: float = 0  #: of the chains: norms that are written out
    norm_ns: int = 0  #: of these, per step
    CURE = "fusing them"

    def title(self, words: text.Words) -> str:
        kernels, each = text.counted(self.kernel_count, "kernel"), words.each(self.chain_count)
        norms = f"{text.counted(self.norm_count, 'norm')} written as separate operators ({text.time(self.norm_ns)})"
        norms = f", among them {norms}," * (self.norm_ns > 0)
        return f"{self._chains(words)} ({kernels}, {text.time(self.gpu_ns)}{each}){norms} could be one kernel each"

    def advice(self, words: text.Words) -> str:
        norms = "torch.nn.functional.rms_norm (of a recent PyTorch) or layer_norm for norms"
        others = "fused operators (scaled_dot_product_attention, fused norms, losses)"
        return f"torch.compile fuses them; or use {norms if 2 * self.norm_ns > self.gpu_ns else others}"

    def _chains(self, words: text.Words) -> str:
        return words.often(self.chain_count, "chain", of=" of elementwise kernels")

    def fine(self, words: text.Words, saved_ns: int) -> str:
        return f"fusing {self._chains(words)} would save {words.share(saved_ns)}"


def check(trace: Trace) -> rule.Answer:
    """Predict steps whose chains are fused."""
    work, families = facts.gpu.work(trace), facts.gpu.families(trace)
    simple = families.is_any(("elementwise",))
    name, fused_already = trace.events.name[work.row], facts.names.matching(trace, _COMPILED)
    simple |= facts.names.matching(trace, _BATCH_NORM)[name]
    chosen = judging.work_in_steps(trace) & ~facts.gpu.in_optimizer(trace) & ~fused_already[name]
    root, reduces = simple & chosen & facts.names.matching(trace, _ROOT)[name], families.is_any(("reduction",))
    around = np.flatnonzero(root)[:, None] + np.arange(-_BEFORE, _BEHIND + 1)
    for beside, parts in ((around[:, :_BEFORE], ("reduction", "copy_transpose")), (around, ("copy_transpose",))):
        beside = beside.clip(0, len(simple) - 1)
        simple[beside] |= families.is_any(parts)[beside]
    simple &= chosen
    if not simple.any():
        return rule.NotApplicable("no elementwise kernel runs in the steps")
    # First and last place, plus 1, of each long run of simple kernels on one stream
    group = np.cumsum(np.isin(np.arange(len(simple)), np.array([stream.start for stream in work.streams]))) * 2 + simple
    start = arrays.run_starts(group)
    stop = np.append(start[1:], len(simple))
    long = simple[start] & (stop - start >= LEAST_LENGTH)
    start, stop = start[long], stop[long]
    if not long.any():
        return rule.Fine(f"no chain of {LEAST_LENGTH} elementwise kernels or more")
    dur = np.maximum(work.end - work.ts, 0)
    each = list(zip(start.tolist(), stop.tolist(), strict=True))
    kept = np.array([low + int(dur[low:high].argmax()) for low, high in each], np.intp)
    places, less = np.concatenate([np.arange(low, high) for low, high in each]), np.zeros(len(work), np.int64)
    less[places] = dur[places]
    less[kept] = 0
    cut, steps = facts.critical.fused(trace, places, less[places]), judging.measure(trace).count
    normed = [slice(*bounds) for bounds in each if root[slice(*bounds)].any() and reduces[slice(*bounds)].any()]
    norms, ns = (sum(int(of[within].sum()) for within in normed) for of in (root, dur))  # a root each
    seen = Chains(len(start) / steps, len(places) / steps, int(dur[places].sum()) // steps, norms / steps, ns // steps)
    spans = rule.Spans(work.ts[start], work.end[stop - 1], work.row[start])
    saved = judging.saved_a_step(trace, cut)
    return judging.judged(trace, seen, saved, spans=spans, confidence="medium", cut=cut)
