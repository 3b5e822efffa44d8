"""The event scanner's Python side: enlarges tables, reads the events that compiled code noted, and numbers strings and
tracks in the order of their first appearance.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from augment.arrays import Int32s, Int64s
from augment.core import Identity, SparseColumn, args, jsontext
from augment.core.threads import ALONE, Threads
from augment.kernels import dictionary, tokens
from augment.kernels import json_layout as layout
from augment.kernels.native import address, native
from augment.readers.events import read_row
from augment.readers.raw import ABSENT, COLUMNS, Broken, Place, RawEvents, Tally, Text, TrackNames

LEAST_ROOM = 1 << 16  #: rows
LEAST_PLACES = 1 << 8
_LEAST_GROWTH, _SPARE = 1.25, 1.04  #: full tables grow by the first at least; by how much more than is expected
_PLACE = 5  #: numbers of a place
_REPEATS = 4096  #: metadata events that are remembered
_OFFSET = list(COLUMNS).index("offset")
ARG_FIELDS = {
    "correlation": layout.CORRELATION,
    "device": layout.DEVICE,
    "stream": layout.STREAM,
    "bytes": layout.SIZE,
}  #: args that any row may have


class EventScanner:
    """Takes the elements of ``traceEvents``, piece by piece."""

    def __init__(self, nesting: int, likely_bytes: int = 0) -> None:
        """Take elements up to a depth of ``nesting``.

        Columns that are full are made as long as a text of ``likely_bytes`` needs if it goes on as it began.
        """
        self._nesting, self._likely_bytes = nesting, likely_bytes
        self.last_end: int | None = None  #: the offset after the last element that was taken
        self._scan = native("json_scan.scan")
        self._state = state = layout.Scan()
        self._strings = dictionary.Dictionary(state.strings, 1 << 12, 1 << 20)
        self._lines = dictionary.Dictionary(state.lines, 1 << 14, 4 << 20)
        self._heads = np.empty(6 << 14, np.int64)
        self._place_keys = np.empty(_PLACE * LEAST_PLACES, np.int64)
        self._place_slots = dictionary.slots(2 * LEAST_PLACES)
        self._rows: list[Any] = [np.empty(LEAST_ROOM, kind) for kind in COLUMNS.values()]
        self._pairs: list[Any] = [np.empty(LEAST_ROOM, np.int64) for _ in range(4)]
        self._args = args.TakenArgs(args.WANTED, LEAST_ROOM, ARG_FIELDS, state.wanted)
        self._notes = np.empty((1 << 13, 4), np.int64)
        self._extra_strings: dict[str, int] = {}
        self._extra_places: dict[Place, int] = {}
        self._extra_sizes: list[tuple[int, int]] = []
        self._extra_flows: list[tuple[int, int]] = []
        self._text_flows: list[tuple[int, str]] = []
        self._without_row: list[int] = []
        self._names, self._tally = TrackNames(), Tally()
        self._metadata = set[bytes]()  #: what changes nothing if it comes again: some profilers write it for each event
        self._strings.put_empty()
        state.last_end = -1
        self._tell()

    def scan(self, text: Text, start: int, size: int, base: int) -> tuple[int, bool]:
        """Take the whole elements of ``text[start:size]``; ``base`` is the offset of ``text[0]`` in all the text.

        Returns:
            The first position that was not taken, and whether the closing bracket stands there.

        Raises:
            Broken: neither an element nor the bracket stands there.
        """
        self._state.position = start
        status = self._run(text, size, base)
        while status == layout.GROW:
            self._follow_notes(text, base)
            # Enlarge every full table
            rows = self._state.rows
            taken_bytes = int(self._rows[_OFFSET][rows - 1]) if rows else 0
            times = max(_SPARE * self._likely_bytes / max(taken_bytes, 1), _LEAST_GROWTH) if rows else 2
            if rows >= (room := len(self._rows[0])):
                room = int(times * room) + 1
                self._rows = [dictionary.longer(column, room) for column in self._rows]
                self._pairs = [dictionary.longer(column, room) for column in self._pairs]
            self._strings.grow()
            self._args.compiled.grow(times)
            room = self._state.place_room
            if self._state.places >= room:
                self._place_keys.resize(2 * room * _PLACE, refcheck=False)
                self._place_slots = dictionary.slots(4 * room)
                native("json_scan.fill_place_slots")(self._place_slots, self._place_keys, room)
            self._tell()
            status = self._run(text, size, base)
        self._follow_notes(text, base)
        at = self._state.position
        if self._state.last_end >= 0:
            self.last_end = self._state.last_end
        if status == layout.BROKEN:
            raise Broken(base + at, "expected an event, ',' or ']'")
        return at, status == layout.END

    @property
    def event_count(self) -> int:
        """The number of elements taken, usable or not."""
        return self._state.events

    def _run(self, text: Text, size: int, base: int) -> int:
        if len(text) < size + tokens.PADDING or not text.flags.c_contiguous:
            raise ValueError(f"{tokens.PADDING} bytes must follow a text")
        return self._scan(address(text), size, base, self._state)

    def _tell(self) -> None:
        state = self._state
        (state.ts_column, state.dur_column, state.phase_column, state.category_column, state.name_column,
         state.place_column, state.correlation_column, state.offset_column,
         state.length_column) = map(address, self._rows)  # fmt: skip
        state.size_rows, state.size_values, state.flow_rows, state.flow_values = map(address, self._pairs)
        state.row_room, state.note_room = len(self._rows[0]), len(self._notes)
        state.note_table, state.line_heads = address(self._notes), address(self._heads)
        state.place_slots, state.place_keys = address(self._place_slots), address(self._place_keys)
        state.place_room = len(self._place_keys) // _PLACE

    def _follow_notes(self, text: Text, base: int) -> None:
        for kind, row, start, end in self._notes[: self._state.notes].tolist():
            data = text[start:end].tobytes()
            if data in self._metadata:
                continue
            renamed, faults = self._names.renamed, self._tally.counts.total()
            made = read_row(data, base + start, self._names, self._tally, self._nesting)
            if self._names.renamed > renamed:
                self._metadata.clear()
            elif kind == layout.NOTE_METADATA and faults == self._tally.counts.total():
                self._metadata.add(data)
            if len(self._metadata) > _REPEATS:
                self._metadata.clear()
            if made is None and kind == layout.NOTE_ODD:
                self._without_row.append(row)  # the values of its columns are not numbers
            if made is None or kind != layout.NOTE_ODD:
                continue
            key = made.pid, made.tid, made.device, made.stream
            place = self._extra_places.setdefault(key, len(self._extra_places))
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
        self._state.notes = 0

    def _extra(self, text: str) -> int:
        """The number of a string that the compiled table does not hold: a negative index until :meth:`finish`."""
        return -1 - self._extra_strings.setdefault(text, len(self._extra_strings))

    def finish(self, threads: Threads = ALONE) -> RawEvents:
        """Everything that was taken, with strings and places numbered in the order of first appearance."""
        count, sizes, flows = self._state.rows, self._state.sizes, self._state.flows
        columns: dict[str, Any] = dict(zip(COLUMNS, self._rows, strict=True))
        self._rows = []
        for column in columns.values():
            column.resize(count, refcheck=False)  # returns reserved memory in place
        size_rows, size_values, flow_rows, flow_values = self._pairs
        strings = [_unescaped(text) for text in self._strings.texts()]
        keys = self._place_keys.reshape(-1, _PLACE)[: self._state.places].tolist()

        def decode(kind: int, value: int) -> Identity:
            return value if kind == layout.NUMBER else strings[value] if kind == layout.STRING else None

        places = [
            (
                decode(kinds // 4, pid),
                decode(kinds % 4, tid),
                ABSENT if device == layout.ABSENT else device,
                ABSENT if stream == layout.ABSENT else stream,
            )
            for kinds, pid, tid, device, stream in keys
        ]
        number_of, places = self._number(columns, strings, places, threads)
        text_flows = [(row, -2 - number_of[text]) for row, text in self._text_flows]
        if missing := self._state.missing_commas:
            self._tally.add("missing_comma", self._state.first_missing, missing)
        return RawEvents(
            **columns,
            sizes=_merged(size_rows[:sizes].copy(), size_values[:sizes].copy(), self._extra_sizes),
            flows=_merged(flow_rows[:flows].copy(), flow_values[:flows].copy(), self._extra_flows + text_flows),
            strings=list(number_of),
            places=places,
            names=self._names,
            tally=self._tally,
            event_count=self.event_count,
            args=self._args.finish(threads),
        )

    def _number(
        self, columns: dict[str, Any], strings: list[str], places: list[Place], threads: Threads
    ) -> tuple[dict[str, int], list[Place]]:
        """Renumber strings and places in the order in which rows have them: category, name, id of a flow.

        The kernel distinguishes strings by their bytes, and does not know the strings of events that Python read.
        """
        known = len(strings), len(strings), len(places)
        strings, places = [*strings, *self._extra_strings], [*places, *self._extra_places]
        counts = len(strings), len(strings), len(places)
        numbered = [columns[column] for column in ("category", "name", "place")]

        def first_of(column: Int32s, known: int, count: int) -> Int64s:
            extra = np.flatnonzero(column < 0)
            column[extra] = known - 1 - column[extra]
            column[self._without_row] = count
            return first_rows(column, count + 1)

        of_category, of_name, of_place = threads.all(list(map(partial(partial, first_of), numbered, known, counts)))
        never = 3 * len(numbered[0])
        first = np.minimum(3 * of_category, 3 * of_name + 1)[:-1]
        for row, text in self._text_flows:
            code = len(strings) - len(self._extra_strings) + self._extra_strings[text]
            first[code] = min(int(first[code]), 3 * row + 2)
        number_of, place_of = {"": 0}, dict[Place, int]()
        of_strings = numbered_by_appearance(strings, first, never, number_of)
        of_places = numbered_by_appearance(places, of_place[:-1], len(numbered[0]), place_of)
        numbers = of_strings, of_strings, of_places
        threads.all([partial(np.take, *each, out=each[1], mode="clip") for each in zip(numbers, numbered, strict=True)])
        return number_of, list(place_of)


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
        return jsontext.clean(json.loads(f'"{body.decode("utf-8", "replace")}"', strict=False))
    except ValueError:  # \u without four hex digits
        return body.decode("utf-8", "replace")


Item = TypeVar("Item", bound=Hashable)
_ROWS_AT_ONCE = 1 << 20  #: rows at a time


def first_rows(codes: Int32s, count: int) -> Int64s:
    """For each code below ``count``, the first row that has it; the number of rows if none has it."""
    first = np.full(count, len(codes), np.int64)
    for start in range((len(codes) - 1) // _ROWS_AT_ONCE * _ROWS_AT_ONCE, -1, -_ROWS_AT_ONCE):
        block = codes[start : start + _ROWS_AT_ONCE]
        rows = np.arange(start + len(block) - 1, start - 1, -1)
        first[block[::-1]] = rows  # if several rows have a code, the last assignment stays
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
