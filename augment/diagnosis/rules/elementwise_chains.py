"""Do many kernels read and write what one could do at once?

Additions, activations, casts and the like read a tensor, do little, and write it back: memory bounds them. So does
batch norm once its statistics are known. Several in a row can be one kernel. The prediction keeps of each chain (three
or more such kernels one after the other on a stream) the longest kernel alone, as fused it reads and writes about as
much. Steps of optimizers have a rule of their own, and kernels that a compiler made (Triton's of ``torch.compile``) are
left out: it chose not to join them.

**What to do**: ``torch.compile`` fuses them; fused operators (``F.scaled_dot_product_attention``, fused layer norm or
cross entropy) replace whole chains.
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
_COMPILED = re.compile(r"^triton_|[Ff]us(?:ed|ion)|CudaCodeGen")  #: a compiler made these, and chose not to join them


class Chains(rule.Seen, frozen=True):
    """Chains of elementwise kernels."""

    chain_count: float
    kernel_count: float
    gpu_ns: int  #: per step
    CURE = "fusing them"
    ADVICE = "torch.compile fuses them; or use fused operators (scaled_dot_product_attention, fused norms, losses)"

    def title(self, words: text.Words) -> str:
        kernels, each = text.counted(self.kernel_count, "kernel"), words.each(self.chain_count)
        return f"{self._chains(words)} ({kernels}, {text.time(self.gpu_ns)}{each}) could be one kernel each"

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
    simple &= judging.work_in_steps(trace) & ~facts.gpu.in_optimizer(trace) & ~fused_already[name]
    if not simple.any():
        return rule.NotApplicable("no elementwise kernel runs in the steps")
    # First and last place, plus 1, of each long run of simple kernels on one stream
    group = np.cumsum(np.isin(np.arange(len(simple)), np.array([stream.start for stream in work.streams]))) * 2 + simple
    start = arrays.run_starts(group)
    stop = np.append(start[1:], len(simple))
    long = simple[start] & (stop - start >= LEAST_LENGTH)
    start, stop = start[long], stop[long]
    if not long.any():
        return rule.Fine(f"no {LEAST_LENGTH} elementwise kernels follow each other")
    dur = np.maximum(work.end - work.ts, 0)
    each = list(zip(start.tolist(), stop.tolist(), strict=True))
    kept = np.array([low + int(dur[low:high].argmax()) for low, high in each], np.intp)
    places, less = np.concatenate([np.arange(low, high) for low, high in each]), np.zeros(len(work), np.int64)
    less[places] = dur[places]
    less[kept] = 0
    cut, steps = facts.critical.fused(trace, places, less[places]), judging.measure(trace).count
    seen = Chains(len(start) / steps, len(places) / steps, int(dur[places].sum()) // steps)
    spans = rule.Spans(work.ts[start], work.end[stop - 1], work.row[start])
    saved = judging.saved_a_step(trace, cut)
    return judging.judged(trace, seen, saved, spans=spans, confidence="medium", cut=cut)
