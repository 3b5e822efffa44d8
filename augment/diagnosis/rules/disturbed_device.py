"""Do equal kernels take many times as long at times?

The same kernel at the same place of the step, launched by an operator of the same shapes, takes as long in each step,
but for the device's clock. Where kernels of several names take five times as long as in most steps, and 20 µs more,
while the file shows nothing else on the device, something that is not in the file slows it down: another process, a
slice of time given to it, a clock that is held back for a moment, memory that moves when it is touched. Only kernels
count whose time does not depend on the data: products, convolutions, elementwise work, norms, softmax, reductions,
copies, optimizers. A step in which most kernels take longer had more to do, or is an outlier as a whole
(``step_outliers``), and is left out. Where shapes were not recorded, kernels may have had more to do: confidence is
low. The prediction lets these kernels take as long as usual: at least that is saved, as others are slowed down, too.

**What to do**: look for other processes on the device, and at its clocks (power, temperature); give the job a device of
its own.
"""

from __future__ import annotations

import numpy as np

from augment import arrays, facts
from augment.core import Trace, text
from augment.diagnosis import judging, rule

NAME = "disturbed_device"
LEAST_STEPS = 4
TIMES, LEAST_NS = 5, 20_000  #: as long as usual, and so much longer, is slow
ALONE = 0.05  #: at most this share of a kernel's time is beside other work
LEAST_NAMES = 3  #: of slow kernels: what slows the device down spares none
LONGER = 2  #: times as long: a step in which most kernels are is another matter
_PLAIN = ("gemm", "convolution", "elementwise", "norm", "softmax", "reduction", "copy_transpose", "optimizer")


class Disturbed(rule.Seen, frozen=True):
    """Kernels that take many times as long as equal ones."""

    kernel_count: int
    name_count: int
    step_count: int  #: in which they are
    times: float  #: as long as usual, all together
    longest: str
    longest_ns: int
    usual_ns: int  #: of the longest
    has_shapes: bool

    at_least = True  # other kernels are slowed down, too, and others less
    CURE = "an undisturbed {gpu}"
    ADVICE = (
        "See whether other processes use this {gpu} ({process_tool}), and whether its clock is held back ({clock_tool})"
    )

    def title(self, words: text.Words) -> str:
        kernels = f"{text.counted(self.kernel_count, 'kernel')} of {text.counted(self.name_count, 'name')}"
        return (
            f"In {text.counted(self.step_count, 'step')}, {kernels} take {self.times:.0f} times as long as equal ones, "
            f"while the file shows nothing beside them on the {words.gpu}"
        )

    def evidence(self, words: text.Words) -> list[str]:
        longest = f"the longest, {self.longest}, takes {text.time(self.longest_ns)}, usually {text.time(self.usual_ns)}"
        return [longest] if self.has_shapes else [longest, "shapes were not recorded: some may have had more to do"]


def check(trace: Trace) -> rule.Answer:
    """Compare kernels with those at the same place of other steps."""
    work, whole = facts.gpu.work(trace), judging.measure(trace)
    if not len(work):
        return rule.NotApplicable("no {gpu} work was recorded")
    if whole.unit == "recording" or len(whole.windows) < LEAST_STEPS:
        return rule.NotApplicable(f"fewer than {LEAST_STEPS} steady steps were recorded")
    step = facts.steps.step_of_work(trace, whole.windows)
    families, lasting = facts.gpu.families(trace), work.end > work.ts
    plain = families.is_any(_PLAIN)
    places = work.where(plain & lasting & (step >= 0))
    device = np.searchsorted([each.stop for each in work.devices], places, side="right")
    operators = facts.operators.work(trace)
    shapes = np.append(operators.kind, -1)[operators.owner[places]]
    # The place of each in its step, among those of its name and shapes, and those at one place
    _, alike = arrays.combinations(device, trace.events.name[work.row[places]], shapes, step[places])
    order = np.lexsort((work.ts[places], alike))
    begins = np.flatnonzero(np.diff(alike[order], prepend=-1))
    number = np.empty(len(places), np.int64)
    number[order] = np.arange(len(places)) - np.repeat(begins, np.diff(np.append(begins, len(places))))
    del alike, order, begins  # frees memory for what follows
    alone = judging.beside_ns(trace, lasting)[places] <= ALONE * (work.end - work.ts)[places]
    places, device, shapes, number = places[alone], device[alone], shapes[alone], number[alone]
    ran = work.end[places] - work.ts[places]
    _, equal = arrays.combinations(device, trace.events.name[work.row[places]], shapes, number)
    count = int(equal.max(initial=-1)) + 1
    medians = arrays.grouped_medians(ran, equal, arrays.group_bounds(equal, count))
    known = np.bincount(equal, minlength=count)[equal] >= LEAST_STEPS
    usual = medians[equal]
    if not known.any():
        return rule.NotApplicable(f"no kernel runs alone at the same place of {LEAST_STEPS} steps")
    # Steps of which most kernels are as long as usual
    longer = np.bincount(step[places[known & (ran >= LONGER * usual)]], minlength=len(whole.windows))
    steady = 2 * longer <= np.bincount(step[places[known]], minlength=len(whole.windows))
    slow = np.flatnonzero(known & steady[step[places]] & (ran >= TIMES * usual) & (ran - usual >= LEAST_NS))
    names = arrays.distinct(trace.events.name[work.row[places[slow]]])
    if len(names) < LEAST_NAMES:
        return rule.Fine(f"at most {LEAST_NAMES - 1} kinds of kernels ever take {TIMES} times as long as equal ones")
    less = (ran[slow] - usual[slow]).astype(np.int64)
    longest = slow[less.argmax()]
    has_shapes = bool(2 * less[shapes[slow] >= 0].sum() > less.sum())
    seen = Disturbed(
        kernel_count=len(slow),
        name_count=len(names),
        step_count=len(arrays.distinct(step[places[slow]])),
        times=float(ran[slow].sum() / max(usual[slow].sum(), 1)),
        longest=text.short(trace.names_of(work.row[places[longest : longest + 1]])[0]),
        longest_ns=int(ran[longest]),
        usual_ns=int(usual[longest]),
        has_shapes=has_shapes,
    )
    cut = facts.critical.without_work(trace, places[slow], less)
    spans = rule.Spans(work.ts[places[slow]], work.end[places[slow]], work.row[places[slow]])
    saved = judging.saved_a_step(trace, cut)
    return judging.judged(trace, seen, saved, spans=spans, confidence="medium" if has_shapes else "low", cut=cut)
