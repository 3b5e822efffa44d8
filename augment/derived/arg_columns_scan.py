"""How ``arg_columns.py`` goes through the text: in compiled code, and in Python where that cannot be."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from augment.args import Arg
from augment.compiled.known_bytes import KnownBytes
from augment.compiled.load import Load
from augment.compiled.native import Native, native
from augment.derived import arg_columns_layout_compiled as layout
from augment.derived.event_text import PADDING, Block, args_of, blocks, decoded
from augment.jsontext import lenient_json, mended_json
from augment.trace import Bytes, Decode, Int32s, Int64s, SparseColumn, Trace, json_event

LEAST_ROOM = 64
COMPILED_FROM = 5_000  #: rows from which on compiled code earns its load
_load = Load()
_NUMBER = re.compile(r"\s*(?:[-+]?[0-9]{1,20}|0[xX][0-9a-fA-F]{1,16})\s*")
_EXACT = 1 << 53  #: below, a whole float is the number that was written


class Column:
    """What rows have of an arg, in the order in which it is read: the row, a flag (see the layout), the value.

    The value is an integer, or an index of ``texts``. Memory grows with what was found.
    """

    def __init__(self, arg: Arg) -> None:
        self.arg = arg
        self.texts: list[str] = []
        self._codes: dict[str, int] = {}
        self._rows, self._values = np.empty(0, np.int64), np.empty(0, np.int64)
        self._flags = np.empty(0, np.uint8)
        self._count = np.zeros(1, np.int64)

    def reserve(self, more: int) -> None:
        """Make room for so many more."""
        wanted = int(self._count[0]) + more
        if wanted > len(self._rows):
            room = max(wanted, 2 * len(self._rows), LEAST_ROOM)
            self._rows, self._values = _grown(self._rows, room), _grown(self._values, room)
            self._flags = _grown(self._flags, room)

    def addresses(self) -> tuple[int, ...]:
        """Of the columns and of their length."""
        return tuple(one.ctypes.data for one in (self._rows, self._values, self._flags, self._count))

    def put(self, row: int, value: Any) -> None:
        """Add the arg of a row as JSON has it."""
        self.reserve(1)
        at = int(self._count[0])
        self._rows[at] = row
        self._flags[at], self._values[at] = self.stored(value)
        self._count[0] += 1

    def take_back(self, row: int) -> None:
        """Drop what was added last, if it is of this row."""
        at = int(self._count[0]) - 1
        if at >= 0 and self._rows[at] == row:
            self._count[0] = at

    def stored(self, value: Any) -> tuple[int, int]:
        """The flag and the value to store for an arg."""
        if value is None:
            return layout.ABSENT, 0
        if not self.arg.is_text:
            return _as_integer(value)
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        code = self._codes.setdefault(text, len(self.texts))
        if code == len(self.texts):
            self.texts.append(text)
        return layout.PLAIN, code

    def stored_json(self, text: bytes) -> tuple[int, int]:
        """The same for its JSON text."""
        try:
            return self.stored(mended_json(text))
        except ValueError:
            return layout.DROPPED, 0

    def found(self) -> Found:
        """What was read, by ascending rows."""
        count = int(self._count[0])
        rows, values, flags = self._rows[:count], self._values[:count], self._flags[:count]
        counts = np.bincount(flags, minlength=4).tolist()
        kept = np.flatnonzero((flags != layout.ABSENT) & (flags != layout.DROPPED))
        order = kept[np.argsort(rows[kept], kind="stable")]
        return Found(SparseColumn(rows[order], values[order]), self.texts, counts)


def _grown(column: npt.NDArray[Any], room: int) -> npt.NDArray[Any]:
    larger = np.empty(room, column.dtype)
    larger[: len(column)] = column
    return larger


@dataclass(frozen=True, slots=True)
class Found:
    """What rows have of an arg; of text, ``column.values`` are indexes of ``texts``. ``counts``: how many by flag."""

    column: SparseColumn
    texts: Sequence[str]
    counts: Sequence[int]


def _as_integer(value: Any) -> tuple[int, int]:
    flag = layout.PLAIN
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value, flag = int(value, 16 if "x" in value.lower() else 10), layout.CONVERTED
    elif isinstance(value, float) and abs(value) < _EXACT and value.is_integer():
        value, flag = int(value), layout.CONVERTED
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 63) <= value < 1 << 64:
        return layout.DROPPED, 0
    return flag, value - (1 << 64) if value >= 1 << 63 else value


class Job(NamedTuple):
    """Rows in the order of the file: where they lie, what they are, and which they are."""

    decode: Decode
    offsets: Int64s
    lengths: Int32s
    categories: Bytes
    rows: Int64s
    columns: Sequence[Column]

    def room_for(self, more: int) -> Int64s:
        """Make room for so many more entries of each column; the addresses of all, four a column."""
        for one in self.columns:
            one.reserve(more)
        return np.array([one.addresses() for one in self.columns], np.int64)


Scan = Callable[[Job, Block], None]  #: takes the rows of a block


def fill(trace: Trace, rows: Int64s, columns: Sequence[Column], engine: str = "auto") -> None:
    """Fill ``columns`` with what ``rows`` have. ``engine``: ``auto``, ``compiled`` or ``plain``.

    Of what is no JSON, the source's ``decode`` may have a method ``arg_scan``, which makes a quicker :data:`Scan`.
    """
    events, decode = trace.events, trace.source.decode
    ordered = rows[np.argsort(events.offset[rows], kind="stable")]
    job = Job(decode, events.offset[ordered], events.length[ordered], events.category[ordered], ordered, columns)
    scan: Scan = plain
    compiled = _CompiledScan if decode is json_event else getattr(decode, "arg_scan", None)
    if compiled and engine != "plain" and (engine == "compiled" or _load.pays(len(rows), COMPILED_FROM)):
        try:
            scan = compiled()
        except ImportError:  # no compiler on this machine, and nothing that it compiled
            if engine == "compiled":
                raise
    for block in blocks(trace.source.text, job.offsets, job.lengths):
        scan(job, block)


def plain(job: Job, block: Block) -> None:
    """Take the rows of a block, each decoded as a whole."""
    wanted = {
        (category, name): one
        for one in job.columns
        for category in one.arg.categories
        for name in (one.arg.name, *one.arg.also)
    }
    own = slice(block.start, block.stop)
    events = decoded(block, job.offsets, job.lengths, job.decode)
    for event, category, row in zip(events, job.categories[own].tolist(), job.rows[own].tolist(), strict=True):
        for name, value in args_of(event).items():
            if (column := wanted.get((category, name))) is not None:
                column.take_back(row)  # of two spellings, the last counts
                column.put(row, value)


class _CompiledScan:
    """Compiled code, and what it leaves to Python."""

    def __init__(self) -> None:
        self._scan: Native = native("augment.derived.arg_columns_compiled", "scan_columns", 10)
        self._known = KnownBytes()
        self._state = np.zeros(layout.STATE, np.int64)

    def __call__(self, job: Job, block: Block) -> None:
        """Take the rows of a block."""
        span = slice(block.start, block.stop)
        own = [np.ascontiguousarray(one[span]) for one in (job.offsets, job.lengths, job.categories, job.rows)]
        state = self._state
        state[layout.ROW // 8] = 0
        targets = job.room_for(len(own[0]))  # of each row a column takes one at most: it stays where it is
        while True:
            tables = np.array(self._known.addresses(), np.int64)
            why = self._scan(
                block.data.ctypes.data + PADDING, block.base, len(own[0]), *(one.ctypes.data for one in own),
                targets.ctypes.data, tables.ctypes.data, state.ctypes.data,
            )  # fmt: skip
            if why == layout.DONE:
                return
            place = int(state[layout.ROW // 8])
            for one in job.columns:  # what was stored before the new or odd part was met
                one.take_back(int(own[3][place]))
            if why == layout.MISS and self._learn(block.data, job.columns):
                continue
            plain(job, block._replace(start=block.start + place, stop=block.start + place + 1))
            state[layout.ROW // 8] = place + 1

    def _learn(self, data: Bytes, columns: Sequence[Column]) -> bool:
        """Enter the code of a key, or of a key with its value, that was met for the first time; False if no JSON."""
        start, end, hashed, is_key = (
            int(self._state[place // 8])
            for place in (layout.MISS_START, layout.MISS_END, layout.MISS_HASH, layout.MISS_IS_KEY)
        )
        text = data[start - data.ctypes.data : end - data.ctypes.data].tobytes()
        try:
            decoded = lenient_json(b'"' + text + b'"' if is_key else b"{" + text + b"}")
        except ValueError:
            return False
        name, value = (decoded, None) if is_key else next(iter(decoded.items()))
        index = next((i for i, one in enumerate(columns) if name in (one.arg.name, *one.arg.also)), -1)
        arg = columns[index].arg
        code: tuple[int, ...] = (-1, 0, 0)
        if not is_key:
            code = columns[index].stored(value)
        elif index >= 0:
            code = (index, arg.category_bits, arg.is_text)
        self._known.add(hashed, text, np.array(code, np.int64).tobytes())
        return True
