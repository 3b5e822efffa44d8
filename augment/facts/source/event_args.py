"""Args as columns: those that any analysis uses, read in one pass over the source at first use.

The reader of Chrome JSON collects them while reading: see ``augment/core/args.py``, which also says how to add an arg.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from msgspec import Struct

from augment.arrays import Bools, Bytes, EventRow, EventRows, Int32s, Int64s, narrowed, order_of
from augment.core import GPU_WORK, LAUNCHES, Category, Diagnostic, SparseColumn, Texts, Trace, derived, jsontext
from augment.core.args import COLLECTIVES, KERNELS, RECORDED, SYNCS, WANTED, Arg, TakenArgs
from augment.core.trace import ArgColumn, Decode, SourceBytes, args_of_event, json_event, moved_args
from augment.facts.names import KernelType, types_of
from augment.kernels import dictionary
from augment.kernels import wanted_args as layout
from augment.kernels.native import address, native
from augment.kernels.packet_args import ArgTable

IDENTIFIERS = (Arg("External id", RECORDED, also=("external id",)), Arg("Record function id", RECORDED))
#: args of HTA's frames that :data:`WANTED` lacks, or lacks for some of these categories
OF_FRAMES = (
    Arg("External id", (*RECORDED, *LAUNCHES, *GPU_WORK, Category.GPU_USER_ANNOTATION), also=("external id",)),
    Arg("Input Dims", RECORDED, is_text=True, also=("Input dims",)),
    Arg("Input type", RECORDED, is_text=True),
    Arg("Input Strides", RECORDED, is_text=True),
    Arg("wait_on_stream", SYNCS),
    Arg("wait_on_cuda_event_record_corr_id", SYNCS),
    Arg("Python id", (Category.PYTHON_FUNCTION,)),
    Arg("Python parent id", (Category.PYTHON_FUNCTION,)),
    Arg("Rank", COLLECTIVES),
    Arg("In split size", COLLECTIVES, is_text=True),
    Arg("Out split size", COLLECTIVES, is_text=True),
)


class ArgColumns(Struct, frozen=True):
    """The args in a list such as :data:`WANTED`, for the rows of their categories."""

    args: Mapping[str, ArgValues]  #: by the arg's name

    def ints(self, name: str) -> SparseColumn:
        """The rows that have this arg, and its values.

        Numbers of [2^63, 2^64), as addresses may be, are the int64 of the same bits. Quoted numbers and whole floats
        are taken as numbers; other values are left out: see :meth:`diagnostics`.
        """
        return self.args[name].column

    def texts(self, name: str) -> tuple[Int64s, Texts]:
        """The rows that have this arg, and its values: a string as it is, any other value as its JSON.

        The JSON is Python's: a blank after each comma and colon. ``Texts.values`` are distinct.
        """
        texts = self.args[name]
        return texts.column.rows[:], Texts(texts.column.values[:].astype(np.int32), texts.texts)

    def diagnostics(self, names: Sequence[str]) -> list[Diagnostic]:
        """Diagnostics: repaired and dropped values of these args."""
        flags = (layout.CONVERTED, layout.DROPPED)
        converted, dropped = (sum(self.args[name].counts[flag] for name in names) for flag in flags)
        diagnostics = (
            Diagnostic("arg_converted", converted, "numbers in args were written as strings or floats"),
            Diagnostic("arg_dropped", dropped, "args that must be integers are not (left out)"),
        )
        return [diagnostic for diagnostic in diagnostics if diagnostic.count]


@derived(until="summary")
def arg_columns(trace: Trace) -> ArgColumns:
    """The args of operators, as columns.

    The columns of :data:`augment.core.args.WANTED`. It costs a pass over the source's text if the reader did not
    collect them. Of kernels that do not communicate, only the args of :data:`augment.core.args.KERNELS` are taken.
    """
    taken = trace.events.args
    if taken is None:
        of_kernels = [arg for arg in WANTED if arg.categories == KERNELS]
        others = [arg for arg in WANTED if arg.categories != KERNELS]
        rows = _rows(trace, others)
        known = args_of_rows(trace, rows[_may_have(trace, others[0], rows)], others)
        known |= args_of_rows(trace, _rows(trace, of_kernels), of_kernels)
        return ArgColumns({arg.name: known[arg.name] for arg in WANTED})

    def values(arg: Arg) -> ArgValues:
        return values_of(
            taken[arg.name], arg, lambda rows: has_category(trace, arg, rows) & _may_have(trace, arg, rows)
        )

    return ArgColumns({arg.name: values(arg) for arg in WANTED})


def _may_have(trace: Trace, arg: Arg, rows: EventRows) -> Bools:
    """Which of ``rows`` are not kernels, or are communication kernels; all for an arg of all kernels."""
    if arg.categories == KERNELS:
        return np.ones(len(rows), np.bool_)
    events = trace.events
    kernels = np.flatnonzero(events.category[rows] == Category.KERNEL)
    types = types_of(trace, events.name[rows[kernels]], events.category[rows[kernels]])
    may = np.ones(len(rows), np.bool_)
    may[kernels[types != KernelType.COMMUNICATION]] = False
    return may


@derived
def identifiers(trace: Trace) -> ArgColumns:
    """The columns of :data:`IDENTIFIERS`, read in a separate pass, because only links to other files need them."""
    return ArgColumns(args_of_rows(trace, _rows(trace, IDENTIFIERS), IDENTIFIERS))


@derived
def args_of_frames(trace: Trace) -> ArgColumns:
    """The columns of :data:`OF_FRAMES`, also read in a separate pass."""
    return ArgColumns(args_of_rows(trace, _rows(trace, OF_FRAMES), OF_FRAMES))


def _rows(trace: Trace, wanted: Sequence[Arg]) -> EventRows:
    mask = np.zeros(256, np.bool_)
    mask[[category for arg in wanted for category in arg.categories]] = True
    return trace.events.where(mask.take(trace.events.category))


# The text of many events, read in one pass over the source.


_BLOCK_BYTES = 4 << 20
_MOST_ROWS = 1 << 18  #: the size of a block
PADDING = 16  #: bytes before and after the text that compiled code may load, but not interpret


class Block(NamedTuple):
    """A block of text with whole events: those at ``[start, stop)``. ``data[PADDING]`` is byte ``base`` of the text."""

    start: int
    stop: int
    data: Bytes
    base: int


@runtime_checkable
class PacketDecode(Protocol):
    """Decodes packets of Perfetto's format, whose strings are defined by other packets. Here, packets are any
    object.
    """

    def __call__(self, text: bytes, offset: int, /) -> dict[str, Any]:
        """The event in a packet."""

    def strings_at(self, sequence: int, offset: int) -> tuple[Any, int, int]:
        """The strings that a sequence has at a byte, and the range of bytes in which it has them."""

    def arg(self, annotation: bytes, strings: Any) -> tuple[str, Any] | None:
        """Key and value of a ``DebugAnnotation``; None if it is damaged, or has several keys."""


def blocks(text: SourceBytes, offsets: Int64s, lengths: Int32s) -> Iterator[Block]:
    """The events at the ascending ``offsets``, block by block; a block is valid until the next."""
    data = np.empty(_BLOCK_BYTES + 2 * PADDING, np.uint8)
    size = base = done = 0
    ends = offsets + lengths
    for chunk in text.chunks():
        if done == len(offsets):
            break
        if size + len(chunk) > len(data) - 2 * PADDING:
            whole = done + int(np.searchsorted(ends[done : done + _MOST_ROWS], np.int64(base + size), side="right"))
            if whole > done:
                yield Block(done, whole, data, base)
                done = whole
            first = min(int(offsets[done]) if done < len(offsets) else base + size, base + size)
            kept = data[PADDING + first - base : PADDING + size].copy()
            base, size = first, len(kept)
            if size + len(chunk) > len(data) - 2 * PADDING:
                data = np.zeros(2 * (size + len(chunk)) + 2 * PADDING, np.uint8)
            data[PADDING : PADDING + size] = kept
        data[PADDING + size : PADDING + size + len(chunk)] = np.frombuffer(chunk, np.uint8)
        size += len(chunk)
    if done < len(offsets):
        yield Block(done, len(offsets), data, base)


def decoded(block: Block, offsets: Int64s, lengths: Int32s, decode: Decode = json_event) -> Iterator[dict[str, Any]]:
    """Each event of a block; empty where it is none of ``decode``'s (of a Chrome file: no JSON object at all)."""
    offsets_ = offsets[block.start : block.stop].tolist()
    for offset, length in zip(offsets_, lengths[block.start : block.stop].tolist(), strict=True):
        start = offset - block.base + PADDING
        yield decoded_event(block.data[start : start + length].tobytes(), offset, decode)


def decoded_event(text: bytes, offset: int = 0, decode: Decode = json_event) -> dict[str, Any]:
    """The members of an event."""
    try:
        event = decode(text, offset)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


# How the text is read: in compiled code, and in Python where compiled code cannot.


LEAST_ROOM = 64
_NUMBER = re.compile(r"\s*(?:[-+]?[0-9]{1,20}|0[xX][0-9a-fA-F]{1,16})\s*")
_EXACT = 1 << 53  #: below this, a whole float equals the number that was written


class ArgEntries:
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
        self.table.category_bits = sum(1 << category for category in set(arg.categories))
        self.table.is_text = arg.is_text

    def reserve(self, more: int) -> None:
        """Make room for that many more entries."""
        wanted = self.table.count + more
        if wanted > len(self._rows):
            room = max(wanted, 2 * len(self._rows), LEAST_ROOM)
            self._rows, self._values = dictionary.longer(self._rows, room), dictionary.longer(self._values, room)
            self._flags = dictionary.longer(self._flags, room)
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
            flag = layout.PLAIN
            if isinstance(value, str) and _NUMBER.fullmatch(value):
                value, flag = int(value, 16 if "x" in value.lower() else 10), layout.CONVERTED
            elif isinstance(value, float) and abs(value) < _EXACT and value.is_integer():
                value, flag = int(value), layout.CONVERTED
            if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 63) <= value < 1 << 64:
                return layout.DROPPED, 0
            return flag, value - (1 << 64) if value >= 1 << 63 else value
        text = value if isinstance(value, str) else jsontext.spaced_json(value)
        code = self._codes.setdefault(text, len(self.texts))
        if code == len(self.texts):
            self.texts.append(text)
        return layout.PLAIN, code

    def stored_json(self, text: bytes) -> tuple[int, int]:
        """As :meth:`stored`, for the JSON text of the arg."""
        try:
            return self.stored(jsontext.mended_json(text))
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


class ArgValues(Struct, frozen=True):
    """The values of an arg by row. For a text, ``column.values`` are indexes into ``texts``. ``counts`` is by flag."""

    column: SparseColumn
    texts: Sequence[str]
    counts: Sequence[int]


class ScanTask(NamedTuple):
    """Rows to read, in file order: where each lies in the text, its category, and its row number."""

    decode: Decode
    offsets: Int64s
    lengths: Int32s
    categories: Bytes
    rows: EventRows
    columns: Sequence[ArgEntries]

    def room_for(self, more: int) -> Int64s:
        """Make room for that many more entries in each column. Returns the addresses of their tables."""
        for column in self.columns:
            column.reserve(more)
        return np.array([address(column.table) for column in self.columns], np.int64)


Scan = Callable[[ScanTask, Block], None]  #: takes the rows of a block


def args_of_rows(trace: Trace, rows: EventRows, wanted: Sequence[Arg]) -> dict[str, ArgValues]:
    """The values of ``wanted`` in ``rows``, by name, in one pass over the text.

    For a source that is not JSON, its ``decode`` may have a method ``arg_scan``, which makes a faster :data:`Scan`.
    """
    events, decode = trace.events, trace.source.decode
    ordered = rows[order_of(events.offset[rows])]
    columns = [ArgEntries(arg) for arg in wanted]
    job = ScanTask(decode, events.offset[ordered], events.length[ordered], events.category[ordered], ordered, columns)
    if decode is json_event:
        taken = _compiled(job, trace.source.text)
        return {arg.name: values_of(taken[arg.name], arg, partial(has_category, trace, arg)) for arg in wanted}
    scan: Scan = decode.arg_scan() if hasattr(decode, "arg_scan") else plain
    for block in blocks(trace.source.text, job.offsets, job.lengths):
        scan(job, block)
    return {column.arg.name: column.values() for column in columns}


def has_category(trace: Trace, arg: Arg, rows: EventRows) -> Bools:
    """Which of ``rows`` have a category that ``arg`` is wanted from."""
    of_category = np.zeros(256, np.bool_)
    of_category[list(arg.categories)] = True
    has: Bools = of_category.take(trace.events.category[rows])
    return has


def values_of(taken: ArgColumn, arg: Arg, may_have: Callable[[EventRows], Bools]) -> ArgValues:
    """The values of ``arg`` in the rows that ``may_have`` it."""

    numbers, others = (_chosen(column, may_have) for column in (taken.numbers, taken.others))
    column = ArgEntries(arg)
    occurs = np.zeros(len(taken.json), np.bool_)
    codes = others.values[:]
    occurs[codes] = True
    stored = np.zeros((len(taken.json), 2), np.int64)
    for code in np.flatnonzero(occurs).tolist():
        stored[code] = column.stored_json(taken.json[code])
    flags = stored[codes, 0]
    counts = np.bincount(flags, minlength=4)
    counts[layout.PLAIN] += len(numbers.rows)
    if len(others.rows) and not len(numbers.rows) and not (counts[layout.ABSENT] or counts[layout.DROPPED]):
        numbers = SparseColumn(others.rows, narrowed(stored[codes, 1]))  # args of one kind of events share their rows
    elif len(others.rows):
        kept = (flags != layout.ABSENT) & (flags != layout.DROPPED)
        rows = np.concatenate([numbers.rows[:], others.rows[kept]])
        values = np.concatenate([numbers.values[:], stored[codes[kept], 1]])
        order = np.argsort(rows, kind="stable")
        numbers = SparseColumn(narrowed(rows[order]), narrowed(values[order]))
    return ArgValues(numbers, column.texts, counts.tolist())


def _chosen(column: SparseColumn, may_have: Callable[[EventRows], Bools]) -> SparseColumn:
    if not len(column.rows):
        return column
    kept = may_have(column.rows[:].astype(EventRow, copy=False))
    return column if kept.all() else SparseColumn(column.rows[:][kept], column.values[kept])


def plain(job: ScanTask, block: Block) -> None:
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


def _compiled(job: ScanTask, text: SourceBytes) -> dict[str, ArgColumn]:
    """The values in the rows of a job, read by compiled code except for the events that it leaves to Python."""
    scan = native("json_args.scan_columns")
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
