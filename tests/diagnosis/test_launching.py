"""A host that fetches a batch in many short operators is slow in loading, not in launching: times in µs."""

from __future__ import annotations

from msgspec.structs import replace

from augment.diagnosis.rule import Found
from augment.diagnosis.rules import data_loading, launch_bound
from augment.trace import Trace
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
