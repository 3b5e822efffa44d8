"""The peaks of devices (dense rates by type of number, and the rate of the memory), and the roof of each operator: the
time that it would take at its device's peak, beside the time that it took.

The rows are data: those of the user's tables, then ``peaks.toml`` beside this file. A row is chosen by the name of the
device, else by its capability, units and memory. A device without a matching row has no peak: nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from augment.arrays import Bools, Bytes, Int64s, Places, WorkIndex, WorkIndexes, numbered, order_of
from augment.core import Identity, Trace, derived, tables_of
from augment.core.toml import parse_toml
from augment.errors import UsageError
from augment.facts import gpu
from augment.facts.operators.operator_work import OperatorWork, operator_work, work_families

NUMBERS = ("fp64", "fp64_matrix", "fp32", "fp32_matrix", "tf32", "bf16", "fp16", "fp8", "int8", "fp4")
_RATES = ("memory_gbps", "l2_bytes", "link_gbps")
VALUES = "peak_values"  #: the key of single figures among the user's tables
_SLICE = re.compile(r"\bMIG\b")  #: in names of slices of a device
_MOST = 1e6  #: 10^12 operations a second: a greater value must be in the wrong unit
KEYS = ("device", "capability", "units", "least_bytes", "below_bytes", "whole_units", *NUMBERS, *_RATES, "source")
_TEXTS = ("device", "capability", "source")


class Peak(Struct, frozen=True):
    """Dense rates of a device."""

    name: str  #: the device's name in the trace
    tflops: Mapping[str, float]  #: 10^12 operations a second by type of number; unknown rates are absent
    memory_gbps: float | None  #: 10^9 bytes a second, None where unknown
    l2_bytes: float | None = None  #: the size of the last-level cache, None where unknown

    def text(self, numbers: Sequence[str]) -> str:
        """The rates for these types of number, as text."""
        rates = [f"{number} {round(self.tflops[number], 1):g}" for number in numbers if number in self.tflops]
        memory = [] if self.memory_gbps is None else [f"memory {self.memory_gbps:g} GB/s"]
        return ", ".join([*([f"{', '.join(rates)} TFLOP/s"] if rates else []), *memory])


class _Device(Struct, frozen=True):
    """A trace's description of a device."""

    name: str = ""
    capability: str = ""
    units: int = 0
    memory: int = 0


def rows_of(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows of a table of peaks.

    Raises:
        UsageError: a row has an unknown member, or describes no device.
    """
    for row in rows:
        if extra := row.keys() - set(KEYS):
            raise UsageError(f"a peak has no {min(extra)}; it has {', '.join(KEYS)}")
        for key, value in row.items():
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
            if not (isinstance(value, str) if key in _TEXTS else is_number):
                raise UsageError(f"a peak: {key} must be {'a text' if key in _TEXTS else 'a number above 0'}")
        if not row.keys() & {"device", "capability"}:
            raise UsageError("a peak must have the text device, or capability")
        try:
            re.compile(row.get("device", ""))
        except re.error as error:
            raise UsageError(f"a peak: {row['device']!r} is no regular expression: {error}") from error
    return list(rows)


def values_of(texts: Sequence[str]) -> list[Mapping[str, Any]]:
    """The figures in ``[DEVICE:]NAME=VALUE`` texts, as rows ``{"of": DEVICE, NAME: VALUE}``; units as in a table.

    Raises:
        UsageError: a text has another form, or the value another unit.
    """
    rows: list[Mapping[str, Any]] = []
    names = (*NUMBERS, *_RATES)
    for text in texts:
        before, equals, value = text.rpartition("=")
        device, _, name = before.rpartition(":")
        name = name.strip()
        if not equals or name not in names:
            raise UsageError(f"--peak {text}: must be [DEVICE:]NAME=VALUE; NAME is one of {', '.join(names)}")
        try:
            number = float(value)
        except ValueError:
            number = 0.0
        if not 0 < number < (_MOST if name in NUMBERS else float("inf")):
            unit = "10^12 operations a second" if name in NUMBERS else "a number above 0"
            raise UsageError(f"--peak {text}: {name} must be {unit}, such as bf16=989.4")
        rows.append({"of": device.strip(), name: number})
    return rows


@cache
def shipped_rows() -> list[Mapping[str, Any]]:
    """The rows that come with the package; tests check them."""
    rows: list[Mapping[str, Any]] = parse_toml(Path(__file__).with_name("peaks.toml").read_text("utf-8"))["peak"]
    return rows


@derived
def device_peaks(trace: Trace) -> dict[Identity, Peak | None]:
    """The peak of each device that has work; None where unknown."""
    rows = [*rows_of(tables_of(trace).get("peak", ())), *shipped_rows()]
    values = tables_of(trace).get(VALUES, ())
    peaks: dict[Identity, Peak | None] = {}
    for index in (device.device for device in gpu.work(trace).devices):
        device = _device(trace, index)
        peak = peaks[index] = _peak(rows, device)
        # the user's single figures for the device in place of its own; they may be the only figures
        numbers = [number for number in values if number["of"].lower() in device.name.lower()]
        given = {name: value for number in numbers for name, value in number.items() if name != "of"}
        if given:
            peak = peak or Peak(device.name, {}, None)
            tflops = {**peak.tflops, **{number: given[number] for number in NUMBERS if number in given}}
            memory, cache = given.get("memory_gbps", peak.memory_gbps), given.get("l2_bytes", peak.l2_bytes)
            peaks[index] = Peak(device.name, tflops, memory, cache)
    return peaks


def name_of(trace: Trace, device: Identity) -> str:
    """The name of a device in the trace, or a phrase if the trace has none."""
    return _device(trace, device).name or "a device that the trace does not name"


def capability_of(trace: Trace, device: Identity) -> tuple[int, int] | None:
    """The capability of a device in the trace. For AMD's GPUs it is that of their architecture (9.4)."""
    major, _, minor = _device(trace, device).capability.partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def capacity_bytes(trace: Trace, device: Identity) -> int:
    """The memory of a device in bytes, from the header of the trace; 0 if the header does not give it."""
    return _device(trace, device).memory


def options(trace: Trace) -> str:
    """Which peaks to give: of the trace's types of number, and of FP32 and one of 16 bits, which tell matrix units."""
    numbers = {"fp32", *(work.number for work in operator_work(trace).works if work.flops)}
    numbers |= set() if numbers & {"bf16", "fp16"} else {"fp16"}
    rates = " ".join(f"--peak {number}=…" for number in reversed(NUMBERS) if number in numbers)
    return f"give its peaks: augment run TRACE {rates} (TFLOP/s) --peak memory_gbps=…"


def why_unknown(trace: Trace, device: Identity) -> str:
    """Advice for a device without a peak."""
    return f"the peak of {name_of(trace, device)} is unknown; {options(trace)}"


def why_not_of(trace: Trace, device: Identity, number: str) -> str:
    """Advice for a device whose peak for a type of number is not known."""
    capability = capability_of(trace, device)
    if number == "bf16" and capability is not None and capability < (8, 0):
        return f"{name_of(trace, device)} has no units for bf16, and so no peak of it"
    return f"{name_of(trace, device)} has no known peak of {number}: augment run TRACE --peak {number}=… (TFLOP/s)"


def _peak(rows: Sequence[Mapping[str, Any]], device: _Device) -> Peak | None:
    """The peak by the first row that fits; that of a slice (MIG) is its share of the multiprocessors, and the rate of
    its memory is not known."""
    if not _SLICE.search(device.name):
        row = next((row for row in rows if _fits(row, device)), None)
        return None if row is None else Peak(device.name, _rates_of(row), row.get("memory_gbps"), row.get("l2_bytes"))
    row = next((row for row in rows if _fits(row, replace(device, units=0, memory=0))), None)
    if row is None or "whole_units" not in row or not 0 < device.units <= row["whole_units"]:
        return None
    share = device.units / row["whole_units"]
    return Peak(device.name, {number: rate * share for number, rate in _rates_of(row).items()}, None)


def _rates_of(row: Mapping[str, Any]) -> dict[str, float]:
    return {number: float(row[number]) for number in NUMBERS if number in row}


def _fits(row: Mapping[str, Any], device: _Device) -> bool:
    if "device" in row and not re.search(row["device"], device.name, re.IGNORECASE):
        return False
    if "capability" in row and row["capability"] != device.capability:
        return False
    if "units" in row and row["units"] != device.units:
        return False
    bounded = "least_bytes" in row or "below_bytes" in row
    if bounded and not device.memory:
        return False
    return bool(row.get("least_bytes", 0) <= device.memory < row.get("below_bytes", float("inf")))


def _device(trace: Trace, device: Identity) -> _Device:
    """The description of a device."""
    devices, other = _devices(trace)
    return devices.get(device, other)


@derived
def _devices(trace: Trace) -> tuple[dict[Identity, _Device], _Device]:
    """The descriptions of the devices in the header, and that of any other device. ROCm may number devices differently
    in events and in the header. If all devices in the header are alike, the numbers do not matter.
    """
    listed = trace.source.metadata.get("deviceProperties")
    devices: dict[Identity, _Device] = {}
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, dict):
            major, minor = (
                entry.get(new, entry.get(old)) for new, old in (("computeMajor", "major"), ("computeMinor", "minor"))
            )
            number = entry.get("id")
            sizes = entry.get("numSms", entry.get("multiProcessorCount")), entry.get("totalGlobalMem")
            units, memory = (size if isinstance(size, int) else 0 for size in sizes)
            name = str(entry.get("name") or "")
            devices[number if isinstance(number, (int, str)) else None] = _Device(
                name, f"{major}.{minor}", units, memory
            )
    for named, name in trace.source.devices:  # from other readers
        devices.setdefault(named, _Device(name))
    alike = set(devices.values())
    return devices, next(iter(alike)) if len(alike) == 1 else _Device()


#: why the rate of products of FP32 may be unknown, and what tells it
UNTOLD_UNITS = (
    "names of kernels do not tell whether matrix units ran its products",
    "say it with augment run TRACE --tables FILE, with [[matrix_units]] in FILE (example: docs/tables.md)",
)
BEYOND = 1.05  #: times memory bandwidth: more bytes than this were not moved, even with caches
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
    operators, work = operator_work(trace), gpu.work(trace)
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
    peaks = [device_peaks(trace)[device.device] for device in gpu.work(trace).devices]
    names: dict[str, int] = {}
    plain = sorted({work.number for work in operators.works})
    number_of_work = np.array([plain.index(work.number) for work in operators.works], np.int64)
    units = work_families(trace).matrix_units[kernel]
    kind = number_of_work[operators.kind]
    key = (kind * len(gpu.MatrixUnits) + units) * max(len(peaks), 1) + device
    cases, code = numbered(key)
    numbers = np.full(len(cases), -1, np.int8)
    for place, case in enumerate(cases.tolist()):
        rest, which = divmod(case, max(len(peaks), 1))
        number = rate_of(
            plain[rest // len(gpu.MatrixUnits)], gpu.MatrixUnits(rest % len(gpu.MatrixUnits)), peaks[which]
        )
        if number:
            numbers[place] = names.setdefault(number, len(names))
    return numbers[code], tuple(names)


def rate_of(number: str, units: gpu.MatrixUnits, peak: Peak | None) -> str:
    """The rate that applies to products of a type of number; empty where it is unclear."""
    if number not in ("fp32", "fp64") or units == gpu.MatrixUnits.NOT_USED:
        return number
    if peak is None:
        return ""
    matrix = f"{number}_matrix" if f"{number}_matrix" in peak.tflops or number == "fp64" else "tf32"
    plain = number if matrix not in peak.tflops and number in peak.tflops else ""  # the only rate that there is
    return matrix if units == gpu.MatrixUnits.USED else plain
