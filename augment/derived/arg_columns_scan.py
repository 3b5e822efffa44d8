"""How ``arg_columns.py`` goes through the text: in compiled code, and in Python where that cannot be."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from augment.compiled.known_bytes import KnownBytes
from augment.compiled.native import Native, native
from augment.derived import arg_columns_layout_compiled as layout
from augment.derived.event_text import PADDING, Block, args_of, blocks, decoded
from augment.jsontext import lenient_json
from augment.trace import Bytes, Category, Decode, Int32s, Int64s, Trace, json_event

COMPILED_FROM = 5_000  #: rows from which on compiled code earns its load
_NUMBER = re.compile(r"\s*(?:[-+]?[0-9]{1,20}|0[xX][0-9a-fA-F]{1,16})\s*")
_EXACT = 1 << 53  #: below, a whole float is the number that was written


@dataclass(frozen=True, slots=True)
class Arg:
    """An arg that is wanted of events of ``categories``: an integer, or a text; ``also`` are other spellings."""

    name: str
    categories: tuple[Category, ...]
    is_text: bool = False
    also: tuple[str, ...] = ()

    @property
    def category_bits(self) -> int:
        """A bit for each category."""
        return sum(1 << category for category in set(self.categories))


class Column:
    """What ``count`` rows have of an arg: ``flags`` (see the layout) and ``values``: integers, or indexes of ``texts``.

    Memory is taken as it is written: an arg that no event has takes none.
    """

    def __init__(self, arg: Arg, count: int) -> None:
        self.arg = arg
        self.flags: Bytes = np.zeros(count, np.uint8)
        self.values: Int64s = np.zeros(count, np.int64)
        self.texts: list[str] = []
        self._codes: dict[str, int] = {}

    def put(self, place: int, value: Any) -> None:
        """Store the arg of a row as JSON has it."""
        self.flags[place], self.values[place] = self.stored(value)

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


def _as_integer(value: Any) -> tuple[int, int]:
    flag = layout.PLAIN
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value, flag = int(value, 16 if "x" in value.lower() else 10), layout.CONVERTED
    elif isinstance(value, float) and abs(value) < _EXACT and value.is_integer():
        value, flag = int(value), layout.CONVERTED
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 63) <= value < 1 << 64:
        return layout.DROPPED, 0
    return flag, value - (1 << 64) if value >= 1 << 63 else value


class _Job(NamedTuple):
    """Rows in the order of the file: where they lie, what they are, and their places in the columns."""

    decode: Decode
    offsets: Int64s
    lengths: Int32s
    categories: Bytes
    places: Int64s
    columns: Sequence[Column]


def fill(trace: Trace, rows: Int64s, columns: Sequence[Column], engine: str = "auto") -> None:
    """Fill ``columns``, whose places are ``rows``. ``engine``: ``auto``, ``compiled`` or ``plain``."""
    events, decode = trace.events, trace.source.decode
    places = np.argsort(events.offset[rows], kind="stable").astype(np.int64, copy=False)
    ordered = rows[places]
    job = _Job(decode, events.offset[ordered], events.length[ordered], events.category[ordered], places, columns)
    scan: Callable[[_Job, Block], None] = _plain
    if decode is json_event and engine != "plain" and (engine == "compiled" or len(rows) >= COMPILED_FROM):
        try:
            scan = _CompiledScan()
        except ImportError:  # no compiler on this machine, and nothing that it compiled
            if engine == "compiled":
                raise
    for block in blocks(trace.source.text, job.offsets, job.lengths):
        scan(job, block)


def _plain(job: _Job, block: Block) -> None:
    wanted = {
        (category, name): one
        for one in job.columns
        for category in one.arg.categories
        for name in (one.arg.name, *one.arg.also)
    }
    rows = slice(block.start, block.stop)
    events = decoded(block, job.offsets, job.lengths, job.decode)
    for event, category, place in zip(events, job.categories[rows].tolist(), job.places[rows].tolist(), strict=True):
        for name, value in args_of(event).items():
            if (column := wanted.get((category, name))) is not None:
                column.put(place, value)


class _CompiledScan:
    """Compiled code, and what it leaves to Python."""

    def __init__(self) -> None:
        self._scan: Native = native("augment.derived.arg_columns_compiled", "scan_columns", 10)
        self._known = KnownBytes()
        self._state = np.zeros(layout.STATE, np.int64)

    def __call__(self, job: _Job, block: Block) -> None:
        """Take the rows of a block."""
        rows = slice(block.start, block.stop)
        own = [np.ascontiguousarray(one[rows]) for one in (job.offsets, job.lengths, job.categories, job.places)]
        targets = np.array([(one.flags.ctypes.data, one.values.ctypes.data) for one in job.columns], np.int64)
        state = self._state
        state[layout.ROW // 8] = 0
        while True:
            tables = np.array(self._known.addresses(), np.int64)
            why = self._scan(
                block.data.ctypes.data + PADDING, block.base, len(own[0]), *(one.ctypes.data for one in own),
                targets.ctypes.data, tables.ctypes.data, state.ctypes.data,
            )  # fmt: skip
            if why == layout.DONE:
                return
            if why == layout.MISS and self._learn(block.data, job.columns):
                continue
            row = int(state[layout.ROW // 8])
            for one in job.columns:  # what was stored before the odd part was met
                one.flags[own[3][row]] = layout.ABSENT
            _plain(job, block._replace(start=block.start + row, stop=block.start + row + 1))
            state[layout.ROW // 8] = row + 1

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
