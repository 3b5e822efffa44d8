"""Do kernels take longer while another stream computes beside them?

Streams share the device's multiprocessors, caches and memory. Equal kernels (of one name, launched by operators of one
shape) are compared: those that run alone on the device, and those beside which other streams compute for at least half
of their time. If nearly all of the time beside others is in kernels that take longer there, the prediction lets these
take as long as alone. That is at most what is saved, if the other streams' work ran elsewhere or for nothing: one after
the other, it takes its own time. If a good part of the kernels never runs alone, more may be saved. Kernels that
communicate are no company here: collectives that overlap slow others a little, and save more.

**What to do**: move work that the step does not need off the device, or to where the device has room; give its stream a
lower priority (``torch.cuda.Stream(priority=0)`` beside one of ``-1``); fewer blocks for it, so that both fit. If both
streams do the step's work, look whether one after the other is faster.
"""

from __future__ import annotations

import numpy as np

from augment import arrays, facts
from augment.core import Category, Trace, text
from augment.diagnosis import judging, rule

NAME = "stream_contention"
BESIDE, ALONE = 0.5, 0.05  #: at least so much of a kernel's time is beside other streams, and at most
#: kernels alone tell how long equal ones take, and as many of any name beside others that these take longer
LEAST_EQUAL = 4
SLOWER = 1.1  #: as long, from which on a kernel is slowed down
MOSTLY = 0.9  #: share of the time beside others that can be compared, from which on the saving is a bound
ALIKE = 0.75  #: share of the time beside others, of what can be compared, that is slowed down


class Contention(rule.Seen, frozen=True):
    """Kernels beside those of other streams; times are per step."""

    kernel_count: float
    beside_ns: int
    times: float  #: as long as equal ones alone
    others: list[str]  #: what runs on the other streams, with most of the time first
    CURE = "running them alone"
    ADVICE = (
        "Move what the step does not need to where the {gpu} has room, or give its stream a lower priority and fewer "
        "blocks; if the step needs both, look whether one after the other is faster"
    )

    def title(self, words: text.Words) -> str:
        kernels = words.often(self.kernel_count, "kernel")
        what = f" ({text.listed(self.others)})" if self.others else ""
        return f"{kernels} take {self.times:.1f} times as long as equal ones, while other streams compute{what}"

    def fine(self, words: text.Words, saved_ns: int) -> str:
        beside = f"{text.time(self.beside_ns)} {words.per_step}"
        return f"kernels beside those of other streams ({beside}) take as long as alone"


def check(trace: Trace) -> rule.Answer:
    """Compare equal kernels alone and beside others."""
    work = facts.gpu.work(trace)
    # the computing kernels of the steps: how long they ran, and of it beside other streams
    computes = (work.type == facts.names.KernelType.COMPUTATION) & (trace.events.category[work.row] == Category.KERNEL)
    computes &= work.end > work.ts
    kernels = work.where(computes & judging.work_in_steps(trace))
    ran_ns, beside_ns = work.end[kernels] - work.ts[kernels], judging.beside_ns(trace, computes)[kernels]
    beside = beside_ns >= BESIDE * ran_ns
    if not beside.any():
        return rule.NotApplicable("no two streams compute at once in the steps")
    alone = beside_ns <= ALONE * ran_ns
    operators = facts.operators.work(trace)
    calls = np.append(operators.kind, -1)[operators.owner[kernels]]  # of operators' shapes
    (names, _), which = arrays.combinations(trace.events.name[work.row[kernels]], calls)
    medians = np.full((2, len(names)), np.nan)  # of each kind of kernel; not of too few
    for median, chosen, least in zip(medians, (alone, beside), (LEAST_EQUAL, 1), strict=True):
        enough = np.bincount(which[chosen], minlength=len(names)) >= least
        some = np.flatnonzero(chosen & enough[which])
        used, code = arrays.numbered(which[some])
        median[used] = arrays.grouped_medians(ran_ns[some], code, arrays.group_bounds(code, len(used)))
    usual, slowed = medians
    factor = np.nan_to_num(slowed / usual)  # of each kind of kernel; 0 where that is not known
    known = np.flatnonzero(beside & (factor[which] > 0))
    grown = known[factor[which[known]] >= SLOWER]
    total, slow = int(ran_ns[known].sum()), int(ran_ns[grown].sum())
    less = (ran_ns[grown] * (1 - 1 / factor[which[grown]])).astype(np.int64)
    # the kernels on other streams than the slowed ones, those with most time first
    places = kernels[beside]
    places = places[~np.isin(work.stream_of(places), work.stream_of(kernels[grown]))]
    kinds = trace.events.name[work.row[places]]
    ns = np.bincount(kinds, work.end[places] - work.ts[places], len(trace.strings))
    others = [kind for kind in np.argsort(-ns, kind="stable")[:2].tolist() if ns[kind] > 0]
    seen = Contention(
        kernel_count=len(grown) / judging.measure(trace).count,
        beside_ns=total // judging.measure(trace).count,
        times=slow / max(slow - int(less.sum()), 1),
        others=[text.short(trace.strings[kind]) for kind in others],
    )
    if len(known) < LEAST_EQUAL:
        return rule.Fine("too few kernels run both alone and beside another stream's to compare")
    if slow < ALIKE * total:
        return rule.Fine(seen)
    places = kernels[grown]
    cut = facts.critical.without_work(trace, places, less)
    spans = rule.Spans(work.ts[places], work.end[places], work.row[places])
    saved, most = judging.saved_a_step(trace, cut), total >= MOSTLY * int(ran_ns[beside].sum())
    return judging.judged(trace, seen, saved, spans=spans, confidence="medium", cut=cut, at_most=most)
