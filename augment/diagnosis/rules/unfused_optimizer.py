"""Does the optimizer run a kernel for each operation and parameter?

PyTorch annotates ``Optimizer.step#…``. A plain loop launches about a dozen small kernels per parameter; ``foreach``
works on lists of parameters; ``fused`` does all of it in few kernels, which read and write each number once. The
prediction lets the host take no time in the annotation; kernels of a loop or of ``foreach`` keep a third of their time,
as a fused Adam moves 7 numbers per parameter where single operations move some 22. Where devices idle meanwhile for
more than a tenth of a step, and twice what is saved, that is said, too: why they do may not be recorded.

**What to do**: ``torch.optim.AdamW(params, fused=True)``; ``foreach=True`` where there is no fused version.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec.structs import replace

from augment import arrays, facts
from augment.core import Category, Trace, text
from augment.diagnosis import judging, rule

NAME = "unfused_optimizer"
KEPT = 0.4  #: of the kernels' time: fused, AdamW moves 7 values a parameter in place of 19
MOST_KERNELS = 32  #: that a fused step launches
MOSTLY = 0.8  #: this share of the kernels must be single operations: else the optimizer does more than update
_SINGLE = ("elementwise", "optimizer", "copy_transpose")
_FUSED = re.compile("FusedAdam|FusedSgd|FusedAdagrad|fused_adam|fused_sgd|triton_")


class Optimizer(rule.Seen, frozen=True):
    """The kernels of the optimizer."""

    optimizers: list[str]
    kernel_count: float
    idle_ns: int = 0  #: of the devices meanwhile, per step, where that is far more than fusing is known to save
    ADVICE = "Pass fused=True to the optimizer, or foreach=True where it has no fused version"

    CURE = "fusing it"
    at_least = True

    def _launches(self, words: text.Words, which: str = "") -> str:
        kernels = words.often(self.kernel_count, "kernel")
        return f"the optimizer ({text.listed(self.optimizers)}){which} launches {kernels}"

    def title(self, words: text.Words) -> str:
        idles = f"The {words.gpu} idles {words.saving(self.idle_ns)} during " if self.idle_ns else ""
        launches = self._launches(words, ", which" * bool(idles))
        proven = "; only a part of what fusing it saves is proven" if idles else ""
        return f"{text.capitalized(idles + launches)} where a fused one launches a few{proven}"

    def fine(self, words: text.Words, saved_ns: int) -> str:
        fusing = f"; fused, it would save {words.share(saved_ns)}" if saved_ns else ""
        return self._launches(words) + fusing


def check(trace: Trace) -> rule.Answer:
    """Predict steps with a fused optimizer."""
    events, work = trace.events, facts.gpu.work(trace)
    rows = events.slices_of(Category.USER_ANNOTATION)
    rows = judging.rows_in_steps(trace, rows[facts.gpu.steps_of_optimizers(trace)[events.name[rows]]])
    if not len(work):
        return rule.NotApplicable("no {gpu} work was recorded")
    if not len(rows):
        return rule.NotApplicable("no step of an optimizer was recorded")
    kernels = judging.work_in_steps(trace) & (events.category[work.row] == Category.KERNEL)
    places = work.where(facts.gpu.in_optimizer(trace) & kernels)
    names = [text.short(name) for name in sorted(set(trace.names_of(rows)))]
    # Whether each piece of GPU work is one operation on numbers, or on lists of tensors
    families = facts.gpu.families(trace)
    single = families.is_any(_SINGLE)
    fused = facts.names.matching(trace, _FUSED)
    plain = places[single[places] & ~fused[trace.events.name[work.row[places]]]]
    seen = Optimizer(names, len(places) / judging.measure(trace).count)
    if len(places) <= MOST_KERNELS * len(rows) or len(plain) < MOSTLY * len(places):
        return rule.Fine(seen)
    dur = np.maximum(work.end[plain] - work.ts[plain], 0)
    spans = rule.Spans.of(trace, rows)
    of_host = judging.host_cut(trace, events.track[rows], spans.start, spans.end)
    cut = facts.critical.joined([of_host, facts.critical.fused(trace, plain, (dur * (1 - KEPT)).astype(np.int64))])
    saved, around = judging.saved_a_step(trace, cut), arrays.union(spans.start, spans.end)  # one may call another
    idle = int(judging.idle_ns(trace, rule.Spans(around.start, around.end, rows)).sum()) // judging.measure(trace).count
    if idle >= max(2 * saved, rule.HIGH_RATIO * judging.measure(trace).length_ns):
        seen = replace(seen, idle_ns=idle)
    return judging.judged(trace, seen, saved, spans=spans, confidence="medium", cut=cut)
