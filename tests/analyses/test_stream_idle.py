"""What a stream waits for while others work, and what its idle time consists of: by hand, and against definitions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from augment.analyses.idle_time_breakdown import (
    CAUSES,
    KNOWN_BY,
    OTHER_STREAM_BUSY,
    SHARE,
    StreamIdle,
    device_waits,
    stream_idle,
)
from augment.core.trace import Trace
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.waits.gap_causes import device_idle, stream_gaps
from tables import Event, call, kernel, launched, launched_kernel, sync, trace_of

DELAY = 30


def found_in(trace: Trace) -> list[StreamIdle]:
    return stream_idle(trace, device_idle(trace, DELAY), DELAY)


def pieces_of(stream_idle: StreamIdle) -> list[tuple[int, int, str]]:
    pieces = stream_idle.pieces
    return [
        (start, end, CAUSES[cause])
        for start, end, cause in zip(pieces.start.tolist(), pieces.end.tolist(), pieces.cause.tolist(), strict=True)
    ]


def test_host_wait_of_a_stream_is_that_of_the_device() -> None:
    trace = trace_of(
        kernel("a", 0, 100),
        kernel("all_reduce", 0, 300, stream=20),
        *launched_kernel("b", (450, 455), (460, 500), correlation=1),
    )
    main, _ = found_in(trace)
    assert pieces_of(main) == [(100, 300, "other_stream_busy"), (300, 460, "host_wait")]
    assert main.parts[:, 0].tolist() == [160, 0, 0, 200]
    assert main.pieces.evidence["hta_category"].codes.tolist() == [0, -1]  # type: ignore[union-attr]


def test_short_pauses_of_the_device_are_counted_where_another_stream_is_at_work() -> None:
    busy = [kernel("k", ts, ts + 9, stream=20) for ts in range(100, 1000, 10)]
    main, side = found_in(trace_of(kernel("a", 0, 100), *busy, kernel("b", 1000, 1100)))
    assert pieces_of(main) == [(100, 1000, "other_stream_busy")]
    assert main.parts[:, 0].tolist() == [0, 0, 90, 810]
    assert main.pieces.evidence["device_idle_ns"].tolist() == [90]  # type: ignore[union-attr]
    assert {cause for *_, cause in pieces_of(side)} == {"other"}  # their launches are not known


def test_a_copy_within_a_long_stall_does_not_hide_it() -> None:
    trace = trace_of(
        kernel("a", 0, 100),
        call("cudaMemcpyAsync", 9000, 9005, correlation=1),
        kernel("copy", 9010, 9020, stream=20, correlation=1),
        *launched_kernel("b", (10_000, 10_005), (10_010, 10_100), correlation=2),
        kernel("copy", 10_020, 10_030, stream=20),
    )
    main, _ = found_in(trace)
    assert pieces_of(main) == [(100, 9010, "host_wait"), (9010, 9020, "other_stream_busy"), (9020, 10_010, "host_wait")]
    correlation = main.pieces.evidence["correlation"]
    assert correlation.tolist() == [1, 2, 2]  # type: ignore[union-attr]
    assert main.pieces.row.tolist()[:2] == [-1, -1]  # another stream's work ended the first pause: no arrow from here


WORK = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(0, 9), st.booleans()), min_size=1, max_size=30
)


def drawn_work(drawn: list[tuple[int, int, int, bool]]) -> Iterator[Event]:
    for number, (stream, ts, dur, is_launched) in enumerate(drawn):
        if is_launched:
            yield call("cudaLaunchKernel", max(ts - 7, 0), max(ts - 5, 1), correlation=number)
        yield kernel("k", ts, ts + dur, device=stream // 2, stream=stream, correlation=number if is_launched else -1)


@given(WORK)
def test_the_parts_add_up_and_say_what_ran(drawn: list[tuple[int, int, int, bool]]) -> None:
    """Nanosecond by nanosecond."""
    trace = trace_of(*drawn_work(drawn))
    works = {(stream // 2, moment): set() for stream in range(4) for moment in range(80)}
    for stream, ts, dur, _ in drawn:
        for moment in range(ts, ts + dur):
            works[stream // 2, moment].add(stream)
    for each, gaps, stream in zip(
        found_in(trace), stream_gaps(trace), sorted({stream for stream, *_ in drawn}), strict=True
    ):
        sizes = gaps.end - gaps.start
        assert (each.parts >= 0).all()
        assert (each.parts.sum(axis=0) == sizes).all()
        for index in range(len(gaps)):
            other = sum(bool(works[stream // 2, moment]) for moment in range(gaps.start[index], gaps.end[index]))
            assert each.parts[OTHER_STREAM_BUSY, index] == other
        tiled = [(start, end) for start, end, _ in pieces_of(each)]
        assert sum(end - start for start, end in tiled) == sizes.sum()
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(tiled))
        for start, end, cause in pieces_of(each):
            busy = sum(bool(works[stream // 2, moment]) for moment in range(start, end))
            if cause != "other_stream_busy":
                assert busy == 0
            elif not busy:  # only work of no duration lies at its edge
                assert any(SHARE * (end - start) < size for size in sizes.tolist())


@pytest.mark.parametrize("streams", [2, 50])
def test_pieces_are_bounded_by_gaps_and_not_by_streams_times_gaps(streams: int) -> None:
    """A stream that works all the time, with pauses; and others that idle throughout, or work in turn."""
    busy = [kernel("k", ts, ts + 9, stream=0) for ts in range(0, 20_000, 10)]
    idle = [kernel("k", ts, ts + 5, stream=number) for number in range(1, streams) for ts in (0, 19_990)]
    result = found_in(trace_of(*busy, *idle))
    assert sum(len(each.pieces) for each in result[1:]) <= (2 * SHARE + 1) * (streams - 1)
    assert all(int(each.parts.sum()) == int(np.sum(each.gaps.end - each.gaps.start)) for each in result)


def us(*events: Event) -> Trace:
    return trace_of(*(replace(event, ts=event.ts * 1000, end=event.end * 1000) for event in events))


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


SHORT = [each for i in range(100) for each in launched("k", 110 + i, 1100 + 9 * i, 1108 + 9 * i, 20, 10 + i)]
PREFETCH = launched("next", 115, 2000, 2500, 20, 5)


@pytest.mark.parametrize(
    ("events", "cause"),
    [
        ([*ALL_REDUCE, *AFTER], "all_reduce"),
        ([*launched("all_reduce", 130, 1100, 2000, 20, 2), *AFTER], ""),  # launched later: nothing waits for that
        ([*ALL_REDUCE, kernel("b", 2003, 2100)], ""),  # its launch is not known
        ([kernel("all_reduce", 1100, 2000, stream=20), *AFTER], ""),
        ([*ALL_REDUCE, *launched("b", 1990, 2003, 2100, 7, 3)], ""),  # a start soon after the launch needs no reason
        ([*ALL_REDUCE, call("cudaGraphLaunch", 1200, 1990, correlation=3), kernel("b", 2003, 2100, correlation=3)], ""),
        ([*ALL_REDUCE, *launched("b", 120, 2031, 2100, 7, 3)], ""),  # it ended long before
        ([*launched("all_reduce", 110, 1100, 1117, 20, 2), *launched("b", 120, 1140, 2100, 7, 3)], ""),  # most after it
        ([*ALL_REDUCE, *launched("b", 120, 1998, 2100, 7, 3)], "all_reduce"),  # clocks may differ by two microseconds
        ([*ALL_REDUCE, *launched("b", 120, 1997, 2100, 7, 3)], ""),
        ([*SHORT, *launched("b", 300, 1600, 1700, 7, 3)], ""),  # of short kernels, one has always ended just before
        ([*SHORT, *launched("b", 300, 2001, 2100, 7, 3)], "k"),  # the last that was launched in time tells
        ([*ALL_REDUCE, *launched("copy", 111, 1100, 1990, 21, 4), *AFTER], ""),  # two streams: unclear
        ([*ALL_REDUCE, *PREFETCH, *AFTER], "all_reduce"),  # not the last launched, but ran far longer than the delay
        ([*launched("long", 108, 1100, 1980, 20, 6), *launched("all_reduce", 110, 1980, 2000, 20, 2), *PREFETCH,
          *AFTER], ""),
    ],
)  # fmt: skip
def test_work_waits_for_the_last_launched_of_another_stream_that_ended_just_before(
    events: list[Event], cause: str
) -> None:
    assert waits_in(us(*BEFORE, *events)) == ({"b": (cause, "ended just before")} if cause else {})


@pytest.mark.parametrize(
    ("recorded_at", "ended", "cause"),
    [(106, 1100, "one"), (112, 1100, "two"), (106, 1050, "")],  # fulfilled before, it held nothing up
)
def test_a_recorded_event_says_it(recorded_at: int, ended: int, cause: str) -> None:
    """Also of a short wait, and where other work has ended since."""
    trace = us(
        *launched("one", 100, 1000, ended, 20, 1),
        call("cudaEventRecord", recorded_at, recorded_at, correlation=8),
        *(launched("two", 110, 1100, 1120, 20, 2) if cause else ()),
        *launched("a", 105, 1000, 1090, 7, 5),
        call("cudaStreamWaitEvent", 115, 115, correlation=9),
        sync(
            "Stream Wait Event", 115, 115, stream=7, correlation=9,
            wait_on_stream=20, wait_on_cuda_event_record_corr_id=8,
        ),
        *launched("b", 120, 1122, 1200, 7, 6),
    )  # fmt: skip
    assert waits_in(trace) == ({"b": (cause, "recorded event")} if cause else {})


def test_the_branches_of_a_graph() -> None:
    """One call launched all: its work may wait for itself, but which is the last launched says nothing."""
    graph = [call("cudaGraphLaunch", 100, 110, correlation=1), kernel("a", 1000, 1100, correlation=1)]
    graph += [kernel("branch", 1100, 1500, stream=20, correlation=1), kernel("join", 1502, 1600, correlation=1)]
    assert waits_in(us(*graph)) == {"join": ("branch", "ended just before")}
    tail = kernel("tail", 1600, 1700, stream=20, correlation=1)
    short = [kernel("short", 1100, 1110, stream=20, correlation=1), kernel("join", 1139, 1200, correlation=1)]
    assert waits_in(us(*graph[:2], *short, tail)) == {}
