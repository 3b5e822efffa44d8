"""Operators over lists of tensors: the lists' shapes from the trace, the types from the names of kernels."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

import augment
from augment.analyses import roofline
from augment.core.findings import Findings
from augment.facts.operators.counted_operators import bytes_of_element
from tables import Event, call, kernel, op, rows_of, trace_of

LIST, LISTS, THREE = (f"TensorListMetadata<{count}>, at::native::(anonymous namespace)::" for count in (1, 2, 3))
OURS = "at::native::(anonymous namespace)::"
APPLY = f"void {OURS}multi_tensor_apply_kernel<{OURS}"
CAT = f"void {OURS}CatArrayBatchedCopy"
ADAM = f"FusedOptimizerTensorListMetadata<4>, {OURS}FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)1, false>, x>"
ADD_BF16 = f"{APPLY}{LISTS}BinaryOpListAlphaFunctor<c10::BFloat16, 2, 2, 0>, std::plus<float>, float>("
CAT_2 = f"{CAT}_vectorized<{OURS}OpaqueType<2u>, unsigned int, 1, 128, 1, 16, 8>(char*)"


@pytest.mark.parametrize(
    ("name", "size"),
    [
        (f"{CAT}_aligned16_contig<long, unsigned int, 2, 128, 1>(long*, {OURS}CatArrInputTensorMetadata<long)", 16),
        (f"{CAT}<c10::BFloat16, unsigned int, 1, 128, 1>(c10::BFloat16*)", 4),
        (f"{CAT}<c10::complex<float>, unsigned int, 1, 128, 1>(", 16),
        (f"{CAT}<unsigned char, unsigned int, 1, 128, 1>(", 2),
        (CAT_2, 4),
        (f"{CAT}_contig<{OURS}OpaqueType<16>, unsigned int, 1, 128, 1>(", 32),
        (f"{CAT}<some::Type, unsigned int, 1, 128, 1>(", 0),
        (ADD_BF16, 6),
        (f"{APPLY}{LIST}BinaryOpScalarFunctor<float, 1, 1, 0>, x>(", 8),
        (f"{APPLY}TensorListScalarListMetadata<float, 2>, {OURS}BinaryOpScalarListFunctor<float, 2, 1, 1>, x>(", 8),
        (f"{APPLY}{THREE}PointwiseOpScalarFunctor<float, 3, 3, 0>, std::divides<float>, float>(", 16),
        (f"{APPLY}{LISTS}UnaryOpFunctor<c10::Half, 2, 1, 1>, at::native::Copy<float, float> >(", 4),
        (f"{APPLY}{LISTS}CopyFunctor<int, long, 2, 1, 1>, at::native::Copy<int, long> >(", 12),
        (f"{APPLY}{LIST}ZeroFunctor<float, 1, 1, 0> >(", 4),
        (f"{APPLY}{LIST}LpNormFunctor<float, (at::native::NormType)1, float, 1, 1, 0>, float*>(", 4),
        (APPLY + ADAM, 28),
        (f"{APPLY}FusedOptimizerTensorListMetadata<3>, {OURS}FusedSgdMathFunctor<c10::BFloat16, 3>, double>(", 10),
        (f"{APPLY}{LISTS}StrangeFunctor<float, 2, 1, 1> >(", 0),
        (f"{APPLY}{LISTS}BinaryOpListAlphaFunctor<some::Type, 2, 2, 0>, x>(", 0),
        ("vectorized_elementwise_kernel", 0),
        (f"void {OURS}lpnorm_cleanup<float, (at::native::NormType)1, float>(", None),
    ],
)  # fmt: skip
def test_the_name_of_a_kernel_says_what_it_moves(name: str, size: int | None) -> None:
    assert bytes_of_element(name) == size


def listed(*dims: list[Any], scaled: int = -1) -> dict[str, Any]:
    types = ["TensorList" if shapes and isinstance(shapes[0], list) else "Scalar" for shapes in dims]
    types += ["float" if place == scaled else "" for place in range(len(dims), 15)]
    return {"Input Dims": [*dims, *([] for _ in range(15 - len(dims)))], "Input type": types}


def launched(operator: str, args: dict[str, Any], *kernels: str, at: int = 0) -> list[Event]:
    events = [op(operator, at, at + 90, args=args)]
    for place, name in enumerate(kernels):
        number, start = at + place + 1, at + 2 + 10 * place
        events += [call("cudaLaunchKernel", start, start + 5, correlation=number),
                   kernel(name, start + 1000, start + 1009, correlation=number)]  # fmt: skip
    return events


def sizes(*events: Event) -> list[tuple[Any, ...]]:
    return sorted(rows_of(roofline.analyze(trace_of(*events)), "operator", "size_bytes", "count"))


def test_lists_with_shapes_have_bytes() -> None:
    lists = [[64, 2], [8], []]  # the last one has no dimensions, so one element
    assert sizes(
        *launched("aten::_foreach_add_", listed(lists, lists), ADD_BF16, ADD_BF16),
        *launched("aten::cat", listed([[3, 5], [2, 5]]), CAT_2, at=100),
        *launched("aten::cat", listed([[3, 5], [2, 5]]), CAT_2.replace("2u", "8u"), at=200),  # the same shapes
        *launched("aten::_fused_adamw_", listed(*[[[100, 10], [24]]] * 4), APPLY + ADAM, at=300),
    ) == [
        ("aten::_foreach_add_", 6 * 137, 1),
        ("aten::_fused_adamw_", 28 * 1024, 1),
        ("aten::cat", 4 * 25, 1),
        ("aten::cat", 16 * 25, 1),
    ]


@pytest.mark.parametrize(
    ("operator", "args", "kernels"),
    [
        ("aten::cat", listed([]), [CAT_2]),  # more than 30 tensors: no shapes
        ("aten::cat", listed([[3, 5], [2, 5]]), [CAT_2, CAT_2.replace("2u", "4u")]),  # two types
        ("aten::cat", listed([[3, 5], [2, 5]]), ["vectorized_elementwise_kernel"]),
        ("aten::cat", listed([3, 5]), [CAT_2]),
        ("aten::_fused_adamw_", listed(*[[[100, 10]]] * 4, scaled=13), [APPLY + ADAM]),  # gradients are written, too
    ],
)
def test_lists_without_shapes_or_type_are_unknown_and_said(
    operator: str, args: dict[str, Any], kernels: list[str]
) -> None:
    product = op("aten::mm", 500, 590, args={"Input Dims": [[4, 4], [4, 4]], "Input type": ["float", "float"]})
    work = [call("cudaLaunchKernel", 502, 503, correlation=900), kernel("gemm", 2000, 2100, correlation=900)]
    findings = roofline.analyze(trace_of(*launched(operator, args, *kernels), product, *work))
    assert isinstance(findings, Findings)
    assert [row.operator for row in findings.rows] == ["aten::mm"]
    assert "lists_without_bytes" in [diagnostic.code for diagnostic in findings.diagnostics]


def test_little_time_is_not_worth_a_line() -> None:
    product = op("aten::mm", 500, 590, args={"Input Dims": [[4, 4], [4, 4]], "Input type": ["float", "float"]})
    work = [call("cudaLaunchKernel", 502, 503, correlation=900), kernel("gemm", 2000, 200_000, correlation=900)]
    findings = roofline.analyze(trace_of(*launched("aten::cat", listed([]), CAT_2), product, *work))
    assert isinstance(findings, Findings)
    assert "lists_without_bytes" not in [diagnostic.code for diagnostic in findings.diagnostics]


def test_cat_inside_another_operator_and_operators_inside_a_list() -> None:
    """``stack`` does its work in ``cat``; a slow ``_foreach_add_`` calls ``add_`` for each tensor."""
    args = {"Input Dims": [[8], [8], []], "Input type": ["float", "float", "Scalar"]}
    trace = trace_of(
        op("aten::stack", -1, 95, args=listed([[3], [3]])), *launched("aten::cat", listed([[1, 3], [1, 3]]), CAT_2),
        op("aten::_foreach_add_", 100, 200, args=listed([[8]], [[8]])),
        *launched("aten::add_", args, "vectorized_elementwise_kernel", at=101),
    )  # fmt: skip
    findings = roofline.analyze(trace.changed())
    assert sorted(rows_of(findings, "operator", "size_bytes")) == [("aten::add_", 3 * 32), ("aten::cat", 4 * 6)]


def test_recorded_lists_move_no_more_than_memory_can(shared_traces: Path) -> None:
    """Each ``cat`` with shapes has bytes: twice those of its elements in the text, of the width that a name tells."""
    path = shared_traces / "a100_sam_fast" / "amg_example_trace.json.gz"
    findings = roofline.analyze(augment.read(path))
    assert isinstance(findings, Findings)
    rows = [row for row in findings.rows if row.operator == "aten::cat"]
    assert sum(row.count for row in rows) == 96
    for row in rows:
        elements = sum(map(prod, json.loads(row.shapes)[0]))
        assert row.size_bytes is not None
        assert row.size_bytes % (2 * elements * row.count) == 0
        assert row.size_bytes // (2 * elements * row.count) in (1, 2, 4, 8)
        assert row.roof_ratio is not None
        assert row.roof_ratio < (1 if row.size_bytes > 2 * 40 << 20 else 1.5)  # what fits the cache may be faster
