"""Host segments against a look at every moment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augment.core.trace import Trace
from augment.facts.host import host_segments as module
from augment.facts.host.host_segments import host_segments
from tables import Event, annotation, call, op, python, trace_of

MAKERS = (op, annotation, python, call)


def named(trace: Trace) -> list[tuple[int, int, str | None]]:
    """Track, moment and innermost slice."""
    result = host_segments(trace)
    tracks = np.repeat(np.arange(len(trace.tracks)), np.diff(result.bounds))
    names = [trace.names_of(np.array([row]))[0] if row >= 0 else None for row in result.row.tolist()]
    return list(zip(tracks.tolist(), result.ts.tolist(), names, strict=True))


def test_a_thread_is_in_the_innermost_of_its_slices() -> None:
    trace = trace_of(
        op("outer", 0, 20), call("cudaLaunchKernel", 5, 8), op("next", 20, 25), op("other", 2, 4, thread=2)
    )
    assert named(trace) == [
        (0, 0, "outer"), (0, 5, "cudaLaunchKernel"), (0, 8, "outer"), (0, 20, "next"), (0, 25, None),
        (1, 2, "other"), (1, 4, None),
    ]  # fmt: skip


def test_of_slices_that_overlap_in_part_the_later_is_the_innermost() -> None:
    assert named(trace_of(op("first", 0, 10), op("second", 5, 15))) == [
        (0, 0, "first"), (0, 5, "second"), (0, 15, None),
    ]  # fmt: skip


def test_slices_that_take_no_time_leave_no_segment() -> None:
    assert named(trace_of(op("one", 0, 10), op("empty", 4, 4), op("late", 12, 12))) == [
        (0, 0, "one"), (0, 4, "one"), (0, 10, None), (0, 12, None),
    ]  # fmt: skip


def test_without_threads_there_are_none() -> None:
    assert len(host_segments(trace_of()).ts) == 0


@st.composite
def slices(draw: st.DrawFn) -> list[Event]:
    """Slices of two threads, nested or not."""
    made = []
    for index in range(draw(st.integers(1, 12))):
        start = draw(st.integers(0, 30))
        maker: Any = draw(st.sampled_from(MAKERS))
        end = start + draw(st.integers(0, 15))
        made.append(maker(f"s{index}", start, end, thread=draw(st.integers(1, 2))))
    return made


@pytest.mark.usefixtures("kernels")
@given(slices())
def test_every_moment_has_the_slice_that_began_last_of_those_that_last(made: list[Event]) -> None:
    trace = trace_of(*made)
    result = host_segments(trace)
    stacks_order = {row: place for place, row in enumerate(module.call_stacks(trace).row.tolist())}
    for track in range(len(trace.tracks)):
        part = result.of(track)
        ts, row = result.ts[part].tolist(), result.row[part].tolist()
        assert ts == sorted(set(ts))
        for moment in range(46):
            end = trace.events.end
            begun = [
                r for r in stacks_order if trace.events.track[r] == track and trace.events.ts[r] <= moment < end[r]
            ]
            expected = max(begun, key=stacks_order.__getitem__, default=-1)
            place = int(np.searchsorted(ts, moment, side="right")) - 1
            assert (row[place] if place >= 0 else -1) == expected
