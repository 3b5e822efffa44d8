"""Joining short pieces, and thinning counters, against what must stay true of any."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from augment.arrays.joining import joined, longest, means, peaks
from oracles import plain_kernels

PIECES = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 10**5), st.integers(0, 3)), min_size=1, max_size=60)


@given(PIECES, st.integers(1, 60))
def test_joined_pieces_hold_the_same_time_and_keep_their_gaps(pieces: list[tuple[int, int, int]], most: int) -> None:
    """Each piece: the gap before it, its length, its kind."""
    gap, dur, kind = (np.array(column, np.int64) for column in zip(*pieces, strict=True))
    start = np.cumsum(gap + dur) - dur
    result = joined(start, dur, kind, most)
    assert result.first[0] == 0
    assert result.count.sum() == len(pieces)
    assert len(result) == len(pieces) or len(pieces) > most
    ends = start + dur
    for first, count, represents in zip(result.first, result.count, result.longest, strict=True):
        part = np.arange(first, first + count)
        assert (start[part[1:]] == ends[part[:-1]]).all()
        time = [dur[part][kind[part] == each].sum() for each in range(4)]
        assert represents in part
        assert time[kind[represents]] == max(time)
        assert dur[represents] == dur[part][kind[part] == kind[represents]].max()
    if not gap[1:].any():
        assert len(result) <= most


def test_pieces_that_are_few_enough_stay() -> None:
    start = np.arange(5, dtype=np.int64)
    assert joined(start, np.ones(5, np.int64), np.zeros(5, np.int64), 5).first.tolist() == [0, 1, 2, 3, 4]


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 9)), min_size=1, max_size=200), st.integers(4, 50))
def test_a_counter_keeps_its_ends_and_its_greatest_value(points: list[tuple[int, int]], most: int) -> None:
    delay, values = (np.array(column, np.int64) for column in zip(*points, strict=True))
    ts = np.cumsum(delay)
    kept = peaks(ts, values, most)
    assert len(kept) <= max(most, 4)
    assert kept[0] == 0
    assert kept[-1] == len(ts) - 1
    assert values[kept].max() == values.max()
    assert (np.diff(kept) > 0).all()


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 3)), min_size=5, max_size=40), st.integers(4, 12))
def test_of_each_cell_of_a_counter_the_first_of_the_greatest_and_the_last_stay(
    points: list[tuple[int, int]], most: int
) -> None:
    delay, values = (np.array(column, np.int64) for column in zip(*points, strict=True))
    ts, number = np.cumsum(delay), np.where(values == 3, np.nan, values)
    wanted, limit = set(range(len(ts))), 256
    while len(wanted) > most:
        cells: dict[int, list[int]] = {}
        for place, moment in enumerate(ts.tolist()):
            cells.setdefault(moment // limit, []).append(place)
        wanted = {0, *(cell[-1] for cell in cells.values())}
        wanted |= {max(cell, key=lambda k: (-1 if np.isnan(number[k]) else number[k], -k)) for cell in cells.values()}
        limit *= 2
    assert peaks(ts, number, most).tolist() == sorted(wanted)


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 9)), min_size=1, max_size=200), st.integers(4, 50))
def test_means_of_a_counter_keep_its_integral_at_each_of_their_ends(points: list[tuple[int, int]], most: int) -> None:
    delay, values = (np.array(column, np.int64) for column in zip(*points, strict=True))
    ts = np.cumsum(delay)
    few, mean = means(ts, values, most)
    assert len(few) <= max(most, 4)
    assert np.isin(few, ts).all()
    assert (few[0], few[-1], mean[-1]) == (ts[0], ts[-1], values[-1])
    assert len(few) == len(ts) or np.abs(mean).max() <= values.max()
    before = np.concatenate(([0], np.cumsum(values[:-1] * np.diff(ts))))[np.isin(ts, few)]
    assert np.allclose(np.concatenate(([0], np.cumsum(mean[:-1] * np.diff(few)))), before)


def test_the_longest_come_first_of_equal_ones_the_first() -> None:
    assert longest(np.array([3, 5, 3, 1]), 2).tolist() == [0, 1]
    assert longest(np.array([3, 5]), 7).tolist() == [0, 1]


@given(PIECES, st.integers(1, 60))
def test_times_of_kinds_are_those_of_each_piece(pieces: list[tuple[int, int, int]], most: int) -> None:
    gap, dur, kind = (np.array(column, np.int64) for column in zip(*pieces, strict=True))
    result = joined(np.cumsum(gap + dur) - dur, dur, kind, most)
    times = result.times(dur, kind.astype(np.int32), 4)
    expected = np.zeros((4, len(result)), np.int64)
    for group, ns, each in zip(result.group.tolist(), dur.tolist(), kind.tolist(), strict=True):
        expected[each, group] += ns
    assert times.tolist() == expected.tolist()
    with plain_kernels():
        again = joined(np.cumsum(gap + dur) - dur, dur, kind, most)
        assert again.longest.tolist() == result.longest.tolist()
        assert again.times(dur, kind.astype(np.int32), 4).tolist() == times.tolist()
