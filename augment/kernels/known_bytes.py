"""Python's side of the dictionaries of ``dictionary.py``: compiled code looks bytes up, and Python adds missing
ones.
"""

from __future__ import annotations

import numpy as np

from augment.kernels.interned import Interned, slots
from augment.kernels.memory import record
from augment.kernels.native import address, native


@record
class Known:
    """Byte strings, and of each the place and size of its code in the pool, and the hash of its key (addresses)."""

    texts: Interned
    codes: int
    code_sizes: int
    keys: int
    nexts: int  #: what came last time first, then after each: twice its number, plus 1 for a key alone; or -1


class KnownBytes:
    """Byte strings and their codes, which are byte strings, too, in an open-addressing table that ``look_up`` reads."""

    def __init__(self) -> None:
        self.known = Known()
        self._columns = [np.empty(1 << 12, np.int64) for _ in range(6)]
        self._nexts = np.full((1 << 12) + 1, -1, np.int64)
        self._slots = slots(1 << 13)
        self._pool = np.zeros(1 << 18, np.uint8)
        self._tell()

    def _tell(self) -> None:
        table = self.known.texts
        table.hashes, table.starts, table.sizes = map(address, self._columns[:3])
        self.known.codes, self.known.code_sizes, self.known.keys = map(address, self._columns[3:])
        self.known.nexts = address(self._nexts)
        table.slots, table.mask, table.pool = address(self._slots), len(self._slots) - 1, address(self._pool)

    def add(self, hashed: int, text: bytes, code: bytes, key_hash: int) -> None:
        """Add ``code`` for ``text``, in which the key has that hash."""
        self._make_room(len(text) + len(code) + 16)
        table = self.known.texts
        at, count = table.used, table.count
        self._pool[at : at + len(text)] = np.frombuffer(text, np.uint8)
        code_at = at + len(text)
        self._pool[code_at : code_at + len(code)] = np.frombuffer(code, np.uint8)
        table.used = code_at + len(code)
        for column, value in zip(self._columns, (hashed, at, len(text), code_at, len(code), key_hash), strict=True):
            column[count] = value
        slot = (hashed & (2**64 - 1)) >> 20 & table.mask
        while self._slots[slot] >= 0:
            slot = (slot + 1) & table.mask
        self._slots[slot] = count
        table.count = count + 1

    def _make_room(self, size: int) -> None:
        used, count = self.known.texts.used, self.known.texts.count
        is_full = count == len(self._columns[0])
        if used + size > len(self._pool):
            self._pool = np.concatenate([self._pool, np.zeros(len(self._pool) + size, np.uint8)])
        elif not is_full:
            return
        if is_full:
            self._columns = [np.concatenate([column, np.empty_like(column)]) for column in self._columns]
            self._nexts = np.concatenate([self._nexts, np.full(count, -1, np.int64)])
            self._slots = slots(2 * len(self._slots))
            native("dictionary.fill_slots")(self._slots, self._columns[0], count)
        self._tell()
