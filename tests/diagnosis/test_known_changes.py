"""Metamorphic: changes of a recording whose effect on what a rule says is known. Times of events in µs."""

from __future__ import annotations

from collections.abc import Collection
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from simulated_jobs import changed
from test_launching import in_us
from test_rules_by_hand import CHANGES, stepped

from augment import Trace, read
from augment.arrays import Intervals, total
from augment.diagnosis import first_calls, judging
from augment.diagnosis.judging import measure
from augment.diagnosis.ranking import diagnose
from augment.diagnosis.rule import NotApplicable, Spans
from augment.diagnosis.rules import cold_start, graph_capture, host_gaps, launch_bound, synchronizing_calls
from augment.diagnosis.verdict import unknown_reason
from augment.facts.waits import GapCategory
from metamorphic import Document, later_from, load, real_trace, save, without_waiting_calls
from said import evidence_of, problem_of
from simulator import simulate
from tables import Event, annotation, call, copy, kernel, launched_kernel, op


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
        ("pairs_h100_vs_mi300_tracelens/qwen1.5_0.5b_h100.json.gz", "elementwise_chains"),
        ("torchbench/trace.json", "exposed_copies"),
    ],
)
def test_the_host_waits_where_no_call_says_so(name: str, rule: str, tmp_path: Path) -> None:
    """In recordings whose hosts wait in each step: less work saves as much if those calls were not recorded, and what
    the host did instead is not named."""
    document = load(real_trace(name))
    saved = list[int]()
    for said in (document, without_waiting_calls(document)):
        trace = read(str(save(said, tmp_path / "trace.json")))
        findings = {each.rule: each.found for each in diagnose(trace).findings}
        saved.append(findings[rule].saved_ns)
        assert len(judging.unrecorded_waits(trace)[0].start) >= (len(saved) - 1) * measure(trace).count
    assert host_gaps.NAME not in findings
    assert saved[1] == pytest.approx(saved[0], rel=0.1)
