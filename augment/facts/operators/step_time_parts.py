"""Divides the time of a step into parts. Each moment of its window belongs to one part; overlapping kernels share
it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from augment.arrays import intervals
from augment.arrays.intervals import Intervals
from augment.arrays.ordering import distinct
from augment.arrays.types import Int64s, Places
from augment.core.context import derived
from augment.core.trace import Trace
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.gpu.kernel_families import MATRIX_FAMILIES
from augment.facts.names.kernel_types import KernelType
from augment.facts.operators.operator_work import OperatorWork, operator_work
from augment.facts.operators.peaks import device_peaks, why_not_of, why_unknown
from augment.facts.operators.recomputation import recomputed
from augment.facts.operators.roofline_bounds import Bound, Floats, Roofs, roofs
from augment.facts.operators.work_families import work_families
from augment.facts.steps.step_figures import StepFigures, step_figures
from augment.facts.steps.step_windows import StepWindows, recorded_windows

#: the parts of the time in which the device computes
PARTS = ("ideal_compute", "compute_above", "memory_ideal", "memory_above", "latency_bound", "unmodelled")
COVERED = 0.9  #: of the time of matrix products, for an MFU
ROUNDING = 1e-9  #: above 100 %, an MFU is still one
_IDEAL, _ABOVE, _MEMORY, _MEMORY_ABOVE, _LATENCY, _UNMODELLED = range(len(PARTS))


class Efficiency(Struct, frozen=True):
    """Of one device, a step a place: ``parts`` int64 ns by name, which add up to the time in which it computed.

    ``flops`` and ``model_flops`` float64: all operations, and those that are not done a second time; ``peak_ns`` and
    ``model_peak_ns`` float64: how long they would have taken, each at the dense rate of its type of number. ``covered``
    float64: the share of the computing time whose operator has a formula. ``numbers`` are the types of number.
    """

    parts: dict[str, Int64s]
    flops: Floats
    model_flops: Floats
    peak_ns: Floats
    model_peak_ns: Floats
    covered: Floats
    numbers: tuple[str, ...]


def step_efficiency(trace: Trace, device: int, windows: StepWindows, compute_ns: Int64s) -> Efficiency:
    """The efficiency of the device at that place of ``gpu_work(trace).devices``. It computed for ``compute_ns``."""
    operators, on_roof = operator_work(trace), roofs(trace)
    operator, step, share = _shares(trace, device, windows)
    known = operator >= 0
    total = np.zeros(len(operators))
    np.add.at(total, operator[known], share[known])
    count = len(windows)
    inside = known & (step >= 0)
    code, where = np.unique(operator[inside].astype(np.int64) * count + step[inside], return_inverse=True)
    time = _sums(where, share[inside], len(code))
    which, at = np.divmod(code, max(count, 1))
    part_of = np.divide(time, total[which], out=np.zeros(len(time)), where=total[which] > 0)
    parted = np.zeros((len(PARTS), count))
    for part, ns in enumerate(_parted(on_roof, which, time, part_of)):
        np.add.at(parted[part], at, ns)
    plain = ~known & (step >= 0)
    np.add.at(parted[_UNMODELLED], step[plain], share[plain])
    covered = _sums(at, time * ~np.isnan(on_roof.roof_ns[which]), count)
    flops = np.nan_to_num(on_roof.flops[which]) * part_of
    peak_ns = np.nan_to_num(on_roof.compute_ns[which]) * part_of
    model = _model_share(trace, operators)[which]
    codes = distinct(on_roof.number[which]).tolist()
    return Efficiency(
        parts=dict(zip(PARTS, _rounded(parted, compute_ns), strict=True)),
        flops=_sums(at, flops, count),
        model_flops=_sums(at, flops * model, count),
        peak_ns=_sums(at, peak_ns, count),
        model_peak_ns=_sums(at, peak_ns * model, count),
        covered=np.divide(covered, compute_ns, out=np.zeros(count), where=compute_ns > 0),
        numbers=tuple(sorted({on_roof.numbers[code] for code in codes if code >= 0} - {""})),
    )


@derived(until="operations")
def efficiencies(trace: Trace) -> tuple[tuple[StepFigures, Efficiency], ...]:
    """The figures of the steps of each device and their efficiency, in the order of ``gpu_work(trace).devices``."""
    windows = recorded_windows(trace)
    return tuple(
        (figures, step_efficiency(trace, place, windows, figures.of_device["compute_ns"]))
        for place, figures in enumerate(step_figures(trace, windows))
    )


@derived
def products_covered(trace: Trace) -> dict[int, float | None]:
    """For each device, the share of the time of matrix products, convolutions and attention whose operations are
    counted against a peak, in the windows of the steps. Kernels whose work is unknown may be products, and count as
    such. None for a device without products, as far as names show.
    """
    work, operators, on_roof, families = gpu_work(trace), operator_work(trace), roofs(trace), work_families(trace)
    named = np.array([name in MATRIX_FAMILIES for name in families.names], np.bool_)[families.family]
    counted = np.append(~np.isnan(on_roof.compute_ns), False)[operators.owner]
    unknown = ~families.known & ~counted & (work.type == KernelType.COMPUTATION)
    windows = recorded_windows(trace)
    step = np.searchsorted(windows.start, work.ts, side="right") - 1
    inside = step >= 0
    inside[inside] = work.ts[inside] < windows.end[step[inside]]
    dur = np.where(inside, work.end - work.ts, 0)
    shares: dict[int, float | None] = {}
    for place, device in enumerate(work.devices):
        products, possible, sure = (
            int(dur[device.places][mask[device.places]].sum()) for mask in (named | counted, unknown, counted)
        )
        shares[place] = sure / (products + possible) if products else None
    return shares


def _shares(trace: Trace, device: int, windows: StepWindows) -> tuple[npt.NDArray[np.int32], Places, Floats]:
    """Pieces of computing kernels: the operator of each, its step (-1 outside of all), and its share of the time.

    A moment is shared equally by all kernels that compute at that moment. So the share of a kernel is the integral of 1
    / (number of kernels) over its time.
    """
    work, operators = gpu_work(trace), operator_work(trace)
    places = work.by_time[work.devices[device].places]
    places = places[(work.type[places] == KernelType.COMPUTATION) & (work.end[places] > work.ts[places])]
    start, end = work.ts[places], work.end[places]
    ones = np.ones(len(places), np.int64)
    ts, running = intervals.steps(np.concatenate((start, end)), np.concatenate((ones, -ones)))
    if not len(ts):
        return np.empty(0, np.int32), np.empty(0, np.intp), np.empty(0)
    first = ts[0]
    each = np.where(running[:-1] > 0, np.diff(ts) / np.maximum(running[:-1], 1), 0.0)
    until = np.concatenate(([0.0], np.cumsum(each)))

    def integral(moments: Int64s) -> Floats:
        shares: Floats = np.interp((moments - first).astype(np.float64), (ts - first).astype(np.float64), until)
        return shares

    which, step, pieces = intervals.clip(Intervals(start, end), Intervals(windows.start, windows.end))
    inside = integral(pieces.end) - integral(pieces.start)
    outside = integral(end) - integral(start)
    np.subtract.at(outside, which, inside)
    operator = operators.owner[places]
    return (
        np.concatenate((operator[which], operator)),
        np.concatenate((step, np.full(len(places), -1, np.intp))),
        np.concatenate((inside, outside)),
    )


def _sums(code: Places, values: Floats, count: int) -> Floats:
    totals = np.zeros(count)
    np.add.at(totals, code, values)
    return totals


def _parted(on_roof: Roofs, which: Places, time: Floats, part_of: Floats) -> list[Floats]:
    """The time of each operator in a step, by part. ``part_of`` is the fraction of the operator that lies in the
    step.
    """
    bound = on_roof.bound[which]
    ideal = np.minimum(np.nan_to_num(on_roof.compute_ns[which]) * part_of, time)
    roof = np.maximum(np.minimum(np.nan_to_num(on_roof.roof_ns[which]) * part_of, time), ideal)
    is_memory = bound == Bound.MEMORY
    rest = time - ideal
    return [
        ideal,
        np.where(bound == Bound.COMPUTE, rest, 0),
        np.where(is_memory, roof - ideal, 0),
        np.where(is_memory, time - roof, 0),
        np.where(bound == Bound.LATENCY, rest, 0),
        np.where(bound == Bound.UNKNOWN, rest, 0),
    ]


def _model_share(trace: Trace, operators: OperatorWork) -> Floats:
    """The share of each operator's operations that belongs to the model: without recomputation and repeated
    operations.
    """
    shares = [1 - work.again_flops / work.flops if work.flops else 1.0 for work in operators.works]
    return np.array(shares, np.float64)[operators.kind] * ~recomputed(trace)


def _rounded(parts: Floats, total: Int64s) -> Int64s:
    """Integers that add up to ``total``, each within 1 of the given part. The largest remainders are rounded up."""
    whole = np.floor(parts).astype(np.int64)
    missing = total - whole.sum(axis=0)
    order = np.argsort(whole - parts, axis=0, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(len(parts))[:, None], axis=0)
    whole += rank < missing
    rest = total - whole.sum(axis=0)  # 0 apart from rounding errors of floats for long times
    whole[np.argmax(whole, axis=0), np.arange(whole.shape[1])] += rest
    return whole


def why_no_mfu(trace: Trace, place: int) -> str | None:
    """What an MFU of that device lacks, if anything."""
    device = gpu_work(trace).devices[place].device
    if not operator_work(trace).recorded:
        return "shapes were not recorded: record with record_shapes=True"
    if device_peaks(trace)[device] is None:
        return why_unknown(trace, device)
    covered = products_covered(trace)[place]
    if covered is None:
        return "no matrix product, convolution or attention is known among the kernels"
    if covered < COVERED:
        if number := _without_peak(trace, place, COVERED - covered):
            return why_not_of(trace, device, number)
        share = f"FLOPs are known for only {100 * covered:.1f} % of the time of matrix products"
        why = "the rest has no operator (as in CUDA graphs), no shapes, no formula or no telling name"
        return f"{share}; {why}: --graph-capture FILE, or [[flops]] in --tables FILE"
    return None


def _without_peak(trace: Trace, place: int, lacking: float) -> str:
    """The type of number without a peak whose operators take the most time, if they are the share ``lacking`` of the
    time of all products at least; else empty."""
    work, operators, on_roof = gpu_work(trace), operator_work(trace), roofs(trace)
    owner = operators.owner[work.devices[place].places]
    ns = (work.end - work.ts)[work.devices[place].places]
    product = np.append(~np.isnan(on_roof.flops), False)[owner]
    unknown = product & np.append(np.isnan(on_roof.compute_ns), False)[owner]
    number = np.append(on_roof.number, -1)[owner]
    spent = {name: int(ns[unknown & (number == code)].sum()) for code, name in enumerate(on_roof.numbers) if name}
    most = max(spent, key=lambda name: spent[name], default="")
    return most if most and sum(spent.values()) >= lacking * int(ns[product].sum()) > 0 else ""


def why_beyond(peak_ns: float, wall_ns: int) -> str | None:
    """Why operations that would take ``peak_ns`` at the peak give no MFU in a step of ``wall_ns``; None if they do."""
    if peak_ns <= wall_ns * (1 + ROUNDING):
        return None
    return (
        f"the step's operations are {peak_ns / max(wall_ns, 1):,.2f} times what the device can do at most in its time: "
        "the peak is too low for this device (--peak), or operations are counted too high"
    )
