"""What a rank spent until some moment, and which collectives it had to wait for."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augment import AugmentedTrace, Findings, Skipped, Trace, read
from augment.arrays import Int64s
from augment.core import CounterTrack, Ends, Flows, InstantTrack, SliceTrack, Texts, Window
from augment.facts.collectives.collective_kernels import collectives
from augment.facts.collectives.rank_progress import follows, held_up, spent_before
from augment.facts.source.several_ranks import on_clock, trace_on_clock
from traces import Event, copy, kernel, launch, write_trace
from writer_traces import chrome_trace

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"


def trace_of(folder: Path, *events: Event) -> Trace:
    return read(str(write_trace(folder / "trace.json", *events)))


def collective(ts: float, dur: float, correlation: int = 1, stream: int = 9) -> Event:
    return kernel(NCCL, ts, dur, correlation=correlation, stream=stream)


def test_time_is_spent_by_type(tmp_path: Path) -> None:
    trace = trace_of(
        tmp_path,
        kernel("gemm", 10, 10),
        collective(15, 15),
        copy(ts=25, dur=10, stream=11),
        kernel("gemm", 50, 10, device=1),
        kernel("gemm", 55, 10, device=0),
    )
    moments = np.array([0, 12, 28, 33, 57, 90]) * 1000
    spent = spent_before(trace, moments)
    assert (spent.compute_ns // 1000).tolist() == [0, 2, 10, 10, 17, 25]
    assert (spent.communication_ns // 1000).tolist() == [0, 0, 8, 10, 10, 10]
    assert (spent.memory_ns // 1000).tolist() == [0, 0, 0, 3, 5, 5]


def test_a_trace_without_gpu_work_spends_nothing(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, launch())
    assert [column.tolist() for column in spent_before(trace, np.array([0, 10**9]))] == [[0, 0]] * 3
    assert held_up(trace).tolist() == follows(trace).tolist() == []


@pytest.mark.parametrize("dur", [0, -1])
def test_collectives_that_take_no_time(tmp_path: Path, dur: float) -> None:
    trace = trace_of(tmp_path, launch(), collective(20, dur), kernel("gemm", 10, 5, device=1))
    assert held_up(trace).tolist() == [True]
    assert [column.tolist() for column in spent_before(trace, np.array([30_000]))] == [[5000], [0], [0]]


@pytest.mark.parametrize(("others", "held"), [
    ([], True),  # nothing comes after
    ([launch(ts=5, correlation=2), kernel(ts=45, correlation=2)], True),  # queued behind it
    ([launch(ts=50, correlation=2), kernel(ts=60, correlation=2)], False),  # launched later: the host was late
    ([launch("cudaDeviceSynchronize", 30, 12), launch(ts=50, correlation=2), kernel(ts=60, correlation=2)], True),
    ([launch("cudaDeviceSynchronize", 10, 12), launch(ts=50, correlation=2), kernel(ts=60, correlation=2)], False),
    ([kernel(ts=30, dur=30, correlation=2)], False),  # computed all the while
    ([kernel(ts=30, dur=5, correlation=2)], True),
    ([kernel(ts=50, correlation=3)], True),  # how it was launched is not known
    ([launch(ts=5, correlation=2), kernel(ts=70, correlation=2)], False),  # it waited for something else
    ([launch(ts=5, correlation=2), copy(ts=30, dur=40), kernel(ts=71, correlation=2)], False),  # as for a copy
    ([launch("cudaDeviceSynchronize", 30, 80), launch(ts=115, correlation=2), kernel(ts=120, correlation=2)], False),
    ([kernel(ts=30, dur=30, correlation=2, device=1)], True),  # on another device
    # giving memory back waits for the device, and then takes its own time
    ([launch("cudaFree", 10, 40), launch(ts=60, correlation=2), kernel(ts=70, correlation=2)], True),
    ([launch("cudaFree", 35, 40), launch(ts=80, correlation=2), kernel(ts=90, correlation=2)], False),
    ([launch("cudaFreeAsync", 10, 40), launch(ts=60, correlation=2), kernel(ts=70, correlation=2)], False),
])  # fmt: skip
def test_what_holds_a_rank_up(tmp_path: Path, others: list[Event], held: bool) -> None:
    assert held_up(trace_of(tmp_path, launch(ts=1, dur=2), collective(20, 20), *others)).tolist() == [held]


def test_what_was_next_on_the_stream_had_to_wait(tmp_path: Path) -> None:
    trace = trace_of(
        tmp_path,
        *(launch(ts=number, dur=1, correlation=number) for number in range(1, 6)),
        launch(ts=141, dur=1, correlation=6),
        collective(20, 20, 1),
        collective(41, 20, 2),
        collective(82, 3, 3),  # a pause of 21 µs: it had to wait for something else
        collective(86, 10, 4, stream=10),
        collective(97, 43, 5, stream=10),
        collective(142, 10, 6, stream=10),  # launched when the one before was done
    )
    assert len(collectives(trace)) == 6
    assert follows(trace).tolist() == [-1, 0, -1, -1, 3, -1]


# A trace on another clock: every time is moved exactly, and what lies within lies within.
EPOCH_US = 1_759_276_800_000_000


def slow(ts: Int64s) -> Int64s:
    """A clock that loses a nanosecond in ten thousand, and is ten seconds ahead."""
    return ts + 10**10 - (ts - EPOCH_US * 1000) // 10_000


def spans(pairs: list[tuple[int, int]]) -> list[dict[str, object]]:
    """Slices of so many nanoseconds after the epoch, and of such durations."""
    return [{"ph": "X", "name": "s", "pid": 4242, "tid": 4243, "ts": EPOCH_US + ts, "dur": dur} for ts, dur in pairs]


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(-5, 10**6)), max_size=30))
def test_begins_and_ends_are_moved_each_for_itself(pairs: list[tuple[int, int]]) -> None:
    before = chrome_trace(spans(pairs))
    after = trace_on_clock(before, slow)
    assert np.array_equal(after.events.ts, slow(before.events.ts))
    lasting = before.events.dur > 0
    assert np.array_equal(after.events.end[lasting], slow(before.events.end[lasting]))
    assert np.array_equal(after.events.dur[~lasting], before.events.dur[~lasting])
    assert bool(np.all(np.diff(after.events.ts) >= 0))
    assert bool(np.all(after.events.dur[lasting] >= 0))


def test_annotations_and_the_window_go_along() -> None:
    trace = chrome_trace(spans([(0, 10), (50, 10)]))
    ts = trace.events.ts.copy()
    names = Texts(np.zeros(2, np.int32), ["x"])
    track = SliceTrack("a", "t", 0, ts, np.array([20_000, 5]), names)
    counter = CounterTrack("a", "c", 0, np.array([ts[0], ts[0] + 9_999, ts[0] + 10_000]), np.array([1, 2, 3]), "")
    flows = Flows("a", "f", Ends(np.array([0]), track), Ends(np.array([1])))
    findings = Findings([], [track, counter, InstantTrack("a", "i", 0, ts, names), flows])
    outcomes = {"a": findings, "b": Skipped("why")}
    moved = on_clock(AugmentedTrace(trace, outcomes, Window(1, 2, int(ts[0]))), slow)
    slices, points, instants, arrows = moved.annotations
    assert np.array_equal(slices.ts, slow(ts))
    assert np.array_equal(slices.ts + slices.dur, slow(ts + track.dur))
    assert isinstance(instants, InstantTrack)
    assert np.array_equal(instants.ts, slow(ts))
    assert arrows.out.track is slices
    assert arrows.into == flows.into
    # the last two points come to lie on one moment, of which the later stands
    assert points.ts.tolist() == [int(slow(ts)[0]), int(slow(ts)[0]) + 9_999]
    assert points.values.tolist() == [1, 3]
    assert moved.outcomes["b"] == Skipped("why")
    assert moved.window == msgspec.structs.replace(Window(1, 2, 0), start_ns=int(slow(ts)[0]))
