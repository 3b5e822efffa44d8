"""Python's side of the dictionaries of ``dictionary.py``: compiled code looks bytes up, and Python adds missing
ones.
"""

from __future__ import annotations

import numpy as np

from augment.kernels.interned import BYTES, slots
from augment.kernels.native import address, native

# what `tables` begins with: a dictionary as in `interned.py`, and for each id the place of its code in the pool
CODES, CODE_SIZES = BYTES + 8, BYTES + 16


class KnownBytes:
    """Byte strings and their codes, which are byte strings, too, in an open-addressing table that ``look_up`` reads."""

    def __init__(self) -> None:
        self._count = self._used = 0
        self._columns = [np.empty(1 << 12, np.int64) for _ in range(5)]
        self._slots = slots(1 << 13)
        self._pool = np.zeros(1 << 18, np.uint8)

    def addresses(self) -> list[int]:
        """The values from SLOTS to CODE_SIZES."""
        columns = [address(column) for column in self._columns]
        return [address(self._slots), len(self._slots) - 1, *columns[:3], address(self._pool), *columns[3:]]

    def add(self, hashed: int, text: bytes, code: bytes) -> None:
        """Add ``code`` for ``text``."""
        self._make_room(len(text) + len(code) + 16)
        at = self._used
        self._pool[at : at + len(text)] = np.frombuffer(text, np.uint8)
        code_at = at + len(text)
        self._pool[code_at : code_at + len(code)] = np.frombuffer(code, np.uint8)
        self._used = code_at + len(code)
        for column, value in zip(self._columns, (hashed, at, len(text), code_at, len(code)), strict=True):
            column[self._count] = value
        mask = len(self._slots) - 1
        slot = (hashed & (2**64 - 1)) >> 20 & mask
        while self._slots[slot] >= 0:
            slot = (slot + 1) & mask
        self._slots[slot] = self._count
        self._count += 1

    def _make_room(self, size: int) -> None:
        if self._used + size > len(self._pool):
            self._pool = np.concatenate([self._pool, np.zeros(len(self._pool) + size, np.uint8)])
        if self._count == len(self._columns[0]):
            self._columns = [np.concatenate([column, np.empty_like(column)]) for column in self._columns]
            self._slots = slots(2 * len(self._slots))
            native("dictionary.fill_slots")(
                address(self._slots), len(self._slots) - 1, address(self._columns[0]), self._count
            )
