"""Narrow columns give back every value, at full width, however they are indexed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augment.arrays.columns import Halved, Keyed, Narrow, PackedColumn, keyed, looked_up, narrowed, positions
from augment.arrays.joining import joined, longest, means, peaks
from augment.core.trace import SparseColumn
from augment.readers import read
from oracles import plain_kernels

INT64 = np.iinfo(np.int64)
RNG = np.random.default_rng(1)
COUNT = 1000
CASES: dict[str, tuple[npt.NDArray[Any], int | None]] = {  # values, and the bytes of each when narrow
    "few": (RNG.integers(0, 200, COUNT), 1),
    "from -1": (RNG.integers(-1, 60_000, COUNT), 2),
    "wide": (RNG.integers(0, 1 << 32, COUNT), 4),
    "with exceptions": (np.append(RNG.integers(0, 60_000, COUNT), [1 << 40, INT64.max, 65_535, 65_534]), 2),
    "too many exceptions": (np.append(RNG.integers(0, 60_000, COUNT), np.full(100, 1 << 40)), None),
    "far below 0": (RNG.integers(-(1 << 62), 1 - (1 << 62) + 255, COUNT), 1),
    "all of int64": (np.array([INT64.min, INT64.max, 0, -1]), None),
    "the largest": (np.array([INT64.max, INT64.max - 255]), 1),
    "the least": (np.array([INT64.min, INT64.min + 255]), 1),
    "one": (np.array([INT64.max]), 1),
    "none": (np.empty(0, np.int64), None),
    "int32": (RNG.integers(0, 300, COUNT).astype(np.int32), 2),
    "wide int32": (RNG.integers(0, 1 << 30, COUNT).astype(np.int32), None),
    "small uint8": (np.arange(9, dtype=np.uint8), None),
}


@pytest.mark.parametrize("case", CASES)
def test_a_column_gives_back_its_values(case: str) -> None:
    values, width = CASES[case]
    column = narrowed(values)
    assert isinstance(column, Narrow) == (width is not None)
    if isinstance(column, Narrow) and width:
        assert column.stored[0].itemsize == width
        assert column.stored[0].base is None or column.stored[0].base.nbytes < width * len(values) + 8
    expect_same(column, values)


def expect_same(column: Any, values: npt.NDArray[Any]) -> None:
    """Every way to index."""
    rows = RNG.integers(-len(values), len(values), 50) if len(values) else np.empty(0, np.int64)
    some = RNG.integers(0, 2, len(values)).astype(np.bool_)
    for index in (slice(None), slice(3, -3), slice(None, None, -2), rows, some, rows[:0]):
        part = column[index]
        assert part.dtype == values.dtype
        assert part.tolist() == values[index].tolist()
    assert len(column) == len(values)
    assert column.shape == values.shape
    assert np.asarray(column).tolist() == column.tolist() == values.tolist()
    if len(values):
        assert column[-1] == values[-1]
        assert type(column[np.int64(0)]) is type(values[0])
        with pytest.raises(IndexError):
            column[np.array([len(values)])]


def test_positions_beyond_32_bits() -> None:
    values = np.array([5, 1 << 32, (1 << 40) - 1, 1 << 33])
    column = positions(values.copy())
    assert isinstance(column, Halved)
    assert column.nbytes == 5 * len(values)
    expect_same(column, values)
    assert isinstance(positions(np.array([0, 1 << 40])), np.ndarray)
    assert isinstance(positions(np.array([-1, 1 << 32])), np.ndarray)


def test_values_that_follow_from_another_column() -> None:
    keys = RNG.integers(0, 5, COUNT).astype(np.uint8)
    values = (keys * 7).astype(np.int32)
    values[[0, 17, 999]] = 3, 1 << 20, 0
    column = keyed(keys, values)
    assert isinstance(column, Keyed)
    assert column.nbytes < 2 * COUNT
    expect_same(column, values)
    assert isinstance(keyed(keys, RNG.integers(0, 9, COUNT).astype(np.int32)), Narrow)
    expect_same(keyed(keys[:0], values[:0]), values[:0])


def test_columns_calculate_like_arrays_of_full_width() -> None:
    values = np.array([250, 7, 0, 255])
    column: Any = narrowed(values)
    assert isinstance(column, PackedColumn)
    assert (column + column).tolist() == [500, 14, 0, 510]
    assert (column - 300).tolist() == (values - 300).tolist()
    assert (values * column).tolist() == (values**2).tolist()
    assert np.maximum(column, 8).dtype == np.int64
    assert (column == 7).tolist() == [False, True, False, False]
    assert column[:].sum().dtype == np.int64
    assert "4 values of int64, 4 bytes" in repr(column)
    with pytest.raises(ValueError, match="is no array"):
        column.__array__(copy=False)  # what numpy 2 calls for np.array(column, copy=False)


@pytest.mark.parametrize("last", [200, 60_000, 1 << 40])
def test_rows_are_found(last: int) -> None:
    rows = np.append(np.arange(0, 90, 1), last)
    column = SparseColumn(narrowed(rows), narrowed(rows * 3))
    wanted = np.array([last, 90, -1, 0, 89, INT64.max, INT64.min, 201])
    assert column.at(wanted, -7).tolist() == [3 * last, -7, -7, 0, 267, -7, -7, -7]
    assert looked_up(rows, wanted)[1].tolist() == looked_up(narrowed(rows), wanted)[1].tolist()


def test_times_of_extremes_survive_reading(tmp_path: Path) -> None:
    """A second in microseconds, a day, and times near the end of what is taken: sums keep every nanosecond."""
    day = 86_400 * 10**6
    events = [{"ph": "X", "cat": "cpu_op", "name": f"op{n}", "pid": 1, "tid": n % 300, "ts": n, "dur": 0.001 + n}
              for n in range(2000)]  # fmt: skip
    events += [{"ph": "X", "cat": "cpu_op", "name": "day", "pid": 1, "tid": 0, "ts": 3, "dur": day + 0.001}]
    events += [{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 9e15, "dur": 4.3e9,
                "args": {"correlation": (1 << 62) + 1, "bytes": 1 << 61}}]  # fmt: skip
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    table = read(str(path)).events
    (longest,) = np.flatnonzero(table.dur[:] == day * 1000 + 1)
    assert int(table.end[longest]) == 3000 + day * 1000 + 1
    assert int(table.end[-1]) == 9 * 10**18 + 43 * 10**11
    assert table.correlation[len(table) - 1] == (1 << 62) + 1
    assert table.bytes.at(np.array([len(table) - 1]), 0).tolist() == [1 << 61]
    assert table.correlation[0] == -1
    assert int(np.sum(table.dur)) == sum(1 + 1000 * n for n in range(2000)) + day * 1000 + 1 + 43 * 10**11
    assert isinstance(table.dur, Narrow)
    assert table.dur.stored[0].itemsize == 4


# Joining short pieces, and thinning counters, against what must stay true of any.
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
