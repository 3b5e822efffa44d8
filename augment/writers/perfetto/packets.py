"""Track events as columns with one entry per row, their args as debug annotations, and both as packets; and suffixes,
the fields that make arrows and colours, which are appended to the args of slices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from augment.arrays import NO_INDEX, Bytes, Int32s, Int64s, numbered
from augment.core import Annotation, Ends, Flows, SliceTrack, Texts, Trace, jsontext
from augment.kernels import encode_packets as kernel
from augment.kernels.native import address, native
from augment.writers.perfetto import wire


class Blobs(Struct, frozen=True):
    """One byte string per row: row ``i`` has ``data[start[i]:][:size[i]]``. Seven bytes follow the last one."""

    data: Bytes
    start: Int64s
    size: Int64s

    def take(self, rows: npt.NDArray[Any] | slice) -> Blobs:
        """The byte strings of ``rows``; the data are shared."""
        return Blobs(self.data, self.start[rows], self.size[rows])

    def pieces(self) -> list[bytes]:
        """The bytes of each row."""
        return [
            self.data[start : start + size].tobytes()
            for start, size in zip(self.start.tolist(), self.size.tolist(), strict=True)
        ]


class Events(Struct, frozen=True):
    """Track events in int64 columns, one per row. ``blobs`` holds encoded fields. A category or name of 0 means
    none.
    """

    kind: Int64s
    ts: Int64s
    track: Int64s
    category: Int64s
    name: Int64s
    blobs: Blobs | None = None

    def __len__(self) -> int:
        return len(self.ts)

    def take(self, rows: npt.NDArray[Any]) -> Events:
        """The events of ``rows``."""
        kind, ts, track, category, name = (
            column[rows] for column in (self.kind, self.ts, self.track, self.category, self.name)
        )
        return Events(kind, ts, track, category, name, self.blobs.take(rows) if self.blobs else None)


_OUT_BYTES = 4 << 20


def encode(events: Events) -> Iterator[memoryview]:
    """The packets of ``events``, in pieces. Each piece is valid until the next."""
    blobs = events.blobs
    largest, whole = (int(blobs.size.max(initial=0)), int(blobs.size.sum())) if blobs else (0, 0)
    whole += (len(events) + 1) * kernel.PACKET_ROOM
    out = np.empty(min(max(_OUT_BYTES, largest + 2 * kernel.PACKET_ROOM), whole), np.uint8)
    columns = (events.kind, events.ts, events.track, events.category, events.name)
    none = np.empty(0, np.int64)
    pieces = (address(blobs.data), blobs.start, blobs.size) if blobs else (0, none, none)
    progress = np.zeros(1, np.int64)
    encode_rows = native("encode_packets.encode_rows")
    row, count = 0, len(events)
    while row < count:
        row = encode_rows(row, *columns, *pieces, address(out), len(out), progress)
        yield out[: int(progress[0])].data


def column(value: int | npt.NDArray[Any], count: int) -> Int64s:
    """A column of ``count`` rows, from a single value or from the given values."""
    if isinstance(value, int):
        return np.full(count, value, np.int64)
    return np.ascontiguousarray(value, np.int64)


def blobs_of(pieces: Iterable[bytes]) -> Blobs:
    """Blobs from byte strings in order."""
    held = list(pieces)
    size = np.array([len(piece) for piece in held], np.int64)
    return Blobs(np.frombuffer(bytearray().join([*held, bytes(8)]), np.uint8), np.cumsum(size) - size, size)


def slices(ts: Int64s, dur: Int64s, track: Any, category: Any, name: Any, blobs: Blobs) -> tuple[Events, Events]:
    """The ends and the beginnings of slices of ``dur`` >= 0, to be written in this order.

    Perfetto keeps the file's order for packets of equal time. So each slice ends before the next begins. Only a slice
    without duration ends right after its beginning.
    """
    count = len(ts)
    track, category, name = (column(values, count) for values in (track, category, name))
    lasting = dur > 0
    begins = Events(column(wire.BEGIN, count), ts, track, category, name, blobs)
    return ends((ts + dur)[lasting], track[lasting]), with_ends(begins, ~lasting)


def ends(ts: Int64s, track: Int64s) -> Events:
    """Ends of slices."""
    none = column(0, len(ts))
    return Events(column(wire.END, len(ts)), ts, track, none, none)


def with_ends(begins: Events, ended: npt.NDArray[np.bool_]) -> Events:
    """``begins`` with an end at the same time right after each row that is ``ended``."""
    if not ended.any():
        return begins
    rows = np.repeat(np.arange(len(begins)), 1 + ended.astype(np.int64))
    is_end = np.zeros(len(rows), np.bool_)
    is_end[1:] = rows[1:] == rows[:-1]
    both = begins.take(rows)
    both.kind[is_end] = wire.END
    for values in (both.category, both.name, *((both.blobs.size,) if both.blobs else ())):
        values[is_end] = 0
    return both


def counters(ts: Int64s, values: npt.NDArray[np.float64], track: int) -> Events:
    """Points of a counter."""
    record = np.empty(len(ts) + 1, np.dtype([("tag", "u1", 2), ("value", "<f8")]))
    record["tag"] = np.frombuffer(wire.varint(wire.EVENT_DOUBLE_COUNTER << 3 | 1), np.uint8)
    record["value"][:-1] = values
    none = column(0, len(ts))
    start = np.arange(len(ts), dtype=np.int64) * record.itemsize
    blobs = Blobs(record.view(np.uint8), start, column(record.itemsize, len(ts)))
    return Events(column(wire.COUNTER, len(ts)), ts, column(track, len(ts)), none, none, blobs)


def text_args(texts: Texts, name: str, encoder: ArgsEncoder) -> tuple[Int64s, Blobs]:
    """The index of the blob of each row (-1: none), and a blob with the arg ``name`` for each value of ``texts`` that
    occurs.
    """
    codes, which = numbered(texts.codes)
    none = int(np.count_nonzero(codes < 0))
    return which - none, blobs_of(encoder.arg(name, texts.values[code]) for code in codes[none:].tolist())


_INT64 = 1 << 63


_IS_JSON = wire.number(wire.INTERNED_IS_JSON, 1)


class InternedTexts:
    """Assigns numbers to texts, from 1 on in order of arrival, separately for each kind (``INTERNED_…``)."""

    def __init__(self) -> None:
        self._numbers: dict[int, dict[str | tuple[str], int]] = {}
        self._new: list[bytes] = []

    def number(self, kind: int, value: str) -> int:
        """The number of a text."""
        numbers = self._numbers.setdefault(kind, {})
        return numbers.get(value) or self._add(kind, numbers, value, value)

    def json_number(self, value: Any) -> int:
        """The number of a value's JSON text. It lies among the strings, but differs from the number of a string with
        equal text.
        """
        written = jsontext.compact_json(value)
        numbers = self._numbers.setdefault(wire.INTERNED_STRINGS, {})
        key = (written,)
        return numbers.get(key) or self._add(wire.INTERNED_STRINGS, numbers, key, written, _IS_JSON)

    def _add(
        self, kind: int, numbers: dict[str | tuple[str], int], key: str | tuple[str], text: str, more: bytes = b""
    ) -> int:
        known = numbers[key] = len(numbers) + 1
        self._new.append(wire.message(kind, wire.number(1, known) + wire.text(2, text) + more))
        return known

    def take_new(self) -> bytes:
        """The content of an ``InternedData`` with all new texts; empty if there are none."""
        taken, self._new = b"".join(self._new), []
        return taken


class ArgsEncoder:
    """Encodes args with the values that a JSON reader returns.

    Arrays, objects, ``null`` and integers beyond 64 bits are encoded as their JSON text: ``[[2048,512],[512]]``. Such a
    text can be displayed and grouped as a whole, and Perfetto imports it as fast as a string; nested values take many
    times longer.
    """

    def __init__(self, interned: InternedTexts) -> None:
        self._interned = interned
        self._keys: dict[str, bytes] = {}

    def args(self, args: Mapping[str, Any]) -> bytes:
        """All args of an event, as fields of a TrackEvent."""
        return b"".join([self.arg(name, value) for name, value in args.items()])

    def arg(self, name: str, value: Any) -> bytes:
        """One arg."""
        return wire.message(wire.EVENT_ANNOTATION, self.key(name) + self._value(value))

    def key(self, name: str) -> bytes:
        """The beginning of an annotation: its key."""
        if (known := self._keys.get(name)) is None:
            known = wire.number(wire.VALUE_KEY, self._interned.number(wire.INTERNED_KEYS, name))
            self._keys[name] = known
        return known

    def _value(self, value: Any) -> bytes:
        if isinstance(value, str):
            return wire.number(wire.VALUE_STRING, self._interned.number(wire.INTERNED_STRINGS, value))
        if isinstance(value, bool):
            return wire.number(wire.VALUE_BOOL, value)
        if isinstance(value, int) and -_INT64 <= value < 2 * _INT64:
            return wire.number(wire.VALUE_INT if value < _INT64 else wire.VALUE_UINT, value)
        if isinstance(value, float):
            return wire.double(wire.VALUE_DOUBLE, value)
        return wire.number(wire.VALUE_STRING, self._interned.json_number(value))


def slice_args(track: SliceTrack, encoder: ArgsEncoder) -> Blobs:
    """The args of an added track's slices."""
    count = len(track.ts)
    steps = (kernel.ArgStep * len(track.args))()  # type: ignore[operator]
    held: list[Any] = []
    widest = 0
    for step, (name, column) in zip(steps, track.args.items(), strict=True):
        if isinstance(column, Texts):
            values, codes = text_args(column, name, encoder)
            data, step.starts, step.sizes = codes.data, address(codes.start), address(codes.size)
            widest += int(codes.size.max(initial=0))
        else:
            values, codes = np.ascontiguousarray(column, np.int64), None
            data = np.frombuffer(bytearray(encoder.key(name) + bytes(8)), np.uint8)
            step.sizes = len(data) - 8
            widest += len(data) + 16
        step.values, step.data = address(values), address(data)
        held.append((values, data, codes))
    out = np.empty(count * widest + 8, np.uint8)
    start, size = np.empty(count, np.int64), np.empty(count, np.int64)
    native("encode_packets.columns_to_args")(address(steps), len(steps), address(out), start, size)
    out.resize(int(start[-1] + size[-1]) + 8 if count else 8, refcheck=False)  # most args are shorter than the widest
    return Blobs(out, start, size)


FIELD_BYTES = 10
_FIELD = np.dtype([("tag", "u1", 2), ("id", "<i8")])


_ARROWS = 1 << 40  #: more arrows than any trace has
_LINKS = 1 << 62  #: ids from here on belong to links
_OF_IDS = _LINKS + (1 << 61)  #: and from here on to arrows that have ids of their own
_PART = 1 << 46  #: such arrows of a trace


class Links(Struct, frozen=True):
    """Ends of arrows that lead from slices of one trace to slices of others in the same file.

    ``rows`` are int64 rows of ``Trace.events`` or of an added ``track``; ``ids`` are int64 in [0, 2**62); both have
    equal length. Slices of one id are linked in the order of time, whatever trace they belong to.
    """

    rows: Int64s
    ids: Int64s
    track: SliceTrack | None = None


class Part(Struct, frozen=True):
    """A trace among several in a file: the number of traces before it, its name, and its links to the others."""

    number: int = 0
    name: str = ""
    links: tuple[Links, ...] = ()


class Suffixes(NamedTuple):
    """A field for each of ``rows``, which ascend; a row may have several."""

    rows: Int64s
    blobs: Blobs


NO_SUFFIXES = Suffixes(np.zeros(0, np.int64), blobs_of(()))


class SuffixNumbers(Struct):
    """The number of every slice of a file, and its place in the order of writing: the slices of the source by their
    place in ``Plan.order``, then those of each added track.

    Args:
        trace: whose events are the source's slices.
        place: the number of each event; :data:`NO_INDEX` where it makes none.
        written: the same, but in the order in which events are written.
        annotations: in the order in which they are written, after all events.
        part: what the trace is in the file.
    """

    trace: Trace
    place: Int32s | Int64s
    written: Int32s | Int64s
    annotations: Sequence[Annotation]
    part: Part = field(default_factory=Part)
    source_count: int = 0
    base_of: dict[int, int] = field(default_factory=dict)  #: the first number of each added track, by its ``id``

    def __post_init__(self) -> None:
        count = self.source_count = int(self.written.max(initial=NO_INDEX)) + 1
        for annotation in self.annotations:
            if isinstance(annotation, SliceTrack):
                self.base_of[id(annotation)] = count
                count += len(annotation.ts)

    def of(self, ends: Ends) -> tuple[Int64s, Int64s]:
        """The number of each slice, and its place in the order of writing."""
        if ends.track is None:
            place, written = (column[ends.rows] for column in (self.place, self.written))
            return place.astype(np.int64, copy=False), written.astype(np.int64, copy=False)
        added = self.base_of[id(ends.track)] + ends.rows
        return added, added


def suffixes(numbers: SuffixNumbers, source: Flows, repairs: Counter[str]) -> tuple[Suffixes, dict[int, Suffixes]]:
    """The fields of all arrows, those of ``source`` and those among the annotations: for the source's slices by their
    place, and for added tracks, by their ``id``, by row.

    Perfetto draws arrows forward in time alone: others are turned round, which is a repair of the source's.
    """
    firsts, seconds = [], []
    links = list(numbers.part.links)
    for flows in (source, *(annotation for annotation in numbers.annotations if isinstance(annotation, Flows))):
        if flows.ids is not None:
            ids = flows.ids + (_OF_IDS - _LINKS + numbers.part.number * _PART)
            sides = (each for each in (flows.out, flows.into) if not each.track or id(each.track) in numbers.base_of)
            links += [Links(ends.rows, ids, ends.track) for ends in sides]
            continue
        (out, out_written), (into, into_written) = numbers.of(flows.out), numbers.of(flows.into)
        out_ts, into_ts = flows.out.times(numbers.trace), flows.into.times(numbers.trace)
        turned = (out_ts > into_ts) | ((out_ts == into_ts) & (out_written > into_written))
        if flows is source:
            repairs["flow_turned_round"] = int(np.count_nonzero(out_ts > into_ts))
        drawn = (out != NO_INDEX) & (into != NO_INDEX) & (out != into)
        repairs["flow_without_slices"] += int(np.count_nonzero(~drawn))
        firsts.append(np.where(turned, into, out)[drawn])
        seconds.append(np.where(turned, out, into)[drawn])
    first = np.concatenate(firsts)
    second = np.concatenate(seconds)
    count = len(first)
    none = np.empty(0, np.int64)
    linked = np.concatenate([none, *(numbers.of(Ends(link.rows, link.track))[0] for link in links)])
    ids = np.concatenate([none, *(link.ids for link in links)])
    drawn = linked != NO_INDEX
    rows = np.concatenate([first, second, linked[drawn]])
    record = np.zeros(len(rows) + 1, _FIELD)
    record["tag"][:] = np.frombuffer(wire.varint(wire.EVENT_FLOW << 3 | 1), np.uint8)
    record["tag"][count : 2 * count] = np.frombuffer(wire.varint(wire.EVENT_LAST_FLOW << 3 | 1), np.uint8)
    record["id"][: 2 * count] = np.tile(np.arange(1, count + 1) + numbers.part.number * _ARROWS, 2)
    record["id"][2 * count : -1] = ids[drawn] + _LINKS
    order = np.argsort(rows, kind="stable")
    start, size = order * FIELD_BYTES, np.full(len(rows), FIELD_BYTES, np.int64)
    fields = Suffixes(rows[order], Blobs(record.view(np.uint8), start, size))
    return _between(fields, 0, numbers.source_count), {
        id(annotation): _between(fields, numbers.base_of[id(annotation)], len(annotation.ts))
        for annotation in numbers.annotations
        if isinstance(annotation, SliceTrack)
    }


def suffixes_of_ids(annotations: Sequence[Annotation]) -> dict[int, Suffixes]:
    """The fields of arrows with ids on the tracks that they leave, by their ``id``: their ends in the source were
    written before."""
    fields = {}
    for flows in annotations:
        if isinstance(flows, Flows) and flows.ids is not None and flows.out.track is not None:
            order = np.argsort(flows.out.rows, kind="stable")
            record = np.zeros(len(order) + 1, _FIELD)
            record["tag"][:] = np.frombuffer(wire.varint(wire.EVENT_FLOW << 3 | 1), np.uint8)
            record["id"][:-1] = (flows.ids + _OF_IDS)[order]
            start, size = np.arange(len(order)) * FIELD_BYTES, np.full(len(order), FIELD_BYTES, np.int64)
            fields[id(flows.out.track)] = Suffixes(flows.out.rows[order], Blobs(record.view(np.uint8), start, size))
    return fields


def colours(numbers: Int64s) -> Suffixes:
    """The fields by which the UI colours slices, their ``correlation_id``: in [0, 2**48), or -1 for a slice without
    one.

    Each is a varint, padded to eight bytes.
    """
    rows = np.flatnonzero(numbers >= 0)
    record = np.zeros((len(rows), FIELD_BYTES), np.uint8)
    record[:, :2] = np.frombuffer(wire.varint(wire.EVENT_CORRELATION << 3), np.uint8)
    record[:, 2:] = numbers[rows, None] >> np.arange(0, 56, 7) & 127
    record[:, 2:-1] |= 128
    data = np.append(record.ravel(), np.zeros(8, np.uint8))
    return Suffixes(rows, Blobs(data, np.arange(len(rows)) * FIELD_BYTES, np.full(len(rows), FIELD_BYTES, np.int64)))


def _between(all_: Suffixes, base: int, count: int) -> Suffixes:
    first, stop = np.searchsorted(all_.rows, (base, base + count)).tolist()
    return Suffixes(all_.rows[first:stop] - base, all_.blobs.take(slice(first, stop)))


def with_suffixes(blobs: Blobs, added: Suffixes) -> Blobs:
    """``blobs`` with the fields of their rows appended."""
    if not len(added.rows):
        return blobs
    rows, fields = np.unique(added.rows, return_counts=True)
    size = blobs.size[rows]
    whole = size + FIELD_BYTES * fields
    start = np.cumsum(whole) - whole
    at_own = np.arange(len(rows)) + np.cumsum(fields) - fields  # each row's own bytes, then its fields
    at_field = np.arange(len(added.rows)) + np.repeat(np.arange(len(rows)), fields) + 1
    begins, length = (np.empty(len(rows) + len(added.rows), np.int64) for _ in range(2))
    begins[at_own], length[at_own] = address(blobs.data) + blobs.start[rows], size
    begins[at_field], length[at_field] = address(added.blobs.data) + added.blobs.start, added.blobs.size
    data = np.zeros(int(whole.sum()) + 8, np.uint8)
    native("encode_packets.join_pieces")(begins, length, address(data))
    starts, sizes = blobs.start.copy(), blobs.size.copy()
    starts[rows], sizes[rows] = len(blobs.data) + start, whole
    return Blobs(np.concatenate([blobs.data, data]), starts, sizes)
