"""Which operators count, which work is theirs, and what of it is recomputation."""

from pathlib import Path

import pytest

import augment
from augment.core.trace import Trace
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.operators.operator_work import operator_work
from augment.facts.operators.step_time_parts import recomputed
from tables import Event, call, copy, kernel, op, shaped, trace_of

SHARED = Path(__file__).parents[3] / "shared" / "traces"
MM = shaped([2, 3], [3, 5])


def counted(trace: Trace) -> list[tuple[str, int | None, int | None]]:
    """The operators that count: name, operations, bytes."""
    result = operator_work(trace)
    works = [result.works[kind] for kind in result.kind.tolist()]
    return [(name, work.flops, work.bytes) for name, work in zip(trace.names_of(result.row), works, strict=True)]


def launched(number: int, at: int) -> list[Event]:
    """A call at a moment, and its kernel much later."""
    return [
        call("cudaLaunchKernel", at, at + 1, correlation=number),
        kernel(f"k{number}", 1000 + 10 * number, 1005 + 10 * number, correlation=number),
    ]


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
