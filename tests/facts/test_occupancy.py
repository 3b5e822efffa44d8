"""The innermost slice at each moment, against a walk over every moment."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augment.core.trace import Category
from augment.facts.host import host_segments
from tables import Event, op, trace_of

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
    at_once, host_segments.PAIRS_AT_ONCE = host_segments.PAIRS_AT_ONCE, 3 if in_pieces else host_segments.PAIRS_AT_ONCE
    result = host_segments.occupants(trace, [Category.CPU_OP], start, end, np.full(len(asked), thread, np.int32))
    host_segments.PAIRS_AT_ONCE = at_once
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


def test_after_a_crossing_the_one_that_began_last_goes_on() -> None:
    timeline = host_segments.innermost(np.array([0, 1]), np.array([0, 9]), np.array([10, 100]))
    assert [column.tolist() for column in timeline] == [[0, 9], [9, 100], [0, 1]]


@pytest.mark.usefixtures("kernels")
@given(drawn=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 20)), max_size=20))
def test_timelines_of_many_threads(drawn: list[tuple[int, int, int]]) -> None:
    slices = sorted((group, min(a, b), max(a, b)) for group, a, b in drawn)
    group, start, end = (np.array(column, np.int64) for column in (zip(*slices, strict=True) if slices else ([],) * 3))
    line, bounds = host_segments.timelines(np.arange(len(slices)), start, end, group.astype(np.int32), 3)
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
