"""The rules against simulated jobs: each fault is found, its saving is true, and no fault is made up."""

from __future__ import annotations

import pytest
from simulated_jobs import HEALTHY, POINTS, changed, diagnosis_of, predicted_and_true, severities, trace_of

from augment.diagnosis.diagnose import diagnose
from augment.diagnosis.rule import Fine, NotApplicable
from simulator import JobOptions


@pytest.mark.parametrize(
    "options",
    [
        HEALTHY,
        changed(seed=1, collectives="fsdp"),
        changed(seed=2, gpu="A100", run_ahead=None),
        changed(seed=3, collectives="none", side_streams=2),
        changed(seed=4, collectives="fsdp", cross_ns=20_000),
    ],
    ids=str,
)
def test_nothing_is_wrong_with_a_healthy_job(options: JobOptions) -> None:
    assert severities(options) == {}


FAULTS = {
    "a slow loader": ("data_loading", changed(host_stall_us=20_000.0), HEALTHY),
    "a slow loader, and waits": (
        "data_loading",
        changed(host_stall_us=5_000.0, run_ahead=None),
        changed(run_ahead=None),
    ),
    "short kernels": (
        "launch_bound",
        changed(work=0.05, collectives="none", run_ahead=None),
        changed(work=0.05, collectives="none", run_ahead=None, graphs=True),
    ),
    "waits after a slow loader": (
        "synchronizing_calls",
        changed(host_stall_us=5_000.0, run_ahead=None),
        changed(host_stall_us=5_000.0, run_ahead=2),
    ),
    "slow links": ("exposed_communication", changed(gpu="T4"), changed(gpu="T4", collectives="none")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_its_saving_is_true(fault: str) -> None:
    rule, faulty, cured = FAULTS[fault]
    assert severities(faulty).get(rule) == "high"
    assert rule not in severities(cured)
    predicted, true = predicted_and_true(rule, faulty, cured)
    assert abs(predicted - true) < POINTS


def test_findings_that_save_the_same_time_say_so() -> None:
    findings = {each.rule: each for each in diagnosis_of(FAULTS["a slow loader, and waits"][1]).findings}
    assert "synchronizing_calls" in findings["data_loading"].overlaps
    assert "data_loading" in findings["synchronizing_calls"].overlaps


def test_every_rule_answers_in_the_order_of_the_registry() -> None:
    result = diagnosis_of(changed(collectives="none"))
    assert isinstance(result.answers["exposed_communication"], NotApplicable)
    assert isinstance(result.answers["pageable_copies"], Fine)
    assert result.findings == tuple(sorted(result.findings, key=lambda each: -(each.found.saved_ns or 0)))


def test_a_warm_up_step_is_left_out() -> None:
    trace = trace_of(changed(warmup=3.0))
    assert diagnose(trace).answers
    assert severities(changed(warmup=3.0)) == {}
