"""How ``arg_columns.py`` reads the text: in compiled code, and in Python where compiled code cannot."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from augment.arrays.columns import narrowed
from augment.arrays.ordering import order_of
from augment.arrays.types import Bools, Bytes, Int32s, Int64s
from augment.core.args import Arg, TakenArgs
from augment.core.jsontext import mended_json
from augment.core.trace import (
    ArgColumn,
    Decode,
    SourceBytes,
    SparseColumn,
    Trace,
    args_of_event,
    json_event,
    moved_args,
)
from augment.facts.source.event_text import PADDING, Block, blocks, decoded
from augment.kernels import arg_columns_layout as layout
from augment.kernels.native import address, native
from augment.kernels.packet_args_layout import ArgTable

LEAST_ROOM = 64
_NUMBER = re.compile(r"\s*(?:[-+]?[0-9]{1,20}|0[xX][0-9a-fA-F]{1,16})\s*")
_EXACT = 1 << 53  #: below this, a whole float equals the number that was written


class Column:
    """The values of an arg in reading order: for each, the row, a flag (see the layout), and the value.

    The value is an integer, or an index into ``texts``. Memory grows with the number of values.
    """

    def __init__(self, arg: Arg) -> None:
        self.arg = arg
        self.texts: list[str] = []
        self._codes: dict[str, int] = {}
        self._rows, self._values = np.empty(0, np.int64), np.empty(0, np.int64)
        self._flags = np.empty(0, np.uint8)
        self.table = ArgTable()
        self.table.category_bits, self.table.is_text = arg.category_bits, arg.is_text

    def reserve(self, more: int) -> None:
        """Make room for that many more entries."""
        wanted = self.table.count + more
        if wanted > len(self._rows):
            room = max(wanted, 2 * len(self._rows), LEAST_ROOM)
            self._rows, self._values = _grown(self._rows, room), _grown(self._values, room)
            self._flags = _grown(self._flags, room)
            table = self.table
            table.rows, table.values, table.flags = map(address, (self._rows, self._values, self._flags))

    def put(self, row: int, value: Any) -> None:
        """Add the arg of a row, a JSON value."""
        self.reserve(1)
        at = self.table.count
        self._rows[at] = row
        self._flags[at], self._values[at] = self.stored(value)
        self.table.count = at + 1

    def take_back(self, row: int) -> None:
        """Remove the last entry if it belongs to this row."""
        at = self.table.count - 1
        if at >= 0 and self._rows[at] == row:
            self.table.count = at

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
        """As :meth:`stored`, for the JSON text of the arg."""
        try:
            return self.stored(mended_json(text))
        except ValueError:
            return layout.DROPPED, 0

    def values(self) -> ArgValues:
        """The values by ascending rows."""
        count = self.table.count
        rows, values, flags = self._rows[:count], self._values[:count], self._flags[:count]
        counts = np.bincount(flags, minlength=4).tolist()
        kept = np.flatnonzero((flags != layout.ABSENT) & (flags != layout.DROPPED))
        order = kept[np.argsort(rows[kept], kind="stable")]
        return ArgValues(SparseColumn(rows[order], values[order]), self.texts, counts)


def _grown(column: npt.NDArray[Any], room: int) -> npt.NDArray[Any]:
    larger = np.empty(room, column.dtype)
    larger[: len(column)] = column
    return larger


class ArgValues(Struct, frozen=True):
    """The values of an arg by row. For a text, ``column.values`` are indexes into ``texts``. ``counts`` is by flag."""

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
    """Rows to read, in file order: where each lies in the text, its category, and its row number."""

    decode: Decode
    offsets: Int64s
    lengths: Int32s
    categories: Bytes
    rows: Int64s
    columns: Sequence[Column]

    def room_for(self, more: int) -> Int64s:
        """Make room for that many more entries in each column. Returns the addresses of their tables."""
        for column in self.columns:
            column.reserve(more)
        return np.array([address(column.table) for column in self.columns], np.int64)


Scan = Callable[[Job, Block], None]  #: takes the rows of a block


def args_of_rows(trace: Trace, rows: Int64s, wanted: Sequence[Arg]) -> dict[str, ArgValues]:
    """The values of ``wanted`` in ``rows``, by name, in one pass over the text.

    For a source that is not JSON, its ``decode`` may have a method ``arg_scan``, which makes a faster :data:`Scan`.
    """
    events, decode = trace.events, trace.source.decode
    ordered = rows[order_of(events.offset[rows])]
    columns = [Column(arg) for arg in wanted]
    job = Job(decode, events.offset[ordered], events.length[ordered], events.category[ordered], ordered, columns)
    if decode is json_event:
        taken = _compiled(job, trace.source.text)
        return {arg.name: values_of(taken[arg.name], arg, partial(has_category, trace, arg)) for arg in wanted}
    scan: Scan = decode.arg_scan() if hasattr(decode, "arg_scan") else plain
    for block in blocks(trace.source.text, job.offsets, job.lengths):
        scan(job, block)
    return {column.arg.name: column.values() for column in columns}


def has_category(trace: Trace, arg: Arg, rows: Int64s) -> Bools:
    """Which of ``rows`` have a category that ``arg`` is wanted from."""
    of_category = np.zeros(256, np.bool_)
    of_category[list(arg.categories)] = True
    has: Bools = of_category.take(trace.events.category[rows])
    return has


def values_of(taken: ArgColumn, arg: Arg, may_have: Callable[[Int64s], Bools]) -> ArgValues:
    """The values of ``arg`` in the rows that ``may_have`` it."""

    def chosen(column: SparseColumn) -> SparseColumn:
        rows = column.rows[:]
        kept = may_have(rows)
        return column if kept.all() else SparseColumn(rows[kept], column.values[kept])

    numbers, others = chosen(taken.numbers), chosen(taken.others)
    column = Column(arg)
    occurs = np.zeros(len(taken.json), np.bool_)
    codes = others.values[:]
    occurs[codes] = True
    stored = np.zeros((len(taken.json), 2), np.int64)
    for code in np.flatnonzero(occurs).tolist():
        stored[code] = column.stored_json(taken.json[code])
    flags = stored[codes, 0]
    counts = np.bincount(flags, minlength=4)
    counts[layout.PLAIN] += len(numbers.rows)
    if len(others.rows):
        kept = (flags != layout.ABSENT) & (flags != layout.DROPPED)
        rows = np.concatenate([numbers.rows[:], others.rows[kept]])
        values = np.concatenate([numbers.values[:], stored[codes[kept], 1]])
        order = np.argsort(rows, kind="stable")
        numbers = SparseColumn(narrowed(rows[order]), narrowed(values[order]))
    return ArgValues(numbers, column.texts, counts.tolist())


def plain(job: Job, block: Block) -> None:
    """Take the rows of a block by decoding each event as a whole."""
    wanted = {
        (category, name): column
        for column in job.columns
        for category in column.arg.categories
        for name in (column.arg.name, *column.arg.also)
    }
    part = slice(block.start, block.stop)
    events = decoded(block, job.offsets, job.lengths, job.decode)
    for event, category, row in zip(events, job.categories[part].tolist(), job.rows[part].tolist(), strict=True):
        for name, value in args_of_event(event).items():
            if (column := wanted.get((category, name))) is not None:
                column.take_back(row)  # of two spellings, the last counts
                column.put(row, value)


def _compiled(job: Job, text: SourceBytes) -> dict[str, ArgColumn]:
    """The values in the rows of a job, read by compiled code except for the events that it leaves to Python."""
    scan = native("arg_columns.scan_columns")
    taken = TakenArgs([column.arg for column in job.columns], max(len(job.rows), LEAST_ROOM))
    for block in blocks(text, job.offsets, job.lengths):
        columns = [np.ascontiguousarray(length[block.start : block.stop]) for length in (job.offsets, job.lengths)]
        origin, place, count = address(block.data) + PADDING, 0, block.stop - block.start
        while place < count:
            place = scan(origin, block.base, place, *columns, block.start, taken.compiled.wanted)
            if place < 0:
                taken.compiled.grow()
                place = -1 - place
            elif place < count:
                start = int(columns[0][place]) - block.base + PADDING
                taken.add_odd(block.start + place, block.data[start : start + int(columns[1][place])].tobytes())
                place += 1
    return moved_args(taken.finish(), job.rows)
