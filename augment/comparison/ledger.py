"""Sums by key, of control and test beside each other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from augment.arrays.types import Int64s, Places

CONTROL, TEST = 0, 1


class Ledger:
    """Of each key (a non-negative int64) a sum for each of ``width`` columns, on both sides: int64."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._sums: dict[int, Int64s] = {}

    def add(self, side: int, key: npt.NDArray[np.integer], place: Places | Int64s, value: Int64s) -> None:
        """Add each ``value`` to the column ``place`` of its ``key``."""
        distinct, which = np.unique(key, return_inverse=True)
        sums = np.zeros((len(distinct), self.width), np.int64)
        np.add.at(sums, (which, place), value)
        for one, row in zip(distinct.tolist(), sums, strict=True):
            if one not in self._sums:
                self._sums[one] = np.zeros((2, self.width), np.int64)
            self._sums[one][side] += row

    def __iter__(self) -> Iterator[tuple[int, Int64s]]:
        """Each key with its sums, shape (2, width)."""
        return iter(self._sums.items())

    def __len__(self) -> int:
        return len(self._sums)

    def __getitem__(self, key: int) -> Int64s:
        return self._sums[key]
