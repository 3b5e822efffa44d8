"""The call trees of threads, and what encloses what: against the definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augment.core.trace import LAUNCHES, Category, Trace, Track
from augment.facts.host import call_stacks
from tables import Event, call, kernel, op, trace_of

pytestmark = pytest.mark.usefixtures("kernels")

TIMES = st.integers(0, 12)
SLICES = st.lists(st.tuples(TIMES, TIMES, st.sampled_from(call_stacks.OUTER_FIRST), st.integers(0, 1)), max_size=14)


def host(category: Category, ts: int, end: int, thread: int = 0, name: str = "x") -> Event:
    return Event(category, name, ts, end, Track(0, 1, thread))


def sort_key(event: Event) -> tuple[int, int, int]:
    return event.ts, -event.end, call_stacks.OUTER_FIRST.index(event.category)


@given(SLICES)
def test_parent_is_the_innermost_that_encloses(drawn: list[tuple[int, int, Category, int]]) -> None:
    events = [host(category, min(a, b), max(a, b), thread) for a, b, category, thread in drawn]
    trace = trace_of(*events, kernel("k", 0, 12))
    stacks = call_stacks.call_stacks(trace)
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


@given(SLICES)
def test_crossed_is_what_one_that_begins_in_it_outlasts(drawn: list[tuple[int, int, Category, int]]) -> None:
    trace = trace_of(*(host(category, min(a, b), max(a, b), thread) for a, b, category, thread in drawn))
    stacks, events = call_stacks.call_stacks(trace), trace.events
    spans = [(events.track[row], events.ts[row], events.end[row]) for row in stacks.row.tolist()]
    expected = [
        place
        for place, (track, ts, end) in enumerate(spans)
        if any(each == track and begin < end < stop for each, begin, stop in spans[place + 1 :])
    ]
    assert call_stacks.crossed_places(trace).tolist() == expected
    assert [each.count for each in call_stacks.crossing_diagnostics(trace)] == ([len(expected)] if expected else [])


def test_no_host_at_all() -> None:
    trace = trace_of(kernel("k", 0, 12))
    assert len(call_stacks.call_stacks(trace)) == 0
    assert call_stacks.crossing_diagnostics(trace) == []
    assert call_stacks.innermost(trace, np.array([0]), [Category.CPU_OP]).tolist() == [-1]
    assert call_stacks.outermost(trace, np.array([0]), [Category.CPU_OP]).tolist() == [-1]


def drawn_trace(drawn: list[tuple[int, int, Category, int]]) -> Trace:
    events = [host(category, min(a, b), max(a, b), thread, "ab"[a % 2]) for a, b, category, thread in drawn]
    return trace_of(*events, host(Category.OTHER, 0, 1), host(Category.OTHER, 0, 1, 1), kernel("k", 0, 12))


def around(trace: Trace, place: int) -> list[int]:
    """The places before it whose slices enclose it wholly; they ascend from the outermost to the innermost."""
    rows, events = call_stacks.call_stacks(trace).row, trace.events
    part = rows[place]
    return [
        other
        for other, row in enumerate(rows[:place].tolist())
        if events.track[row] == events.track[part]
        and events.ts[row] <= events.ts[part] < events.end[row]
        and events.end[part] <= events.end[row]
    ]


@given(SLICES, st.sets(st.integers(0, 13)))
def test_among_places(drawn: list[tuple[int, int, Category, int]], some: set[int]) -> None:
    trace = drawn_trace(drawn)
    count = len(call_stacks.call_stacks(trace))
    chosen = sorted(place for place in some if place < count)
    places = np.array(chosen, np.intp)
    inner, outer = call_stacks.enclosing(trace, places).tolist(), call_stacks.outermost_of(trace, places).tolist()
    above = call_stacks.directly_around(trace, places).tolist()
    for place in range(count):
        wanted = [chosen.index(other) for other in around(trace, place) if other in chosen]
        part = [chosen.index(place)] if place in chosen else []
        assert inner[place] == (wanted + part or [-1])[-1]
        assert outer[place] == (wanted + part or [-1])[0]
        if part:
            assert above[part[0]] == max(wanted, default=-1)


@given(SLICES, st.sampled_from([(Category.CPU_OP,), (Category.USER_ANNOTATION, Category.CPU_OP)]), st.booleans())
def test_by_category(drawn: list[tuple[int, int, Category, int]], categories: tuple[Category, ...], all_: bool) -> None:
    trace = drawn_trace(drawn)
    stacks, events = call_stacks.call_stacks(trace), trace.events
    named = None if all_ else np.array([name == "a" for name in trace.strings])
    rows = np.append(np.arange(len(events)), -1)
    result = (
        call_stacks.innermost(trace, rows, categories, named).tolist(),
        call_stacks.outermost(trace, rows, categories, named).tolist(),
    )
    for row in rows.tolist():
        place = int(stacks.place_of[row]) if row >= 0 else -1
        chain = stacks.row[[*around(trace, place), place]].tolist() if place >= 0 else []
        chain = [
            each
            for each in chain
            if events.category[each] in categories and (all_ or trace.strings[events.name[each]] == "a")
        ]
        assert (result[0][row], result[1][row]) == ((chain or [-1])[-1], (chain or [-1])[0])


@given(SLICES, st.lists(st.tuples(TIMES, st.integers(0, 1)), min_size=1, max_size=5))
def test_around_a_moment(drawn: list[tuple[int, int, Category, int]], asked: list[tuple[int, int]]) -> None:
    trace = drawn_trace(drawn)
    threads = {each.tid: index for index, each in enumerate(trace.tracks)}
    ts, thread = np.array([ts for ts, _ in asked]), np.array([threads[tid] for _, tid in asked], np.int32)
    inner, outer = call_stacks.around_moments(trace, ts, thread, [Category.CPU_OP, Category.PYTHON_FUNCTION])
    events = trace.events
    for index, (moment, tid) in enumerate(asked):
        open_ = [
            row
            for row in call_stacks.call_stacks(trace).row.tolist()
            if events.track[row] == threads[tid]
            and events.category[row] in (Category.CPU_OP, Category.PYTHON_FUNCTION)
            and events.ts[row] <= moment < events.end[row]
        ]
        assert (inner[index], outer[index]) == ((open_ or [-1])[-1], (open_ or [-1])[0])


def test_calls_are_of_operators_not_of_a_compiled_region() -> None:
    """A region that torch.compile runs holds everything, and tells nothing of what waits in it."""
    region = op("Torch-Compiled Region: 0/0", 0, 100)
    trace = trace_of(
        region, op("aten::nonzero", 10, 60), call("cudaStreamSynchronize", 20, 50), call("cudaMalloc", 70, 80)
    )
    assert call_stacks.callers(trace, trace.events.slices_of(*LAUNCHES)) == ["aten::nonzero", "cudaMalloc"]
