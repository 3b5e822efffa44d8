"""PyTorch's raw memory timelines as columns."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from augment.errors import InputError, UnknownFormat
from augment.readers.attachments.recorded_files import CATEGORIES, read_memory_timeline


def test_sums_by_category(tmp_path: Path) -> None:
    path = tmp_path / "a.raw.json"
    path.write_text(
        "[[-1, 1, 100, 7], [-1, 1, 8, 0], [50, 2, 10, 3], [50, 3, -10, 3], [50, 3, 10, 5], [70, 4, -100, 7]]"
    )
    columns = {name: column.tolist() for name, column in read_memory_timeline(path).items()}
    assert columns.pop("ts") == [50, 70]
    assert columns.pop("Parameter") == [8, 8]
    assert columns.pop("Gradient") == [10, 10]
    assert columns.pop("Unknown") == [100, 0]
    assert set(columns) == {"Optimizer state", "Input", "Temporary", "Activation", "Autograd"}
    assert all(column == [0, 0] for column in columns.values())


def test_of_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.raw.json"
    path.write_text("[]")
    assert {len(column) for column in read_memory_timeline(path).values()} == {0}


@pytest.mark.parametrize(
    "text", ["{}", "[1]", "[[1, 2, 3]]", '[[1, 2, 3, "a"]]', "[[1, 2, 3, 9]]", "[[1, 2, 3.5, 1]]", "[[1], [1, 2]]", "x"]
)
def test_what_is_no_timeline(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.raw.json"
    path.write_text(text)
    with pytest.raises(UnknownFormat):
        read_memory_timeline(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_memory_timeline(str(tmp_path / "a"))


def test_real_timeline(shared_traces: Path) -> None:
    path = shared_traces / "hta_memory_timeline" / "memory_timeline.raw.gz"
    columns = read_memory_timeline(path)
    events = json.loads(gzip.decompress(path.read_bytes()))
    assert (np.diff(columns["ts"]) > 0).all()
    assert columns["ts"][0] == min(ts for ts, *_ in events if ts >= 0)
    for moment in (0, len(columns["ts"]) // 2, -1):
        sums = dict.fromkeys(CATEGORIES, 0)
        for ts, _, size, category in events:
            if ts <= columns["ts"][moment]:
                sums[CATEGORIES[category]] += size
        assert {name: columns[name][moment] for name in CATEGORIES} == sums
    assert all((columns[name] >= 0).all() for name in CATEGORIES)
