"""A host that fetches a batch in many short operators is slow in loading, not in launching: times in µs."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from augment.core.trace import Trace
from augment.diagnosis.host_causes import _long_handovers
from augment.diagnosis.judging import delay_ns
from augment.diagnosis.rule import Found
from augment.diagnosis.rules import data_loading, host_gaps, launch_bound, synchronizing_calls
from augment.readers import read
from metamorphic import load, real_trace
from said import evidence_of, title_of
from tables import Event, annotation, call, kernel, op, trace_of

STEP = 40_000


def step(number: int, fetch: str) -> list[Event]:
    """20 ms of short operators, then 20 kernels of 900 µs, launched within 400 µs."""
    begin = number * STEP
    events = [annotation(f"ProfilerStep#{number}", begin, begin + STEP), annotation(fetch, begin, begin + 20_000)]
    events += [op("aten::stack", begin + at, begin + at + 90) for at in range(0, 20_000, 100)]
    for place in range(20):
        at, correlation = begin + 20_000 + 20 * place, 1 + 20 * number + place
        start = begin + 20_030 + 900 * place
        events += [
            call("cudaLaunchKernel", at, at + 10, correlation=correlation),
            kernel("gemm", start, start + 899, correlation=correlation),
        ]
    return events


def run(fetch: str) -> Trace:
    events = [event for number in range(4) for event in step(number, fetch)]
    return trace_of(*(replace(event, ts=event.ts * 1000, end=event.end * 1000) for event in events))


def test_fetching_is_not_launching() -> None:
    loading = run("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
    assert isinstance(data_loading.check(loading), Found)
    assert not isinstance(launch_bound.check(loading), Found)


@pytest.mark.parametrize(("loader", "saves"), [("_SingleProcess", True), ("_MultiProcessing", False)])
def test_what_workers_pace_no_other_cure_makes_shorter(loader: str, saves: bool) -> None:
    """In each step of 40 ms a fetch of 20 and a wait for 18 ms of kernels. A fetch by the main process could begin when
    they are launched; a batch of workers comes when it comes."""
    fetch = f"enumerate(DataLoader)#{loader}DataLoaderIter.__next__"
    events = [event for number in range(4) for event in step(number, fetch)]
    events += [call("cudaDeviceSynchronize", n * STEP + 20_500, n * STEP + 38_200) for n in range(4)]
    ordered = sorted(events, key=lambda event: event.ts)
    trace = trace_of(*(replace(event, ts=event.ts * 1000, end=event.end * 1000) for event in ordered))
    assert isinstance(data_loading.check(trace), Found)
    assert isinstance(synchronizing_calls.check(trace), Found) == saves


def test_short_operators_outside_a_fetch_are_launching() -> None:
    assert isinstance(launch_bound.check(run("forward")), Found)


def test_the_title_says_where_the_time_of_the_host_goes() -> None:
    """Before the first kernel of three of four steps, 200 operators take 90 µs each, with 10 µs between."""
    answer = launch_bound.check(run("forward"))
    assert isinstance(answer, Found)
    assert title_of(answer).startswith(
        "The GPU waits 15 ms per step for the host to launch 20 kernels: 14 ms in operators"
    )
    assert " and 1.5 ms outside operators" in title_of(answer)
    assert evidence_of(answer)[0] == "most of the time in operators: aten::stack 14 ms"


MS = 1_000_000


def backward_then_optimizer(stall: int, before: int = 0, spread: bool = False) -> Trace:
    """Three steps of a forward kernel, a backward one on another thread, and the optimizer's, which is launched
    ``stall`` after the backward pass ended; that begins ``before`` later than the main thread went into it. ``spread``:
    operators of a third thread fill the stall."""
    events, at = [], 0
    for step in range(3):
        begin, thread = at, 1
        for place, name in enumerate(("aten::mm", "autograd::engine::evaluate_function: MmBackward0", "aten::adam")):
            at += (0, before, stall)[place] + 20_000
            thread = 2 if place == 1 else 1
            number = 3 * step + place + 1
            events += [op(name, at, at + 40_000, thread=thread)]
            events += [call("cudaLaunchKernel", at + 10_000, at + 20_000, thread=thread, correlation=number)]
            events += [kernel(name, at + 30_000, at + 130_000, correlation=number)]
            at += 150_000
        if spread:
            events += [op("aten::stack", at - stall - 100_000 + 10_000 * i, at - stall - 92_000 + 10_000 * i, thread=3)
                       for i in range(stall // 10_000)]  # fmt: skip
        events += [annotation(f"ProfilerStep#{step}", begin, at)]
    return trace_of(*sorted(events, key=lambda event: event.ts))


def test_a_stall_between_threads_is_a_stall_of_the_host() -> None:
    """Nothing is recorded between the backward pass and the optimizer, or before."""
    answers = [host_gaps.check(backward_then_optimizer(8 * MS)), host_gaps.check(backward_then_optimizer(0, 8 * MS))]
    for answer in answers:
        assert isinstance(answer, Found)
        assert answer.saved_ns == pytest.approx(8 * MS, rel=0.05)
        assert answer.confidence == "medium"


@pytest.mark.parametrize("stall", [2, 4, 16])
def test_a_longer_stall_between_threads_saves_more(stall: int) -> None:
    """Metamorphic."""
    answer = host_gaps.check(backward_then_optimizer(stall * MS))
    assert isinstance(answer, Found)
    assert answer.saved_ns == pytest.approx(stall * MS, rel=0.1)


def test_a_thread_that_waits_for_the_work_of_another_does_not_stall() -> None:
    assert not isinstance(host_gaps.check(backward_then_optimizer(8 * MS, spread=True)), Found)
    assert not isinstance(host_gaps.check(backward_then_optimizer(0)), Found)


@pytest.mark.parametrize("name", ["hta_tiny/backward_thread.json", "hta_sampled_2_of_128/sampled_rank-0.json.gz"])
def test_no_operator_begins_in_recorded_stalls_between_threads(name: str) -> None:
    """Plainly: between the end of the last operator before each, and the next operator, are as many ns."""
    path = real_trace(name)
    operators = [each for each in load(path)["traceEvents"] if each.get("ph") == "X" and each.get("cat") == "cpu_op"]
    begun = np.array([int(each["ts"] * 1000) for each in operators])
    ended = begun + [int(each["dur"] * 1000) for each in operators]
    stalls, _ = _long_handovers(read(str(path)))
    assert len(stalls)
    for start, end in zip(stalls.start, stalls.end, strict=True):
        assert not ((begun > start) & (begun < end)).any()
        assert not ((ended > start) & (ended < end)).any()


@pytest.mark.parametrize(("queued", "delay"), [(0, 1_000), (64, 1_500)])
def test_between_kernels_a_delay_remains(queued: int, delay: int) -> None:
    """200 kernels of 5 µs come every 8 µs, as the host launches them; where others were queued, 1.5 µs lie between."""
    events = [annotation("ProfilerStep#0", 0, 2_400_000)]
    for place in range(200):
        at = 8_000 * place
        events += [
            call("cudaLaunchKernel", at, at + 7_000, correlation=place + 1),
            kernel("gemm", at + 9_000, at + 14_000, correlation=place + 1),
        ]
    for place in range(queued):
        start = 1_700_000 + 6_500 * place
        events += [
            call("cudaLaunchKernel", 1_601_000 + 100 * place, 1_601_090 + 100 * place, correlation=1_000 + place),
            kernel("gemm", start, start + 5_000, correlation=1_000 + place),
        ]
    trace = trace_of(*sorted(events, key=lambda event: event.ts))
    answer = launch_bound.check(trace)
    assert isinstance(answer, Found)
    assert delay_ns(trace) == delay
    assert queued or answer.saved_ns == pytest.approx(199 * (3_000 - delay), abs=20_000)
