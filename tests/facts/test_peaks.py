"""The peaks of devices: the tables that are shipped, those of users, and their figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import augment
from augment.core.trace import Trace
from augment.errors import UsageError
from augment.facts.operators.peaks import NUMBERS, device_peaks, rows_of, shipped_rows, why_unknown
from tables import kernel, trace_of

#: as traces write them: name, compute capability, units, memory
SEEN = {
    "Tesla V100-SXM2-16GB": (7, 0, 80, 16945512448, "fp16", 125, 900),
    "Tesla V100-DGXS-32GB": (7, 0, 80, 34084028416, "fp16", 125, 900),
    "NVIDIA A100-SXM4-40GB": (8, 0, 108, 42314694656, "bf16", 312, 1555),
    "NVIDIA A100-SXM4-80GB": (8, 0, 108, 84990623744, "bf16", 312, 2039),
    "NVIDIA A100-PG509-200": (8, 0, 108, 42505273344, "bf16", 312, 1555),
    "NVIDIA PG509-210": (8, 0, 108, 84990623744, "bf16", 312, 2039),
    "NVIDIA A100-PCIE-40GB": (8, 0, 108, 42314694656, "bf16", 312, 1555),
    "NVIDIA A100 80GB PCIe": (8, 0, 108, 84990623744, "bf16", 312, 1935),
    "NVIDIA A800-SXM4-80GB": (8, 0, 108, 84990623744, "bf16", 312, 2039),
    "NVIDIA H100 80GB HBM3": (9, 0, 132, 85028372480, "bf16", 989.4, 3350),
    "NVIDIA H100": (9, 0, 132, 102085492736, "bf16", 989.4, None),
    "NVIDIA H100 NVL": (9, 0, 132, 99857989632, "bf16", 835.5, 3900),
    "NVIDIA H100 PCIe": (9, 0, 114, 85028372480, "fp8", 1513, 2000),
    "NVIDIA H20": (9, 0, 78, 102000000000, "bf16", 148, 4000),
    "NVIDIA GH200 480GB": (9, 0, 132, 102000000000, "bf16", 989.4, 4000),
    "NVIDIA H200": (9, 0, 132, 150754820096, "bf16", 989.4, 4800),
    "NVIDIA B200": (10, 0, 148, 191503138816, "fp8", 4500, 8000),
    "NVIDIA B300 SXM6 AC": (10, 3, 148, 287416123392, "bf16", 2250, 8000),
    "NVIDIA GB200": (10, 0, 148, 191503138816, "bf16", 2500, 8000),
    "NVIDIA L4": (8, 9, 58, 23580639232, "bf16", 121, 300),
    "NVIDIA L40S": (8, 9, 142, 47697362944, "bf16", 362, 864),
    "NVIDIA L40": (8, 9, 142, 47697362944, "bf16", 181, 864),
    "NVIDIA A10": (8, 6, 72, 24000000000, "bf16", 125, 600),
    "NVIDIA A10G": (8, 6, 80, 24000000000, "bf16", None, 600),
    "Tesla T4": (7, 5, 40, 15642329088, "fp16", 65, 320),
    "NVIDIA GeForce RTX 4090": (8, 9, 128, 25756696576, "bf16", 165.2, 1008),
    "NVIDIA GeForce RTX 2080 Ti": (7, 5, 68, 11546394624, "fp16", 53.8, 616),
    "NVIDIA GeForce RTX 3060": (8, 6, 28, 12487294976, "bf16", 25.5, 360),
    "NVIDIA GeForce RTX 3060 Ti": (8, 6, 38, 8361000000, "bf16", 32.4, 448),
    "NVIDIA GeForce RTX 3080": (8, 6, 68, 10491527168, "bf16", 59.5, 760),
    "NVIDIA GeForce RTX 4060": (8, 9, 24, 8188000000, "bf16", 30.2, 272),
    "NVIDIA GeForce RTX 4070": (8, 9, 46, 12500000000, "bf16", 58.3, 504),
    "NVIDIA GeForce RTX 4080": (8, 9, 76, 16860000000, "bf16", 97.5, 717),
    "NVIDIA GeForce RTX 5080": (12, 0, 84, 16600000000, "bf16", 112.6, 960),
    "NVIDIA GeForce RTX 4090 D": (8, 9, 114, 25756696576, "bf16", 147.1, 1008),
    "NVIDIA RTX 6000 Ada Generation": (8, 9, 142, 50900000000, "bf16", 364.2, 960),
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": (12, 0, 188, 101000000000, "bf16", 503.8, 1792),
    "AMD Instinct MI300X": (9, 4, 304, 206141652992, "bf16", 1307.4, 5300),
    "AMD Instinct MI300X VF": (9, 4, 304, 206141652992, "bf16", 1307.4, 5300),
    "": (9, 4, 304, 206141652992, "bf16", 1307.4, 5300),
    "AMD Radeon Graphics": (9, 0, 104, 68702699520, "bf16", 181, 1638),
    "AMD Instinct MI210": (9, 0, 104, 68702699520, "bf16", 181, 1638),
    "AMD Instinct MI350X": (9, 5, 256, 309000000000, "bf16", 2300, 8000),
}
UNKNOWN = {
    "NVIDIA GeForce GTX 1650": (7, 5, 16, 4294705152),
    "Quadro GP100": (6, 0, 56, 17069309952),
    "AMD Instinct MI308X": (9, 4, 80, 206141652992),
    "NVIDIA GeForce RTX 4090 D Laptop GPU": (8, 9, 76, 17000000000),
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb": (9, 0, 0, 10200547328),
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": (12, 0, 188, 101000000000),
    "NVIDIA GeForce RTX 4090 Laptop GPU": (8, 9, 76, 17000000000),
    "NVIDIA GeForce RTX 3080 Ti": (8, 6, 80, 12600000000),
    "NVIDIA GeForce RTX 4060 Ti": (8, 9, 34, 8188000000),
    "NVIDIA GeForce RTX 4080 SUPER": (8, 9, 80, 16860000000),
    "NVIDIA A1000": (8, 6, 16, 8000000000),
    "": (8, 0, 108, 42505273344),
}


def on(name: str, major: int, minor: int, units: int, memory: int) -> Trace:
    """A trace of a device."""
    trace = trace_of(kernel("k", 0, 10))
    output = {"id": 0, "name": name, "computeMajor": major, "computeMinor": minor}
    output |= {"numSms": units, "totalGlobalMem": memory}
    return replace(trace, source=replace(trace.source, metadata={"deviceProperties": [output]}))


@pytest.mark.parametrize("name", SEEN)
def test_devices_that_were_seen(name: str) -> None:
    *output, number, tflops, gbps = SEEN[name]
    peak = device_peaks(on(name, *(int(each or 0) for each in output)))[0]
    assert (peak.tflops.get(str(number)), peak.memory_gbps) == (tflops, gbps)


@pytest.mark.parametrize("name", UNKNOWN)
def test_nothing_is_guessed(name: str) -> None:
    trace = on(name, *UNKNOWN[name])
    assert device_peaks(trace)[0] is None
    assert "--peak memory_gbps=…" in why_unknown(trace, 0)


@pytest.mark.parametrize(("name", "units", "memory", "number", "whole", "of"), [
    ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 16, 10200547328, "bf16", 989.4, 132),
    ("NVIDIA H100 80GB HBM3 MIG 7g.80gb", 132, 84825604096, "fp8", 1978.9, 132),
    ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", 42, 42144366592, "bf16", 312, 108),
    ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 14, 5100273664, "tf32", 156, 108),
    ("NVIDIA A100 80GB PCIe MIG 2g.20gb", 28, 20937965568, "bf16", 312, 108),
    ("NVIDIA A30 MIG 1g.6gb", 14, 6300000000, "bf16", 165, 56),
])  # fmt: skip
def test_a_slice_has_its_share_of_the_peak(
    name: str, units: int, memory: int, number: str, whole: float, of: int
) -> None:
    """By its multiprocessors; of its memory the rate is not known."""
    peak = device_peaks(on(name, 8, 0, units, memory))[0]
    assert peak.tflops[number] == pytest.approx(whole * units / of)
    assert (peak.memory_gbps, peak.l2_bytes) == (None, None)


def test_a_trace_that_tells_no_device_has_no_peak() -> None:
    assert device_peaks(trace_of(kernel("k", 0, 10))) == {0: None}


def test_the_older_spelling() -> None:
    trace = trace_of(kernel("k", 0, 10))
    output = {"id": 0, "name": "", "major": 9, "minor": 4, "multiProcessorCount": 304, "totalGlobalMem": 206141652992}
    peak = device_peaks(replace(trace, source=replace(trace.source, metadata={"deviceProperties": [output, "x"]})))[0]
    assert peak is not None


def test_devices_that_are_counted_otherwise_are_told_apart_where_they_differ() -> None:
    trace = trace_of(kernel("k", 0, 10, device=2))
    listed = [{"id": each, "name": "AMD Instinct MI300X", "totalGlobalMem": 206141652992} for each in (0, 1)]
    alike = replace(trace, source=replace(trace.source, metadata={"deviceProperties": listed}))
    assert device_peaks(alike)[2] is not None
    mixed = [*listed, {"id": 3, "name": "NVIDIA B200"}]
    apart = trace.changed(source=replace(trace.source, metadata={"deviceProperties": mixed}))
    assert device_peaks(apart)[2] is None


def test_users_rows_come_first(tmp_path: Path) -> None:
    table = tmp_path / "ours.toml"
    table.write_text(
        "[[peak]]\ndevice = 'GP100'\nfp16 = 21.2\nmemory_gbps = 717\n[[peak]]\ndevice = 'H100'\nbf16 = 800\n"
    )
    ours = device_peaks(augment.with_tables(on("Quadro GP100", 6, 0, 56, 1), table))[0]
    assert ours.text(["fp16", "bf16"]) == "fp16 21.2 TFLOP/s, memory 717 GB/s"
    assert device_peaks(augment.with_tables(on("NVIDIA H100", 9, 0, 132, 1), table))[0].tflops == {"bf16": 800}


@pytest.mark.parametrize("text", [
    "bf16 = 1",
    "device = 'x'\nbf17 = 1",
    "device = 'x'\nbf16 = 0",
    "device = 'x'\nbf16 = '1'",
    "device = '('\nbf16 = 1",
])  # fmt: skip
def test_a_row_that_is_no_peak_is_refused(tmp_path: Path, text: str) -> None:
    table = tmp_path / "ours.toml"
    table.write_text(f"[[peak]]\n{text}\n")
    with pytest.raises(UsageError, match="a peak"):
        augment.with_tables(on("x", 1, 1, 1, 1), table)


def test_single_figures_replace_those_of_the_device() -> None:
    known = on("NVIDIA H100 80GB HBM3", 9, 0, 132, 85028372480)
    peak = device_peaks(augment.with_tables(known, peaks=["bf16=650", "h100 80GB:memory_gbps=3000", "A100:bf16=1"]))[0]
    whole = device_peaks(known)[0]
    assert peak.tflops == {**whole.tflops, "bf16": 650}
    assert (peak.memory_gbps, peak.l2_bytes) == (3000, whole.l2_bytes)


def test_single_figures_are_all_that_an_unknown_device_has() -> None:
    unknown = on("GPU of tomorrow: the second", 20, 0, 1, 1)
    assert "--peak" in why_unknown(unknown, 0)
    assert device_peaks(augment.with_tables(unknown, peaks=["A100:bf16=1"]))[0] is None
    peak = device_peaks(augment.with_tables(unknown, peaks=["tomorrow: the second:bf16=5000"]))[0]
    assert peak.text(["bf16"]) == "bf16 5000 TFLOP/s"


@pytest.mark.parametrize(
    "text", ["", "bf16", "bf17=1", "bf16=x", "bf16=0", "bf16=-1", "bf16=989e12", "memory_gbps=nan", "x:=1", "H100:=1"]
)
def test_a_figure_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--peak"):
        augment.with_tables(on("x", 1, 1, 1, 1), peaks=[text])


@pytest.mark.parametrize("row", shipped_rows(), ids=lambda row: row.get("device", row.get("capability")))
def test_shipped_rows_have_sources_and_dense_rates(row: dict[str, Any]) -> None:
    assert row["source"]
    rates = {number: row[number] for number in NUMBERS if number in row}
    for half, whole in (("bf16", "fp8"), ("tf32", "bf16")):  # sparse headlines are twice the dense rate
        if half in rates and whole in rates:
            assert 1.95 < rates[whole] / rates[half] < 2.06
    if "fp16" in rates and "bf16" in rates:
        assert rates["fp16"] == rates["bf16"]


def test_shipped_peaks_are_rows() -> None:
    assert rows_of(shipped_rows()) == shipped_rows()
