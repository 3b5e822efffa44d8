"""Metamorphic: changes of a recording whose effect on what a rule says is known. Times of events in µs."""

from __future__ import annotations

from collections.abc import Collection
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated_jobs import changed
from test_launching import in_us
from test_rules_by_hand import CHANGES, stepped

from augment import Trace, facts, read
from augment.arrays import Intervals, total
from augment.diagnosis import first_calls, judging
from augment.diagnosis.judging import measure
from augment.diagnosis.ranking import diagnose
from augment.diagnosis.rule import NotApplicable, Spans
from augment.diagnosis.rules import cold_start, graph_capture, host_gaps, launch_bound, synchronizing_calls
from augment.diagnosis.verdict import unknown_reason
from augment.diagnosis.wording import words
from augment.facts.waits import GapCategory
from metamorphic import Document, later_from, load, real_trace, save, without_waiting_calls
from said import evidence_of, problem_of
from simulator import simulate
from tables import Event, annotation, call, copy, kernel, launched_kernel, op, trace_of


def loading(fault: int, times: int = 1) -> list[Event]:
    """Twelve kernels in a row, then one whose launch takes ``fault`` longer, as it loads, and eight more."""
    events, at = list[Event](), 0
    for number in range(21 * times):
        name, took = ("loaded", 9 + fault) if number % 21 == 12 else ("gemm", 9)
        events += launched_kernel(name, (at, at + took), (at + took, at + took + 1_000), correlation=1 + number)
        at += took + 1_020
    return events


def loading_ns(trace: Trace) -> int:
    return getattr(getattr(cold_start.check(trace), "seen", None), "loading_ns", 0)


def fetching(fault: int, times: int = 1, copies: int = 20) -> list[Event]:
    """Six steps of four kernels, for each of which the host works for 0.4 ms, and ``fault`` longer for one; another
    thread copies a batch for each step, which takes ``copies``."""
    events, at = list[Event](), 0
    for number in range(24 * times):
        begin, at = at, at + 500 + fault * (number % 4 == 1)
        events += launched_kernel("gemm", (at - 90, at - 80), (at - 70, at + 30), correlation=1 + number)
        events += [op("aten::unique", begin, at - 100)]
        if number % 4 == 0 and copies:
            events += [call("cudaMemcpyAsync", begin + 200, begin + 220, thread=2, correlation=900 + number)]
            events += [copy("Memcpy HtoD", begin + 230, begin + 230 + copies, stream=9, correlation=900 + number)]
    return [*events, *stepped(6 * times, 2_000 + fault)]


def stalling_ns(trace: Trace) -> int:
    return getattr(host_gaps.check(trace), "saved_ns", 0)


def blocking(fault: int, times: int = 1) -> list[Event]:
    """Three steps of ten kernels. With a ``fault``, which they take longer, launches return when their kernels end."""
    events, at = list[Event](), 0
    for number in range(30 * times):
        begin, end = at, at + 110 + fault
        called = begin + 5, end + 2 if fault else begin + 12
        events += launched_kernel("gemm", called, (begin + 20, end), correlation=1 + number)
        events += [op("aten::add", begin, begin + 30)]
        at = end + 5
    return [*events, *stepped(3 * times, 10 * (115 + fault))]


def blocked_ns(trace: Trace) -> int:
    """How long a call takes that blocks."""
    seen = launch_bound.check(trace).seen
    assert seen.launcher == ("waiting_calls" if judging.launches_block(trace) else "calls")
    return seen.call_ns if judging.launches_block(trace) else 0


def idling(fault: int, times: int = 1) -> list[Event]:
    """Four steps of ten kernels, each launched while the one before the last runs. The third begins 50 later than it
    could, the last three, whose launches were not recorded, ``fault`` later, while the host is in ``update``."""
    events, at = list[Event](), 0
    for number in range(40 * times):
        place, begin = number % 10, at
        at = begin + 100 + (fault if place > 6 else 50 * (place == 2))
        events += [kernel("gemm", at - 100, at, correlation=1 + number)]
        events += [call("cudaLaunchKernel", begin - 60, begin - 50, correlation=1 + number)] * (place < 7)
        if place == 0:
            end = begin + 1_050 + 3 * fault
            events += [annotation(f"ProfilerStep#{number // 10}", begin - 60, end - 60)]
            events += [annotation("update", begin + 740, end - 90)]
    return events


def idle_ns(trace: Trace) -> float:
    """Of a step, where the host is in ``update``, if that is shown."""
    (idle,) = judging.idle_in_steps(trace)
    other = idle.category == GapCategory.OTHER
    gaps = Intervals(idle.start[other], idle.end[other])
    _, shown = unknown_reason(trace, gaps, idle.launch[other])
    return total(shown) / judging.measure(trace).count if shown is not gaps else 0


@pytest.mark.parametrize(("made", "said", "fault", "times"), [
    (loading, loading_ns, 300_000, 1),
    (fetching, stalling_ns, 2_000, 1),
    (blocking, blocked_ns, 100, 1),
    (idling, idle_ns, 200, 3),
])  # fmt: skip
def test_known_changes_have_their_effect(made: Any, said: Any, fault: int, times: int) -> None:
    """``times``: how much more is said for each µs of the fault. Without steps, what is slow again was not loaded."""
    usual, longer = (said(in_us(made(each))) for each in (fault, 2 * fault))
    assert longer - usual == pytest.approx(1_000 * times * fault, rel=1e-3), "a fault adds its time and nothing else"
    assert said(in_us(made(0))) == 0
    assert said(in_us(made(fault, 3))) == pytest.approx(usual * (made is not loading), rel=1e-3), "the same per step"
    for factor, change in CHANGES:
        assert said(in_us(change(made(fault)))) == pytest.approx(factor * usual, rel=1e-3)


def test_what_is_beside_a_fault_adds_nothing_to_it() -> None:
    """However long a thread copies ahead, or blocking launches wait for their kernels."""
    stalls = [stalling_ns(in_us(fetching(2_000, copies=copies))) for copies in (0, 5, 20, 150)]
    waits = [launch_bound.check(in_us(blocking(fault))).seen.wait_ns for fault in (50, 100, 2_000)]
    assert (stalls, waits) == ([stalls[0]] * 4, [waits[0]] * 3)


@pytest.mark.parametrize("watched", [False, True])
def test_waits_of_another_thread_or_device_change_nothing(watched: bool) -> None:
    """A device idles for 2 ms after a wait for it, in which the host works; another for 10 µs. A thread may watch."""
    events = stepped(4, 20_000)
    for at in range(0, 80_000, 20_000):
        for device, end in ((0, 2_000), (1, 3_990)):
            events += launched_kernel("gemm", (at, at + 9), (at + 20, at + end), correlation=at + device, device=device)
            later = {"correlation": at + 2 + device, "device": device}
            events += launched_kernel("gemm", (at + 6_000, at + 6_009), (at + 6_010, at + 19_000), **later)
        events += [call("cudaStreamSynchronize", at + 100, at + 4_000), op("aten::nonzero", at + 4_010, at + 5_990)]
        events += [call("cudaEventSynchronize", at + 3_000, at + 6_005, thread=9)] * watched
    spans = synchronizing_calls.check(trace := in_us(events)).drawn
    waits = Spans.of(trace, first_calls.waiting_calls(trace))
    assert synchronizing_calls.may_be_needed(trace, waits).all()
    assert {*((spans.end - spans.start) // 1_000).tolist()} <= {3_005, 3_900}
    assert {*(spans.start // 1_000 % 20_000).tolist()} == {2_000}


def capturing(document: Document, captures: Collection[int], longer: Decimal) -> Document:
    """A call of compiled code at the begin of each step, which takes so much longer and captures a graph in these."""
    steps = [each for each in document["traceEvents"] if each["name"].startswith("ProfilerStep#")]
    for step in sorted((each for each in steps if each["cat"] == "user_annotation"), key=lambda each: -each["ts"]):
        taken = int(step["name"].partition("#")[2]) in captures
        at, spent = step["ts"] + 1, 100 + longer * taken
        outer = step | {"cat": "cpu_op", "name": "CompiledFunction", "ts": at, "dur": spent - 2, "args": {}}
        begin = outer | {"cat": "cuda_runtime", "name": "cudaStreamBeginCapture", "ts": at + 50, "dur": Decimal(10)}
        made = [outer, begin, begin | {"name": "cudaStreamEndCapture", "ts": at + 1_000}][: 1 + 2 * taken]
        document = later_from(document, at, step, spent)
        document = document | {"traceEvents": [*document["traceEvents"], *made]}
    return document


@pytest.mark.parametrize(("captures", "is_in_turn"), [
    ((1, 3, 5), True), ((0, 2, 4), True), ((0, 1, 2), False), ((0, 1, 2, 3, 4, 5), False), ((), False),
])  # fmt: skip
@pytest.mark.parametrize("graphs", [False, True])
def test_captures_between_runs_cost_what_the_job_takes_without(
    captures: tuple[int, ...], is_in_turn: bool, graphs: bool, tmp_path: Path
) -> None:
    """Truth: the same simulated job, whose calls capture nothing. Metamorphic: each second step, half of them, all."""
    job = load(simulate(changed(ranks=1, steps=6, layers=3, run_ahead=None, graphs=graphs), tmp_path)[0][0])
    without, trace, more = (
        read(str(save(capturing(job, *each), tmp_path / "job.json")))
        for each in (((), Decimal(0)), (captures, Decimal(5_000)), (captures, Decimal(9_000)))
    )
    answers = [graph_capture.check(each) for each in (trace, more)]
    if not captures:
        assert all(isinstance(answer, NotApplicable) for answer in answers)
        return
    for answer, longer in zip(answers, (trace, more), strict=True):
        true = 1 - measure(without).length_ns / measure(longer).length_ns
        assert measure(longer).ratio(problem_of(answer).saved_ns or 0) == pytest.approx(true, abs=0.02)
        assert problem_of(answer).seen.figures["in_turn"] == is_in_turn
        assert any(", alternating" in each for each in evidence_of(problem_of(answer))) == is_in_turn
        assert diagnose(longer).findings[0].rule == "graph_capture"


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("v100_4rank_pair_torchrec/control/pid44237.pt.trace.json.gz", "exposed_communication"),
        ("torchbench/trace.json", "exposed_copies"),
    ],
)
def test_the_host_waits_where_no_call_says_so(name: str, rule: str, tmp_path: Path) -> None:
    """In recordings whose hosts wait in each step: less work saves most of what it saves also if those calls were not
    recorded, never more, and what the host did instead is not named."""
    document = load(real_trace(name))
    saved = list[int]()
    for said in (document, without_waiting_calls(document)):
        trace = read(str(save(said, tmp_path / "trace.json")))
        findings = {each.rule: each.found for each in diagnose(trace).findings}
        saved.append(findings[rule].saved_ns)
        assert len(judging.unrecorded_waits(trace)[1].start) >= (len(saved) - 1) * measure(trace).count
    assert host_gaps.NAME not in findings
    assert 0.6 * saved[0] < saved[1] < 1.02 * saved[0]


def waiting(steps: int, *, late: int = 0, without: int = -1, launching: bool = False) -> list[Event]:
    """Steps of 5 ms: a kernel of 3 ms, at whose end (``late`` ns after it, but for the step ``without``) the host goes
    on, or another thread is ``launching`` meanwhile; then twenty launches, 95 us apart, beside a copy."""
    events, number = list[Event](), 0
    for step in range(steps):
        begin = 5_000_000 * step
        done = begin + 3_020_000
        events += launched_kernel("gemm", (begin + 10_000, begin + 15_000), (begin + 20_000, done), correlation=number)
        if launching:
            events += [call("cudaLaunchKernel", done - 90_000, done - 80_000, thread=2, correlation=number + 1)]
            events += [kernel("small", done + 1_000, done + 2_000, stream=9, correlation=number + 1)]
        at = done + (700_000 if step == without else late)
        for place in range(13 if step == without else 20):
            calls, runs = (at + 95_000 * place, at + 95_000 * place + 90_000), at + 95_000 * place + 50_000
            events += launched_kernel("add", calls, (runs, runs + 40_000), correlation=number + 2 + place)
        events += [call("cudaMemcpyAsync", at + 91_000, at + 94_000, correlation=number + 40)]
        events += [copy("Memcpy HtoD", at + 200_000, at + 1_200_000, 10**6, stream=8, correlation=number + 40)]
        number += 50
    return [*events, *stepped(steps, 5_000_000)]


def test_waits_that_no_call_says_come_in_each_step_and_end_with_the_work() -> None:
    """Metamorphic: the same that ends later, lacks in one step, or in which another thread launches, may be work."""
    for steps, options, count in (
        (4, {}, 4), (4, {"late": 20_000}, 4), (4, {"late": 60_000}, 0), (1, {"late": 20_000}, 0), (1, {}, 1),
        (4, {"without": 2}, 0), (4, {"launching": True}, 0),
    ):  # fmt: skip
        trace = trace_of(*waiting(steps, **options))
        assert len(judging.unrecorded_waits(trace)[1].start) == count, (steps, options)


def test_what_launches_hide_behind_a_wait_that_no_call_says_saves_nothing() -> None:
    """The copy runs while the host launches: with or without it, a step is as long. The long kernel is waited for."""
    trace = trace_of(*waiting(6))
    saved = {each.rule: each.found.saved_ns for each in diagnose(trace).findings}
    assert "exposed_copies" not in saved
    work = facts.gpu.work(trace)
    long = np.flatnonzero(work.end - work.ts == 3_000_000)
    half = facts.critical.without_work(trace, long, np.full(len(long), 1_500_000))
    assert judging.saved_a_step(trace, half) == pytest.approx(1_500_000, rel=0.01)


def test_a_host_that_is_as_fast_as_its_device_does_not_wait() -> None:
    """Kernels end shortly after the next launch of a host that is busy all the time, in short steps."""
    events = list[Event]()
    for number in range(200):
        at = 30_000 * number
        events += [op("aten::mm", at, at + 29_000)]
        events += launched_kernel("gemm", (at + 1_000, at + 4_000), (at + 10_000, at + 34_000), correlation=number + 1)
    assert not len(judging.unrecorded_waits(trace_of(*events, *stepped(20, 300_000)))[1].start)


def test_narrower_elements_are_no_advice_where_they_are_narrow(tmp_path: Path) -> None:
    """Metamorphic: a recorded job in BF16, with the type of its collectives replaced."""
    document = load(real_trace("mi300_tracelens/resnet_act_checkpoint_rank0of8.json.gz"))
    for dtype, advised in (("BFloat16", False), ("Half", False), ("Float", True)):
        for event in document["traceEvents"]:
            if "dtype" in (event.get("args") or {}):
                event["args"]["dtype"] = dtype
        trace = read(str(save(document, tmp_path / f"{dtype}.json")))
        (each,) = (each for each in diagnose(trace).findings if each.rule == "exposed_communication")
        assert ("BF16 compression" in each.found.seen.advice(words(trace))) == advised
