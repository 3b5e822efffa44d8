"""What the fast event scanner takes of ``augment/args.py`` on its way: Python's side of ``compiled_args.py``."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from augment.args import WANTED
from augment.readers import compiled_layout as layout
from augment.readers.dictionary import Dictionary, longer
from augment.trace import ArgColumn, SparseColumn, json_event

FIELDS = {
    "correlation": (layout.CORRELATION, 0),
    "device": (layout.DEVICE, layout.HAS_DEVICE),
    "stream": (layout.STREAM, layout.HAS_STREAM),
    "bytes": (layout.SIZE, layout.HAS_SIZE),
}  #: args that are columns of the table: where the event at hand keeps them, and their bit
_NUMBERS = {name: number for number, arg in enumerate(WANTED) for name in (arg.name, *arg.also)}
_SLOT_MASK = (1 << 64) - 1


class TakenArgs:
    """Args in the order of the file: the row, the kind (number of the arg, and whether it is a code), the value.

    A code is the number of a JSON text.
    """

    def __init__(self, room: int) -> None:
        """Reserve ``room``: memory that is not written to is not taken."""
        self.json = Dictionary(1 << 12, 1 << 20)
        self._columns: list[Any] = [np.empty(room, kind) for kind in (np.int32, np.int64, np.uint8)]
        self._keys, self._key_texts = _key_table()
        self._odd: list[tuple[int, int, int]] = []
        self._odd_json: dict[bytes, int] = {}

    def addresses(self) -> list[int]:
        """As compiled code expects them, from ARG_ROWS to KEYS."""
        columns = [column.ctypes.data for column in self._columns]
        return [*columns, len(self._columns[0]), self._keys.ctypes.data]

    def grow(self, count: int) -> None:
        """Double the columns, of which ``count`` are taken, if another event may not have room."""
        if count + len(WANTED) > len(self._columns[0]):
            self._columns = [longer(column, 2 * len(column)) for column in self._columns]

    def add_odd(self, row: int, event_text: bytes) -> None:
        """Take the args of an event that compiled code left to Python."""
        event = json_event(event_text, 0)
        args = event.get("args") if isinstance(event, dict) else None
        wanted = {_NUMBERS[name]: value for name, value in args.items() if name in _NUMBERS} if args else {}
        for number, value in wanted.items():
            code = self._odd_json.setdefault(json.dumps(value).encode(), len(self._odd_json))
            self._odd.append((row, number + layout.IS_CODE, code))

    def finish(self, count: int, texts: int) -> dict[str, ArgColumn]:
        """The columns of all of :data:`WANTED`, of ``count`` entries with ``texts`` JSON texts."""
        rows, values, kinds = (column[:count] for column in self._columns)
        self._columns = []  # their memory is not needed while the table is made
        json_texts = [*self.json.texts(texts), *self._odd_json]
        if self._odd:
            odd = np.array(self._odd, np.int64)
            order = np.argsort(np.concatenate([rows, odd[:, 0]]), kind="stable")
            rows = np.concatenate([rows, odd[:, 0]])[order]
            kinds = np.concatenate([kinds, odd[:, 1].astype(np.uint8)])[order]
            values = np.concatenate([values, texts + odd[:, 2]])[order]

        def column(kind: int) -> SparseColumn:
            own = np.flatnonzero(kinds == kind)
            return SparseColumn(rows[own].astype(np.int64), values[own])

        return {
            arg.name: ArgColumn(column(number), column(number + layout.IS_CODE), json_texts)
            for number, arg in enumerate(WANTED)
        }


def _key_table() -> tuple[Any, list[Any]]:
    """The open-addressing table of the keys, and the texts that it points into."""
    table = np.full((layout.KEY_SLOTS, layout.KEY_WIDTH // 8), -1, np.int64)
    texts = []
    entries = [(name, field, has, 0, 0) for name, (field, has) in FIELDS.items()]
    entries += [(name, -1, 0, number, WANTED[number].is_text) for name, number in _NUMBERS.items()]
    for name, *rest in entries:
        word = layout.key_word(name)
        slot = ((word + len(name)) * layout.KEY_MIXER & _SLOT_MASK) >> 64 - layout.KEY_BITS
        while table[slot, 0] >= 0:
            slot = (slot + 1) % layout.KEY_SLOTS
        texts.append(np.frombuffer(name.encode().ljust(len(name) + 8, b"\0"), np.uint8))
        signed = word - (1 << 64) if word >> 63 else word
        table[slot] = [len(name), signed, texts[-1].ctypes.data, *rest]
    return table, texts
