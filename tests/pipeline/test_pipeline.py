from __future__ import annotations

import pytest

from augment import Findings, Skipped, Trace, UsageError, augment
from augment.analyses import ANALYSES, idle_time_breakdown, options_of, queue_length, temporal_breakdown
from augment.pipeline.request import option_values
from tables import call, copy, kernel, launched_kernel, op, trace_of


def some_trace() -> Trace:
    return trace_of(
        op("aten::mm", 0, 30),
        *launched_kernel("gemm", (5, 6), (10, 20), correlation=1),
        copy("Memcpy HtoD", 40, 50, 10),
    )


def test_every_analysis_is_asked_in_the_registrys_order() -> None:
    outcomes = augment(some_trace()).outcomes
    assert list(outcomes) == [analysis.NAME for analysis in ANALYSES]
    assert isinstance(outcomes["temporal_breakdown"], Findings)


def test_only_and_skip_choose() -> None:
    expected = ["temporal_breakdown", "queue_length"]
    assert list(augment(some_trace(), only=["queue_length", "temporal_breakdown"]).outcomes) == expected
    assert "queue_length" not in augment(some_trace(), skip=["queue_length"]).outcomes


def test_the_reason_names_the_group_that_is_missing() -> None:
    outcome = augment(trace_of(), only=["queue_length"]).outcomes["queue_length"]
    assert outcome == Skipped("no event of category kernel, gpu_memcpy or gpu_memset")
    outcome = augment(trace_of(kernel("a", 0, 1)), only=["queue_length"]).outcomes["queue_length"]
    assert outcome == Skipped("no event of category cuda_runtime or cuda_driver")


def test_whole_numbers_may_have_exponents() -> None:
    assert option_values(["model_flops.parameters_count=7e9"]) == {"model_flops": {"parameters_count": 7_000_000_000}}
    for text in ("7e-1", "x", "nan", "inf", "1e999"):
        with pytest.raises(UsageError, match="parameters_count must be of type int"):
            option_values([f"model_flops.parameters_count={text}"])


def test_options_reach_their_analysis() -> None:
    trace = trace_of(
        call("cudaLaunchKernel", 5, 6, correlation=1), kernel("a", 0, 10), kernel("b", 20, 30, correlation=1)
    )
    options = {idle_time_breakdown.NAME: {"consecutive_kernel_delay_ns": 10}}
    outcome = augment(trace, options=options).outcomes[idle_time_breakdown.NAME]
    assert [row.gap_count for row in outcome.rows] == [0, 0, 1]
    assert options_of(idle_time_breakdown)["consecutive_kernel_delay_ns"] == 30_000
    assert options_of(temporal_breakdown) == {}


@pytest.mark.parametrize(("arguments", "message"), [
    ({"only": ["queue_lenght"]}, "no analysis is called 'queue_lenght'; did you mean queue_length\\?"),
    ({"skip": ["nothing like it"]}, "no analysis is called 'nothing like it' \\(known"),
    ({"options": {"idle_time": {}}}, "did you mean idle_time_breakdown"),
    ({"only": ["idel"]}, "did you mean idle_time_breakdown"),
    ({"options": {"queue_length": {"x": 1}}}, "no option of queue_length is called 'x' \\(it has none\\)"),
    ({"options": {"idle_time_breakdown": {"consecutive_kernel_delay": 1}}}, "did you mean consecutive_kernel_delay_ns"),
    (
        {"options": {"idle_time_breakdown": {"consecutive_kernel_delay_ns": "30"}}},
        "must be of type int \\(such as 30000\\)",
    ),
])  # fmt: skip
def test_what_does_not_exist_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        augment(some_trace(), **arguments)  # type: ignore[arg-type]


def test_an_error_in_an_analysis_is_its_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Trace) -> Findings:
        raise ZeroDivisionError("by chance")

    monkeypatch.setattr(queue_length, "analyze", broken)
    outcomes = augment(some_trace(), only=["queue_length", "temporal_breakdown"]).outcomes
    failed = outcomes["queue_length"]
    assert isinstance(failed, Skipped)
    expected = "failed: internal error, ZeroDivisionError: by chance; please report what augment run --debug shows"
    assert failed.summary == expected
    assert "ZeroDivisionError" in failed.traceback
    assert isinstance(outcomes["temporal_breakdown"], Findings)


def test_progress_is_told_before_each_analysis() -> None:
    output: list[tuple[str, int, int]] = []
    augment(some_trace(), only=["kernel_breakdown", "queue_length"], progress=lambda *item: output.append(item))
    assert output == [("kernel_breakdown", 0, 2), ("queue_length", 1, 2)]
