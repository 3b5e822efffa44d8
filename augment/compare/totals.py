"""The figures of whole runs: the rows :class:`~augment.compare.diff_rows.FigureRow`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from augment.compare.diff_rows import FigureRow, Verdict
from augment.compare.noise import ALPHA, corrected, noise_of
from augment.core.findings import Findings, Skipped
from augment.core.trace import Trace
from augment.facts.steps.step_figures import memory_peaks, step_figures
from augment.facts.steps.step_windows import StepWindows

Floats = npt.NDArray[np.float64]
Better = Literal["lower", "higher", "neither"]


class Figure(Struct, frozen=True):
    """A figure of a step: its unit, and the direction that is an improvement."""

    name: str
    unit: str
    better: Better = "lower"


FIGURES = (
    Figure("wall_ns", "ns"),
    Figure("busy_ns", "ns", "neither"),
    Figure("compute_ns", "ns"),
    Figure("exposed_communication_ns", "ns"),
    Figure("exposed_memory_ns", "ns"),
    Figure("idle_ns", "ns"),
    Figure("host_wait_ns", "ns"),
    Figure("kernel_wait_ns", "ns"),
    Figure("other_wait_ns", "ns"),
    Figure("communication_ns", "ns"),
    Figure("overlap_ratio", "ratio", "higher"),
    Figure("mean_launch_delay_ns", "ns", "neither"),  # large where the host is far ahead
    Figure("work_count", "count", "neither"),
    Figure("memory_peak_bytes", "bytes"),
)
Samples = Mapping[str, Floats]  #: {figure: its value in each step}


def samples_of(trace: Trace, windows: StepWindows) -> dict[str, Floats]:
    """The figures of each step, averaged over devices; figures that the trace lacks are left out."""
    devices = step_figures(trace, windows)
    samples = {"wall_ns": devices[0].wall_ns.astype(np.float64)}
    for name in devices[0].of_device:
        samples[name] = np.mean([device.of_device[name] for device in devices], axis=0)
    launched, delay = samples.pop("launched", None), samples.pop("launch_delay_ns", None)
    if launched is not None and delay is not None and (launched > 0).all():
        samples["mean_launch_delay_ns"] = delay / launched
    peaks = memory_peaks(trace, windows)
    if peaks is not None and (peaks >= 0).all():
        samples["memory_peak_bytes"] = peaks.astype(np.float64)
    return with_overlap(samples)


def with_overlap(samples: dict[str, Floats]) -> dict[str, Floats]:
    """The samples, with the share of communication hidden by computation if each step has communication."""
    communication = samples.get("communication_ns")
    if communication is not None and (communication > 0).all():
        samples["overlap_ratio"] = 1 - samples["exposed_communication_ns"] / communication
    return samples


def mean_of_ranks(ranks: Sequence[Samples]) -> dict[str, Floats]:
    """The means over ranks of the figures that all ranks have, step by step, for as many steps as all have."""
    shared = [name for name in ranks[0] if all(name in rank for rank in ranks)]
    steps = min(len(values) for rank in ranks for values in rank.values())
    return {name: np.mean([rank[name][:steps] for rank in ranks], axis=0) for name in shared}


def figure_rows(
    control: Samples, test: Samples, judged_from: int = 0, figures: Sequence[Figure] = FIGURES
) -> list[FigureRow]:
    """A row for each of ``figures`` that both sides have; noise is judged from the step ``judged_from`` on."""
    shared = [figure for figure in figures if figure.name in control and figure.name in test]
    noises = [noise_of(control[figure.name][judged_from:], test[figure.name][judged_from:]) for figure in shared]
    adjusted = corrected([noise.p if noise else None for noise in noises])
    rows = []
    for figure, noise, p in zip(shared, noises, adjusted, strict=True):
        before, after = control[figure.name], test[figure.name]
        mean, delta = float(before.mean()), float(after.mean() - before.mean())
        rows.append(
            FigureRow(
                figure=figure.name,
                unit=figure.unit,
                better=figure.better,
                control=mean,
                test=float(after.mean()),
                delta=delta,
                change_ratio=delta / mean if mean else None,
                step_count=min(len(before), len(after)),
                low=noise.low if noise else None,
                high=noise.high if noise else None,
                bootstrap_low=noise.bootstrap_low if noise else None,
                bootstrap_high=noise.bootstrap_high if noise else None,
                is_paired=noise.paired if noise else None,
                p=p,
                verdict=verdict_of(p, noise.delta if noise else delta, figure.better),
                control_peak=None,
                test_peak=None,
            )
        )
    return rows


def verdict_of(p: float | None, delta: float, better: Better = "lower") -> Verdict:
    """The verdict on a difference with corrected probability ``p``."""
    if p is None:
        return "unknown"
    if p >= ALPHA or not delta:
        return "within_noise"
    if better == "neither":
        return "different"
    return "regression" if (delta > 0) == (better == "lower") else "improvement"


def figures_outcome(control: Samples, test: Samples, judged_from: int = 0) -> Findings | Skipped:
    """The rows, and a note on the figures that a side lacks."""
    rows = figure_rows(control, test, judged_from)
    lacking = [figure.name for figure in FIGURES if (figure.name in control) != (figure.name in test)]
    neither = [figure.name for figure in FIGURES if figure.name not in control and figure.name not in test]
    parts = []
    if lacking:
        parts.append(f"on one side only: {', '.join(lacking)}")
    if neither:
        parts.append(f"on neither side: {', '.join(neither)}")
    return Findings(rows, partial="; ".join(parts) or None)
