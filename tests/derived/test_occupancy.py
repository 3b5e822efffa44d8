"""The innermost slice at each moment, against a walk over every moment."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from augment.derived import occupancy
from augment.trace import Category
from tables import Event, op, trace_of

END = 40


@st.composite
def nested(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Distinct intervals that nest: each cut is kept only if it crosses none before it."""
    kept: list[tuple[int, int]] = []
    for low, high in draw(st.lists(st.tuples(st.integers(0, END), st.integers(0, END)), max_size=25, unique=True)):
        one = (min(low, high), max(low, high))
        crosses = any(a < one[0] < b < one[1] or one[0] < a < one[1] < b for a, b in kept)
        if not crosses and one not in kept:
            kept.append(one)
    return kept


@given(nested(), st.lists(st.tuples(st.integers(0, END), st.integers(1, 20)), min_size=1, max_size=8), st.booleans())
def test_occupants_are_those_of_each_moment(
    slices: list[tuple[int, int]], asked: list[tuple[int, int]], in_pieces: bool
) -> None:
    events: list[Event] = [op("abc"[index % 3], start, end) for index, (start, end) in enumerate(slices)]
    trace = trace_of(op("elsewhere", 0, END, thread=2), *events, op("a", END + 50, END + 51))
    thread = next(index for index, track in enumerate(trace.tracks) if track.tid == 1)
    start = np.array([ts for ts, _ in asked], np.int64)
    end = start + np.array([dur for _, dur in asked], np.int64)
    at_once, occupancy.PAIRS_AT_ONCE = occupancy.PAIRS_AT_ONCE, 3 if in_pieces else occupancy.PAIRS_AT_ONCE
    found = occupancy.occupants(trace, [Category.CPU_OP], start, end, np.full(len(asked), thread, np.int32))
    occupancy.PAIRS_AT_ONCE = at_once
    for index, (low, high) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        held = Counter[str]()
        stretches = Counter[tuple[str, int, int]]()  # of one slice without a break: its name, its start, when it began
        before, began = None, low
        for moment in range(low, high):
            around = [(one.end - one.ts, one.name, one.ts) for one in events if one.ts <= moment < one.end]
            inner = min(around, default=None)
            began = moment if inner != before else began
            before = inner
            if inner:
                held[inner[1]] += 1
                stretches[inner[1], inner[2], began] += 1
        if not held:
            assert (found.name[index], found.ns[index], found.row[index]) == (-1, -1, -1)
        else:
            assert found.ns[index] == max(held.values())
            name = trace.strings[found.name[index]]
            assert held[name] == found.ns[index]
            longest = max(count for (whose, _, _), count in stretches.items() if whose == name)
            starts = [start for (whose, start, _), count in stretches.items() if (whose, count) == (name, longest)]
            assert trace.names_of(found.row[[index]]) == [name]
            assert trace.events.ts[found.row[index]] == starts[0]


def test_slices_that_cross_lose_no_time() -> None:
    timeline = occupancy.innermost(np.array([0, 1]), np.array([0, 5]), np.array([10, 15]))
    assert int((timeline.end - timeline.start).sum()) == 15
