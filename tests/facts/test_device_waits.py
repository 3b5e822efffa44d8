"""What work waited for on its device: times in µs here, as the rules speak of them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from augment.core.trace import Trace
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.waits.stream_idle import KNOWN_BY, device_waits
from tables import Event, call, kernel, sync, trace_of


def us(*events: Event) -> Trace:
    return trace_of(*(replace(event, ts=event.ts * 1000, end=event.end * 1000) for event in events))


def launched(name: str, at: int, ts: int, end: int, stream: int, correlation: int) -> list[Event]:
    return [
        call("cudaLaunchKernel", at, at + 5, correlation=correlation),
        kernel(name, ts, end, stream=stream, correlation=correlation),
    ]


def waits_in(trace: Trace) -> dict[str, tuple[str, str]]:
    """What each piece of work waited for, by name, and how it is known."""
    work, waits = gpu_work(trace), device_waits(trace)
    name = trace.names_of(work.row)
    return {
        name[place]: (name[cause], KNOWN_BY[waits.known_by[place]])
        for place, cause in enumerate(waits.cause.tolist())
        if cause >= 0
    }


BEFORE = launched("a", 100, 1000, 1100, 7, 1)
ALL_REDUCE = launched("all_reduce", 110, 1100, 2000, 20, 2)
AFTER = launched("b", 120, 2003, 2100, 7, 3)


def test_work_that_starts_when_the_last_launched_of_another_stream_has_ended() -> None:
    assert waits_in(us(*BEFORE, *ALL_REDUCE, *AFTER)) == {"b": ("all_reduce", "ended just before")}


def test_nothing_waits_for_work_that_was_launched_later() -> None:
    later = launched("all_reduce", 130, 1100, 2000, 20, 2)
    assert waits_in(us(*BEFORE, *later, *AFTER)) == {}


def test_nothing_is_inferred_of_work_whose_launch_is_not_known() -> None:
    assert waits_in(us(*BEFORE, *ALL_REDUCE, kernel("b", 2003, 2100))) == {}
    assert waits_in(us(*BEFORE, kernel("all_reduce", 1100, 2000, stream=20), *AFTER)) == {}


def test_a_start_soon_after_the_launch_needs_no_reason() -> None:
    late = launched("b", 1990, 2003, 2100, 7, 3)
    assert waits_in(us(*BEFORE, *ALL_REDUCE, *late)) == {}
    slow = [call("cudaGraphLaunch", 1200, 1990, correlation=3), kernel("b", 2003, 2100, correlation=3)]
    assert waits_in(us(*BEFORE, *ALL_REDUCE, *slow)) == {}


def test_what_ended_long_before_says_nothing() -> None:
    assert waits_in(us(*BEFORE, *ALL_REDUCE, *launched("b", 120, 2031, 2100, 7, 3))) == {}
    short = launched("all_reduce", 110, 1100, 1117, 20, 2)  # most of the wait comes after it
    assert waits_in(us(*BEFORE, *short, *launched("b", 120, 1140, 2100, 7, 3))) == {}


def test_the_clocks_of_a_device_may_differ_by_two_microseconds() -> None:
    assert waits_in(us(*BEFORE, *ALL_REDUCE, *launched("b", 120, 1998, 2100, 7, 3))) != {}
    assert waits_in(us(*BEFORE, *ALL_REDUCE, *launched("b", 120, 1997, 2100, 7, 3))) == {}


def test_short_work_that_ends_all_the_time_says_nothing() -> None:
    """Of a stream of short kernels one has always ended just before; but the last that was launched in time tells."""
    short = [launched("k", 110 + i, 1100 + 9 * i, 1108 + 9 * i, 20, 10 + i) for i in range(100)]
    busy = [event for each in short for event in each]
    assert waits_in(us(*BEFORE, *busy, *launched("b", 300, 1600, 1700, 7, 3))) == {}
    assert waits_in(us(*BEFORE, *busy, *launched("b", 300, 2001, 2100, 7, 3))) == {"b": ("k", "ended just before")}


def test_work_of_two_streams_that_ended_just_before_is_unclear() -> None:
    third = launched("copy", 111, 1100, 1990, 21, 4)
    assert waits_in(us(*BEFORE, *ALL_REDUCE, *third, *AFTER)) == {}


def test_work_launched_before_the_last_counts_if_it_ran_far_longer_than_the_delay() -> None:
    prefetch = launched("next", 115, 2000, 2500, 20, 5)
    assert waits_in(us(*BEFORE, *ALL_REDUCE, *prefetch, *AFTER)) == {"b": ("all_reduce", "ended just before")}
    short = [*launched("long", 108, 1100, 1980, 20, 6), *launched("all_reduce", 110, 1980, 2000, 20, 2)]
    assert waits_in(us(*BEFORE, *short, *prefetch, *AFTER)) == {}


@pytest.mark.parametrize(("recorded_at", "cause"), [(106, "one"), (112, "two")])
def test_a_recorded_event_says_it(recorded_at: int, cause: str) -> None:
    """Also of a short wait, and where other work has ended since."""
    trace = us(
        *launched("one", 100, 1000, 1100, 20, 1),
        call("cudaEventRecord", recorded_at, recorded_at, correlation=8),
        *launched("two", 110, 1100, 1120, 20, 2),
        *launched("a", 105, 1000, 1090, 7, 5),
        call("cudaStreamWaitEvent", 115, 115, correlation=9),
        sync(
            "Stream Wait Event", 115, 115, stream=7, correlation=9,
            wait_on_stream=20, wait_on_cuda_event_record_corr_id=8,
        ),
        *launched("b", 120, 1122, 1200, 7, 6),
    )  # fmt: skip
    assert waits_in(trace) == {"b": (cause, "recorded event")}


def test_an_event_that_was_fulfilled_before_held_nothing_up() -> None:
    trace = us(
        *launched("one", 100, 1000, 1050, 20, 1),
        call("cudaEventRecord", 106, 106, correlation=8),
        *launched("a", 105, 1000, 1090, 7, 5),
        call("cudaStreamWaitEvent", 115, 115, correlation=9),
        sync(
            "Stream Wait Event", 115, 115, stream=7, correlation=9,
            wait_on_stream=20, wait_on_cuda_event_record_corr_id=8,
        ),
        *launched("b", 120, 1122, 1200, 7, 6),
    )  # fmt: skip
    assert waits_in(trace) == {}


def test_the_branches_of_a_graph() -> None:
    """One call launched all: its work may wait for itself, but which is the last launched says nothing."""
    graph = [
        call("cudaGraphLaunch", 100, 110, correlation=1),
        kernel("a", 1000, 1100, correlation=1),
        kernel("branch", 1100, 1500, stream=20, correlation=1),
        kernel("join", 1502, 1600, correlation=1),
    ]
    assert waits_in(us(*graph)) == {"join": ("branch", "ended just before")}
    tail = kernel("tail", 1600, 1700, stream=20, correlation=1)
    short = [kernel("short", 1100, 1110, stream=20, correlation=1), kernel("join", 1139, 1200, correlation=1)]
    assert waits_in(us(*graph[:2], *short, tail)) == {}
