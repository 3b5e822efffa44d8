"""The args that compiled code takes of events, and where it stores them: Python's side of ``args.py``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from augment.kernels.interned import COUNTS, DICTIONARY, Dictionary, longer
from augment.kernels.native import address

# what `wanted` holds: its int64 at these byte offsets. TAKEN is COUNT plus the args of the current event, SEEN has a
# bit for each arg that the event has, FIELDS_SEEN the HAS of each field. ROWS (int32), KINDS (bytes) and VALUES
# (int64) are addresses of columns
ROW, COUNT, TAKEN, SEEN, FIELDS_SEEN, ROOM, ROWS, KINDS, VALUES, KEYS = range(0, 10 * 8, 8)
TEXT_COUNTS = KEYS + 8
TEXTS = TEXT_COUNTS + COUNTS
WANTED = (TEXTS + DICTIONARY) // 8
# its keys: an open-addressing table of these int64. FIELD is -1 or where the caller stores the number, HAS its bit
KEY_LENGTH, KEY_WORD, KEY_TEXT, NUMBER, IS_TEXT, FIELD, HAS, KEY_WIDTH = range(0, 8 * 8, 8)
KEY_BITS = 7
KEY_SLOTS = 1 << KEY_BITS
KEY_MIXER = 0x9E3779B97F4A7C15
IS_CODE = 1 << 7  #: added to the number of an arg to give its kind: the value is the number of a text
MOST_ARGS = 63
_WORD_MASK = (1 << 64) - 1


def key_word(key: str) -> int:
    """The word by which compiled code first compares a key: its first eight bytes, mixed with its last eight if it is
    longer.
    """
    text = key.encode()
    word = int.from_bytes(text[:8].ljust(8, b"\0"), "little")
    if len(text) > 8:
        word ^= int.from_bytes(text[-8:], "little") * KEY_MIXER & _WORD_MASK
    return word


class WantedArgs:
    """The row, the kind (the number of the arg, and whether the value is a code) and the value of each arg that was
    taken.
    """

    def __init__(
        self, keys: Iterable[tuple[str, int, bool]], room: int, fields: Mapping[str, tuple[int, int]] | None = None
    ) -> None:
        """Take ``keys``: the key of each arg, its number, and whether it is a text. ``fields`` gives FIELD and HAS of
        some.

        ``room`` entries are reserved; memory that is never written is not allocated.
        """
        self._texts = Dictionary(1 << 12, 1 << 20)
        self._columns: list[Any] = [np.empty(room, kind) for kind in (np.int32, np.uint8, np.int64)]
        entries = [(key, number, is_text, -1, 0) for key, number, is_text in keys]
        entries += [(key, 0, False, *layout) for key, layout in (fields or {}).items()]
        self._keys, self._key_texts = _key_table(entries)
        self._wanted = np.zeros(WANTED, np.int64)
        self._tell()

    @property
    def address(self) -> int:
        """The address of all tables for compiled code."""
        return int(address(self._wanted))

    def _tell(self) -> None:
        columns = [address(column) for column in self._columns]
        self._wanted[ROOM // 8 : TEXT_COUNTS // 8] = [len(self._columns[0]), *columns, address(self._keys)]
        self._wanted[TEXTS // 8 :] = self._texts.addresses()

    def grow(self) -> None:
        """Enlarge the columns that are full or may be full after the next event."""
        if self._wanted[COUNT // 8] + MOST_ARGS > len(self._columns[0]):
            self._columns = [longer(column, 2 * len(column) + MOST_ARGS) for column in self._columns]
        texts, _, pool_wanted = self._wanted[TEXT_COUNTS // 8 :][:3].tolist()
        self._texts.grow(texts, pool_wanted)
        self._tell()

    def finish(self) -> tuple[Any, Any, Any, list[bytes]]:
        """The rows, kinds, values and texts. Nothing can be taken afterwards."""
        count, texts = int(self._wanted[COUNT // 8]), int(self._wanted[TEXT_COUNTS // 8])
        columns, self._columns = self._columns, []  # the caller owns this memory now
        rows, kinds, values = (column[:count] for column in columns)
        return rows, kinds, values, self._texts.texts(texts)


def _key_table(entries: list[tuple[str, int, bool, int, int]]) -> tuple[Any, list[Any]]:
    """The open-addressing table of the keys, and the texts that it points to."""
    table = np.full((KEY_SLOTS, KEY_WIDTH // 8), -1, np.int64)
    texts = []
    for key, *rest in entries:
        text, word = key.encode(), key_word(key)
        slot = ((word + len(text)) * KEY_MIXER & _WORD_MASK) >> 64 - KEY_BITS
        while table[slot, 0] >= 0:
            slot = (slot + 1) % KEY_SLOTS
        texts.append(np.frombuffer(text.ljust(len(text) + 8, b"\0"), np.uint8))
        table[slot] = [len(text), word - (1 << 64) if word >> 63 else word, address(texts[-1]), *rest]
    return table, texts
