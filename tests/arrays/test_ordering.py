from __future__ import annotations

import mmap
import sys
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augment.arrays import intervals
from augment.arrays.intervals import Intervals
from augment.arrays.ordering import (
    combinations,
    distinct,
    each,
    group_bounds,
    is_among,
    is_any,
    order_of,
    ordered,
    reserved,
    run_starts,
    sequence_hashes,
    sums,
    where_in,
)
from augment.arrays.statistics import grouped_medians, median, percentile, percentiles, time_weighted
from oracles import plain_kernels

ROWS = st.lists(st.tuples(st.integers(-1, 3), st.sampled_from([0, 7, 1 << 40]), st.integers(-(2**62), 2**62)))


@given(ROWS)
def test_combinations_are_those_that_occur(rows: list[tuple[int, int, int]]) -> None:
    columns = [np.array([row[index] for row in rows], np.int64) for index in range(3)]
    values, code = combinations(*columns)
    result = list(zip(*(value.tolist() for value in values), strict=True))
    assert result == sorted(set(rows))
    assert [result[which] for which in code.tolist()] == rows


@pytest.mark.parametrize("plain", [False, True])
@given(seed=st.integers(0, 99), most=st.sampled_from([0, 1, 3, 50, 1000]), side=st.sampled_from(["left", "right"]))
@settings(max_examples=30)
def test_places_of_values_in_any_order_are_those_of_numpy(
    plain: bool, seed: int, most: int, side: Literal["left", "right"]
) -> None:
    random = np.random.default_rng(seed)
    ascending = np.sort(random.integers(0, most // 2 + 1, most))
    values = random.integers(-2, most + 2, 300)
    values[:200] = np.sort(values[:200])
    with plain_kernels() if plain else nullcontext():
        assert (where_in(ascending, values, side) == np.searchsorted(ascending, values, side)).all()
        assert (is_among(values, ascending) == np.isin(values, ascending)).all()


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint16])
@given(seed=st.integers(0, 99), count=st.sampled_from([0, 1, 40, 300]), bits=st.sampled_from([0, 1, 11, 30, 62]))
@settings(max_examples=10)
def test_orders_are_those_of_numpy(plain: bool, kind: type[np.integer[Any]], seed: int, count: int, bits: int) -> None:
    least = max(-(2**bits), np.iinfo(kind).min)
    values = np.random.default_rng(seed).integers(least, min(2**bits, np.iinfo(kind).max), count).astype(kind)
    with plain_kernels() if plain else nullcontext(), patch("augment.arrays.ordering._FEW", 8):
        assert order_of(values).tolist() == np.argsort(values, kind="stable").tolist()
        assert ordered(values.astype(np.int64)).tolist() == np.sort(values).tolist()


@pytest.mark.parametrize(("values", "starts"), [([], []), ([4], [0]), ([4, 4, 5, 5, 4], [0, 2, 4])])
def test_runs(values: list[int], starts: list[int]) -> None:
    assert run_starts(np.array(values)).tolist() == starts


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-(2**58), 2**58)), max_size=20))
def test_sums_are_exact(rows: list[tuple[int, int]]) -> None:
    code, values = (np.array([row[index] for row in rows], np.int64) for index in (0, 1))
    assert sums(code, values, 5).tolist() == [sum(value for each, value in rows if each == of) for of in range(5)]


@given(st.lists(st.integers(0, 300), max_size=400))
def test_each_has_the_places_of_its_value(codes: list[int]) -> None:
    column = np.array(codes, np.int32)
    assert is_any(column, (3, 300, 7)).tolist() == np.isin(column, (3, 300, 7)).tolist()
    rows = [(value, part.tolist()) for value, part in each(column, 301)]
    assert rows == [(value, np.flatnonzero(column == value).tolist()) for value in sorted(set(codes))]


@given(st.lists(st.one_of(st.integers(-5, 5), st.integers(-(2**40), 2**40)), max_size=30))
def test_distinct_values_and_the_median_are_numpys(values: list[int]) -> None:
    column = np.array(values, np.int64)
    assert distinct(column).tolist() == np.unique(column).tolist()
    assert distinct(column.astype(np.int64)).dtype == np.int64
    if values:
        assert median(column) == np.median(column)
        assert median(column / 3) == np.median(column / 3)


CODES = st.lists(st.integers(0, 2), max_size=24)
RUNS = st.lists(st.tuples(st.integers(0, 24), st.integers(0, 24)), min_size=1)


@given(CODES, RUNS)
def test_hashes_are_equal_where_sequences_are(codes: list[int], drawn: list[tuple[int, int]]) -> None:
    runs = [sorted((min(a, len(codes)), min(b, len(codes)))) for a, b in drawn]
    hashes = sequence_hashes(
        np.array(codes, np.int32), np.array([run[0] for run in runs]), np.array([run[1] for run in runs])
    )
    sequences = [tuple(codes[start:stop]) for start, stop in runs]
    assert len(set(zip(sequences, hashes.tolist(), strict=True))) == len(set(sequences)) == len(set(hashes.tolist()))


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
def test_values_can_be_written(kind: type[np.integer]) -> None:
    values = reserved(1000, kind)
    assert values.dtype == kind
    assert values.flags.writeable
    assert values.flags.c_contiguous
    values[:] = 0
    values[500:] = 7
    assert values.sum() == 3500


def test_no_values() -> None:
    assert len(reserved(0, np.int64)) == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_only_pages_that_are_filled_are_taken() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    before = resident()
    values = reserved(1 << 30, np.uint8)
    values[:4096] = 1
    assert resident() - before < 1 << 28
    assert values[:4096].sum() == 4096


# Medians and percentiles against sorted values.


@pytest.mark.parametrize("bits", [3, 20, 61])
def test_order_does_not_matter(bits: int) -> None:
    random = np.random.default_rng(bits)
    for groups in range(1, 9):
        code = np.concatenate([np.arange(groups), random.integers(0, groups, 50)])
        values = random.integers(-(1 << bits), 1 << bits, len(code))
        for group, middle in enumerate(grouped_medians(values, code, group_bounds(code, groups)).tolist()):
            ascending = np.sort(values[code == group])
            low, high = ascending[(len(ascending) - 1) // 2], ascending[len(ascending) // 2]
            assert middle == low + (high - low) / 2
        ascending = np.sort(values)
        assert percentiles(values, 0, 50, 99, 100) == [percentile(ascending, each) for each in (0, 50, 99, 100)]
    assert percentiles(np.array([7]), 50, 99) == [7.0, 7.0]


# The interval algebra against sets of moments.
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
    assert intervals.held_between(ts, mask == 1, asked[:-1], asked[1:]).tolist() == np.diff(result).tolist()


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


def test_time_weighted_statistics_do_not_depend_on_where_arrays_lie() -> None:
    """As the sums of ``np.dot`` do, in their last digit."""
    draw = np.random.default_rng(3)
    values, held = draw.integers(0, 300, 5000), draw.integers(0, 10**6, 5000)
    results = set()
    for place in range(8):
        room = np.empty((2, 5008), np.int64)
        moved = room[:, place : place + 5000]
        moved[:] = values, held
        results.add(time_weighted(moved[0], moved[1]))
    assert len(results) == 1
