"""Do equal kernels get slower through the recording, or faster?

A device that gets hot, or reaches its power limit, lowers its clock: the same kernels then take longer from step to
step. Compared are kernels that every step runs equally often, by name and shapes: the last third of the steps with the
first third. Where the first are slower, the clock rose: a device that was idle before, or shared. The prediction lets
each step's kernels take no longer than those of the faster third. Where shapes were not recorded, the slower steps may
have had more to do: confidence is low.

With telemetry (``--telemetry``) the evidence is the measured clock. If that did not change, something else made kernels
slower, and the finding is merely possible.

**What to do**: look at clocks and power while it runs (``nvidia-smi -q -d CLOCK,PERFORMANCE``); improve cooling, or set
a lower but steady clock. Compare runs only after the device is warm.
"""

from __future__ import annotations

import numpy as np

from augment import facts
from augment.core import Trace, records, text
from augment.diagnosis import judging, rule

NAME = "clock_drop"
LEAST_STEPS, LEAST_KERNELS = 6, 5
SLOWER = 0.05  #: as a whole
STEADY = 0.01  #: a clock that changes less has not changed
ALIKE = 0.75  #: this share of the kernels' time, at least, must be slower, too


class ClockDrop(rule.Seen, frozen=True):
    """Equal kernels that get slower, or faster, by how much from the first steps to the last."""

    growth_ratio: float
    has_shapes: bool
    first_mhz: float | None = None  #: the mean clock of the first steps, by telemetry
    last_mhz: float | None = None
    CURE = "a steady clock"
    ADVICE = "Look at clocks, power and temperature ({clock_tool})"

    @property
    def is_denied(self) -> bool:
        """Whether the clock was measured, and did not change as the kernels did."""
        slow, fast = (self.first_mhz, self.last_mhz)[:: -1 if self.growth_ratio > 0 else 1]
        return bool(slow and fast and slow > (1 - STEADY) * fast)

    at_least = True

    def title(self, words: text.Words) -> str:
        rises = self.growth_ratio < 0
        growth = text.percent(1 / (1 + self.growth_ratio) - 1 if rises else self.growth_ratio)
        when, clock = (
            ("first steps than in the last", "risen") if rises else ("last steps than in the first", "dropped")
        )
        return f"Equal kernels take {growth} longer in the {when}, as if the clock had {clock}"

    def evidence(self, words: text.Words) -> list[str]:
        if not self.first_mhz or not self.last_mhz:
            return [] if self.has_shapes else ["shapes were not recorded: the slower steps may have had more to do"]
        clocks = f"{self.first_mhz:,.0f} MHz in the first steps and {self.last_mhz:,.0f} MHz in the last"
        return [f"telemetry says {'otherwise' if self.is_denied else 'so'}: the clock was {clocks}"]

    def fine(self, words: text.Words, saved_ns: int) -> str:
        change = f"{text.percent(abs(self.growth_ratio))} {'less' if self.growth_ratio < 0 else 'longer'}"
        return f"equal kernels take {change} at the end than at the start"


def check(trace: Trace) -> rule.Answer:
    """Compare the kernels' times of the first and the last steps."""
    work, windows = facts.gpu.work(trace), judging.measure(trace).windows
    if judging.measure(trace).unit == "recording" or len(windows) < LEAST_STEPS:
        return rule.NotApplicable(f"fewer than {LEAST_STEPS} steady steps were recorded")
    ns, has_shapes = facts.operators.equal_kernels(trace, windows)
    third = len(windows) // 3
    first_ns, last_ns = int(ns[:, :third].sum()), int(ns[:, -third:].sum())
    if len(ns) < LEAST_KERNELS or not first_ns or not last_ns:
        return rule.NotApplicable("the steps do not run the same kernels")
    growth = last_ns / first_ns - 1
    faster, slower = (slice(third), slice(-third, None))[:: 1 if growth > 0 else -1]
    whole, fast, slow = ns.sum(axis=0), ns[:, faster].mean(axis=1), ns[:, slower].mean(axis=1)
    grown = float(slow[slow > (1 + SLOWER / 2) * fast].sum() / max(float(slow.sum()), 1.0))
    # Each of the slow steps is slower than all of the fast, and those between are no exception
    apart = whole[faster].max() < whole[slower].min()
    apart &= (1 - STEADY) * fast.sum() <= np.median(whole[third:-third]) <= (1 + STEADY) * slow.sum()
    if slow.sum() < (1 + SLOWER) * fast.sum() or grown < ALIKE or not apart:
        return rule.Fine(ClockDrop(growth, has_shapes))
    step = facts.steps.step_of_work(trace, windows)
    places = work.where((work.type == facts.names.KernelType.COMPUTATION) & (step >= 0))
    beyond = np.maximum(1 - fast.sum() / np.maximum(whole, 1), 0)  # the share of each step's kernel time
    less = (work.end[places] - work.ts[places]) * beyond[step[places]]
    cut = facts.critical.without_work(trace, places, less.astype(np.int64))
    saved = judging.saved_a_step(trace, cut)
    spans = rule.Spans(windows.start[slower], windows.end[slower], np.full(third, -1, np.int64))
    seen = ClockDrop(growth, has_shapes, *_clocks(trace))
    likely: rule.Confidence = "medium" if has_shapes else "low"
    confidence: rule.Confidence = "low" if seen.is_denied else "high" if seen.first_mhz else likely
    return judging.judged(trace, seen, saved, spans=spans, confidence=confidence, cut=cut)


def _clocks(trace: Trace) -> tuple[float | None, float | None]:
    """The mean clock in the first and the last third of the steps, MHz, of the device that telemetry watched; None
    where one has fewer than two samples."""
    watched, windows = facts.gpu.telemetry(trace), judging.measure(trace).windows
    third = len(windows) // 3
    if watched is None or isinstance(watched, str) or len(watched.devices) != 1:
        return None, None
    clock = next(iter(watched.devices.values())).get("sm_clock")
    if clock is None:
        return None, None
    means = []
    for steps in (slice(None, third), slice(-third, None)):
        start, end = int(windows.start[steps][0]), int(windows.end[steps][-1])
        values = clock.values[(clock.ts >= start) & (clock.ts < end)]
        means.append(float(values.mean()) if len(values) > 1 else None)
    return (means[0], means[1]) if None not in means else (None, None)


def sentences_watched(trace: Trace) -> list[str]:
    """What telemetry says without a trace: how many GPUs, for how long, and the range of power and clock; empty without
    any."""
    telemetry = trace.context.attached(records.Telemetry)
    if telemetry is None:
        return []
    counts = {each.gpu: len(each.ts) for each in sorted(telemetry.samples, key=lambda each: len(each.ts))}
    lasts = max(int(each.ts[-1]) for each in telemetry.samples) - min(int(each.ts[0]) for each in telemetry.samples)
    during = f" in {text.time(lasts)}" if telemetry.has_times else ", without times"
    each = f"{'up to ' if len({*counts.values()}) > 1 else ''}{text.counted(max(counts.values()), 'sample')} each"
    said = [f"The telemetry has {text.counted(len(counts), 'GPU')}, {each}{during}"]
    for quantity, what in (("power", "Power"), ("sm_clock", "The SM clock")):
        values = [each for each in telemetry.samples if each.quantity == quantity]
        if values:
            low, high = (choose(float(choose(each.values)) for each in values) for choose in (min, max))
            mean = sum(float(each.values.mean()) for each in values) / len(values)
            said.append(f"{what} is {low:,.0f} to {high:,.0f} {values[0].unit}, {mean:,.0f} in the mean")
    return [f"{sentence}." for sentence in (*said, "Beside a trace: augment run TRACE --telemetry FILE")]
