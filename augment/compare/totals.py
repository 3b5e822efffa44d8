"""The figures of whole runs: the rows :class:`~augment.compare.diff_rows.FigureRow`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from augment import facts
from augment.analyses import steps
from augment.arrays import Int64s, Places
from augment.compare.diff_rows import FigureRow, Verdict
from augment.compare.noise import ALPHA, corrected, interval_of
from augment.core import Findings, Skipped, Trace
from augment.errors import UnknownFormat
from augment.facts.operators.step_time_parts import step_efficiency, why_beyond, why_no_mfu

Floats = npt.NDArray[np.float64]
Better = Literal["lower", "higher", "neither"]


class Figure(Struct, frozen=True):
    """A figure of a step: what people call it, its unit, and the direction that is an improvement."""

    name: str
    title: str
    unit: str
    better: Better = "lower"


FIGURES = (
    Figure("wall_ns", "wall time", "ns"),
    Figure("busy_ns", "busy", "ns", "neither"),
    Figure("compute_ns", "computing", "ns"),
    Figure("exposed_communication_ns", "exposed communication", "ns"),
    Figure("exposed_memory_ns", "exposed copies", "ns"),
    Figure("idle_ns", "idle", "ns"),
    Figure("host_wait_ns", "waiting for the host", "ns"),
    Figure("kernel_wait_ns", "waiting between kernels", "ns"),
    Figure("other_wait_ns", "idle for reasons not recorded", "ns"),
    Figure("communication_ns", "communication, hidden or not", "ns"),
    Figure("overlap_ratio", "hidden communication", "ratio", "higher"),
    # large where the host is far ahead
    Figure("mean_launch_delay_ns", "mean delay from launch to start", "ns", "neither"),
    Figure("work_count", "kernels, copies and memsets", "count", "neither"),
    Figure("memory_peak_bytes", "peak of allocated memory", "bytes"),
)
Samples = Mapping[str, Floats]  #: {figure: its value in each step}


def samples_of(trace: Trace, windows: facts.steps.StepWindows) -> dict[str, Floats]:
    """The figures of each step, averaged over devices; figures that the trace lacks are left out."""
    devices = facts.steps.step_figures(trace, windows)
    samples = {"wall_ns": devices[0].wall_ns.astype(np.float64)}
    for name in devices[0].of_device:
        samples[name] = np.mean([device.of_device[name] for device in devices], axis=0)
    launched, delay = samples.pop("launched", None), samples.pop("launch_delay_ns", None)
    if launched is not None and delay is not None and (launched > 0).all():
        samples["mean_launch_delay_ns"] = delay / launched
    peaks = facts.steps.memory_peaks(trace, windows)
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


def figure_rows(control: Samples, test: Samples, figures: Sequence[Figure] = FIGURES) -> list[FigureRow]:
    """A row for each of ``figures`` that both sides have."""
    shared = [figure for figure in figures if figure.name in control and figure.name in test]
    noises = [interval_of(control[figure.name], test[figure.name]) for figure in shared]
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


def figures_outcome(control: Samples, test: Samples) -> Findings | Skipped:
    """The rows, and a note on the figures that a side lacks."""
    rows = figure_rows(control, test)
    lacking = [figure.title for figure in FIGURES if (figure.name in control) != (figure.name in test)]
    return Findings(rows, partial=f"on one side only: {'; '.join(lacking)}" if lacking else None)


# Sums by key, for control and test.


CONTROL, TEST = 0, 1


class Ledger:
    """For each key (a non-negative int64), ``width`` int64 sums on each side."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._sums: dict[int, Int64s] = {}

    def add(self, side: int, key: npt.NDArray[np.integer], place: Places | Int64s, value: Int64s) -> None:
        """Add each ``value`` to the column ``place`` of its ``key``."""
        distinct, which = np.unique(key, return_inverse=True)
        sums = np.zeros((len(distinct), self.width), np.int64)
        np.add.at(sums, (which, place), value)
        for number, row in zip(distinct.tolist(), sums, strict=True):
            if number not in self._sums:
                self._sums[number] = np.zeros((2, self.width), np.int64)
            self._sums[number][side] += row

    def __iter__(self) -> Iterator[tuple[int, Int64s]]:
        """Each key with its sums, of shape (2, width)."""
        return iter(self._sums.items())

    def __len__(self) -> int:
        return len(self._sums)

    def __getitem__(self, key: int) -> Int64s:
        return self._sums[key]


# The samples of a run from its sidecars, so that a baseline needs no traces.


def samples_of_sidecar(path: str, sidecar: Mapping[str, Any]) -> Samples:
    """The figures of each step in the sidecar read from ``path``, averaged over its devices.

    Raises:
        UnknownFormat: the sidecar has no figures of steps.
    """
    analysis = sidecar["analyses"].get(steps.NAME)
    if not analysis or not analysis["rows"]:
        why = analysis["reason"] if analysis else "it was written without that analysis"
        remedy = "" if analysis else "; make them with augment run without --only, or name the traces"
        raise UnknownFormat(path, f"these metrics have no {steps.NAME}: {why}{remedy}")
    devices: dict[Any, list[Mapping[str, Any]]] = {}
    for row in analysis["rows"]:
        devices.setdefault((row["rank"], row["device"]), []).append(row)
    samples: dict[str, Floats] = {}
    for figure in FIGURES:
        columns = [[row.get(figure.name) for row in rows] for rows in devices.values()]
        if all(value is not None for column in columns for value in column):
            samples[figure.name] = np.mean(np.array(columns, np.float64), axis=0)
    return with_overlap(samples)


# MFU, and what each step's computation went into, of both sides beside each other.


EFFICIENCY = (
    Figure("mfu_ratio", "MFU", "ratio", "higher"),
    Figure("hfu_ratio", "HFU", "ratio", "neither"),
    Figure("covered_ratio", "computing with a known roof", "ratio", "neither"),
    Figure("model_flops", "operations of the model", "FLOP", "neither"),
    Figure("ideal_compute_ns", "compute-bound work, at peak", "ns", "neither"),
    Figure("compute_above_ns", "compute-bound work, time lost", "ns"),
    Figure("memory_ideal_ns", "memory-bound work, at peak", "ns", "neither"),
    Figure("memory_above_ns", "memory-bound work, time lost", "ns"),
    Figure("latency_bound_ns", "small kernels, bound by latency", "ns"),
    Figure("unmodelled_ns", "computing, roof unknown", "ns", "neither"),
)
_BY_PEAK = ("mfu_ratio", "hfu_ratio")
_SIDES = ("control", "test")


class EfficiencySamples(Struct, frozen=True):
    """The figures of each step of one rank, averaged over devices. ``lacking`` says why there is no MFU, if so; where
    shapes or peaks are not known, there are no figures at all. ``peak`` names the peaks that were used."""

    samples: Samples
    lacking: str | None
    peak: str = ""


def efficiency_samples(trace: Trace, windows: facts.steps.StepWindows) -> EfficiencySamples:
    """The figures of one side of one rank."""
    work = facts.gpu.work(trace)
    if not len(work):
        return EfficiencySamples({}, "no GPU work")
    lacking = next(filter(None, (why_no_mfu(trace, place) for place in range(len(work.devices)))), None)
    if not facts.operators.work(trace).recorded or None in facts.operators.limits(trace).values():
        return EfficiencySamples({}, lacking)
    known: dict[str, list[Floats]] = {}
    used: dict[str, None] = {}
    both = [
        (figures, step_efficiency(trace, place, windows, figures.of_device["compute_ns"]))
        for place, figures in enumerate(facts.steps.step_figures(trace, windows))
    ]
    for figures, efficiency in both:
        beyond = map(why_beyond, efficiency.peak_ns.tolist(), figures.wall_ns.tolist())
        lacking = lacking or next(filter(None, beyond), None)
    for place, (figures, efficiency) in enumerate(both):
        if peak := facts.operators.limits(trace)[work.devices[place].device]:
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


def efficiency_outcome(sides: Sequence[Sequence[EfficiencySamples]]) -> Findings | Skipped:
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
    rows = figure_rows(control, test, EFFICIENCY)
    before, after = ("; ".join(dict.fromkeys(rank.peak for rank in ranks)) for ranks in sides)
    for place, row in enumerate(rows):
        if row.figure not in _BY_PEAK:
            continue
        rows[place] = row = replace(row, control_peak=before, test_peak=after)
        if before != after:
            verdict = "different" if row.verdict in ("regression", "improvement") else row.verdict
            rows[place] = replace(row, better="neither", verdict=verdict)
    return Findings(rows, partial=why or None)
