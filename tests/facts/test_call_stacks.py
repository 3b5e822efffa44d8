"""Call stacks against their definition, by both of their loops."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from augment.core.trace import Category, Track
from augment.facts.host.call_stacks import OUTER_FIRST, call_stacks, crossed_places, crossing_diagnostics
from tables import Event, kernel, trace_of

TIMES = st.integers(0, 12)
SLICES = st.lists(st.tuples(TIMES, TIMES, st.sampled_from(OUTER_FIRST), st.integers(0, 1)), max_size=14)


def host(category: Category, ts: int, end: int, thread: int = 0, name: str = "x") -> Event:
    return Event(category, name, ts, end, Track(0, 1, thread))


def sort_key(event: Event) -> tuple[int, int, int]:
    return event.ts, -event.end, OUTER_FIRST.index(event.category)


@pytest.mark.usefixtures("kernels")
@given(SLICES)
def test_parent_is_the_innermost_that_encloses(drawn: list[tuple[int, int, Category, int]]) -> None:
    events = [host(category, min(a, b), max(a, b), thread) for a, b, category, thread in drawn]
    trace = trace_of(*events, kernel("k", 0, 12))
    stacks = call_stacks(trace)
    assert len(stacks) == len(events)
    table = trace.events
    rows = [
        Event(Category(table.category[row]), "x", table.ts[row], table.ts[row] + table.dur[row],
              trace.tracks[table.track[row]])
        for row in stacks.row.tolist()
    ]  # fmt: skip
    for place, each in enumerate(rows):
        before = [
            other
            for other in range(place)
            if rows[other].track == each.track
            and rows[other].ts <= each.ts < rows[other].end
            and each.end <= rows[other].end
        ]
        # of those that enclose it, the last in the order from outer to inner
        assert stacks.parent[place] == (max(before) if before else -1)
        assert stacks.depth[place] == (stacks.depth[max(before)] + 1 if before else 0)
        if place and rows[place - 1].track == each.track:
            assert sort_key(rows[place - 1]) <= sort_key(each)
    for place in range(len(rows)):  # a slice and all below it stand together
        below = [place]
        for other in range(place + 1, len(rows)):
            below += [other] if stacks.parent[other] in below else []
        assert below == list(range(place, stacks.stop[place]))
    assert sorted(stacks.place_of.tolist()) == sorted([-1, *range(len(events))])


@pytest.mark.usefixtures("kernels")
@given(SLICES)
def test_crossed_is_what_one_that_begins_in_it_outlasts(drawn: list[tuple[int, int, Category, int]]) -> None:
    trace = trace_of(*(host(category, min(a, b), max(a, b), thread) for a, b, category, thread in drawn))
    stacks, events = call_stacks(trace), trace.events
    spans = [(events.track[row], events.ts[row], events.end[row]) for row in stacks.row.tolist()]
    expected = [
        place
        for place, (track, ts, end) in enumerate(spans)
        if any(each == track and begin < end < stop for each, begin, stop in spans[place + 1 :])
    ]
    assert crossed_places(trace).tolist() == expected
    assert [diagnostic.count for diagnostic in crossing_diagnostics(trace)] == ([len(expected)] if expected else [])


def test_no_host_at_all() -> None:
    trace = trace_of(kernel("k", 0, 12))
    assert len(call_stacks(trace)) == 0
    assert crossing_diagnostics(trace) == []
