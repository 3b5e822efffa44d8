"""Tracks, their names and processes may be many: what is asked of each is not asked of each pair of them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np
import pytest

from augment.core import Category, Texts, Track
from augment.writers.perfetto.added import _name_numbers
from augment.writers.perfetto.packets import ArgsEncoder, InternedTexts, text_args
from augment.writers.perfetto.tracks import Tracks
from augment.writers.templates import choice
from tables import Event, trace_of

COUNT = 10**6


class _Names(Sequence[str]):
    """A million names, which take no memory; ``asked`` are those that were wanted."""

    def __init__(self) -> None:
        self.asked: set[int] = set()

    def __len__(self) -> int:
        return COUNT

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: Any) -> Any:
        self.asked.add(index)
        return f"name {index}"


def chrome(texts: Texts) -> list[str]:
    result = choice(texts)
    return [result.values[code].decode().strip('"') if code >= 0 else "" for code in result.codes.tolist()]


def native_names(texts: Texts) -> list[str]:
    numbers = _name_numbers(texts, InternedTexts()).tolist()
    first = min(numbers)
    return [["name 5", "name 999000", ""][number - first] for number in numbers]


def native_args(texts: Texts) -> list[str]:
    which, blobs = text_args(texts, "kernel", ArgsEncoder(InternedTexts()))
    assert len(blobs.size) == 2
    return [["name 5", "name 999000", ""][code] for code in which.tolist()]


@pytest.mark.parametrize("written", [chrome, native_names, native_args])
def test_only_what_occurs_is_looked_at(written: Callable[[Texts], list[str]]) -> None:
    names = _Names()
    texts = Texts(np.array([999_000, -1, 5, 999_000], np.int32), names)
    tracemalloc.start()
    try:
        assert written(texts) == ["name 999000", "", "name 5", "name 999000"]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert names.asked == {5, 999_000}
    assert peak < COUNT / 4  # a mask of all names alone would be COUNT


class _Counted(str):
    """A pid that counts how often it is compared with another."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        _Counted.compared += 1
        return str.__eq__(self, other) is True

    __hash__ = str.__hash__


def test_the_names_of_many_processes() -> None:
    count = 300
    part = [Track(0, _Counted(f"pid {i}"), 1, process_name=f"python {i}") for i in range(count)]
    trace = trace_of(*(Event(Category.CPU_OP, "op", i, i + 1, each) for i, each in enumerate(part)))
    _Counted.compared = 0
    tracks = Tracks(trace)
    assert len({tracks.home_of(under) for under in range(count)}) == count
    output = tracks.take_packets()
    assert all(f"python {i}".encode() in output for i in range(count))
    assert _Counted.compared < 20 * count
