"""Which products without matrix units could have used them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import augment
from augment.analyses import kernel_breakdown, kernel_family_breakdown
from augment.core.trace import Trace
from tables import call, kernel, op, rows_of, shaped, trace_of

SIMT, TENSOR = "ampere_sgemm_128x64_tn", "ampere_bf16_s16816gemm_bf16_128x128_tn"


def product(device: dict[str, Any], types: str = "float", name: str = SIMT, operator: str = "aten::mm") -> Trace:
    """A product on a device."""
    other = [64] if operator == "aten::mv" else [64, 64]
    trace = trace_of(
        op(operator, 0, 10, args=shaped([64, 64], other, types=types)),
        call("cudaLaunchKernel", 2, 4, correlation=1),
        kernel(name, 100, 150, correlation=1),
    )
    return replace(trace, source=replace(trace.source, metadata={"deviceProperties": [{"id": 0, **device}]}))


H100 = {"name": "NVIDIA H100 80GB HBM3"}
V100 = {"name": "Tesla V100-SXM2-16GB", "computeMajor": 7, "computeMinor": 0}
P100 = {"name": "Quadro GP100", "computeMajor": 6, "computeMinor": 0}
RTX3060 = {"name": "NVIDIA GeForce RTX 3060", "computeMajor": 8, "computeMinor": 6}


@pytest.mark.parametrize(
    ("device", "types", "name", "operator", "expected"),
    [
        (H100, "float", SIMT, "aten::mm", "eligible"),
        (H100, "float", TENSOR, "aten::mm", "used"),
        (H100, "double", SIMT, "aten::mm", "eligible"),
        (H100, "float", SIMT, "aten::mv", "not_used"),
        (H100, "float", "a_gemm_of_nobody", "aten::mm", "unknown"),
        (H100, "c10::complex<float>", SIMT, "aten::mm", "not_used"),
        (V100, "c10::Half", SIMT, "aten::mm", "eligible"),
        (V100, "float", SIMT, "aten::mm", "not_eligible"),
        (V100, "c10::BFloat16", SIMT, "aten::mm", "not_eligible"),
        (P100, "c10::Half", SIMT, "aten::mm", "not_eligible"),
        (RTX3060, "float", SIMT, "aten::mm", "eligible"),
        (RTX3060, "double", SIMT, "aten::mm", "not_used"),
        ({"name": "GPU of tomorrow"}, "float", SIMT, "aten::mm", "not_used"),
    ],
)
def test_what_could_have_used_them(device: dict[str, Any], types: str, name: str, operator: str, expected: str) -> None:
    trace = product(device, types, name, operator)
    assert rows_of(kernel_breakdown.analyze(trace), "matrix_units") == [(expected,)]
    not_used = 50 if expected in ("eligible", "not_eligible", "not_used") else 0
    columns = ("matrix_used_ns", "matrix_not_used_ns", "matrix_eligible_ns")
    assert rows_of(kernel_family_breakdown.analyze(trace), *columns) == [
        (50 if expected == "used" else 0, not_used, 50 if expected == "eligible" else 0)
    ]


def test_without_shapes_it_is_not_known() -> None:
    trace = product(H100)
    bare = trace_of(
        op("aten::mm", 0, 10), call("cudaLaunchKernel", 2, 4, correlation=1), kernel(SIMT, 100, 150, correlation=1)
    )
    bare = replace(bare, source=trace.source)
    assert rows_of(kernel_breakdown.analyze(bare), "matrix_units") == [("not_used",)]


def test_products_of_few_rows_of_a_recorded_run(shared_traces: Path) -> None:
    """Against the trace's own text: kernels ``gemmSN`` of an operator of 16-bit numbers on an A100."""
    path = shared_traces / "a100_sam_fast" / "amg_example_trace.json.gz"
    events = [each for each in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if each.get("ph") == "X"]
    calls = {event["args"]["correlation"]: event["ts"] for event in events if event.get("cat") == "cuda_runtime"}
    products = [event for event in events if event.get("cat") == "cpu_op" and event["name"] == "aten::bmm"]
    expected = 0
    for event in events:
        if event.get("cat") == "kernel" and "gemmSN" in event["name"]:
            at = calls[event["args"]["correlation"]]
            (around,) = [op for op in products if op["ts"] <= at < op["ts"] + op["dur"]]
            assert around["args"]["Input type"] == ["c10::BFloat16"] * 2
            expected += round(event["dur"] * 1000)
    findings = kernel_family_breakdown.analyze(augment.read(path))
    (eligible,) = [ns for family, ns in rows_of(findings, "family", "matrix_eligible_ns") if family == "gemm"]
    assert eligible == expected > 0
