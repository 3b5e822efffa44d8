"""The peaks of devices: dense rates by type of number, and the rate of the memory.

The rows are data: those of the user's tables, then ``peaks.toml`` beside this file. A row is chosen by the name of the
device, else by its capability, units and memory. A device without a matching row has no peak: nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from augment.core import Identity, Trace, derived, tables_of
from augment.core.toml import parse_toml
from augment.errors import UsageError
from augment.facts.gpu.gpu_work import gpu_work

NUMBERS = ("fp64", "fp64_matrix", "fp32", "fp32_matrix", "tf32", "bf16", "fp16", "fp8", "int8", "fp4")
_TELLING = ("device", "capability", "units", "least_bytes", "below_bytes", "whole_units")
_RATES = ("memory_gbps", "l2_bytes", "link_gbps")
VALUES = "peak_values"  #: the key of single figures among the user's tables
_SLICE = re.compile(r"\bMIG\b")  #: in names of slices of a device
_MOST = 1e6  #: 10^12 operations a second: a greater value must be in the wrong unit
KEYS = (*_TELLING, *NUMBERS, *_RATES, "source")
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
    for index in (device.device for device in gpu_work(trace).devices):
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
    return _device(trace, device).name or "a device without a name"


def capability_of(trace: Trace, device: Identity) -> tuple[int, int] | None:
    """The capability of a device in the trace. For AMD's GPUs it is that of their architecture (9.4)."""
    major, _, minor = _device(trace, device).capability.partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def capacity_bytes(trace: Trace, device: Identity) -> int:
    """The memory of a device in bytes, from the header of the trace; 0 if the header does not give it."""
    return _device(trace, device).memory


def why_unknown(trace: Trace, device: Identity) -> str:
    """Advice for a device without a peak."""
    which = "--peak bf16=… (10^12 operations a second) and memory_gbps=…, or [[peak]] in --tables FILE"
    return f"no peak of {name_of(trace, device)} is known: give {which}"


def why_not_of(trace: Trace, device: Identity, number: str) -> str:
    """Advice for a device whose peak for a type of number is not known."""
    capability = capability_of(trace, device)
    if number == "bf16" and capability is not None and capability < (8, 0):
        return f"{name_of(trace, device)} has no units for bf16, and so no peak of it"
    return f"{name_of(trace, device)} has no known peak of {number}: give --peak {number}=… (10^12 operations a second)"


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
