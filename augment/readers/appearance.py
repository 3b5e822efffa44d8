"""Numbers in the order of first appearance: the order in which a trace has its strings and tracks."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from augment.arrays.types import Int32s, Int64s

Item = TypeVar("Item", bound=Hashable)
_BLOCK = 1 << 20  #: rows at a time


def first_rows(codes: Int32s, count: int) -> Int64s:
    """For each code below ``count``, the first row that has it; the number of rows if none has it."""
    first = np.full(count, len(codes), np.int64)
    for start in range((len(codes) - 1) // _BLOCK * _BLOCK, -1, -_BLOCK):
        block = codes[start : start + _BLOCK]
        first[block[::-1]] = np.arange(
            start + len(block) - 1, start - 1, -1
        )  # if several rows have a code, the last assignment stays
    return first


def numbered_by_appearance(items: Sequence[Item], first: Int64s, never: int, known: dict[Item, int]) -> Int32s:
    """The number of each of ``items`` in order of ascending ``first``. Equal items share a number. New items are added
    to ``known``.

    Items whose ``first`` is ``never`` get no number: their entry is 0. One more 0 follows all entries.
    """
    numbers = np.zeros(len(items) + 1, np.int32)
    appear: npt.NDArray[Any] = np.flatnonzero(first < never)
    for code in appear[np.argsort(first[appear], kind="stable")].tolist():
        numbers[code] = known.setdefault(items[code], len(known))
    return numbers
