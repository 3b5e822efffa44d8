"""Metamorphic: changes of a recording whose effect on what a rule says is known. Times of events in µs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from augment import Trace
from augment.arrays import Intervals, total
from augment.diagnosis import judging
from augment.diagnosis.rule import Found
from augment.diagnosis.rules import cold_start, host_gaps, launch_bound
from augment.diagnosis.verdict import unknown_reason
from augment.facts.waits import GapCategory
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
    answer = cold_start.check(trace)
    return answer.seen.loading_ns if isinstance(answer, Found) else 0


def fetching(fault: int, times: int = 1, copies: int = 20) -> list[Event]:
    """Six steps of four kernels, for each of which the host works for 0.4 ms, and ``fault`` longer for one; another
    thread copies a batch for each step, which takes ``copies``."""
    events, at = list[Event](), 0
    for number in range(24 * times):
        begin, at = at, at + 500 + (fault if number % 4 == 1 else 0)
        events += [op("aten::unique", begin, at - 100)]
        events += launched_kernel("gemm", (at - 90, at - 80), (at - 70, at + 30), correlation=1 + number)
        if number % 4 == 0:
            fetch = {"stream": 9, "correlation": 1_000 + number}
            events += [annotation(f"ProfilerStep#{number // 4}", begin, begin + 2_000 + fault)]
            events += [call("cudaMemcpyAsync", begin + 200, begin + 220, thread=2, correlation=1_000 + number)]
            events += [copy("Memcpy HtoD (Pinned -> Device)", begin + 230, begin + 230 + copies, **fetch)] * (
                copies > 0
            )
    return [each for each in events if copies or each.track.tid != 2]


def stalling_ns(trace: Trace) -> float:
    answer = host_gaps.check(trace)
    return (answer.saved_ns or 0) if isinstance(answer, Found) else 0


def blocking(fault: int, times: int = 1) -> list[Event]:
    """Three steps of ten kernels. With a ``fault``, which they take longer, launches return when their kernels end."""
    events, at = list[Event](), 0
    for number in range(30 * times):
        begin, end = at, at + 110 + fault
        called = begin + 5, end + 2 if fault else begin + 12
        events += launched_kernel("gemm", called, (begin + 20, end), correlation=1 + number)
        events += [op("aten::add", begin, begin + 30)]
        if number % 10 == 0:
            events += [annotation(f"ProfilerStep#{number // 10}", begin, begin + 10 * (115 + fault))]
        at = end + 5
    return events


def blocked_ns(trace: Trace) -> float:
    """How much longer than 107 µs a call takes that blocks."""
    seen = launch_bound.check(trace).seen
    assert seen.launcher == ("waiting_calls" if judging.launches_block(trace) else "calls")
    return seen.call_ns if judging.launches_block(trace) else 0


def idling(fault: int, times: int = 1) -> list[Event]:
    """Four steps of ten kernels, each launched while the one before the last runs. The third begins 50 later than it
    could, the last three, whose launches were not recorded, ``fault`` later, while the host is in ``update``."""
    events, at = list[Event](), 0
    for number in range(40 * times):
        place, begin = number % 10, at
        start = begin + (fault if place > 6 else 50 if place == 2 else 0)
        at = start + 100
        ran = kernel("gemm", start, at, correlation=1 + number)
        events += [ran] + [call("cudaLaunchKernel", begin - 60, begin - 50, correlation=1 + number)] * (place < 7)
        if place == 0:
            end = begin + 1_050 + 3 * fault
            events += [annotation(f"ProfilerStep#{number // 10}", begin - 60, end - 60)]
            events += [annotation("update", begin + 740, end - 90)]
    return events


def idle_ns(trace: Trace) -> float:
    """Of a step, where the host is in ``update``, if that is shown."""
    (idle,) = judging.idle_in_steps(trace)
    other = idle.category == GapCategory.OTHER
    text, shown = unknown_reason(trace, Intervals(idle.start[other], idle.end[other]), idle.launch[other])
    return total(shown) / judging.measure(trace).count if "Look there" in text else 0


SCENARIOS = {  # the recording, what is said of it, a fault, and how much more for each µs of that
    "loading": (loading, loading_ns, 300_000, 1),
    "fetching": (fetching, stalling_ns, 2_000, 1),
    "blocking": (blocking, blocked_ns, 100, 1),
    "idling": (idling, idle_ns, 200, 3),
}


def in_ns(events: list[Event], factor: int = 1_000, later: int = 0) -> Trace:
    return trace_of(*(replace(each, ts=each.ts * factor + later, end=each.end * factor + later) for each in events))


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_fault_adds_its_time_and_nothing_else(name: str) -> None:
    made, said, fault, times = SCENARIOS[name]
    usual, longer = (said(in_ns(made(each))) for each in (fault, 2 * fault))
    assert longer - usual == pytest.approx(1_000 * times * fault, rel=1e-3)
    assert said(in_ns(made(0))) == 0


@pytest.mark.parametrize("name", SCENARIOS)
def test_other_units_moments_and_names_change_nothing(name: str) -> None:
    made, said, fault, _ = SCENARIOS[name]
    events = made(fault)
    usual = said(in_ns(events))
    assert said(in_ns(events, factor=2_000)) == pytest.approx(2 * usual, rel=1e-3)
    assert said(in_ns(events, later=7_654_321_000)) == usual
    other = {"gemm": "void k<3>", "loaded": "a", "aten::unique": "b", "aten::add": "c", "update": "Train"}
    threads = [replace(each.track, tid=99 - each.track.tid, stream=each.track.stream and 99) for each in events]
    renamed = zip(events, threads, strict=True)
    named = [replace(each, track=track, name=other.get(each.name, each.name)) for each, track in renamed]
    assert said(in_ns(named)) == usual


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_same_again_is_as_much_per_step(name: str) -> None:
    """Without steps, what is slow again was not loaded."""
    made, said, fault, _ = SCENARIOS[name]
    usual = said(in_ns(made(fault))) if name != "loading" else 0
    assert said(in_ns(made(fault, 3))) == pytest.approx(usual, rel=1e-3)


@pytest.mark.parametrize("copies", [0, 5, 150])
def test_a_thread_that_fetches_ahead_does_not_pace_the_host(copies: int) -> None:
    assert stalling_ns(in_ns(fetching(2_000, copies=copies))) == stalling_ns(in_ns(fetching(2_000)))


def test_longer_kernels_add_nothing_to_what_blocking_launches_cost() -> None:
    waits = [launch_bound.check(in_ns(blocking(fault))).seen.wait_ns for fault in (50, 100, 2_000)]
    assert waits == [waits[0]] * 3
