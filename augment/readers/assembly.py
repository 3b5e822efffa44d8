"""From a scanner's raw columns to a Trace: categories, tracks, absolute times, order."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from augment.arrays import Bytes, Int32s, Int64s, Values, keyed, narrowed, positions
from augment.core import ON_DEVICE, Category, Context, Diagnostic, EventTable, Source, SparseColumn, Trace, Track
from augment.core.threads import ALONE, Threads
from augment.core.trace import ArgColumn, Decode, SourceBytes, distributed, integer_of, json_event, moved_args
from augment.facts.source import cut_mark
from augment.readers import dialects
from augment.readers.raw import COLUMNS, Absent, RawEvents, identity


class Outline(Struct):
    """The text around the events: what the outer object says, and where the events begin and end."""

    members: dict[str, Any] = field(default_factory=dict)
    array: bool = False
    arrays_seen: int = 0
    insert_at: int | None = None
    insert_comma: bool = False
    partial: str | None = None
    text_bytes: int = 0
    byte_order_mark: bool = False
    trailing: int | None = None
    broken_members: list[int] = field(default_factory=list)  #: where they begin, or break


_MESSAGES = {
    "args_without_names": "events whose args are no JSON object",
    "malformed_event": "elements of traceEvents that are no JSON objects",
    "nested_too_deeply": "elements of traceEvents whose braces and brackets nest too deeply to be read",
    "mended_event": "events that are no JSON until small faults are mended",
    "missing_comma": "events that no comma divides from the one before",
    "event_without_time": "events without a usable ts",
    "event_without_phase": "events without a phase",
    "slice_without_duration": "X events without a usable dur",
    "unknown_phase": "events of a phase that the Trace Event Format does not know",
    "time_out_of_range": "events whose time does not fit 64-bit nanoseconds, or that last more than a year",
    # of packets
    "arg_nested_too_deeply": "args that nest deeper than 64",
    "compressed_packets": "packets that hold others compressed: what those hold is read, but not their args",
    "damaged_packet": "packets that are no messages",
    "end_without_slice": "ends of slices that never began",
    "lost_state": "packets that rely on others which are not in the file",
    "packet_without_time": "events without a time",
    "slice_without_end": "slices without an end",
    "slice_without_own_end": "slices without an end of their own",
    "unknown_clock": "events on a clock that nothing tells of",
    "unknown_event_type": "track events that neither begin nor end a slice, nor are a moment or a counter's point",
    "unknown_field": "fields beside the packets",
}
#: the fate of events that are not left out as a whole
_FATES = {
    "args_without_names": "read without args, and kept as they are",
    "arg_nested_too_deeply": "what lies deeper is left out",
    "mended_event": "read so, and kept as they are",
    "slice_without_own_end": "they end with the slice around them",
    "missing_comma": "read as if it were there",
}
_INT64_MAX = np.iinfo(np.int64).max
LONGEST = 366 * 86_400 * 10**9  #: ns; CUPTI once gave kernels of 236 years, and each of them would be all of a trace
_EARLIEST = -(1 << 62)  #: ns; earlier times would overflow in subtractions


def assemble(
    path: str,
    format_name: str,
    sha256: str,
    text: SourceBytes,
    raw: RawEvents,
    outline: Outline,
    decode: Decode = json_event,
    threads: Threads = ALONE,
) -> Trace:
    """The trace that ``raw`` and ``outline`` describe. Consumes ``raw``: its columns become those of the table."""
    rank, rank_from = _rank(path, outline.members)
    # The offset to add to the file's times, and diagnostics of it
    recorded = outline.members.get("baseTimeNanoseconds")
    base_ns = integer_of(recorded)
    odd: list[Diagnostic] = []
    if base_ns is None or abs(base_ns) > -_EARLIEST:
        message = "baseTimeNanoseconds is no number of nanoseconds that 64 bits hold; times count from 0"
        base_ns, odd = 0, [] if recorded is None else [Diagnostic("unusable_base_time", 1, message)]
    # remove rows of phase 0 and rows whose times are impossible or would overflow int64 in sums. Returns the number
    # of the latter.
    keep = raw.phase != 0
    beyond = 0
    if len(raw.ts):
        latest, earliest = _INT64_MAX - max(base_ns, 0), _EARLIEST - min(base_ns, 0)
        first, last, shortest, longest = map(int, (raw.ts.min(), raw.ts.max(), raw.dur.min(), raw.dur.max()))
        latest = min(latest, max(first, earliest) + _INT64_MAX)  # differences of times are int64, too
        if last + longest > latest or first + min(shortest, 0) < earliest or longest > LONGEST:
            after, before = np.maximum(raw.dur, 0), np.clip(raw.dur, _EARLIEST, 0)
            over = (raw.ts > latest - after) | (raw.ts < earliest - before)
            over = keep & (over | (raw.dur < _EARLIEST) | (raw.dur > LONGEST))
            beyond = int(over.sum())
            keep &= ~over
    if not keep.all():
        for name in COLUMNS:
            setattr(raw, name, getattr(raw, name)[keep])
        _move_sparse(raw, np.where(keep, np.cumsum(keep) - 1, -1))
    known = np.zeros(max(len(raw.strings), 1), np.uint8)
    for index in _used(raw.category, len(known)).tolist():
        known[index] = dialects.CATEGORIES.get(raw.strings[index].lower(), Category.OTHER)
    category: Bytes = known[raw.category]
    for name, kind in dialects.UNCATEGORISED_NAMES.items():
        if codes := _indexes(raw.strings, name):
            of_name = (category == Category.OTHER) & np.isin(raw.name, codes)
            category[of_name & np.isin(raw.category, _indexes(raw.strings, ""))] = kind
    dialects.categorise(raw, category)
    tracks, track = _tracks(raw, category, rank)
    events = _table(raw, category, track, base_ns, threads)
    listed = outline.members.get("deviceProperties")
    devices = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    closing = None
    if outline.partial and outline.insert_at is not None:
        closing = b"]" if outline.array else b"]}"
    source = Source(
        path=path,
        name=os.path.basename(path),
        sha256=sha256,
        format=format_name,
        event_count=raw.event_count,
        text=text,
        text_bytes=outline.text_bytes,
        base_ns=base_ns,
        insert_at=outline.insert_at,
        insert_comma=outline.insert_comma,
        closing=closing,
        rank_from=rank_from,
        metadata=outline.members,
        devices=tuple((identity(row.get("id")), str(row["name"])) for row in devices if row.get("name")),
        decode=decode,
    )
    fate = "not analysed" if outline.insert_at is None else "kept, not analysed"
    notes = []
    for code, count in sorted(raw.tally.counts.items()):
        message = f"{_MESSAGES[code]}; the first at byte {raw.tally.first[code]}; {_FATES.get(code, fate)}"
        notes.append(Diagnostic(code, count, message))
    notes += cut_mark.diagnostics(outline.members)
    if beyond:
        notes.append(Diagnostic("time_out_of_range", beyond, f"{_MESSAGES['time_out_of_range']}; {fate}"))
    if outline.partial and outline.insert_at is None:
        notes.append(Diagnostic("truncated_text", 1, outline.partial))
    elif outline.partial:
        left = outline.text_bytes - (outline.insert_at or 0)
        notes.append(Diagnostic("truncated_text", 1, f"{outline.partial}; the last {left} bytes are not in the output"))
    if broken := outline.broken_members:
        message = "members beside traceEvents are no JSON: mended, or passed over up to traceEvents; kept as they are"
        notes.append(Diagnostic("broken_member", len(broken), f"{message}; the first at byte {min(broken)}"))
    if outline.arrays_seen > 1:
        notes.append(Diagnostic("repeated_trace_events", outline.arrays_seen, "traceEvents occurs again; all are read"))
    if outline.byte_order_mark:
        notes.append(Diagnostic("byte_order_mark", 1, "the text begins with a byte order mark, which Perfetto refuses"))
    if outline.trailing is not None:
        notes.append(Diagnostic("trailing_text", 1, f"text after the JSON ends, from byte {outline.trailing} on"))
    diagnostics = (*tuple(notes), *odd)
    return Trace(events, raw.strings, tracks, source, diagnostics, outline.partial, Context(threads=threads))


def _rank(path: str, members: dict[str, Any]) -> tuple[int | None, str | None]:
    """The rank, and who says so."""
    if (rank := cut_mark.rank_kept(members)) is not None:
        return rank, "augment cut"
    if (rank := distributed(members, "rank")) is not None:
        return rank, "distributedInfo"
    return dialects.rank_in_path(path)


def _move_sparse(raw: RawEvents, new_row: Int64s | Int32s) -> None:
    """Update the sparse columns after rows were moved, or left out where ``new_row`` is negative."""
    raw.sizes, raw.flows = raw.sizes.moved(new_row), raw.flows.moved(new_row)
    ends = raw.ends.moved(new_row)
    kept = new_row[ends.values[:]] >= 0
    raw.ends = SparseColumn(ends.rows[kept], new_row[ends.values[kept]].astype(np.int64))
    raw.args = raw.args and moved_args(raw.args, new_row)


def _indexes(strings: list[str], text: str) -> list[int]:
    return [index for index, string in enumerate(strings) if string == text]


def _tracks(raw: RawEvents, category: Bytes, rank: int | None) -> tuple[tuple[Track, ...], Int32s]:
    """The tracks in order of appearance, and the track of each row."""
    on_device = np.zeros(256, np.uint8)
    on_device[list(ON_DEVICE)] = 1
    place = raw.place  # the memory of this array becomes the column of tracks
    place *= 2
    place += on_device[category]
    used = _used(place, 2 * max(len(raw.places), 1))
    known: dict[Track, int] = {}
    program_of = dialects.programs_of_threads(raw)
    index = np.zeros(2 * max(len(raw.places), 1), np.int32)
    for key in used.tolist():
        pid, tid, device, stream = raw.places[key // 2]
        pid = program_of.get((pid, tid), pid)
        names = raw.names.processes.get(pid), raw.names.threads.get((pid, tid))
        if key % 2:
            if elsewhere := dialects.place_of_collectives(raw.places[key // 2], raw.names):
                device, stream = elsewhere
            device = pid if isinstance(device, Absent) else device
            stream = tid if isinstance(stream, Absent) else stream
            track = Track(rank, pid, tid, identity(device), identity(stream), *names)
        else:
            track = Track(rank, pid, tid, None, None, *names)
        index[key] = known.setdefault(track, len(known))
    np.take(index, place, out=place, mode="clip")
    return tuple(known), place


def _used(codes: Int32s, count: int) -> npt.NDArray[np.intp]:
    """Which of ``count`` codes occur."""
    occurs = np.zeros(count, np.bool_)
    occurs[codes] = True
    return np.flatnonzero(occurs)


def _table(raw: RawEvents, category: Bytes, track: Int32s, base_ns: int, threads: Threads) -> EventTable:
    if base_ns:
        raw.ts += base_ns
    order: Int64s | None = None
    if len(raw.ts) and np.any(raw.ts[1:] < raw.ts[:-1]):
        order = np.argsort(raw.ts, kind="stable")
    moved = _Moved(order)

    def column(name: str, narrow: Callable[[Any], Any] = narrowed) -> Callable[[], Any]:
        def made() -> Any:
            values = moved(getattr(raw, name))
            setattr(raw, name, None)
            return narrow(values)

        return made

    def categories() -> tuple[Bytes, Any]:
        moved(category)
        return category, column("category", partial(keyed, category))()

    def sparse() -> None:
        if order is not None:
            inverse = np.empty(len(order), np.int32)
            inverse[order] = np.arange(len(order), dtype=np.int32)
            _move_sparse(raw, inverse)
        # narrow the sparse columns. Those that share their rows still do.
        known: dict[int, tuple[Values[np.int64], Values[np.int64]]] = {}  # by identity, with what it is the identity of

        def narrow(column: SparseColumn) -> SparseColumn:
            if id(column.rows) not in known:
                known[id(column.rows)] = column.rows, narrowed(column.rows[:])
            return SparseColumn(known[id(column.rows)][1], narrowed(column.values[:]))

        raw.sizes, raw.flows, raw.ends = (narrow(column) for column in (raw.sizes, raw.flows, raw.ends))
        raw.args = raw.args and {
            name: ArgColumn(narrow(arg.numbers), narrow(arg.others), arg.json) for name, arg in raw.args.items()
        }

    calls: list[Callable[[], Any]] = [sparse, categories, column("offset", positions)]
    calls += [*map(column, ("dur", "correlation", "name", "length")), lambda: narrowed(moved(track))]
    calls += [partial(moved, raw.ts), partial(moved, raw.phase)]
    _, (_, category_name), offset, dur, correlation, name, length, tracks, ts, phase = threads.all(calls)
    for values in (ts, phase, category):
        values.flags.writeable = False
    columns = (ts, dur, phase, category, category_name, name, tracks, correlation, offset, length)
    return EventTable(*columns, raw.sizes, raw.flows, raw.args, raw.ends)


class _Moved:
    """Puts columns into an order, in place. A buffer serves one after another: fresh memory is expensive."""

    def __init__(self, order: Int64s | None) -> None:
        self._order, self._free = order, list[Int64s]()

    def __call__(self, values: Any) -> Any:
        if self._order is None:
            return values
        try:
            room = self._free.pop()
        except IndexError:  # other threads have all
            room = np.empty(len(values), np.int64)
        moved = room.view(values.dtype)[: len(values)]
        np.take(values, self._order, out=moved, mode="clip")
        values[:] = moved
        self._free.append(room)
        return values
