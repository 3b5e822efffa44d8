"""Rules about serving: simulated engines of known truth, metamorphic changes, recorded steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from augment.analyses import inference_steps
from augment.diagnosis.judging import decided_in_steps, measure
from augment.diagnosis.ranking import diagnose
from augment.diagnosis.rule import Fine, Found, NoData
from augment.diagnosis.rules import eager_decodes, graph_padding, prefill_stalls, rejected_drafts, step_gaps
from augment.diagnosis.verdict import verdict
from augment.facts.critical.what_if import Cut
from augment.readers import read
from metamorphic import real_trace
from said import advice_of, evidence_of, problem_of, title_of
from serving import (
    MS,
    RULES,
    US,
    Serving,
    healthy,
    is_found,
    serve,
    serve_experts,
    told_of_experts,
    with_fault,
)  # fmt: skip

POINTS = 0.05


def problem(rule: object, how: Serving) -> Found:
    return problem_of(rule.check(serve(how)))  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(12))
def test_healthy_servers_have_no_finding(seed: int) -> None:
    assert is_found(healthy(seed)) == {}


@pytest.mark.parametrize("seed", range(500, 506))
@pytest.mark.parametrize("rule", RULES)
def test_faults_are_named(rule: str, seed: int) -> None:
    assert rule in is_found(with_fault(rule, seed))


@pytest.mark.parametrize("seed", range(6))
def test_gaps_save_what_a_server_gains_that_schedules_ahead(seed: int) -> None:
    slow = replace(with_fault("step_gaps", seed), prefill_every=0, pauses=(), hiccups=())
    fault = problem(step_gaps, slow)
    before = measure(serve(slow)).length_ns
    after = measure(serve(replace(slow, is_async=True, schedule_ns=20 * US))).length_ns
    assert abs(fault.saved_ns / before - (1 - after / before)) < POINTS


@pytest.mark.parametrize("seed", range(6))
def test_eager_decodes_save_what_graphs_gain(seed: int) -> None:
    eager = replace(with_fault("eager_decodes", seed), pauses=(), hiccups=(), noise=0.02)
    fault = problem(eager_decodes, eager)
    before = measure(serve(eager)).length_ns
    after = measure(serve(replace(eager, eager=lambda _: False))).length_ns
    assert abs(fault.saved_ns / before - (1 - after / before)) < POINTS


def test_one_step_tells_of_no_gaps() -> None:
    trace = serve(Serving(steps=1))
    assert step_gaps.check(trace) == NoData("only one step was recorded", "record several")
    decided = decided_in_steps(trace, Cut.nothing())[0]
    assert decided.ns == pytest.approx(measure(trace).length_ns, abs=10 * US)  # but for the launch that reaches into it


def test_what_is_said() -> None:
    server = Serving(schedule_ns=900 * US)
    fault = problem(step_gaps, server)
    assert title_of(fault).startswith("The GPU idles 98")
    assert "while the host is scheduling (92 %)" in title_of(fault)
    assert "--async-scheduling" in advice_of(fault)
    without = problem(step_gaps, replace(server, has_stacks=False))
    assert "while" not in title_of(without)
    assert "with_stack=True" in advice_of(without)
    stall = problem(prefill_stalls, Serving(prefill_every=8, prefill_times=6, is_async=True))
    assert (
        "Prefills hold up running sequences for up to 30 ms (as long as 6.1 decodes), 37 % of step time in all"
        in title_of(stall)
    )
    assert "--max-num-batched-tokens" in advice_of(stall)
    padded = problem(graph_padding, Serving(graph_requests=64, is_async=True))
    assert title_of(padded) == "50 % of graph batches is padding: 32 sequences run in a graph for 64"


def test_a_slower_scheduler_costs_more() -> None:
    """Metamorphic."""
    saved = [problem(step_gaps, Serving(schedule_ns=length)).saved_ns or 0 for length in (600 * US, 1_200 * US, 2 * MS)]
    assert saved == sorted(saved)
    assert saved[0] < saved[1] - 400 * US < saved[2] - 800 * US


@pytest.mark.parametrize(("schedule_ns", "other"), [(3 * MS, "host_gaps"), (600 * US, "launch_bound")])
def test_a_gap_between_steps_is_told_once(schedule_ns: int, other: str) -> None:
    """By the rule that knows the engine's option; the host's long stalls, or waits for launches, are the same time."""
    result = diagnose(serve(Serving(schedule_ns=schedule_ns, steps=30, noise=0.02)))
    assert result.findings[0].rule == "step_gaps"
    assert result.answers[other] == Fine("its time is counted under step_gaps")


def test_short_pauses_that_nothing_explains_are_possible_alone() -> None:
    """Three times 40 ms, too short for a pause that is left out; without stacks they may have any reason."""
    paused = Serving(steps=30, noise=0.02, pauses=(8, 15, 22), pause_ns=40 * MS, has_stacks=False)
    possible = {each.rule for each in diagnose(serve(paused)).findings if each.found.confidence == "low"}
    assert possible == {"step_outliers", "host_gaps", "synchronizing_calls"}
    gaps, without = (step_gaps.check(serve(each)) for each in (paused, replace(paused, pauses=())))
    assert getattr(gaps, "saved_ns", None) == pytest.approx(getattr(without, "saved_ns", 0), rel=0.2)


def test_a_pause_promises_nothing() -> None:
    """Metamorphic: two seconds without requests change no saving by more than a tenth."""
    server = Serving(schedule_ns=600 * US, steps=30, noise=0.02)
    paused = replace(server, pauses=(9, 20))
    saved = {each.rule: each.found.saved_ns or 0 for each in diagnose(serve(server)).findings}
    then = {each.rule: each.found.saved_ns or 0 for each in diagnose(serve(paused)).findings}
    assert saved.keys() >= {"step_gaps", "synchronizing_calls"}
    assert {rule: then.get(rule, 0) for rule in saved} == {
        rule: pytest.approx(ns, rel=0.1) for rule, ns in saved.items()
    }
    assert abs(measure(serve(paused)).length_ns / measure(serve(server)).length_ns - 1) < 0.02


@pytest.mark.parametrize(("what", "few", "many", "counted", "rule", "without"), [
    ("captures", (4, 9), range(30), "capture_count", "graph_capture", "2 steps in which graphs are captured"),
    ("compiles", (11,), range(3, 30, 4), "compilation_count", "recompilation", "1 step in which code is compiled"),
])  # fmt: skip
def test_what_is_done_once_is_apart_from_the_steady_state(
    what: str, few: tuple[int, ...], many: range, counted: str, rule: str, without: str
) -> None:
    server = Serving(is_async=True, steps=30)
    once, often = (serve(replace(server, **{what: tuple(steps)})) for steps in (few, many))
    assert (measure(once).count, getattr(measure(once), counted)) == (30 - len(few), len(few))
    assert abs(measure(once).length_ns / measure(serve(server)).length_ns - 1) < 0.03
    assert f"without {without}" in " ".join(verdict(once))
    assert not {each.rule for each in diagnose(once).findings} & {rule, "step_outliers"}
    assert getattr(measure(often), counted) == 0
    assert rule in {each.rule for each in diagnose(often).findings}


def test_communication_that_decodes_do_not_hide() -> None:
    """Small messages of tensor parallelism: after each layer, on the same stream."""
    findings = diagnose(serve(Serving(is_async=True, all_reduce_ns=120 * US))).findings
    (exposed,) = (each for each in findings if each.rule == "exposed_communication")
    assert exposed.severity == "high"
    assert "if messages are small, use kernels made for them (fuse_allreduce_rms" in advice_of(exposed.found)
    assert any("of the time of decodes of" in line for line in evidence_of(exposed.found))


def test_a_longer_all_reduce_has_more_exposed() -> None:
    """Metamorphic."""
    server = Serving(is_async=True, noise=0.02)
    exposed = []
    for length in (40 * US, 80 * US, 160 * US):
        findings = diagnose(serve(replace(server, all_reduce_ns=length))).findings
        exposed.append(next(each.found.saved_ns for each in findings if each.rule == "exposed_communication"))
    assert exposed == pytest.approx([12 * 40 * US, 12 * 80 * US, 12 * 160 * US], rel=0.1)


@pytest.mark.parametrize(("drafts", "chance"), [(1, 0.1), (3, 0.2), (5, 0.05), (3, 0.7)])
def test_what_is_kept_of_drafts_is_what_was_simulated(drafts: int, chance: float) -> None:
    answer = rejected_drafts.check(serve(Serving(drafts=drafts, kept_chance=chance, requests=200, is_async=True)))
    seen = answer.seen
    assert isinstance(seen, rejected_drafts.RejectedDrafts)
    expected = sum(chance**place for place in range(1, drafts + 1))
    assert seen.kept == pytest.approx(1 + expected, rel=0.02)
    assert seen.kept_ratio == pytest.approx(expected / drafts, rel=0.05, abs=0.005)
    assert isinstance(answer, Found) == (expected / drafts < 0.25)


def test_drafts_without_sums_tell_nothing() -> None:
    trace = serve(Serving(is_async=True))
    assert "no step verifies drafts" in rejected_drafts.check(trace).why
    (row, *_) = inference_steps.analyze(serve(Serving(drafts=3, kept_chance=0.5, requests=50))).rows
    assert 50 <= row.kept_tokens <= 200
    assert row.tokens_per_s == pytest.approx(row.kept_tokens / row.wall_ns * 1e9)


@pytest.mark.parametrize("seed", range(4))
def test_experts_with_more_tokens_are_told_from_slow_devices(seed: int, tmp_path: Path) -> None:
    assert told_of_experts(serve_experts(tmp_path / "even", seed, None)) == []
    assert told_of_experts(serve_experts(tmp_path / "hot", seed, 2)) == [(2, True)]
    assert told_of_experts(serve_experts(tmp_path / "slow", seed, 2, device=True)) == [(2, False)]


def test_prompts_in_the_same_number_of_chunks_hold_up_less() -> None:
    """Metamorphic: the same prompts, four times as many steps that are a fourth as long."""
    stall = Serving(prefill_every=12, prefill_times=12, is_async=True, steps=48)
    chunks = replace(stall, prefill_every=3, prefill_times=3)
    assert "prefill_stalls" in is_found(stall)
    assert "prefill_stalls" not in is_found(replace(chunks, is_mixed=True))


def test_batches_without_graphs_are_told_where_they_are_larger() -> None:
    eager = replace(with_fault("eager_decodes", 3), requests=40)
    seen = problem(eager_decodes, eager).seen
    assert isinstance(seen, eager_decodes.EagerDecodes)
    assert seen.engine == "vLLM"
    assert seen.least_requests is not None


@pytest.mark.parametrize("name", [
    "vllm_mi300_tracelens/decode_full_graph_execution.json.gz",
    "sglang_mi300_tracelens/qwen3_8b_decode.json.gz",
    "sglang_qwen3_30b_b300_vs_mi300/qwen3_30b_a3b_decode_B300_TP0.trace.json.gz",
    "sglang_qwen3_30b_b300_vs_mi300/qwen3_30b_a3b_decode_MI300_TP0.trace.json.gz",
])  # fmt: skip
def test_one_recorded_step_has_none_of_these(name: str) -> None:
    """What stands between steps, or differs among them, cannot be seen in one."""
    assert not {each.rule for each in diagnose(read(str(real_trace(name)))).findings} & {*RULES}
