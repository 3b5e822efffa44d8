"""The common data model: every reader makes it, every analysis and writer takes it.

A :class:`Trace` is an :class:`EventTable` (equal-length numpy columns, ascending ``ts``), the tracks and strings that
its columns refer to, and a description of the source. Nothing here reads, analyses or writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Protocol, cast

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from augment.arrays import Bools, Bytes, EventRows, Int32s, Int64s, Values, looked_up
from augment.core import jsontext, text
from augment.core.context import Context

Identity = int | str | None  #: a pid, tid, device or stream in the trace's own notation

COMPLETE = ord("X")  #: phase of a slice with a duration; every phase is the ``ord`` of its letter
NO_CORRELATION = -1


class Category(IntEnum):
    """The category of a row, in Kineto's words; ``readers/dialects.py`` maps older and foreign names."""

    OTHER = 0
    CPU_OP = 1
    USER_ANNOTATION = 2
    PYTHON_FUNCTION = 3
    CUDA_RUNTIME = 4
    CUDA_DRIVER = 5
    KERNEL = 6
    GPU_MEMCPY = 7
    GPU_MEMSET = 8
    GPU_USER_ANNOTATION = 9
    CUDA_SYNC = 10
    CPU_INSTANT_EVENT = 11
    AC2G = 12
    FWDBWD = 13
    OVERHEAD = 14
    TRACE = 15
    CUDA_PROFILER_RANGE = 16
    OS_RUNTIME = 17  #: calls of the operating system, as Nsight Systems records them


GPU_WORK = (Category.KERNEL, Category.GPU_MEMCPY, Category.GPU_MEMSET)
LAUNCHES = (Category.CUDA_RUNTIME, Category.CUDA_DRIVER)
ON_DEVICE = (*GPU_WORK, Category.GPU_USER_ANNOTATION, Category.CUDA_SYNC)  #: their tracks have device and stream


class Track(Struct, frozen=True):
    """The thread of a process, or the stream of a device, that events lie on.

    ``device`` and ``stream`` are set only for rows of the categories in :data:`ON_DEVICE`: from their args, else from
    pid and tid. A string pid or tid ("stream 7") and the number are different tracks.
    """

    rank: int | None
    pid: Identity
    tid: Identity
    device: Identity = None
    stream: Identity = None
    process_name: str | None = None
    thread_name: str | None = None


class SparseColumn(Struct, frozen=True):
    """A value that few rows have: ``rows`` ascending (int64), ``values`` (int64), of equal length.

    Columns may share their ``rows``.
    """

    rows: Values[np.int64]
    values: Values[np.int64]

    def at(self, rows: Int64s, missing: int) -> Int64s:
        """The value at each of ``rows``, or ``missing``; as long as ``rows``."""
        if not len(self.rows):
            return np.full(len(rows), missing, np.int64)
        where, is_there = looked_up(self.rows, rows)
        return np.where(is_there, self.values[where], missing)

    def moved(self, new_row: Int64s | Int32s) -> SparseColumn:
        """The column after its rows moved: row ``r`` becomes ``new_row[r]``; a negative new row drops the value."""
        rows, order = _moved_rows(self.rows[:], new_row)
        return SparseColumn(rows, self.values if order is None else self.values[order])


def _moved_rows(rows: Int64s, new_row: Int64s | Int32s) -> tuple[Int64s, Int64s | None]:
    """Where ``rows`` are then, ascending, and which they were: None if all of them, in the same order."""
    moved = new_row[rows].astype(np.int64, copy=False)
    if not len(moved) or (moved[0] >= 0 and (moved[1:] > moved[:-1]).all()):
        return moved, None
    kept = np.flatnonzero(moved >= 0)
    order = kept[np.argsort(moved[kept], kind="stable")]
    return moved[order], order


NOTHING = SparseColumn(np.empty(0, np.int64), np.empty(0, np.int64))


class ArgColumn(Struct, frozen=True):
    """An arg of the rows that have it. ``numbers`` holds plain numbers, ``others`` the index in ``json`` of all else.

    No row is in both. The indexes are int32. The texts are JSON; other args may share them.
    """

    numbers: SparseColumn
    others: SparseColumn
    json: Sequence[bytes]

    def __repr__(self) -> str:
        return f"<ArgColumn: {len(self.numbers.rows):,} numbers, {len(self.others.rows):,} other values>"


def moved_args(args: Mapping[str, ArgColumn], new_row: Int64s | Int32s) -> dict[str, ArgColumn]:
    """Args by name after rows moved: see :meth:`SparseColumn.moved`. Columns that share their rows still do."""
    known: dict[int, tuple[Int64s, Int64s | None]] = {}

    def moved(column: SparseColumn) -> SparseColumn:
        key = id(column.rows)
        if key not in known:
            known[key] = _moved_rows(column.rows[:], new_row)
        rows, order = known[key]
        return SparseColumn(rows, column.values if order is None else column.values[order])

    return {name: ArgColumn(moved(arg.numbers), moved(arg.others), arg.json) for name, arg in args.items()}


class EventTable(Struct, frozen=True):
    """Equal-length read-only columns, one row per event with a time, ascending ``ts``, ties in file order.

    Readers keep most of them narrow: index a column (``dur[rows]``, ``dur[:]``) for an array of the type below.
    ``ts, dur`` int64 ns (absolute; ``dur`` is 0 unless the phase is ``X``); ``phase`` uint8, ``ord`` of the letter;
    ``category`` uint8, a :class:`Category`; ``category_name`` and ``name`` int32, indexes into ``Trace.strings``;
    ``track`` int32, index into ``Trace.tracks``; ``correlation`` int64, :data:`NO_CORRELATION` where there is none;
    ``offset`` int64 and ``length`` int32: the bytes of the event in the decompressed source.
    ``bytes`` and ``flow_id`` are sparse: the size of a copy, and the id of a flow (``s``, ``t``, ``f``) or async
    event; a string id is ``-2 - index`` of that string. ``args`` holds the columns that ``augment/core/args.py`` lists,
    by name, for rows of any category. It is None where the reader did not collect them; they are then read from the
    source when needed. ``ends`` is sparse, for slices that the source writes as two events ``B`` and ``E``: the row of
    ``B`` is the slice, and its value the row of ``E``.
    """

    ts: Int64s
    dur: Values[np.int64]
    phase: Bytes
    category: Bytes
    category_name: Values[np.int32]
    name: Values[np.int32]
    track: Values[np.int32]
    correlation: Values[np.int64]
    offset: Values[np.int64]
    length: Values[np.int32]
    bytes: SparseColumn
    flow_id: SparseColumn
    args: Mapping[str, ArgColumn] | None = None
    ends: SparseColumn = NOTHING

    def __len__(self) -> int:
        return len(self.ts)

    def __repr__(self) -> str:
        return f"<EventTable: {len(self):,} events>"

    @property
    def end(self) -> Int64s:
        """``ts + dur``, int64 ns, computed at each call: select rows first where only some are needed."""
        end: Int64s = self.ts + self.dur[:]
        return end

    def slices_of(self, *categories: Category) -> EventRows:
        """The rows of phase ``X`` in any of ``categories``, ascending."""
        wanted = np.zeros(len(self), np.bool_)
        for category in categories:  # byte compares: a look-up would widen them first
            wanted |= self.category == int(category)  # numpy asks members of enumerations whether they are arrays
        wanted &= self.phase == COMPLETE
        return self.where(wanted)

    def where(self, chosen: Bools) -> EventRows:
        """The rows of the ``chosen`` events, ascending."""
        return cast("EventRows", np.flatnonzero(chosen))


class Diagnostic(Struct, frozen=True):
    """A count of something repaired, dropped or doubtful."""

    code: str
    count: int
    message: str


class SourceBytes(Protocol):
    """The decompressed text of the source, readable any number of times.

    ``gzip_tail`` is the end of the text if the file is a single gzip member, else None. It lets a writer add to the
    text without compressing all of it again.
    """

    @property
    def gzip_tail(self) -> bytes | None:
        """The last few MiB of the text, or None."""

    def read_at(self, offsets: Int64s, lengths: Int32s) -> list[bytes]:
        """The texts at the ascending ``offsets``, read in one pass over the source."""

    def chunks(self) -> Iterable[memoryview]:
        """The whole text in order, in bounded pieces; a piece is valid until the next is requested."""


Decode = Callable[[bytes, int], Any]  #: decodes an event from its bytes and their offset into JSON values


def json_event(data: bytes, _offset: int) -> Any:
    """The event in ``data`` as a JSON value; None if it is not JSON or not a whole event."""
    try:
        return jsontext.mended_json(data)
    except ValueError:
        return None


def args_of_event(event: Any) -> dict[str, Any]:
    """The args of a decoded event; empty unless they are an object."""
    args = event.get("args") if isinstance(event, dict) else None
    return args if isinstance(args, dict) else {}


def distributed_info(members: dict[str, Any]) -> dict[str, Any]:
    """What the profiler wrote of the job and this rank in it; empty if it did not."""
    info = members.get("distributedInfo")
    return info if isinstance(info, dict) else {}


def distributed(members: dict[str, Any], name: str) -> int | None:
    """``rank`` or ``world_size`` as the profiler wrote it into the file; None if it did not."""
    number = integer_of(distributed_info(members).get(name))
    return number if number is not None and 0 <= number < (1 << 31) - 1 else None


def integer_of(value: Any) -> int | None:
    """The integer that a value of JSON is, or says as a text."""
    try:
        whole = None if value is None or isinstance(value, bool) else int(value)
        return None if isinstance(value, float) and whole != value else whole
    except (ValueError, TypeError, OverflowError):
        return None


class Source(Struct, frozen=True):
    """A description of the file that a trace came from.

    ``format`` is the reader's name; ``event_count`` counts every element of ``traceEvents``, including those without a
    row in the table; ``base_ns`` was added to every time of the file (``baseTimeNanoseconds``); ``insert_at`` is the
    byte of the text before which events may be added, ``None`` where the format has no such place; ``insert_comma``
    says that a comma must come first; ``closing`` completes a truncated text; ``decode`` makes an event, an object
    with ``args``, of the bytes at an offset.
    """

    path: str
    name: str
    sha256: str
    format: str
    event_count: int
    text: SourceBytes
    text_bytes: int
    base_ns: int = 0
    insert_at: int | None = None
    insert_comma: bool = False
    closing: bytes | None = None
    rank_from: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    devices: tuple[tuple[Identity, str], ...] = ()
    decode: Decode = json_event

    def __repr__(self) -> str:
        return f"<Source {self.path}: {self.format}, {self.event_count:,} events, {self.text_bytes:,} bytes of text>"

    @property
    def label(self) -> str:
        """``name`` as valid text."""
        return jsontext.storable(self.name)

    @property
    def distributed_info(self) -> dict[str, Any]:
        """What the profiler says of the job; empty if it says nothing."""
        return distributed_info(self.metadata)

    @property
    def world_size(self) -> int | None:
        """The number of ranks of the job, if the profiler says it."""
        return distributed(self.metadata, "world_size")


class Trace(Struct, frozen=True, eq=False, weakref=True):
    """The events of one rank and what their columns refer to. Immutable."""

    events: EventTable
    strings: Sequence[str]
    tracks: tuple[Track, ...]
    source: Source
    diagnostics: tuple[Diagnostic, ...] = ()
    partial: str | None = None  #: why the trace is incomplete; None if it is whole
    context: Context = field(default_factory=Context)  #: what a run keeps beside it

    def __repr__(self) -> str:
        return f"<Trace {self.summary}>"

    def changed(self, *attachments: object, **fields: Any) -> Trace:
        """The trace with these ``attachments``, too, and other values of ``fields``; none of its facts is known."""
        return replace(self, context=self.context.fresh(*attachments), **fields)

    @property
    def extent_ns(self) -> int:
        """From the begin of the first event to the end of the last; 0 without events."""
        return int(self.events.end.max() - self.events.ts[0]) if len(self.events) else 0

    @property
    def recorded_ns(self) -> int:
        """From the first event to the end of the last slice: a mark where the recording ends may come long after."""
        rows = self.events.where(self.events.phase == COMPLETE)
        return int((self.events.end[rows] - self.events.ts[:1]).max(initial=0))

    @property
    def summary(self) -> str:
        """One line: the file's name, the number of events, their extent, the rank, the devices."""
        working = {track.device for track in self.tracks} - {None}
        known = working <= {device for device, _ in self.source.devices}  # ROCm may number them otherwise
        devices = [{"name": name, "works": device in working or not known} for device, name in self.source.devices]
        parts = [text.counted(len(self.events), "event"), f"{self.recorded_ns / 1e6:,.3f} ms"]
        parts += [] if self.rank is None else [f"rank {self.rank}"]
        parts += [text.devices_text(devices)] if devices else []
        incomplete = f"; incomplete: {self.partial}" if self.partial else ""
        return f"{self.source.label}: {', '.join(parts)}{incomplete}"

    @property
    def rank(self) -> int | None:
        """The rank of the process that recorded the trace, if known."""
        return self.tracks[0].rank if self.tracks else None

    def names_of(self, rows: EventRows) -> list[str]:
        """The names of ``rows``."""
        return [self.strings[i] for i in self.events.name[rows].tolist()]

    def args_of(self, rows: EventRows) -> list[dict[str, Any]]:
        """The decoded ``args`` of ``rows``, read from the source in one pass."""
        order = np.argsort(self.events.offset[rows], kind="stable")
        chosen = rows[order]
        offsets = self.events.offset[chosen]
        texts = self.source.text.read_at(offsets, self.events.length[chosen])
        decoded: list[dict[str, Any]] = [{} for _ in texts]
        for place, data, offset in zip(order.tolist(), texts, offsets.tolist(), strict=True):
            decoded[place] = args_of_event(self.source.decode(data, offset))
        return decoded
