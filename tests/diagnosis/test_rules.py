"""The rules against simulated jobs: each fault is found, its saving is true, and no fault is made up."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from simulated_jobs import HEALTHY, POINTS, changed, diagnosis_of, predicted_and_true, severities, trace_of

from augment.diagnosis.judging import measure
from augment.diagnosis.ranking import diagnose
from augment.diagnosis.rule import Fine, NotApplicable
from augment.diagnosis.rules import clock_drop, small_collectives
from augment.readers import read
from metamorphic import load, save
from said import advice_of, evidence_of, problem_of, title_of
from simulator import JobOptions, simulate
from traces import kernel, launch, op, step, write_trace

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("options", [
    HEALTHY,
    changed(seed=1, collectives="fsdp"),
    changed(seed=2, gpu="A100", run_ahead=None),
    changed(seed=3, collectives="none", side_streams=2),
    changed(seed=4, collectives="fsdp", cross_ns=20_000),
], ids=str)  # fmt: skip
def test_nothing_is_wrong_with_a_healthy_job(options: JobOptions) -> None:
    assert severities(options) == {}


#: faults that the simulator adds, the rules that should find them, and jobs in which they matter
INJECTED = (
    ("items", "synchronizing_calls", ({"work": 0.15, "collectives": "none"},)),
    ("mallocs", "allocator_calls", ({"work": 0.15, "collectives": "none"}, {"work": 0.1})),
    (
        "loads",
        "long_calls",
        ({"work": 0.15, "collectives": "none"}, {"gpu": "A100", "work": 0.1, "collectives": "none"}),
    ),
    ("pauses", "host_gaps", ({"work": 0.5, "collectives": "none"}, {"gpu": "A100", "work": 0.2})),
    (
        "pauses_after_backward",
        "host_gaps",
        ({"work": 0.5, "collectives": "none"}, {"work": 0.1, "collectives": "fsdp"}),
    ),
    ("single_operations", "elementwise_chains", ({}, {"gpu": "A100", "collectives": "fsdp"})),
    ("unfused_optimizer", "unfused_optimizer", ({"work": 0.6, "collectives": "none"},)),
    ("plain_products", "matrix_units", ({}, {"gpu": "A100", "work": 0.5})),
    (
        "contention",
        "stream_contention",
        ({"collectives": "none", "run_ahead": None}, {"layers": 8, "collectives": "none", "gpu": "A100"}),
    ),
    ("late_copies", "exposed_copies", ({}, {"gpu": "A100", "work": 0.6})),
    ("small_messages", "small_collectives", ({"work": 0.3},)),
)
FAULTS: dict[str, tuple[str, JobOptions, JobOptions]] = {
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
    "short kernels, and waits": (
        "launch_bound",
        changed(work=0.05, collectives="none", run_ahead=None, faults=("items",)),
        changed(work=0.05, collectives="none", run_ahead=None, faults=("items",), graphs=True),
    ),
    "waits after a slow loader": (
        "synchronizing_calls",
        changed(host_stall_us=5_000.0, run_ahead=None, steps=12),  # only the first step lacks a host that is ahead
        changed(host_stall_us=5_000.0, run_ahead=2, steps=12),
    ),
    "pageable memory": (
        "pageable_copies",
        changed(work=0.05, collectives="none", faults=("pageable",)),
        changed(work=0.05, collectives="none", faults=("inline_copy",)),
    ),
    "a batch that the host copies itself": (
        "exposed_copies",
        changed(work=0.05, collectives="none", run_ahead=None, faults=("staged",)),
        changed(work=0.05, collectives="none", run_ahead=None),
    ),
    "plain products, and memory is given back": (
        "matrix_units",
        changed(work=0.5, collectives="none", faults=("frees", "plain_products")),
        changed(work=0.5, collectives="none", faults=("frees",)),
    ),
    "slow links": ("exposed_communication", changed(gpu="T4"), changed(gpu="T4", collectives="none")),
    **{
        f"{fault}, {place}": (rule, changed(faults=(fault,), **options), changed(**options))
        for fault, rule, jobs in INJECTED
        for place, options in enumerate(jobs)
    },
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_its_saving_is_true(fault: str) -> None:
    rule, faulty, cured = FAULTS[fault]
    assert rule in severities(faulty)
    assert rule not in severities(cured) or rule == "exposed_communication"
    predicted, true = predicted_and_true(rule, faulty, cured)
    assert abs(predicted - true) < POINTS


def test_waits_before_unknown_work_of_the_host_are_merely_possible() -> None:
    """It may need what the host waited for; here it does not."""
    options: dict[str, Any] = {"faults": ("pauses",), "work": 0.4, "collectives": "none", "steps": 12}
    faulty, cured = (changed(run_ahead=ahead, **options) for ahead in (None, 2))
    assert severities(faulty) == {"host_gaps": "high"}
    (answer,) = (each.found for each in diagnosis_of(faulty).findings if each.rule == "synchronizing_calls")
    possible = measure(trace_of(faulty)).ratio(answer.seen.figures["possible_ns"])
    assert abs(possible - predicted_and_true("synchronizing_calls", faulty, cured)[1]) < POINTS
    assert answer.at_least


@pytest.mark.parametrize("fault", ["a batch that the host copies itself", "late_copies, 0"])
def test_copies_of_pageable_memory_are_named(fault: str) -> None:
    """A stream of its own would not help them: the advice is pinned memory, and only theirs."""
    _, faulty, _ = FAULTS[fault]
    (answer,) = (each.found for each in diagnosis_of(faulty).findings if each.rule == "exposed_copies")
    is_pageable = "staged" in faulty.faults
    assert answer.seen.figures["pageable_ratio"] == pytest.approx(float(is_pageable), abs=0.2)
    assert ("pageable memory" in title_of(answer)) == ("pin_memory=True" in advice_of(answer)) == is_pageable
    assert ("on its own stream" in advice_of(answer)) != is_pageable


def test_small_collectives_without_sizes_are_known_by_how_short_they_are(tmp_path: Path) -> None:
    _, faulty, _ = FAULTS["small_messages, 0"]
    ((path, _), *_) = simulate(faulty, tmp_path)
    document = load(path)
    for each in document["traceEvents"]:
        each["args"] = {key: arg for key, arg in each.get("args", {}).items() if not re.search("nelems|Dims", key)}
    bare = read(str(save(document, tmp_path / "bare.json")))
    known, by_time = (problem_of(small_collectives.check(trace)) for trace in (trace_of(faulty), bare))
    assert "take less than 30 µs each" in title_of(by_time)
    assert not by_time.seen.figures["by_host"], "the next kernels wait for them"
    assert by_time.saved_ns == pytest.approx(known.saved_ns, rel=0.1)


def test_many_small_collectives_of_a_kind_beside_few_of_another(tmp_path: Path) -> None:
    events = []
    for number in range(3):
        begin = 2_000 * number
        events += [step(number, begin, 1_999), launch(ts=begin + 5, correlation=begin + 99)]
        events += [kernel(ts=begin + 15, dur=100, correlation=begin + 99)]
        events += [op("autograd::engine::evaluate_function: A", begin + 140, 500)]
        events += [step(number, begin + 700, 100) | {"name": "Optimizer.step#SGD.step"}]
        events += [launch(ts=begin + 720, correlation=begin + 98), kernel(ts=begin + 1_930, correlation=begin + 98)]
        for place in range(22):
            kind, at = "AllReduce" if place > 1 else "AllGather", begin + 150 + 20 * place
            made = kernel(f"ncclDevKernel_{kind}_RING", at + 20 + 60 * place, 40, correlation=begin + place, stream=20)
            made["args"] |= {"In msg nelems": 1_000, "Out msg nelems": 1_000, "dtype": "Float", "Group size": 8}
            events += [op("c10d", at, 18), launch(ts=at + 5, correlation=begin + place), made]
    answer = problem_of(small_collectives.check(read(str(write_trace(tmp_path / "a.json", *events)))))
    assert (answer.seen.figures["collective_count"], answer.seen.figures["kinds"]) == (20, ["AllReduce"])
    assert answer.seen.figures["by_host"], "no kernel waits for them: joined, the host launches fewer"


@pytest.mark.parametrize("stall_us", [60_000.0, 150_000.0])
def test_what_plain_products_would_save_once_the_host_keeps_up(stall_us: float) -> None:
    """Behind a slow loader they save nothing now; later what the same job without the slow loader would save."""
    slow = {"host_stall_us": stall_us}
    trace = trace_of(changed(faults=("plain_products",), **slow))
    answer = problem_of(diagnose(trace).answers["matrix_units"])
    assert measure(trace).ratio(answer.saved_ns or 0) < POINTS
    plain, healthy = (measure(trace_of(each)).length_ns for each in (changed(faults=("plain_products",)), HEALTHY))
    assert answer.seen.figures["later_ns"] / plain == pytest.approx(1 - healthy / plain, abs=POINTS)
    later = stall_us > 60_000
    assert (answer.saved_ns is None) == later
    assert "nce the host is faster, " in (title_of(answer) if later else evidence_of(answer)[0])
    (alone,) = (each.found for each in diagnosis_of(changed(faults=("plain_products",))).findings[:1])
    assert alone.seen.figures["later_ns"] == 0


def test_findings_that_save_the_same_time_say_so() -> None:
    findings = {each.rule: each for each in diagnosis_of(FAULTS["a slow loader, and waits"][1]).findings}
    assert "synchronizing_calls" in findings["data_loading"].overlaps
    assert "data_loading" in findings["synchronizing_calls"].overlaps


def test_every_rule_answers_in_the_order_of_the_registry() -> None:
    result = diagnosis_of(changed(collectives="none"))
    assert isinstance(result.answers["exposed_communication"], NotApplicable)
    assert isinstance(result.answers["pageable_copies"], Fine)
    possible = [each.found.confidence == "low" for each in result.findings]
    assert possible == sorted(possible)
    for part in (False, True):
        saved = [
            each.found.saved_ns or 0
            for each, low in zip(result.findings, possible, strict=True)
            if low is part and not each.found.of_recording
        ]
        assert saved == sorted(saved, reverse=True)


def test_severity_is_time_alone() -> None:
    """However certain a finding is, its share of a step says how grave it is; the verdict names no mere possibility."""
    fixed = {
        "partial_recording", "profiler_overhead", "memory_capacity", "network_setup", "slow_start",
        "unaligned_shapes",
    }  # fmt: skip
    seen = set()
    for _, options, _ in FAULTS.values():
        for each in diagnosis_of(options).findings:
            if each.rule not in fixed:
                ratio = each.saved_ratio or 0
                assert each.severity == ("high" if ratio >= 0.1 else "warning" if ratio >= 0.05 else "info")
                seen.add((each.severity, each.found.confidence))
                assert each.is_grave == (ratio >= 0.05 and each.found.confidence != "low")
    assert {("high", "high"), ("high", "medium"), ("info", "high")} <= seen


def test_a_warm_up_step_is_left_out() -> None:
    assert diagnose(trace_of(changed(warmup=3.0))).answers
    assert severities(changed(warmup=3.0)) == {}


def test_two_faults_are_both_found() -> None:
    graves = severities(changed(faults=("late_copies",), host_stall_us=6_000.0, run_ahead=None))
    assert {"exposed_copies", "data_loading"} <= graves.keys()
    graves = severities(changed(faults=("plain_products", "single_operations")))
    assert {"matrix_units", "elementwise_chains"} <= graves.keys()


def test_collectives_that_wait_for_a_late_rank_are_no_matter_of_buckets() -> None:
    """Metamorphic: the same transfers, and another rank so late that no link is as slow."""
    said = {}
    for factor in (1.0, 40.0):
        result = diagnosis_of(changed(run_ahead=None, straggler=1, straggler_factor=factor))
        answer = problem_of(result.answers["exposed_communication"])
        said[factor] = (advice_of(answer).startswith("First see whether a rank comes late"), evidence_of(answer))
    assert [late for late, _ in said.values()] == [False, True]
    assert any("GB/s (bus bandwidth): waiting for a late rank, or a slow network" in line for line in said[40.0][1])


def test_a_slow_step_is_an_outlier_with_its_cause() -> None:
    job = changed(steps=8, run_ahead=None, host_stall_us=60_000.0, host_stall_step=4, collectives="none")
    (outlier,) = (each for each in diagnosis_of(job).findings if each.rule == "step_outliers")
    assert "Step 4 takes " in title_of(outlier.found)
    assert "waiting for the host" in title_of(outlier.found)
    assert outlier.saved_ratio == pytest.approx(60_000 / (8 * 14_000 + 60_000), abs=0.05)
    assert "step_outliers" not in severities(changed(steps=8, run_ahead=None, step_jitter=0.03))


@pytest.mark.parametrize(("drift", "said"), [(0.02, "dropped"), (-0.02, "risen")])
def test_kernels_that_get_slower_or_faster_are_found(drift: float, said: str) -> None:
    """The truth: all steps as long as the mean of the three fastest."""
    job = changed(steps=9, run_ahead=None, collectives="none", step_drift=drift)
    (drop,) = (each for each in diagnosis_of(job).findings if each.rule == "clock_drop")
    assert (drop.severity, title_of(drop.found).rsplit(" ", 1)[1]) == ("warning", said)
    windows = measure(trace_of(job)).windows
    length = windows.end - windows.start
    assert drop.saved_ratio == pytest.approx(1 - min(length[:3].mean(), length[-3:].mean()) / length.mean(), abs=0.01)
    assert "clock_drop" not in severities(changed(steps=9, run_ahead=None, collectives="none", step_jitter=0.05))


@pytest.mark.parametrize(("shapes", "said"), [("same", "medium"), ("none", "low"), ("growing", None)])
def test_a_clock_drops_only_where_kernels_do_the_same(shapes: str, said: str | None, tmp_path: Path) -> None:
    """Metamorphic: the same times, with the sizes of inputs left out, or growing from call to call."""
    ((path, _),) = simulate(changed(steps=9, run_ahead=None, collectives="none", step_drift=0.02), tmp_path)
    document = load(path)
    for number, args in enumerate(
        each["args"] for each in document["traceEvents"] if "Input Dims" in each.get("args", {})
    ):
        dims = args.pop("Input Dims")
        if shapes != "none":
            more = number if shapes == "growing" else 0
            args["Input Dims"] = [[size + more if isinstance(size, int) else size for size in sizes] for sizes in dims]
    answer = clock_drop.check(read(str(save(document, tmp_path / "changed.json"))))
    assert getattr(answer, "confidence", None) == said


def test_a_stage_that_waits_for_others_is_found() -> None:
    job = changed(ranks=2, pp=2, microbatches=2, collectives="ddp", run_ahead=None)
    assert severities(job).get("pipeline_bubble") == "high"
    assert "pipeline_bubble" not in severities(HEALTHY)


def test_a_warm_up_step_is_told_as_such() -> None:
    (start,) = (each for each in diagnosis_of(changed(warmup=3.0)).findings if each.rule == "slow_start")
    assert start.severity == "info"
    assert "is left out here" in title_of(start.found)
    small = [each.rule for each in diagnosis_of(changed(warmup=3.0)).findings if each.severity == "info"]
    assert small[0] == "slow_start"  # it says what the others are about
