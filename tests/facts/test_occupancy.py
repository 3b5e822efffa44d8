"""What a thread is in at each moment, and what took most of given intervals: by hand, and against the definition."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augment.core.trace import Category, Trace
from augment.facts.host import occupancy
from augment.facts.host.call_stacks import call_stacks
from augment.facts.host.occupancy import host_segments
from tables import Event, annotation, call, op, python, trace_of

MAKERS = (op, annotation, python, call)


def named(trace: Trace) -> list[tuple[int, int, str | None]]:
    """Track, moment and innermost slice."""
    result = host_segments(trace)
    tracks = np.repeat(np.arange(len(trace.tracks)), np.diff(result.bounds))
    names = [trace.names_of(np.array([row]))[0] if row >= 0 else None for row in result.row.tolist()]
    return list(zip(tracks.tolist(), result.ts.tolist(), names, strict=True))


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
    stacks_order = {row: place for place, row in enumerate(call_stacks(trace).row.tolist())}
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


END = 40


SLICES = st.lists(
    st.tuples(st.integers(0, END), st.integers(0, END)).map(lambda ends: (min(ends), max(ends))),
    max_size=25,
    unique=True,
)  #: whether they nest or cross


@given(SLICES, st.lists(st.tuples(st.integers(0, END), st.integers(1, 20)), min_size=1, max_size=8), st.booleans())
def test_occupants_are_those_of_each_moment(
    slices: list[tuple[int, int]], asked: list[tuple[int, int]], in_pieces: bool
) -> None:
    events: list[Event] = [op("abc"[index % 3], start, end) for index, (start, end) in enumerate(slices)]
    trace = trace_of(op("elsewhere", 0, END, thread=2), *events, op("a", END + 50, END + 51))
    thread = next(index for index, track in enumerate(trace.tracks) if track.tid == 1)
    start = np.array([ts for ts, _ in asked], np.int64)
    end = start + np.array([dur for _, dur in asked], np.int64)
    at_once, occupancy.PAIRS_AT_ONCE = occupancy.PAIRS_AT_ONCE, 3 if in_pieces else occupancy.PAIRS_AT_ONCE
    result = occupancy.occupants(trace, [Category.CPU_OP], start, end, np.full(len(asked), thread, np.int32))
    occupancy.PAIRS_AT_ONCE = at_once
    for index, (low, high) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        held = Counter[str]()
        stretches = Counter[tuple[str, int, int]]()  # of one slice without a break: its name, its start, when it began
        before, began = None, low
        for moment in range(low, high):
            around = [(-each.ts, each.end, each.name, each.ts) for each in events if each.ts <= moment < each.end]
            inner = min(around, default=None)  # that began last, of those the shortest
            began = moment if inner != before else began
            before = inner
            if inner:
                held[inner[2]] += 1
                stretches[inner[2], inner[3], began] += 1
        if not held:
            assert (result.name[index], result.ns[index], result.row[index]) == (-1, -1, -1)
        else:
            assert result.ns[index] == max(held.values())
            name = trace.strings[result.name[index]]
            assert held[name] == result.ns[index]
            longest = max(count for (whose, _, _), count in stretches.items() if whose == name)
            starts = [start for (whose, start, _), count in stretches.items() if (whose, count) == (name, longest)]
            assert trace.names_of(result.row[[index]]) == [name]
            assert trace.events.ts[result.row[index]] == starts[0]


@pytest.mark.usefixtures("kernels")
@given(drawn=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 20)), max_size=20))
def test_timelines_of_many_threads(drawn: list[tuple[int, int, int]]) -> None:
    slices = sorted((group, min(a, b), max(a, b)) for group, a, b in drawn)
    group, start, end = (np.array(column, np.int64) for column in (zip(*slices, strict=True) if slices else ([],) * 3))
    line, bounds = occupancy.timelines(np.arange(len(slices)), start, end, group.astype(np.int32), 3)
    for thread in range(3):
        part = slice(*bounds[thread : thread + 2])
        pieces = list(zip(*(column[part].tolist() for column in line), strict=True))
        for moment in range(21):
            open_ = [
                (each[1], -each[2], row)
                for row, each in enumerate(slices)
                if each[0] == thread and each[1] <= moment < each[2]
            ]
            rows = [row for begin, stop, row in pieces if begin <= moment < stop]
            assert rows == ([max(open_)[2]] if open_ else [])
