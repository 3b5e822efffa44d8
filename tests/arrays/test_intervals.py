"""The interval algebra against sets of moments."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from augment.arrays import intervals
from augment.arrays.intervals import Intervals

PAIRS = st.lists(st.tuples(st.integers(-20, 40), st.integers(-20, 40)), max_size=12)


def columns(pairs: list[tuple[int, int]]) -> Intervals:
    starts, ends = zip(*pairs, strict=True) if pairs else ((), ())
    return Intervals(np.array(starts, np.int64), np.array(ends, np.int64))


def moments(pairs: list[tuple[int, int]]) -> set[int]:
    return {moment for start, end in pairs for moment in range(start, end)}


def held(intervals: Intervals) -> set[int]:
    """The moments that disjoint intervals hold; fails where they are not disjoint."""
    pairs = list(zip(intervals.start.tolist(), intervals.end.tolist(), strict=True))
    assert all(start < end for start, end in pairs)
    assert all(left[1] <= right[0] for left, right in pairwise(pairs))
    return moments(pairs)


@given(PAIRS)
def test_union_holds_what_any_holds_in_as_few_as_can_be(pairs: list[tuple[int, int]]) -> None:
    result = intervals.union(*columns(pairs))
    assert held(result) == moments(pairs)
    assert intervals.total(result) == len(moments(pairs))
    assert (result.start[1:] > result.end[:-1]).all()


@given(PAIRS, PAIRS)
def test_subtract_is_that_of_sets(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    xs, ys = intervals.union(*columns(left)), intervals.union(*columns(right))
    rest = intervals.subtract(xs, ys)
    assert held(rest) == moments(left) - moments(right)
    assert (rest.start[1:] > rest.end[:-1]).all()
    assert (rest.start < rest.end).all()


@given(PAIRS, PAIRS, PAIRS)
def test_coverage_names_the_sets_that_hold_each_moment(
    a: list[tuple[int, int]], b: list[tuple[int, int]], c: list[tuple[int, int]]
) -> None:
    ts, mask = intervals.coverage([intervals.union(*columns(each)) for each in (a, b, c)])
    series = dict(zip(ts.tolist(), mask.tolist(), strict=True))
    running = 0
    for moment in range(-20, 41):
        running = series.get(moment, running)
        assert running == sum((moment in moments(each)) << bit for bit, each in enumerate((a, b, c)))


@given(PAIRS)
def test_what_is_held_before_is_counted_by_moments(pairs: list[tuple[int, int]]) -> None:
    ts, mask = intervals.coverage([intervals.union(*columns(pairs))])
    asked = np.arange(-25, 45)
    result = intervals.held_before(ts, mask == 1, asked)
    assert result.tolist() == [sum(pair < until for pair in moments(pairs)) for until in asked.tolist()]
    between = intervals.held_between(ts, mask == 1, asked[:-1], asked[1:])
    assert between.tolist() == np.diff(result).tolist()


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-3, 3)), max_size=12))
def test_steps_are_the_sums_so_far(changes: list[tuple[int, int]]) -> None:
    ts, value = intervals.steps(*columns(changes))
    assert ts.tolist() == sorted({moment for moment, _ in changes})
    assert value.tolist() == [sum(by for moment, by in changes if moment <= at) for at in ts.tolist()]


@given(PAIRS, PAIRS)
def test_touched_names_each_overlapping_pair(asked: list[tuple[int, int]], others: list[tuple[int, int]]) -> None:
    asked = [(start, end) for start, end in asked if start < end]
    disjoint = intervals.union(*columns(others))
    whose, place = intervals.expand(*intervals.touched(*columns(asked), disjoint))
    expected = [
        (index, other)
        for index, (start, end) in enumerate(asked)
        for other, (low, high) in enumerate(zip(*disjoint, strict=True))
        if start < high and low < end
    ]
    assert list(zip(whose.tolist(), place.tolist(), strict=True)) == expected


def test_far_times_stay_exact() -> None:
    base = 1_712_195_495_406_752_797
    result = intervals.union(*columns([(base, base + 1), (base + 2, base + 3)]))
    assert intervals.total(result) == 2
    assert result.end.tolist() == [base + 1, base + 3]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(-1, 20), st.integers(0, 99)), max_size=12))
def test_least_over_ranges(ranges: list[tuple[int, int, int]]) -> None:
    first, length, values = (np.array([each[index] for each in ranges], np.intp) for index in range(3))
    result = intervals.least_over(first, first + length, values, 40)
    none = np.iinfo(np.intp).max
    assert result.tolist() == [
        min((value for start, size, value in ranges if start <= place < start + size), default=none)
        for place in range(40)
    ]
