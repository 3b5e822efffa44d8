"""The event scanner's Python side: enlarges tables, reads the events that compiled code noted, and passes the columns
on.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from augment.args import WANTED, TakenArgs
from augment.arrays.types import Int64s
from augment.jsontext import clean
from augment.kernels import json_layout as layout
from augment.kernels.interned import Dictionary, longer, slots
from augment.kernels.native import address, native
from augment.kernels.tokens import PADDING
from augment.readers.appearance import first_rows, numbered_by_appearance
from augment.readers.events import read_row
from augment.readers.raw import ABSENT, COLUMNS, Broken, Names, Place, RawEvents, Tally, Text
from augment.trace import Identity, SparseColumn

LEAST_ROOM = 1 << 16  #: rows
LEAST_PLACES = 1 << 8
LEAST_EVENT_BYTES = 96  #: few files have more events per byte; their columns grow during the scan
ARG_FIELDS = {
    "correlation": (layout.CORRELATION, 0),
    "device": (layout.DEVICE, layout.HAS_DEVICE),
    "stream": (layout.STREAM, layout.HAS_STREAM),
    "bytes": (layout.SIZE, layout.HAS_SIZE),
}  #: args that any row may have: where the current event stores them, and their bit


class EventScanner:
    """Takes the elements of ``traceEvents``, piece by piece."""

    def __init__(self, nesting: int, likely_bytes: int = 0) -> None:
        """Take elements up to a depth of ``nesting``.

        Columns are reserved for a text of ``likely_bytes``; memory that is never written is not allocated.
        """
        self._nesting = nesting
        self.last_end: int | None = None  #: the offset after the last element that was taken
        self._scan = native("json_scan.scan")
        self._state = np.zeros(layout.STATE, np.int64)
        self._fields = np.zeros(layout.FIELDS, np.int64)
        self._tables = np.zeros(layout.TABLES, np.int64)
        self._strings = Dictionary(1 << 12, 1 << 20)
        self._lines = Dictionary(1 << 14, 4 << 20)
        self._heads = np.empty((1 << 14, layout.HEAD_WIDTH // 8), np.int64)
        self._place_keys = np.empty((LEAST_PLACES, layout.PLACE_WIDTH // 8), np.int64)
        self._place_slots = slots(2 * LEAST_PLACES)
        room = max(LEAST_ROOM, likely_bytes // LEAST_EVENT_BYTES)
        self._rows: list[Any] = [np.empty(room, kind) for kind in COLUMNS.values()]
        self._pairs: list[Any] = [np.empty(room, np.int64) for _ in range(4)]
        self._args = TakenArgs(WANTED, room, ARG_FIELDS)
        self._notes = np.empty((1 << 13, layout.NOTE_WIDTH // 8), np.int64)
        self._extra_strings: dict[str, int] = {}
        self._extra_places: dict[Place, int] = {}
        self._extra_sizes: list[tuple[int, int]] = []
        self._extra_flows: list[tuple[int, int]] = []
        self._text_flows: list[tuple[int, str]] = []
        self._without_row: list[int] = []
        self._names, self._tally = Names(), Tally()
        self._strings.put_empty()
        self._set(layout.STRINGS, 1)
        self._set(layout.LAST_END, -1)

    def _get(self, counter: int) -> int:
        return int(self._state[counter // 8])

    def _set(self, counter: int, value: int) -> None:
        self._state[counter // 8] = value

    def scan(self, text: Text, start: int, size: int, base: int) -> tuple[int, bool]:
        """Take the whole elements of ``text[start:size]``; ``base`` is the offset of ``text[0]`` in all the text.

        Returns:
            The first position that was not taken, and whether the closing bracket stands there.

        Raises:
            Broken: neither an element nor the bracket stands there.
        """
        self._set(layout.POSITION, start)
        status = self._run(text, size, base)
        while status == layout.GROW:
            self._follow_notes(text, base)
            self._grow()
            status = self._run(text, size, base)
        self._follow_notes(text, base)
        at = self._get(layout.POSITION)
        if self._get(layout.LAST_END) >= 0:
            self.last_end = self._get(layout.LAST_END)
        if status == layout.BROKEN:
            raise Broken(base + at, "expected an event, ',' or ']'")
        return at, status == layout.END

    @property
    def event_count(self) -> int:
        """The number of elements taken, usable or not."""
        return self._get(layout.EVENTS)

    def _run(self, text: Text, size: int, base: int) -> int:
        if len(text) < size + PADDING or not text.flags.c_contiguous:
            raise ValueError(f"{PADDING} bytes must follow a text")
        strings, lines = self._strings.addresses(), self._lines.addresses()
        columns = [address(column) for column in (*self._rows, *self._pairs, self._notes)]
        places = [address(self._place_slots), address(self._place_keys), len(self._place_keys)]
        self._tables[:] = [
            *columns,
            len(self._rows[0]),
            len(self._notes),
            *strings,
            *lines,
            address(self._heads),
            *places,
            self._args.compiled.address,
        ]
        addresses = (address(array) for array in (self._fields, self._tables, self._state))
        return self._scan(address(text), size, base, *addresses)

    def _follow_notes(self, text: Text, base: int) -> None:
        for kind, row, start, end in self._notes[: self._get(layout.NOTES)].tolist():
            data = text[start:end].tobytes()
            made = read_row(data, base + start, self._names, self._tally, self._nesting)
            if made is None and kind == layout.NOTE_ODD:
                self._without_row.append(row)  # the values of its columns are not numbers
            if made is None or kind != layout.NOTE_ODD:
                continue
            place = self._extra_places.setdefault(
                (made.pid, made.tid, made.device, made.stream), len(self._extra_places)
            )
            texts = self._extra(made.category), self._extra(made.name)
            values = (made.ts, made.dur, made.phase, *texts, -1 - place, made.correlation)
            for column, value in zip(self._rows, values, strict=False):  # the kernel has already set offset and length
                column[row] = value
            self._args.add_odd(row, data)
            if made.size is not None:
                self._extra_sizes.append((row, made.size))
            if isinstance(made.flow_id, int):
                self._extra_flows.append((row, made.flow_id))
            elif made.flow_id is not None:
                self._extra(made.flow_id)
                self._text_flows.append((row, made.flow_id))
        self._set(layout.NOTES, 0)

    def _extra(self, text: str) -> int:
        """The number of a string that the compiled table does not hold: a negative index until :meth:`finish`."""
        return -1 - self._extra_strings.setdefault(text, len(self._extra_strings))

    def _grow(self) -> None:
        """Enlarge every full table."""
        room = len(self._rows[0])
        if self._get(layout.ROWS) >= room:
            self._rows = [longer(column, 2 * room) for column in self._rows]
            self._pairs = [longer(column, 2 * room) for column in self._pairs]
        self._strings.grow(self._get(layout.STRINGS), self._get(layout.POOL_WANTED))
        self._args.compiled.grow()
        room = len(self._place_keys)
        if self._get(layout.PLACES) >= room:
            self._place_keys.resize((2 * room, self._place_keys.shape[1]), refcheck=False)
            self._place_slots = slots(4 * room)
            fill = native("json_tables.fill_place_slots")
            fill(address(self._place_slots), 4 * room - 1, address(self._place_keys), room)

    def finish(self) -> RawEvents:
        """Everything that was taken, with strings and places numbered in the order of first appearance."""
        count, sizes, flows = (self._get(k) for k in (layout.ROWS, layout.SIZES, layout.FLOWS))
        columns: dict[str, Any] = dict(zip(COLUMNS, self._rows, strict=True))
        self._rows = []
        for column in columns.values():
            column.resize(count, refcheck=False)  # returns reserved memory in place
        size_rows, size_values, flow_rows, flow_values = self._pairs
        strings = self._decoded_strings()
        places = self._decoded_places(strings)
        number_of, places = self._number(columns, strings, places)
        text_flows = [(row, -2 - number_of[text]) for row, text in self._text_flows]
        if missing := self._get(layout.MISSING_COMMAS):
            self._tally.add("missing_comma", self._get(layout.FIRST_MISSING), missing)
        return RawEvents(
            **columns,
            sizes=_merged(size_rows[:sizes].copy(), size_values[:sizes].copy(), self._extra_sizes),
            flows=_merged(flow_rows[:flows].copy(), flow_values[:flows].copy(), self._extra_flows + text_flows),
            strings=list(number_of),
            places=places,
            names=self._names,
            tally=self._tally,
            event_count=self.event_count,
            args=self._args.finish(),
        )

    def _number(
        self, columns: dict[str, Any], strings: list[str], places: list[Place]
    ) -> tuple[dict[str, int], list[Place]]:
        """Renumber strings and places in the order in which rows have them: category, name, id of a flow.

        The kernel distinguishes strings by their bytes, and does not know the strings of events that Python read.
        """
        category, name, place = (columns[column] for column in ("category", "name", "place"))
        for column, known in ((category, len(strings)), (name, len(strings)), (place, len(places))):
            extra = np.flatnonzero(column < 0)
            column[extra] = known - 1 - column[extra]
        strings, places = [*strings, *self._extra_strings], [*places, *self._extra_places]
        for column, beyond in ((category, len(strings)), (name, len(strings)), (place, len(places))):
            column[self._without_row] = beyond
        never = 3 * len(name)
        first = np.minimum(3 * first_rows(category, len(strings) + 1), 3 * first_rows(name, len(strings) + 1) + 1)[:-1]
        for row, text in self._text_flows:
            code = len(strings) - len(self._extra_strings) + self._extra_strings[text]
            first[code] = min(int(first[code]), 3 * row + 2)
        number_of = {"": 0}
        numbers = numbered_by_appearance(strings, first, never, number_of)
        for column in (category, name):
            np.take(numbers, column, out=column, mode="clip")
        place_of: dict[Place, int] = {}
        numbers = numbered_by_appearance(places, first_rows(place, len(places) + 1)[:-1], len(place), place_of)
        np.take(numbers, place, out=place, mode="clip")
        return number_of, list(place_of)

    def _decoded_strings(self) -> list[str]:
        return [_unescaped(text) for text in self._strings.texts(self._get(layout.STRINGS))]

    def _decoded_places(self, texts: list[str]) -> list[Place]:
        keys = self._place_keys[: self._get(layout.PLACES)].tolist()

        def decode(kind: int, value: int) -> Identity:
            return value if kind == layout.NUMBER else texts[value] if kind == layout.STRING else None

        return [
            (
                decode(kinds // 4, pid),
                decode(kinds % 4, tid),
                ABSENT if device == layout.ABSENT else device,
                ABSENT if stream == layout.ABSENT else stream,
            )
            for kinds, pid, tid, device, stream in keys
        ]


def _merged(rows: Int64s, values: Int64s, extra: list[tuple[int, int]]) -> SparseColumn:
    """A sparse column with later entries merged in row order."""
    if not extra:
        return SparseColumn(rows, values)
    late = np.array(extra, np.int64)
    rows, values = np.concatenate([rows, late[:, 0]]), np.concatenate([values, late[:, 1]])
    order = np.argsort(rows, kind="stable")
    return SparseColumn(rows[order], values[order])


def _unescaped(body: bytes) -> str:
    """The text of a JSON string's body."""
    if b"\\" not in body:
        return body.decode("utf-8", "replace")
    try:
        return clean(json.loads(f'"{body.decode("utf-8", "replace")}"', strict=False))
    except ValueError:  # \u without four hex digits
        return body.decode("utf-8", "replace")
