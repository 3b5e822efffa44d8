"""Do single steps take much longer than the others?

A step is an outlier if it takes at least 1.2 times the median, and lies five deviations above it (1.4826 times the
median absolute deviation, which one outlier cannot widen, unlike the standard deviation). It takes five steady steps
of a kind: of an inference engine, steps that decode; where an optimizer runs in some steps only, as gradients are
accumulated, steps with it or steps without. Where most steps are long, none is an outlier, and where a quarter take
less than half the median, nothing can be said.
The saving is the mean less the mean of the other steps. A single step that takes less than 1 ms beyond the median is
merely possible: any host is so late at times. So is an engine's step that waits for the host: it may have no request.

**What to do**: look at what grew in these steps: a checkpoint, an evaluation, logging, garbage collection, a batch of
another size, a slow file system. Where it is the time of equal kernels, by name and shapes: another process on the
device, or its clock.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from augment import arrays, facts
from augment.core import Trace, text
from augment.diagnosis import judging, rule

NAME = "step_outliers"
LEAST_STEPS, LEAST_FACTOR, DEVIATIONS = 5, 1.2, 5.0
HICCUP_NS = 1_000_000  #: by so much any host is late at times
_ALIKE = [facts.steps.PHASES.index("decode"), facts.steps.PHASES.index("denoise"), facts.steps.PHASES.index("step")]
_PARTS = {
    "compute_ns": "computation",
    "exposed_communication_ns": "exposed communication",
    "exposed_memory_ns": "exposed copies",
    "host_wait_ns": "waiting for the host",
    "other_wait_ns": "other waits",
}
_BY_HOST = "collectives of the host"
_WITH_OTHERS = {_PARTS["exposed_communication_ns"], _BY_HOST}


class StepOutliers(rule.Seen, frozen=True):
    """Steps that take much longer than the others."""

    steps: list[int]  #: their numbers
    longest_ns: int
    median_ns: int  #: of all steps
    part: str  #: of them that grew most; empty if none explains half
    part_ratio: float  #: of the growth
    equal: Literal["", "names", "shapes"] = ""  #: of the kernels that take most of it, where others run as many

    def title(self, words: text.Words) -> str:
        takes = "Step {} takes" if len(self.steps) == 1 else "Steps {} take up to"
        steps = takes.format(text.listed([str(number) for number in self.steps]))
        times = f"{self.longest_ns / max(self.median_ns, 1):.1f} times the median of {text.time(self.median_ns)}"
        grown = f"; {text.percent(self.part_ratio)} of the excess is time in {self.part}" if self.part else ""
        return f"{steps} {times}{grown}"

    def cure(self, words: text.Words) -> str:
        return f"making {'it' if len(self.steps) == 1 else 'them'} like the others"

    def advice(self, words: text.Words) -> str:
        if self.equal:
            less = "" if self.equal == "shapes" else "had more to do ({shapes} tells), or "
            return words.fill(
                f"The same kernels take longer in these steps: see whether they {less}share the {{gpu}} with another "
                "process ({process_tool}), or its clock is held back ({clock_tool})"
            )
        if self.part in _WITH_OTHERS:
            return "See whether a rank comes late in these steps (all ranks' traces show it) or the network is slow"
        return (
            "Look at what these steps do that others do not: a checkpoint, logging, an evaluation, a batch of another "
            "size"
        )


def check(trace: Trace) -> rule.Answer:
    """Find outlying steps, and the part that grew."""
    windows = judging.measure(trace).windows
    if judging.measure(trace).unit == "recording" or len(windows) < LEAST_STEPS:
        return rule.NotApplicable(f"fewer than {LEAST_STEPS} steady steps were recorded")
    # prefills are as long as their prompts; steps that update parameters do more than those that add to gradients
    if served := facts.steps.is_served(trace):
        alike = [np.isin(facts.steps.phases(trace, windows), _ALIKE)]
    else:
        alike = [~(update := facts.steps.updates(trace, windows)), update]
    lengths = [(windows.end - windows.start)[chosen] for chosen in alike]
    far = [lasts.max() / max(arrays.median(lasts), 1) if len(lasts) >= LEAST_STEPS else 0 for lasts in lengths]
    if not any(far):
        others = "decodes alone are" if served else "an optimizer runs in some of them"
        return rule.NotApplicable(f"fewer than {LEAST_STEPS} steady steps are alike: {others}")
    length, windows = lengths[np.argmax(far)], windows.take(np.flatnonzero(alike[np.argmax(far)]))
    middle = arrays.median(length)
    deviation = 1.4826 * arrays.median(np.abs(length - middle))
    outlying = length > max(LEAST_FACTOR * middle, middle + DEVIATIONS * deviation)
    mean_without = length[~outlying].mean() if outlying.any() else 0.0
    saved = int((length.mean() - mean_without) * len(length) / judging.measure(trace).count) if outlying.any() else 0
    if judging.measure(trace).ratio(saved) < rule.LEAST_RATIO:
        if outlying.any():
            numbers = windows.number[outlying].tolist()
            return rule.Fine(StepOutliers(numbers, int(length.max()), int(middle), "", 0.0), saved)
        if 4 * (short := int((2 * length < middle).sum())) >= len(length):
            return rule.NotApplicable(f"no usual length: {short} of {len(length)} steps take less than half the median")
        often = f"some longer than usual, but none {LEAST_FACTOR:g} times the median"
        low, high = text.time(length.min()), text.time(length.max())
        spread = f"steps take {low} to {high}" if low != high else f"all steps take {high}"
        several = (length > middle + DEVIATIONS * deviation).any()
        return rule.Fine(f"{spread}, {often}" if several else spread)
    # The part of the outlying steps that grew most, and its share of the growth; empty if it explains no half
    figures = facts.steps.step_figures(trace, windows)[0]
    growth = float(figures.wall_ns[outlying].mean() - figures.wall_ns[~outlying].mean())
    grown = {
        name: float(figures.of_device[key][outlying].mean() - figures.of_device[key][~outlying].mean())
        for key, name in _PARTS.items()
        if key in figures.of_device
    }
    collectives = facts.collectives.host_collectives(trace)
    if len(collectives):
        taken = arrays.union(collectives.ts, collectives.end)
        which, _, parts = arrays.clip(arrays.Intervals(windows.start, windows.end), taken)
        held = np.bincount(which, parts.end - parts.start, len(windows))
        grown[_BY_HOST] = float(held[outlying].mean() - held[~outlying].mean())
    most = max(grown, key=lambda name: grown[name], default="")
    part, share = (most, min(grown[most] / growth, 1.0)) if most and 2 * grown[most] > growth else ("", 0.0)
    ns, has_shapes = facts.operators.equal_kernels(trace, windows)
    longer = 2 * (ns[:, outlying].sum(axis=0).mean() - ns[:, ~outlying].sum(axis=0).mean()) > growth
    seen = StepOutliers(
        steps=windows.number[outlying].tolist(),
        longest_ns=int(length.max()),
        median_ns=int(middle),
        part=part,
        part_ratio=share,
        equal=("shapes" if has_shapes else "names") if longer else "",
    )
    spans = rule.Spans(windows.start[outlying], windows.end[outlying], np.full(int(outlying.sum()), -1, np.int64))
    unsure = len(seen.steps) == 1 and seen.longest_ns - seen.median_ns < HICCUP_NS
    unsure |= served and part == _PARTS["host_wait_ns"]  # without requests an engine waits, too
    return rule.Found(seen, spans, "low" if unsure else "medium", saved)
