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
    """For each code below ``count`` the first row that has it; the number of rows where none has."""
    first = np.full(count, len(codes), np.int64)
    for start in range((len(codes) - 1) // _BLOCK * _BLOCK, -1, -_BLOCK):
        block = codes[start : start + _BLOCK]
        first[block[::-1]] = np.arange(
            start + len(block) - 1, start - 1, -1
        )  # of several rows the last to be set stays
    return first


def numbered_by_appearance(items: Sequence[Item], first: Int64s, never: int, known: dict[Item, int]) -> Int32s:
    """The number of each of ``items``, by ascending ``first``; equal ones are one. Entered into ``known``, too.

    Those whose ``first`` is ``never`` get none: 0 stands in their place, and once more behind all.
    """
    numbers = np.zeros(len(items) + 1, np.int32)
    appear: npt.NDArray[Any] = np.flatnonzero(first < never)
    for code in appear[np.argsort(first[appear], kind="stable")].tolist():
        numbers[code] = known.setdefault(items[code], len(known))
    return numbers
