"""MFU, and what each step's computation went into, of both sides beside each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from augment.compare.totals import Figure, Floats, Samples, figure_rows, mean_of_ranks
from augment.core.findings import Findings, Skipped
from augment.core.trace import Trace
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.operators.operator_work import operator_work
from augment.facts.operators.peaks import device_peaks
from augment.facts.operators.step_time_parts import step_efficiency, why_beyond, why_no_mfu
from augment.facts.steps.step_figures import step_figures
from augment.facts.steps.step_windows import StepWindows

EFFICIENCY = (
    Figure("mfu_ratio", "ratio", "higher"),
    Figure("hfu_ratio", "ratio", "neither"),
    Figure("covered_ratio", "ratio", "neither"),
    Figure("model_flops", "FLOP", "neither"),
    Figure("ideal_compute_ns", "ns", "neither"),
    Figure("compute_above_ns", "ns"),
    Figure("memory_ideal_ns", "ns", "neither"),
    Figure("memory_above_ns", "ns"),
    Figure("latency_bound_ns", "ns"),
    Figure("unmodelled_ns", "ns", "neither"),
)
_BY_PEAK = ("mfu_ratio", "hfu_ratio")
_SIDES = ("control", "test")


class EfficiencySamples(Struct, frozen=True):
    """The figures of each step of one rank, averaged over devices. ``lacking`` says why there is no MFU, if so; where
    shapes or peaks are not known, there are no figures at all. ``peak`` names the peaks that were used."""

    samples: Samples
    lacking: str | None
    peak: str = ""


def efficiency_samples(trace: Trace, windows: StepWindows) -> EfficiencySamples:
    """The figures of one side of one rank."""
    work = gpu_work(trace)
    if not len(work):
        return EfficiencySamples({}, "no GPU work")
    lacking = next(filter(None, (why_no_mfu(trace, place) for place in range(len(work.devices)))), None)
    if not operator_work(trace).recorded or None in device_peaks(trace).values():
        return EfficiencySamples({}, lacking)
    known: dict[str, list[Floats]] = {}
    used: dict[str, None] = {}
    both = [
        (figures, step_efficiency(trace, place, windows, figures.of_device["compute_ns"]))
        for place, figures in enumerate(step_figures(trace, windows))
    ]
    for figures, efficiency in both:
        beyond = map(why_beyond, efficiency.peak_ns.tolist(), figures.wall_ns.tolist())
        lacking = lacking or next(filter(None, beyond), None)
    for place, (figures, efficiency) in enumerate(both):
        if peak := device_peaks(trace)[work.devices[place].device]:
            used[peak.text(efficiency.numbers)] = None
        wall = np.maximum(figures.wall_ns, 1)
        samples = {f"{name}_ns": ns.astype(np.float64) for name, ns in efficiency.parts.items()}
        samples |= {"covered_ratio": efficiency.covered, "model_flops": efficiency.model_flops}
        if lacking is None:
            samples |= {"mfu_ratio": efficiency.model_peak_ns / wall, "hfu_ratio": efficiency.peak_ns / wall}
        for name, values in samples.items():
            known.setdefault(name, []).append(values)
    return EfficiencySamples(
        {name: np.mean(values, axis=0) for name, values in known.items()}, lacking, "; ".join(used)
    )


def efficiency_outcome(sides: Sequence[Sequence[EfficiencySamples]], judged_from: int = 0) -> Findings | Skipped:
    """The rows of both sides, whose ranks are given; skipped with the reason of a side that has none.

    Where the sides are held against different peaks, neither MFU is the better one.
    """
    reasons = [
        (label, [rank.lacking for rank in ranks if rank.lacking]) for label, ranks in zip(_SIDES, sides, strict=True)
    ]
    why = "; ".join(f"no MFU of the {label}: {reasons_[0]}" for label, reasons_ in reasons if reasons_)
    if any(not rank.samples for ranks in sides for rank in ranks):
        return Skipped(why)
    control, test = (mean_of_ranks([rank.samples for rank in ranks]) for ranks in sides)
    rows = figure_rows(control, test, judged_from, EFFICIENCY)
    before, after = ("; ".join(dict.fromkeys(rank.peak for rank in ranks)) for ranks in sides)
    for place, row in enumerate(rows):
        if row.figure not in _BY_PEAK:
            continue
        rows[place] = row = replace(row, control_peak=before, test_peak=after)
        if before != after:
            verdict = "different" if row.verdict in ("regression", "improvement") else row.verdict
            rows[place] = replace(row, better="neither", verdict=verdict)
    return Findings(rows, partial=why or None)
