"""The operators that count, and their work: by hand, lists of tensors by the names of their kernels."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

import augment
from augment.analyses import roofline
from augment.core.trace import Trace
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.operators.counted_operators import bytes_of_element
from augment.facts.operators.operator_work import operator_work
from augment.facts.operators.step_time_parts import recomputed
from tables import Event, call, copy, kernel, launched_kernel, op, rows_of, shaped, trace_of

SHARED = Path(__file__).parents[3] / "shared" / "traces"
MM = shaped([2, 3], [3, 5])


def counted(trace: Trace) -> list[tuple[str, int | None, int | None]]:
    """The operators that count: name, operations, bytes."""
    result = operator_work(trace)
    works = [result.works[kind] for kind in result.kind.tolist()]
    return [(name, work.flops, work.bytes) for name, work in zip(trace.names_of(result.row), works, strict=True)]


def launched(number: int, at: int) -> list[Event]:
    """A call at a moment, and its kernel much later."""
    return [*launched_kernel(f"k{number}", (at, at + 1), (1000 + 10 * number, 1005 + 10 * number), correlation=number)]


def test_of_nested_products_the_innermost_counts() -> None:
    trace = trace_of(
        op("aten::linear", 0, 100, args=shaped([2, 3], [5, 3])),
        op("aten::addmm", 10, 90, args=shaped([5], [2, 3], [3, 5])),
        *launched(1, 20),
    )
    assert counted(trace) == [("aten::addmm", 60, 2 * 36)]
    assert operator_work(trace).owner.tolist() == [0]


def test_a_copy_within_a_product_takes_its_own_kernels_alone() -> None:
    trace = trace_of(
        op("aten::mm", 0, 100, args=MM),
        op("aten::copy_", 10, 30, args=shaped([2, 3], [2, 3])),
        *launched(1, 20),
        *launched(2, 50),
    )
    assert counted(trace) == [("aten::mm", 60, 62), ("aten::copy_", None, 24)]
    assert operator_work(trace).owner.tolist() == [1, 0]


def test_an_operator_without_shapes_leaves_its_parent_to_count() -> None:
    trace = trace_of(
        op("aten::linear", 0, 100, args=shaped([2, 3], [5, 3])), op("aten::addmm", 10, 90), *launched(1, 20)
    )
    assert counted(trace) == [("aten::linear", 60, 62)]


def test_what_launches_no_computation_does_not_count() -> None:
    trace = trace_of(
        op("aten::mm", 0, 10, args=MM),
        op("aten::copy_", 20, 30, args=shaped([2, 3], [2, 3])),
        call("cudaMemcpyAsync", 22, 24, correlation=1),
        copy("Memcpy DtoD", 50, 60, correlation=1),
        kernel("unrelated", 70, 80),
    )
    assert counted(trace) == []
    assert set(operator_work(trace).owner.tolist()) == {-1}
    assert operator_work(trace).recorded


def test_without_shapes_nothing_is_known() -> None:
    result = operator_work(trace_of(op("aten::mm", 0, 10), *launched(1, 5)))
    assert (len(result), result.recorded) == (0, False)


def test_users_formulas_come_first(tmp_path: Path) -> None:
    table = tmp_path / "ours.toml"
    table.write_text(
        '[[flops]]\noperator = "^aten::mm$"\nflops = "7"\n[[flops]]\noperator = "^my::"\nbytes = "size(0)"\n'
    )
    trace = trace_of(
        op("aten::mm", 0, 9, args=MM), *launched(1, 5), op("my::op", 20, 29, args=shaped([4])), *launched(2, 25)
    )
    assert counted(augment.with_tables(trace, table)) == [("aten::mm", 7, None), ("my::op", None, 8)]


NODE = "autograd::engine::evaluate_function: "


def recorded(**numbers: int) -> dict[str, object]:
    """The args of a product that ran with gradients recorded."""
    return {**MM, "Sequence number": 5, "Fwd thread id": 0, **numbers}


def test_reentrant_checkpointing_is_recomputation_but_its_own_backward_is_not() -> None:
    trace = trace_of(
        op("aten::mm", 0, 10, args=recorded()), *launched(1, 5),
        op(f"{NODE}CheckpointFunctionBackward", 20, 100),
        op("aten::mm", 30, 40, args=MM), *launched(2, 35),
        op(f"{NODE}MmBackward0", 50, 90),
        op("aten::mm", 60, 70, args=MM), *launched(3, 65),
    )  # fmt: skip
    assert recomputed(trace).tolist() == [False, True, False]


def test_checkpointing_by_hooks_is_recomputation() -> None:
    trace = trace_of(
        op(f"{NODE}MmBackward0", 20, 100),
        op("aten::mm", 30, 40, args=recorded()), *launched(1, 35),
        op("aten::mm", 50, 60, args=MM), *launched(2, 55),
    )  # fmt: skip
    assert recomputed(trace).tolist() == [True, False]


def test_a_backward_that_will_be_differentiated_is_no_recomputation() -> None:
    trace = trace_of(
        op(f"{NODE}MmBackward0", 20, 100),
        op("MmBackward0", 21, 99, args={"Sequence number": 3, "Fwd thread id": 1}),
        op("aten::mm", 30, 40, args=recorded()), *launched(1, 35),
        op("aten::mm", 50, 60, args=recorded()), *launched(2, 55),
    )  # fmt: skip
    assert recomputed(trace).tolist() == [False, False]


@pytest.mark.skipif(not SHARED.exists(), reason="the recorded traces are not at hand")
def test_recorded_rates_are_those_of_a_count_by_another_program() -> None:
    """TFLOP/s of GEMMs on an H100, against a prototype that shares no code."""
    trace = augment.read(SHARED / "h100_8rank_modded_nanogpt" / "rank0.json.gz")
    result, work = operator_work(trace), gpu_work(trace)
    rates = {}
    for name in ("aten::mm", "aten::_scaled_mm"):
        part = [each == name for each in trace.names_of(result.row)]
        flops = sum(
            result.works[kind].flops or 0 for kind, part in zip(result.kind.tolist(), part, strict=True) if part
        )
        index = [owner >= 0 and part[owner] for owner in result.owner.tolist()]
        rates[name] = flops / int((work.end - work.ts)[index].sum()) / 1e3
    assert {name: round(rate, 1) for name, rate in rates.items()} == {"aten::mm": 692.1, "aten::_scaled_mm": 1400.6}


@pytest.mark.skipif(not SHARED.exists(), reason="the recorded traces are not at hand")
def test_recorded_recomputation() -> None:
    """Blocks run twice in three steps, their convolutions in the second run within the backward."""
    trace = augment.read(SHARED / "mi300_tracelens" / "resnet_act_checkpoint_rank0of8.json.gz")
    result, again = operator_work(trace), recomputed(trace)
    convolutions = [each for each, name in enumerate(trace.names_of(result.row)) if name == "aten::miopen_convolution"]
    assert (len(convolutions), int(again[convolutions].sum())) == (117, 57)
    assert not [each for each, name in enumerate(trace.names_of(result.row)) if "backward" in name and again[each]]


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


def of_list(operator: str, args: dict[str, Any], *kernels: str, at: int = 0) -> list[Event]:
    events = [op(operator, at, at + 90, args=args)]
    for place, name in enumerate(kernels):
        number, start = at + place + 1, at + 2 + 10 * place
        events += [call("cudaLaunchKernel", start, start + 5, correlation=number),
                   kernel(name, start + 1000, start + 1009, correlation=number)]  # fmt: skip
    return events


def test_lists_with_shapes_have_bytes() -> None:
    lists = [[64, 2], [8], []]  # the last one has no dimensions, so one element
    trace = trace_of(
        *of_list("aten::_foreach_add_", listed(lists, lists), ADD_BF16, ADD_BF16),
        *of_list("aten::cat", listed([[3, 5], [2, 5]]), CAT_2, at=100),
        *of_list("aten::cat", listed([[3, 5], [2, 5]]), CAT_2.replace("2u", "8u"), at=200),  # the same shapes
        *of_list("aten::_fused_adamw_", listed(*[[[100, 10], [24]]] * 4), APPLY + ADAM, at=300),
    )
    assert sorted(rows_of(roofline.analyze(trace), "operator", "size_bytes", "count")) == [
        ("aten::_foreach_add_", 6 * 137, 1),
        ("aten::_fused_adamw_", 28 * 1024, 1),
        ("aten::cat", 4 * 25, 1),
        ("aten::cat", 16 * 25, 1),
    ]


@pytest.mark.parametrize(("operator", "args", "kernels"), [
    ("aten::cat", listed([]), [CAT_2]),  # more than 30 tensors: no shapes
    ("aten::cat", listed([[3, 5], [2, 5]]), [CAT_2, CAT_2.replace("2u", "4u")]),  # two types
    ("aten::cat", listed([[3, 5], [2, 5]]), ["vectorized_elementwise_kernel"]),
    ("aten::cat", listed([3, 5]), [CAT_2]),
    ("aten::_fused_adamw_", listed(*[[[100, 10]]] * 4, scaled=13), [APPLY + ADAM]),  # gradients are written, too
])  # fmt: skip
def test_lists_without_shapes_or_type_are_unknown_and_said(
    operator: str, args: dict[str, Any], kernels: list[str]
) -> None:
    product = op("aten::mm", 500, 590, args={"Input Dims": [[4, 4], [4, 4]], "Input type": ["float", "float"]})
    work = [call("cudaLaunchKernel", 502, 503, correlation=900), kernel("gemm", 2000, 2100, correlation=900)]
    findings = roofline.analyze(trace_of(*of_list(operator, args, *kernels), product, *work))
    assert [row.operator for row in findings.rows] == ["aten::mm"]
    assert "lists_without_bytes" in [diagnostic.code for diagnostic in findings.diagnostics]


def test_little_time_is_not_worth_a_line() -> None:
    product = op("aten::mm", 500, 590, args={"Input Dims": [[4, 4], [4, 4]], "Input type": ["float", "float"]})
    work = [call("cudaLaunchKernel", 502, 503, correlation=900), kernel("gemm", 2000, 200_000, correlation=900)]
    findings = roofline.analyze(trace_of(*of_list("aten::cat", listed([]), CAT_2), product, *work))
    assert "lists_without_bytes" not in [diagnostic.code for diagnostic in findings.diagnostics]


def test_cat_inside_another_operator_and_operators_inside_a_list() -> None:
    """``stack`` does its work in ``cat``; a slow ``_foreach_add_`` calls ``add_`` for each tensor."""
    args = {"Input Dims": [[8], [8], []], "Input type": ["float", "float", "Scalar"]}
    trace = trace_of(
        op("aten::stack", -1, 95, args=listed([[3], [3]])), *of_list("aten::cat", listed([[1, 3], [1, 3]]), CAT_2),
        op("aten::_foreach_add_", 100, 200, args=listed([[8]], [[8]])),
        *of_list("aten::add_", args, "vectorized_elementwise_kernel", at=101),
    )  # fmt: skip
    findings = roofline.analyze(trace.changed())
    assert sorted(rows_of(findings, "operator", "size_bytes")) == [("aten::add_", 3 * 32), ("aten::cat", 4 * 6)]


def test_recorded_lists_move_no_more_than_memory_can(shared_traces: Path) -> None:
    """Each ``cat`` with shapes has bytes: twice those of its elements in the text, of the width that a name tells."""
    path = shared_traces / "a100_sam_fast" / "amg_example_trace.json.gz"
    rows = [row for row in roofline.analyze(augment.read(path)).rows if row.operator == "aten::cat"]
    assert sum(row.count for row in rows) == 96
    for row in rows:
        elements = sum(map(prod, json.loads(row.shapes)[0]))
        assert row.size_bytes % (2 * elements * row.count) == 0
        assert row.size_bytes // (2 * elements * row.count) in (1, 2, 4, 8)
        assert row.roof_ratio is not None
        assert row.roof_ratio < (1 if row.size_bytes > 2 * 40 << 20 else 1.5)  # what fits the cache may be faster
