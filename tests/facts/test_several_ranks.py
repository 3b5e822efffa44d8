"""A trace on another clock: every time is moved exactly, and what lies within lies within."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from augment.arrays.types import Int64s
from augment.core.annotations import CounterTrack, Ends, Flows, InstantTrack, SliceTrack, Texts
from augment.core.findings import AugmentedTrace, Findings, Skipped, Window
from augment.facts.source.several_ranks import on_clock, trace_on_clock
from writer_traces import chrome_trace

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
