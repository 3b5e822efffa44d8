"""The args that compiled code takes of events, and where it stores them: Python's side of ``json_args.py``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import numpy as np

from augment.kernels.dictionary import Dictionary, InternedBytes, longer
from augment.kernels.memory import Column, record
from augment.kernels.native import address

MOST_FIELDS = 4
KEY_BITS = 7
KEY_SLOTS = 1 << KEY_BITS
KEY_MIXER = 0x9E3779B97F4A7C15
IS_CODE = 1 << 7  #: added to the number of an arg to give its kind: the value is the number of a text
MOST_ARGS = 63
OF_ARGS, OF_EVENT, OF_REST, UNKNOWN = range(4)  #: what precedes a gap if no other gap does; or one that is not known
MOST_GAPS, _GAP_BYTES = 1 << 10, 1 << 16
_WORD_MASK = (1 << 64) - 1
ABSENT, PLAIN, CONVERTED, DROPPED = 0, 1, 2, 3  #: flags of a column's entries; ABSENT also stands for null


@record
class Key:
    """An entry of the open-addressing table of keys."""

    length: int  #: -1: the slot is free
    word: np.uint64  #: see :func:`key_word`
    text: int  #: its address
    number: int  #: of the arg
    is_text: int
    field: int  #: of ``Wanted.fields``, or -1


@record
class Gap:
    """The text between two values of an object: what follows a brace or a value, up to the next value or beyond the
    closing brace.
    """

    length: int  #: of the key in it; -1: the object ends
    word: np.uint64  #: of the key
    entry: int  #: the address of its :class:`Key`


@record
class Wanted:
    """The args that were taken. ``rows`` (int32), ``kinds`` (bytes), ``values`` (int64) and ``keys`` are addresses, as
    are ``gap_table`` and ``gap_nexts``: the number of the gap that came last time after each of the things that
    :data:`UNKNOWN` ends, and after each gap; or -1.
    """

    row: int
    count: int
    taken: int  #: ``count`` plus the args of the current event
    seen: int  #: a bit for each arg that the event has
    room: int
    rows: int
    kinds: int
    values: int
    keys: int
    texts: InternedBytes
    gaps: InternedBytes  #: of which nothing is taken if they are full
    gap_table: int
    gap_nexts: int
    fields: Annotated[Column, MOST_FIELDS]  #: numbers of the current event that are not kept here
    has: int  #: a bit for each field that the event has


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
        self, wanted: Wanted, keys: Iterable[tuple[str, int, bool]], room: int, fields: Mapping[str, int] | None = None
    ) -> None:
        """Take ``keys``: the key of each arg, its number, and whether it is a text. ``fields`` are keys whose numbers
        the caller takes out of :attr:`Wanted.fields`.

        ``room`` entries are reserved; memory that is never written is not allocated.
        """
        self.wanted = wanted
        self._texts = Dictionary(wanted.texts, 1 << 12, 1 << 20)
        self._columns: list[Any] = [np.empty(room, kind) for kind in (np.int32, np.uint8, np.int64)]
        entries = [(key, number, is_text, -1) for key, number, is_text in keys]
        entries += [(key, 0, False, field) for key, field in (fields or {}).items()]
        # the open-addressing table of the keys, and the texts that it points to
        table = (Key * KEY_SLOTS)()  # type: ignore[operator]
        for free in table:
            free.length = -1
        texts = []
        for key, *rest in entries:
            text, word = key.encode(), key_word(key)
            slot = ((word + len(text)) * KEY_MIXER & _WORD_MASK) >> 64 - KEY_BITS
            while table[slot].length >= 0:
                slot = (slot + 1) % KEY_SLOTS
            texts.append(np.frombuffer(bytearray(text + bytes(8)), np.uint8))
            table[slot] = (len(text), word, address(texts[-1]), *rest)
        self._keys, self._key_texts = table, texts
        self._gaps, self._gap_table = Dictionary(wanted.gaps, MOST_GAPS, _GAP_BYTES), (Gap * MOST_GAPS)()  # type: ignore[operator]
        self._gap_nexts = np.full(MOST_GAPS + UNKNOWN + 1, -1, np.int64)
        wanted.keys, wanted.gap_table = address(self._keys), address(self._gap_table)
        wanted.gap_nexts = address(self._gap_nexts)
        self._tell()

    def _tell(self) -> None:
        wanted = self.wanted
        wanted.rows, wanted.kinds, wanted.values = map(address, self._columns)
        wanted.room = len(self._columns[0])

    def grow(self, times: float = 2) -> None:
        """Enlarge the columns that are full or may be full after the next event, so many ``times``."""
        if self.wanted.count + MOST_ARGS > len(self._columns[0]):
            room = int(times * len(self._columns[0])) + MOST_ARGS
            self._columns = [longer(column, room) for column in self._columns]
            self._tell()
        self._texts.grow()

    def finish(self) -> tuple[Any, Any, Any, list[bytes]]:
        """The rows, kinds, values and texts. Nothing can be taken afterwards."""
        columns, self._columns = self._columns, []  # the caller owns this memory now
        rows, kinds, values = (column[: self.wanted.count] for column in columns)
        return rows, kinds, values, self._texts.texts()
