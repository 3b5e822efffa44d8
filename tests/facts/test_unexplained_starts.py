"""What the critical path takes late starts for: times in µs."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.waits.dependencies import unexplained_starts
from tables import Event, call, kernel, trace_of


def causes(*events: Event) -> dict[str, str]:
    """The work that each late piece of work is taken to wait for, by name. Everything was ready at 100 µs."""
    trace = trace_of(*(replace(event, ts=event.ts * 1000, end=event.end * 1000) for event in events))
    known = np.minimum(gpu_work(trace).ts, 100_000)
    waits = unexplained_starts(trace, known).dependencies
    names = trace.names_of(gpu_work(trace).row)
    return {names[late]: names[cause] for cause, late in zip(waits.from_work, waits.to_work, strict=True)}


def launched(name: str, at: int, ts: int, end: int, stream: int, correlation: int) -> list[Event]:
    return [
        call("cudaLaunchKernel", at, at + 5, correlation=correlation),
        kernel(name, ts, end, stream=stream, correlation=correlation),
    ]


def test_a_late_start_follows_the_work_that_ended_just_before() -> None:
    assert causes(*launched("reduce", 10, 90, 900, 20, 1), *launched("b", 30, 903, 990, 7, 2)) == {"b": "reduce"}


def test_work_launched_later_counts_only_without_another() -> None:
    """It may have occupied the device."""
    late = launched("b", 30, 903, 990, 7, 2), launched("reduce", 40, 90, 900, 20, 1)
    assert causes(*late[0], *late[1]) == {"b": "reduce"}
    assert causes(*late[0], *late[1], *launched("gather", 20, 90, 880, 21, 3)) == {"b": "gather"}


def test_of_two_ends_the_work_that_was_launched_first_counts() -> None:
    later = launched("reduce", 40, 90, 900, 20, 1)
    ending = launched("gather", 20, 90, 905, 21, 3)  # ends after the start, within the error of clocks
    assert causes(*launched("b", 30, 903, 990, 7, 2), *later, *ending) == {"b": "gather"}


def test_work_of_unknown_launch_may_be_waited_for() -> None:
    assert causes(kernel("reduce", 90, 900, stream=20), *launched("b", 30, 903, 990, 7, 2)) == {"b": "reduce"}
