"""The time that each operator took, and its roof: the time that it would take at its device's peak."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from augment.arrays import Bools, Bytes, Int64s, Places, WorkIndex, WorkIndexes, numbered, order_of
from augment.core import Trace, derived
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.gpu.kernel_families import MatrixUnits
from augment.facts.operators.operator_work import OperatorWork, operator_work, work_families
from augment.facts.operators.peaks import Peak, device_peaks

BEYOND = 1.05  #: times the memory's rate: more bytes than this were not moved, even with caches
SHORT_NS = 10_000  #: an operator that takes less, and less than half of it at its roof, is bound by latency

Floats = npt.NDArray[np.float64]


class Bound(IntEnum):
    """What limits an operator at its roof, or that it is too short to tell."""

    UNKNOWN = 0
    COMPUTE = 1
    MEMORY = 2
    LATENCY = 3


class Roofs(Struct, frozen=True):
    """What the peaks allow each operator of ``operator_work``: equal-length columns."""

    ns: Int64s  #: the time in which any of its kernels ran
    kernel_ns: Int64s  #: the durations of its kernels added
    flops: Floats  #: NaN where there are none
    bytes: Floats  #: NaN where there are none
    compute_ns: Floats  #: at the peak, NaN where unknown
    memory_ns: Floats  #: at the peak, NaN where unknown
    roof_ns: Floats  #: the greater of both; NaN of a product whose rate is not known
    number: npt.NDArray[np.int8]  #: an index of ``numbers``, -1 where unknown
    numbers: tuple[str, ...]  #: the types of numbers that products' rates are of
    bound: Bytes  #: a :class:`Bound`
    device: Int64s  #: an index of ``gpu_work(trace).devices``
    kernel: WorkIndexes  #: its longest kernel
    beyond: Bools  #: its bytes cannot have been moved in that time: the formula does not hold, nothing is concluded


@derived(until="operations")
def roofs(trace: Trace) -> Roofs:
    """What the device's peaks allow each of them, and what it took."""
    operators, work = operator_work(trace), gpu_work(trace)
    owned = np.flatnonzero(operators.owner >= 0)
    ns = union_ns(operators.owner[owned], work.ts[owned], work.end[owned], len(operators))
    dur = work.end - work.ts
    kernel_ns = np.zeros(len(operators), np.int64)
    np.add.at(kernel_ns, operators.owner[owned], dur[owned])
    longest = owned[order_of(dur[owned])]
    kernel = np.zeros(len(operators), WorkIndex)
    kernel[operators.owner[longest]] = longest  # of several assignments, the last one stays
    del owned, dur, longest  # frees memory for what follows
    device = work.device_of(kernel)
    flops, size = (
        np.array([np.nan if each is None else float(each) for each in column], np.float64)[operators.kind]
        for column in ([work.flops for work in operators.works], [work.bytes for work in operators.works])
    )
    number, numbers = _numbers(trace, operators, kernel, device)
    # the rate of its products, the rate of the memory, and the size of the cache (0 where unknown), of each device
    peaks = [device_peaks(trace)[each.device] for each in work.devices]
    table = np.full((len(peaks), len(numbers) + 1), np.nan)
    rates, sizes = np.full(len(peaks), np.nan), np.zeros(len(peaks))
    for place, peak in enumerate(peaks):
        if peak is not None:
            table[place, :-1] = [peak.tflops.get(name, np.nan) for name in numbers]
            rates[place] = np.nan if peak.memory_gbps is None else peak.memory_gbps
            sizes[place] = peak.l2_bytes or 0
    rate, memory, cache = table[device, number], rates[device], sizes[device]  # -1 reads the last entry: unknown
    with np.errstate(divide="ignore", invalid="ignore"):
        compute_ns, memory_ns = flops / rate / 1e3, size / memory
        # both inputs and outputs may stay in the cache; not what a layer reads once a step
        attends = np.array([work.attends for work in operators.works], np.bool_)[operators.kind]
        beyond = size - np.where(attends, 0, 2 * cache) > BEYOND * memory * ns
        spread = [(work.most_flops or 0) / work.flops if work.flops else 1.0 for work in operators.works]
        most_ns = compute_ns * np.array(spread, np.float64)[operators.kind]  # with the most operations
    flops[beyond & attends], size[beyond & attends] = np.nan, np.nan  # a layer that attends to less than all
    compute_ns[beyond & attends] = np.nan
    del rate, memory, cache
    memory_ns[beyond] = np.nan
    roof = np.fmax(compute_ns, memory_ns)
    roof[(~np.isnan(flops) & np.isnan(compute_ns)) | beyond] = np.nan
    bound = np.where(np.nan_to_num(compute_ns) >= np.nan_to_num(memory_ns), Bound.COMPUTE, Bound.MEMORY)
    bound[(bound == Bound.MEMORY) & (most_ns > memory_ns)] = Bound.UNKNOWN  # this depends on the operations
    bound[(ns < SHORT_NS) & (2 * np.fmax(roof, most_ns) < ns)] = Bound.LATENCY
    bound[np.isnan(roof)] = Bound.UNKNOWN
    costs = (ns, kernel_ns, flops, size, compute_ns, memory_ns, roof)
    return Roofs(*costs, number, numbers, bound.astype(np.uint8), device.astype(np.int64), kernel, beyond)


def union_ns(group: npt.NDArray[np.int32], ts: Int64s, end: Int64s, count: int) -> Int64s:
    """For each group, the total time that its intervals cover; linear apart from the sort.

    The loop takes the running maximum of ends within each group: ends are replaced by their ranks, offset by the group.
    """
    order = np.lexsort((ts, group))
    group, ts, end = group[order].astype(np.int64), ts[order], end[order]
    by_end = np.argsort(end, kind="stable")
    rank = np.empty(len(end), np.int64)
    rank[by_end] = np.arange(len(end))
    reached = end[by_end[np.maximum.accumulate(group * len(end) + rank) - group * len(end)]] if len(end) else end
    begin = ts.copy()
    follows = np.flatnonzero(group[1:] == group[:-1]) + 1
    begin[follows] = np.maximum(ts[follows], reached[follows - 1])
    union = np.zeros(count, np.int64)
    np.add.at(union, group, np.maximum(end - begin, 0))
    return union


def _numbers(
    trace: Trace, operators: OperatorWork, kernel: WorkIndexes, device: Places
) -> tuple[npt.NDArray[np.int8], tuple[str, ...]]:
    """The type of number whose rate applies. For fp32 and fp64 it is the rate of matrix units if the kernel used
    them.
    """
    peaks = [device_peaks(trace)[device.device] for device in gpu_work(trace).devices]
    names: dict[str, int] = {}
    plain = sorted({work.number for work in operators.works})
    number_of_work = np.array([plain.index(work.number) for work in operators.works], np.int64)
    units = work_families(trace).matrix_units[kernel]
    kind = number_of_work[operators.kind]
    key = (kind * len(MatrixUnits) + units) * max(len(peaks), 1) + device
    cases, code = numbered(key)
    numbers = np.full(len(cases), -1, np.int8)
    for place, case in enumerate(cases.tolist()):
        rest, which = divmod(case, max(len(peaks), 1))
        number = rate_of(plain[rest // len(MatrixUnits)], MatrixUnits(rest % len(MatrixUnits)), peaks[which])
        if number:
            numbers[place] = names.setdefault(number, len(names))
    return numbers[code], tuple(names)


def rate_of(number: str, units: MatrixUnits, peak: Peak | None) -> str:
    """The rate that applies to products of a type of number; empty where it is unclear."""
    if number not in ("fp32", "fp64"):
        return number
    if units == MatrixUnits.NOT_USED:
        return number
    if units != MatrixUnits.USED or peak is None:
        return ""
    return f"{number}_matrix" if f"{number}_matrix" in peak.tflops or number == "fp64" else "tf32"
