"""The fast event scanner's Python side: makes room, follows the notes, hands on the columns.

Importing this module imports numba; where that fails, the general scanner serves.
"""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from augment.readers import compiled_event as event
from augment.readers import compiled_scan as kernel
from augment.readers import compiled_tables as table
from augment.readers.events import parse_event, row_of
from augment.readers.raw import ABSENT, COLUMNS, Announce, Broken, Names, Place, RawEvents, Tally, Text, clean
from augment.trace import Identity

BLOCK = 1 << 17  #: rows that are made room for at a time
_SLOW_CALL = 1.0  #: seconds; no call takes that long but the first, while numba compiles


class CompiledScanner:
    """See :class:`augment.readers.raw.Scanner`."""

    def __init__(self, announce: Announce) -> None:
        self.last_end: int | None = None
        self._announce = announce
        self._state = np.zeros(table.STATE, np.int64)
        self._fields = np.zeros(event.FIELDS, np.int64)
        self._tables = np.zeros(table.TABLES, np.int64)
        self._strings = _Dictionary(1 << 12, 1 << 20)
        self._lines = _Dictionary(1 << 14, 4 << 20)
        self._heads = np.empty((1 << 14, table.HEAD_WIDTH // 8), np.int64)
        self._place_keys = np.empty((1 << 8, table.PLACE_WIDTH // 8), np.int64)
        self._place_slots = _slots(1 << 9)
        self._blocks: list[tuple[npt.NDArray[Any], ...]] = []
        self._rows_before = 0
        self._new_block()
        self._extra_strings: dict[str, int] = {}
        self._extra_places: dict[Place, int] = {}
        self._extra_sizes: list[tuple[int, int]] = []
        self._extra_flows: list[tuple[int, int]] = []
        self._text_flows: list[tuple[int, int]] = []
        self._names, self._tally = Names(), Tally()
        self._strings.put_empty()
        self._set(table.STRINGS, 1)
        self._set(table.LAST_END, -1)

    def _get(self, counter: int) -> int:
        return int(self._state[counter // 8])

    def _set(self, counter: int, value: int) -> None:
        self._state[counter // 8] = value

    def scan(self, text: Text, start: int, size: int, base: int) -> tuple[int, bool]:
        """See :meth:`augment.readers.raw.Scanner.scan`."""
        self._set(table.POSITION, start)
        with _said_if_slow(self._announce):
            status = self._run(text, size, base)
        while status == kernel.GROW:
            self._follow_notes(text, base)
            self._grow()
            status = self._run(text, size, base)
        self._follow_notes(text, base)
        at = self._get(table.POSITION)
        if status == kernel.BROKEN:
            raise Broken(base + at, "expected an event, ',' or ']'")
        if self._get(table.LAST_END) >= 0:
            self.last_end = self._get(table.LAST_END)
        return at, status == kernel.END

    def _run(self, text: Text, size: int, base: int) -> int:
        strings, lines = self._strings.addresses(), self._lines.addresses()
        blocks = [column.ctypes.data for column in (*self._rows, *self._pairs, self._notes)]
        places = [self._place_slots.ctypes.data, self._place_keys.ctypes.data, len(self._place_keys)]
        self._tables[:] = [*blocks, BLOCK, len(self._notes), *strings, *lines, self._heads.ctypes.data, *places]
        addresses = (array.ctypes.data for array in (self._fields, self._tables, self._state))
        return int(kernel.scan(text.ctypes.data, size, base, *addresses))

    def _follow_notes(self, text: Text, base: int) -> None:
        for kind, row, start, end in self._notes[: self._get(table.NOTES)].tolist():
            data = text[start:end].tobytes()
            made = row_of(parse_event(data), data, base + start, self._names, self._tally)
            if made is None or kind != kernel.NOTE_ODD:
                continue
            place = self._extra_places.setdefault(
                (made.pid, made.tid, made.device, made.stream), len(self._extra_places)
            )
            texts = self._extra(made.category), self._extra(made.name)
            values = (made.ts, made.dur, made.phase, *texts, -1 - place, made.correlation)
            for column, value in zip(self._rows, values, strict=False):  # the kernel set offset and length
                column[row] = value
            if made.size is not None:
                self._extra_sizes.append((self._rows_before + row, made.size))
            if isinstance(made.flow_id, int):
                self._extra_flows.append((self._rows_before + row, made.flow_id))
            elif made.flow_id is not None:
                self._text_flows.append((self._rows_before + row, self._extra(made.flow_id)))
        self._set(table.NOTES, 0)

    def _extra(self, text: str) -> int:
        """A string that the compiled table does not know, as a negative index until the end."""
        return -1 - self._extra_strings.setdefault(text, len(self._extra_strings))

    def _new_block(self) -> None:
        self._rows = [np.empty(BLOCK, kind) for kind in COLUMNS.values()]
        self._pairs = [np.empty(BLOCK, np.int64) for _ in range(4)]
        self._notes = np.empty((BLOCK // 16, table.NOTE_WIDTH // 8), np.int64)

    def _close_block(self) -> None:
        """Put the rows of the block away, in no more memory than they need."""
        count, sizes, flows = (self._get(k) for k in (table.ROWS, table.SIZES, table.FLOWS))
        rows = [column if count == BLOCK else column[:count].copy() for column in self._rows]
        pairs = [self._pairs[0][:sizes] + self._rows_before, self._pairs[1][:sizes].copy()]
        pairs += [self._pairs[2][:flows] + self._rows_before, self._pairs[3][:flows].copy()]
        self._blocks.append((*rows, *pairs))
        self._rows_before += count
        for counter in (table.ROWS, table.SIZES, table.FLOWS):
            self._set(counter, 0)

    def _grow(self) -> None:
        """Make room in every table that is nearly full, and a new block if that one is."""
        if self._get(table.ROWS) >= BLOCK:
            self._close_block()
            self._new_block()
        self._strings.grow(self._get(table.STRINGS), self._get(table.POOL_WANTED))
        room = len(self._place_keys)
        if self._get(table.PLACES) >= room:
            self._place_keys.resize((2 * room, self._place_keys.shape[1]), refcheck=False)
            self._place_slots = _slots(4 * room)
            table.fill_place_slots(self._place_slots, self._place_keys, room)

    def finish(self) -> RawEvents:
        """See :meth:`augment.readers.raw.Scanner.finish`."""
        self._close_block()
        columns: dict[str, Any] = {name: self._joined(number) for number, name in enumerate(COLUMNS)}
        strings = self._decoded_strings()
        places = self._decoded_places(strings)
        if self._extra_places:
            for name, known in (("category", len(strings)), ("name", len(strings)), ("place", len(places))):
                extra = np.flatnonzero(columns[name] < 0)
                columns[name][extra] = known - 1 - columns[name][extra]
        texts = [(row, -2 - (len(strings) - 1 - index)) for row, index in self._text_flows]
        first = len(COLUMNS)
        return RawEvents(
            **columns,
            sizes=_merged(self._joined(first), self._joined(first + 1), self._extra_sizes),
            flows=_merged(self._joined(first + 2), self._joined(first + 3), self._extra_flows + texts),
            strings=[*strings, *self._extra_strings],
            places=[*places, *self._extra_places],
            names=self._names,
            tally=self._tally,
            event_count=self._get(table.EVENTS),
        )

    def _joined(self, column: int) -> Any:
        """One column of all blocks, which let go of it: the rows are never in memory twice."""
        joined = np.concatenate([block[column] for block in self._blocks])
        nothing = joined[:0].copy()
        self._blocks = [(*block[:column], nothing, *block[column + 1 :]) for block in self._blocks]
        return joined

    def _decoded_strings(self) -> list[str]:
        known, count = self._strings, self._get(table.STRINGS)
        pool = known.pool[: self._get(table.POOL)].tobytes()
        edges = zip(known.start[:count].tolist(), known.size[:count].tolist(), strict=True)
        return [_unescaped(pool[start : start + size]) for start, size in edges]

    def _decoded_places(self, texts: list[str]) -> list[Place]:
        keys = self._place_keys[: self._get(table.PLACES)].tolist()

        def one(kind: int, value: int) -> Identity:
            return value if kind == event.NUMBER else texts[value] if kind == event.STRING else None

        return [
            (
                one(kinds // 4, pid),
                one(kinds % 4, tid),
                ABSENT if device == event.ABSENT else device,
                ABSENT if stream == event.ABSENT else stream,
            )
            for kinds, pid, tid, device, stream in keys
        ]


def _slots(size: int) -> npt.NDArray[np.int32]:
    return np.full(size, -1, np.int32)


class _Dictionary:
    """Distinct byte strings by number: slots of an open-addressing table, and hash, start and size of each."""

    def __init__(self, room: int, pool: int) -> None:
        self.slots = _slots(2 * room)
        self.hashes = np.empty(room, np.uint64)
        self.start, self.size = np.empty(room, np.int64), np.empty(room, np.int64)
        self.pool = np.empty(pool, np.uint8)

    def addresses(self) -> list[int]:
        """As compiled code expects them, from SLOTS to BYTES_ROOM."""
        columns = [column.ctypes.data for column in (self.hashes, self.start, self.size)]
        return [
            self.slots.ctypes.data, len(self.slots) - 1, *columns, len(self.start),
            self.pool.ctypes.data, len(self.pool),
        ]  # fmt: skip

    def put_empty(self) -> None:
        """Make the empty string, whose hash is 0, number 0."""
        self.slots[0] = self.hashes[0] = self.start[0] = self.size[0] = 0

    def grow(self, count: int, pool_wanted: int) -> None:
        """Double what is full."""
        if pool_wanted > len(self.pool):
            self.pool.resize(2 * pool_wanted, refcheck=False)
        if count >= len(self.start):
            for column in (self.hashes, self.start, self.size):
                column.resize(2 * count, refcheck=False)
            self.slots = _slots(4 * count)
            table.fill_slots(self.slots, self.hashes, count)


def _merged(rows: Any, values: Any, extra: list[tuple[int, int]]) -> tuple[Any, Any]:
    """Pairs of ascending row and value, with those that came late put in their place."""
    if not extra:
        return rows, values
    late = np.array(extra, np.int64)
    rows, values = np.concatenate([rows, late[:, 0]]), np.concatenate([values, late[:, 1]])
    order = np.argsort(rows, kind="stable")
    return rows[order], values[order]


def _unescaped(body: bytes) -> str:
    """The text of a JSON string's body."""
    if b"\\" not in body:
        return body.decode("utf-8", "replace")
    try:
        return clean(json.loads(f'"{body.decode("utf-8", "replace")}"', strict=False))
    except ValueError:  # \u without four hex digits
        return body.decode("utf-8", "replace")


class _said_if_slow:  # noqa: N801 - used as a statement
    """Says what takes so long if the block is not through within :data:`_SLOW_CALL`."""

    def __init__(self, announce: Announce) -> None:
        self._timer = threading.Timer(
            _SLOW_CALL, announce, ["compiling the fast reader (about 15 s, once on this machine)"]
        )
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
