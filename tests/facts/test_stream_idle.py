"""What a stream's idle time consists of while other streams work: by hand, and against the definition."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augment.core.trace import Trace
from augment.facts.waits.gap_causes import device_idle, stream_gaps
from augment.facts.waits.stream_idle import CAUSES, OTHER_STREAM_BUSY, SHARE, StreamIdle, stream_idle
from tables import Event, call, kernel, trace_of

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
        call("cudaLaunchKernel", 450, 455, correlation=1),
        kernel("b", 460, 500, correlation=1),
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
        call("cudaLaunchKernel", 10_000, 10_005, correlation=2),
        kernel("b", 10_010, 10_100, correlation=2),
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
    for number, (stream, ts, dur, launched) in enumerate(drawn):
        if launched:
            yield call("cudaLaunchKernel", max(ts - 7, 0), max(ts - 5, 1), correlation=number)
        yield kernel("k", ts, ts + dur, device=stream // 2, stream=stream, correlation=number if launched else -1)


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
