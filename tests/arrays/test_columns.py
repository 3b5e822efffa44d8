"""Narrow columns give back every value, at full width, however they are indexed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from augment.arrays.columns import Halved, Keyed, Narrow, PackedColumn, keyed, looked_up, narrowed, positions
from augment.core.trace import SparseColumn
from augment.readers import read

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
