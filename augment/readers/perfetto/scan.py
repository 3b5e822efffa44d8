"""Converts packets to rows of growing tables, one by one. This code defines what a packet means."""

from __future__ import annotations

import re
import zlib
from typing import Any

import numpy as np

from augment.core import NO_CORRELATION
from augment.kernels import packet_layout as layout
from augment.kernels.native import address
from augment.readers.events import integer
from augment.readers.perfetto import values
from augment.readers.perfetto import wire_format as wire
from augment.readers.perfetto.state import KEYS, Clocks, PacketClock, PacketSequence, Strings
from augment.readers.perfetto.track_ids import FileTracks, FromAgent
from augment.readers.raw import ABSENT, Broken, Tally, identity

_INT64 = 1 << 63
_KINDS = {wire.BEGIN: ord("B"), wire.INSTANT: ord("i"), wire.COUNTER: ord("C")}
_SETS = re.compile(r"memory ?set|memset|fill", re.IGNORECASE)
_COPIES = re.compile(r"mem(ory)? ?(cpy|copy|transfer)|copy|dma", re.IGNORECASE)
_NUMBER_OF_QUEUE = re.compile(r".*(?:stream|queue|channel)\D{0,4}(\d+)", re.IGNORECASE | re.DOTALL)
_GRAPHICS = 1  #: RenderStageCategory


class PacketScanner:
    """Takes packets in the order of the file."""

    def __init__(self) -> None:
        self.rows, self.tracks, self.tally = PacketRows(), FileTracks(), Tally()
        self.sequences: dict[int, PacketSequence] = {}
        self.members: dict[str, Any] = {}
        self.packets = self.snapshots = self.last_sequence = 0
        self._clocks = Clocks()

    def scan(self, data: bytes, base: int) -> int:
        """Take the whole packets of ``data``, which is the text from byte ``base`` on. Returns the first byte not
        taken.

        Raises:
            Broken: the text there is neither a packet nor a field that may be skipped.
        """
        at = 0
        while at < len(data):
            after = self.step(data, at, base)
            if after == at:
                break
            at = after
        return at

    def step(self, data: bytes, at: int, base: int) -> int:
        """Take the packet at ``at``. Returns the position after it, or ``at`` if the packet is not whole.

        Raises:
            Broken: the text there is neither a packet nor a field that may be skipped.
        """
        size = len(data)
        try:
            tag, start = wire.varint(data, at, size)
            if tag & 7 != wire.LENGTH or not tag >> 3:
                raise Broken(base + at, "no packet begins here")
            length, start = wire.varint(data, start, size)
        except wire.DamagedError as error:
            if size - at >= 20:
                raise Broken(base + at, "no packet begins here") from error
            return at
        if length > wire.MAX_PACKET_BYTES:
            raise Broken(base + at, f"a packet here would be larger than {wire.MAX_PACKET_BYTES >> 20} MiB")
        if start + length > size:
            return at
        if tag == wire.TRACE_PACKET:
            self.take(data, start, start + length, base + start, length)
        else:
            self.tally.add("unknown_field", base + at)
        return start + length

    def take(self, data: bytes, start: int, stop: int, offset: int, length: int) -> None:
        """Take one packet, of ``length`` bytes at ``offset`` of the text."""
        self.packets += 1
        try:
            _Packet(self, data, start, stop, offset, length).take()
        except wire.DamagedError:
            self.tally.add("damaged_packet", offset)

    def sequence(self, number: int) -> PacketSequence:
        """The sequence of this number."""
        self.last_sequence = number
        known = self.sequences.get(number)
        if known is None:
            known = self.sequences[number] = PacketSequence()
        return known

    def clock(self, number: int, sequence: PacketSequence) -> PacketClock | None:
        """The clock that a packet names."""
        return self._clocks.clock(number or sequence.clock, sequence)

    @property
    def trace_clock(self) -> int:
        """The clock to which all times are converted."""
        return self._clocks.trace_clock

    def take_snapshot(self, data: bytes, start: int, stop: int, sequence: PacketSequence) -> None:
        """Take a ``ClockSnapshot``."""
        self.snapshots += 1
        self._clocks.take_snapshot(data, start, stop, sequence)


class _Packet:
    """A single packet. Its parts are located first, then taken in the order in which they depend on each other."""

    def __init__(self, scanner: PacketScanner, data: bytes, start: int, stop: int, offset: int, length: int) -> None:
        self._scanner, self._data, self._offset, self._length = scanner, data, offset, length
        self._numbers: dict[int, int] = {}
        self._parts: dict[int, tuple[int, int]] = {}
        for tag, value, end in wire.fields(data, start, stop):
            if tag & 7 == wire.LENGTH:
                self._parts[tag] = (value, end)
            else:
                self._numbers[tag] = value
        self._sequence = scanner.sequence(self._numbers.get(wire.PACKET_SEQUENCE, 0))

    def take(self) -> None:
        """Take the packet."""
        scanner, sequence, data = self._scanner, self._sequence, self._data
        flags = self._numbers.get(wire.PACKET_FLAGS, 0)
        if flags & wire.CLEARED or self._numbers.get(wire.PACKET_CLEARED):
            sequence.clear(self._offset)
        for tag, part in self._parts.items():
            if tag == wire.PACKET_DEFAULTS:
                sequence.take_defaults(data, *part)
            elif tag == wire.PACKET_INTERNED:
                sequence.take_interned(data, *part, scanner.rows.strings)
            elif tag == wire.PACKET_CLOCKS:
                scanner.take_snapshot(data, *part, sequence)
            elif tag == wire.PACKET_DESCRIPTOR:
                scanner.tracks.take(data, *part)
            elif tag == wire.PACKET_CHROME_EVENTS:
                scanner.members.update(values.metadata(data, *part))
            elif tag == wire.PACKET_COMPRESSED and self._length:  # else it came out of one itself
                self._unpack(*part)
        has_event = wire.PACKET_EVENT in self._parts or wire.PACKET_STAGE in self._parts
        if has_event and flags & wire.NEEDED and not sequence.valid:
            scanner.tally.add("lost_state", self._offset)
        elif has_event and (ts := self._time()) is not None:
            if wire.PACKET_STAGE in self._parts:
                scanner.members[wire.STAGES_MEMBER] = 1
            if wire.PACKET_STAGE in self._parts and self._numbers.get(wire.PACKET_SEQUENCE) != wire.OUR_STAGES:
                self._take_stage(ts, *self._parts[wire.PACKET_STAGE])
            if wire.PACKET_EVENT in self._parts:
                event = _Event(scanner, sequence, data, *self._parts[wire.PACKET_EVENT])
                event.add(ts, self._offset, self._length)

    def _time(self) -> int | None:
        """The packet's time on the trace's clock. None if it has no usable time; this is counted."""
        given = self._numbers.get(wire.PACKET_TIMESTAMP)
        if given is None and wire.PACKET_EVENT in self._parts:  # of an older file
            times = wire.fields(self._data, *self._parts[wire.PACKET_EVENT])
            given = next((wire.signed(value) * 1000 for tag, value, _ in times if tag == wire.EVENT_TIME_US), None)
        if given is None:
            self._scanner.tally.add("packet_without_time", self._offset)
            return None
        try:
            clock = self._scanner.clock(self._numbers.get(wire.PACKET_CLOCK, 0), self._sequence)
        except KeyError:
            self._scanner.tally.add("unknown_clock", self._offset)
            return None
        ts = clock.trace_time(given) if clock else given
        if not -_INT64 <= ts < _INT64:
            self._scanner.tally.add("time_out_of_range", self._offset)
            return None
        return ts

    def _unpack(self, start: int, stop: int) -> None:
        """Take the packets that are compressed within this one, where the text begins with none such. Their args cannot
        be read again later."""
        unpacker = zlib.decompressobj()
        try:
            data = unpacker.decompress(self._data[start:stop], wire.MAX_UNPACKED_BYTES)
        except zlib.error as error:
            raise wire.DamagedError from error
        self._scanner.tally.add("compressed_packets", self._offset)
        for tag, first, last in wire.fields(data, 0, len(data)):
            if tag == wire.TRACE_PACKET:
                self._scanner.take(data, first, last, self._offset, 0)

    def _take_stage(self, ts: int, start: int, stop: int) -> None:
        """Take a ``GpuRenderStageEvent``: work of a GPU, with its duration."""
        rows, data, now = self._scanner.rows, self._data, self._sequence.now
        members = {tag: (value, end) for tag, value, end in wire.fields(data, start, stop)}
        args = values.stage_args(data, start, stop, now)
        number = {tag: value for tag, (value, _) in members.items()}
        stage, kind = now.stages.get(number.get(wire.STAGE_KIND_IID, -1), ("", 0))
        name = wire.text(data, *members[wire.STAGE_NAME]) if wire.STAGE_NAME in members else ""
        name = name or rows.strings.all[now.names.get(number.get(wire.STAGE_NAME_IID, -1), 0)]
        name = name or now.kernels.get(number.get(wire.STAGE_KERNEL_IID, -1), "") or stage
        category = stage = stage or name
        if kind != _GRAPHICS:
            category = "gpu_memset" if _SETS.search(stage) else "gpu_memcpy" if _COPIES.search(stage) else "kernel"
        device = identity(args.get("device", wire.signed(number.get(wire.STAGE_GPU, 0))))
        correlation = integer(args.get("correlation", wire.signed(number.get(wire.STAGE_ID, -1))))
        stream = identity(args["stream"]) if "stream" in args else _queue(number, now.stages)
        dur = number.get(wire.STAGE_DURATION)
        correlation = NO_CORRELATION if correlation is None else correlation
        event = (ts, min(dur or 0, _INT64 - 1), ord("i") if dur is None else ord("X"))
        texts = rows.strings.number(category), rows.strings.number(name)
        place = rows.place(-1, device, stream)
        row = rows.events.append(*event, *texts, 0, place, correlation, self._offset, self._length)
        size = integer(args.get("bytes"))
        if size is not None:
            rows.sizes.append(row, size)


class _Event:
    """A ``TrackEvent``."""

    def __init__(self, scanner: PacketScanner, sequence: PacketSequence, data: bytes, start: int, stop: int) -> None:
        self._scanner, self._sequence, self._data = scanner, sequence, data
        self._track, self._kind = sequence.track, 0
        self._name = self._category = 0
        self._flows: list[int] = []
        self._last_flows: list[int] = []
        self._launched: list[int] = []
        self._args: dict[int, Any] = {}
        self._deep_args = 0
        self._take(start, stop)

    def _take(self, start: int, stop: int) -> None:
        data, now, strings = self._data, self._sequence.now, self._scanner.rows.strings
        for tag, value, end in wire.fields(data, start, stop):
            if tag == wire.EVENT_ANNOTATION:
                self._take_annotation(value, end)
            elif tag == wire.EVENT_TYPE:
                self._kind = value
            elif tag == wire.EVENT_TRACK:
                self._track = value
            elif tag == wire.EVENT_NAME_IID:
                self._name = self._name or now.names.get(value, 0)
            elif tag == wire.EVENT_CATEGORY_IID:
                self._category = self._category or now.categories.get(value, 0)
            elif tag == wire.EVENT_NAME:
                self._name = strings.number(wire.text(data, value, end))
            elif tag == wire.EVENT_CATEGORY:
                self._category = self._category or strings.number(wire.text(data, value, end))
            elif tag in (wire.EVENT_FLOW, wire.EVENT_FLOW_OLD):
                self._flows.append(value)
            elif tag in (wire.EVENT_LAST_FLOW, wire.EVENT_LAST_FLOW_OLD):
                self._last_flows.append(value)
            elif tag == wire.EVENT_GPU_CORRELATION:
                self._launched += [v for inner, v, _ in wire.fields(data, value, end) if inner == wire.LAUNCHED_STAGE]

    def _take_annotation(self, start: int, stop: int) -> None:
        key = None
        self._deep_args += values.nests_too_deeply(self._data, start, stop)
        for tag, value, end in wire.fields(self._data, start, stop):
            if tag == wire.VALUE_KEY_IID:
                key = self._sequence.now.keys.get(value)
            elif tag == wire.VALUE_KEY:
                key = wire.text(self._data, value, end)
            else:
                continue
            if key not in KEYS:
                return  # damage inside an arg that is not a column is not searched for
        if key is not None:
            self._args[KEYS[key]] = values.scalar(self._data, start, stop, self._sequence.now)

    def add(self, ts: int, offset: int, length: int) -> None:
        """Add the event's row."""
        rows = self._scanner.rows
        track = rows.track(self._track)
        if self._kind == wire.END:
            rows.ends.append(ts, track, rows.events.count)
            return
        kind = _KINDS.get(self._kind)
        if kind is None:
            self._scanner.tally.add("unknown_event_type", offset)
            return
        dur = min(integer(self._args.get(layout.DURATION_ARG)) or 0, 0)
        correlation = integer(self._args.get(layout.CORRELATION_ARG))
        if correlation is None and len(self._launched) == 1:
            correlation = integer(self._launched[0])
        correlation = NO_CORRELATION if correlation is None else correlation
        # the place of the event: its track, and the device and stream in its args
        args = self._args
        codes = (layout.DEVICE_ARG, layout.STREAM_ARG)
        device, stream = (identity(args[code]) if code in args else ABSENT for code in codes)
        if layout.DEVICE_ARG not in args and layout.AGENT_ARG in args:
            # rocprofv3 draws a copy on the agent that it goes to, which may be the host
            number = re.search(r"(\d+)$", str(args[layout.AGENT_ARG]))
            device = FromAgent(int(number[1])) if number and len(number[1]) < 19 else ABSENT
        place = self._scanner.rows.place(track, device, stream)
        row = rows.events.append(ts, dur, kind, self._category, self._name, track, place, correlation, offset, length)
        if self._deep_args and length:  # args of a compressed packet are not read at all
            self._scanner.tally.add("arg_nested_too_deeply", offset, self._deep_args)
        size = integer(self._args.get(layout.SIZE_ARG))
        if size is not None:
            rows.sizes.append(row, size)
        rows.add_flows(row, self._flows, 0)
        rows.add_flows(row, self._last_flows, 1)


def _queue(number: dict[int, int], stages: dict[int, tuple[str, int]]) -> int | str:
    """The stream of a queue: the number in the queue's name, else the number of the queue."""
    if wire.STAGE_QUEUE_IID not in number:
        return wire.signed(number.get(wire.STAGE_QUEUE, 0))
    name, _ = stages.get(number[wire.STAGE_QUEUE_IID], ("", 0))
    counted = _NUMBER_OF_QUEUE.fullmatch(name)
    return int(counted[1]) if counted and len(counted[1]) < 19 else name or wire.signed(number[wire.STAGE_QUEUE_IID])


#: of events: ``kind`` is ``ord`` of B, X, i or C; ``dur`` that of X, or a negative one that B tells; ``track`` counts
#: tracks in order of appearance, ``place`` counts (track, device, stream); ``correlation`` -1 is none
EVENT_COLUMNS: dict[str, Any] = {
    "ts": np.int64,
    "dur": np.int64,
    "kind": np.uint8,
    "category": np.int32,
    "name": np.int32,
    "track": np.int32,
    "place": np.int32,
    "correlation": np.int64,
    "offset": np.int64,
    "length": np.int32,
}
#: of ends: ``before`` is how many events came before it in the file
END_COLUMNS: dict[str, Any] = {"ts": np.int64, "track": np.int32, "before": np.int64}
#: pairs of a row and the size of what it copied; and flows that a row is part of, ``last`` where they end there
SIZE_COLUMNS: dict[str, Any] = {"row": np.int64, "value": np.int64}
FLOW_COLUMNS: dict[str, Any] = {"row": np.int64, "value": np.int64, "last": np.int64}
_FIRST_ROOM = 1 << 12


class RowTable:
    """Columns of equal length that grow."""

    def __init__(self, columns: dict[str, Any], table: Any) -> None:
        """Keep the columns of ``table``, by which kernels know them."""
        self.columns = {name: np.zeros(_FIRST_ROOM, kind) for name, kind in columns.items()}
        self._table = table
        self._tell()

    def _tell(self) -> None:
        for name, column in self.columns.items():
            setattr(self._table, name, address(column))
        self._table.room = self.room

    @property
    def count(self) -> int:
        """The number of rows."""
        return self._table.count  # type: ignore[no-any-return]

    @property
    def room(self) -> int:
        """The number of rows that fit before :meth:`grow`."""
        return len(next(iter(self.columns.values())))

    def grow(self, at_least: int) -> None:
        """Make room for at least ``at_least`` more rows."""
        count = self.count
        if count + at_least <= self.room:
            return
        room = max(2 * self.room, count + at_least)
        for name, column in self.columns.items():
            larger = np.zeros(room, column.dtype)
            larger[:count] = column[:count]
            self.columns[name] = larger
        self._tell()

    def append(self, *values: int) -> int:
        """Add a row. Returns its number."""
        self.grow(1)
        row = self.count
        for column, value in zip(self.columns.values(), values, strict=True):
            column[row] = value
        self._table.count = row + 1
        return row

    def take(self, name: str) -> Any:
        """A column, cut to the length of the table."""
        return self.columns[name][: self.count]


class PacketRows:
    """All tables, and the objects that their numbers refer to."""

    def __init__(self) -> None:
        self.scan = scan = layout.PacketScan()
        self.events, self.ends = RowTable(EVENT_COLUMNS, scan.events), RowTable(END_COLUMNS, scan.ends)
        self.sizes, self.flows = RowTable(SIZE_COLUMNS, scan.sizes), RowTable(FLOW_COLUMNS, scan.flows)
        self.strings = Strings()
        self.tracks: dict[int, int] = {}  #: number by uuid
        self.places: dict[tuple[Any, ...], int] = {}

    def track(self, uuid: int) -> int:
        """The number of a track."""
        return self.tracks.setdefault(uuid, len(self.tracks))

    def place(self, track: int, device: Any, stream: Any) -> int:
        """The number of a place."""
        return self.places.setdefault((track, device, stream), len(self.places))

    def add_flows(self, row: int, ids: list[int], last: int) -> None:
        """Record that a row is part of flows."""
        for flow_id in ids:
            self.flows.append(row, flow_id - (1 << 64) if flow_id >> 63 else flow_id, last)
