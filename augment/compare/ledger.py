"""Sums by key, for control and test."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from augment.arrays.types import Int64s, Places

CONTROL, TEST = 0, 1


class Ledger:
    """For each key (a non-negative int64), ``width`` int64 sums on each side."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._sums: dict[int, Int64s] = {}

    def add(self, side: int, key: npt.NDArray[np.integer], place: Places | Int64s, value: Int64s) -> None:
        """Add each ``value`` to the column ``place`` of its ``key``."""
        distinct, which = np.unique(key, return_inverse=True)
        sums = np.zeros((len(distinct), self.width), np.int64)
        np.add.at(sums, (which, place), value)
        for number, row in zip(distinct.tolist(), sums, strict=True):
            if number not in self._sums:
                self._sums[number] = np.zeros((2, self.width), np.int64)
            self._sums[number][side] += row

    def __iter__(self) -> Iterator[tuple[int, Int64s]]:
        """Each key with its sums, of shape (2, width)."""
        return iter(self._sums.items())

    def __len__(self) -> int:
        return len(self._sums)

    def __getitem__(self, key: int) -> Int64s:
        return self._sums[key]
