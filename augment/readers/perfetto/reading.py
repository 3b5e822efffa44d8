"""Reads a text of packets: makes the trace and the decoder that later decodes packets again.

The Python side of the compiled packet scan is here, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from augment.arrays import NO_INDEX, Bools, Int64s
from augment.core import COMPLETE, NO_CORRELATION, ON_DEVICE, Category, SparseColumn, Trace
from augment.errors import MalformedTrace
from augment.facts.source.event_args import Scan
from augment.kernels import packet_layout as at
from augment.kernels.native import address, native
from augment.readers import dialects
from augment.readers.assembly import Outline, assemble
from augment.readers.containers import CHUNK, Counted, OpenText, TextAgain
from augment.readers.limits import Limits
from augment.readers.pairing import matched
from augment.readers.perfetto import wire_format as wire
from augment.readers.perfetto.scan import PacketRows, PacketScanner
from augment.readers.perfetto.state import KEYS, Generation, PacketSequence, strings_at
from augment.readers.perfetto.track_ids import FileTracks
from augment.readers.perfetto.values import ArgScan, as_event, key_and_value
from augment.readers.perfetto.wire_format import DamagedError, fields, signed
from augment.readers.raw import ABSENT, COLUMNS, Broken, RawEvents, Tally

_WINDOW = 2 << 20  #: bytes of whole packets that are examined together
_KEYS = frozenset((wire.VALUE_KEY, wire.VALUE_KEY_IID))


def trace_of(path: str, name: str, text: OpenText, head: bytes) -> Trace:
    """The trace in ``text``, as the reader ``name`` reads it. The bytes in ``head`` were already read from it.

    Raises:
        MalformedTrace: the text has no whole packet.
        LimitExceeded: it decompresses to more than a trace of its size would.
    """
    scanner = FastScanner()
    outline = Outline()
    try:
        _scan(path, Counted(head, text), scanner, outline, text.limits)
    except Broken as error:
        raise MalformedTrace(path, error.offset, error.because) from error
    if text.damage:
        outline.partial = "; ".join(filter(None, (text.damage, outline.partial)))
    # what Kineto writes beside the events; times are absolute, whatever base the Chrome file had
    outline.members = {name: value for name, value in scanner.members.items() if name != "baseTimeNanoseconds"}
    if "deviceProperties" not in outline.members and (models := scanner.tracks.models()):
        outline.members["deviceProperties"] = [{"id": device, "name": model} for device, model in models]
    raw = raw_events(scanner.rows, scanner.tracks, scanner.tally)
    again = TextAgain(path, outline.text_bytes, ahead=text.is_read_ahead)
    decode = _Decoder(scanner.sequences)
    return assemble(path, name, text.sha256(), again, raw, outline, decode, text.threads)


def _scan(path: str, text: Counted, scanner: PacketScanner, outline: Outline, limits: Limits) -> None:
    """Take all packets. Text after the first invalid packet is not examined."""
    held, base, ended = b"", 0, False
    try:
        while not ended:
            pieces, size = [held], len(held)
            want = max(_WINDOW, 2 * size)
            while size < want and not ended:
                pieces.append(text.read(CHUNK))
                ended = not pieces[-1]
                size += len(pieces[-1])
            held = b"".join(pieces)
            taken = scanner.scan(held, base)
            limits.expect_events(path, scanner.packets)
            base += taken
            held = held[taken:]
        if held:
            outline.partial = f"the text ends inside the packet that begins at byte {base}"
    except Broken as error:
        outline.partial = f"byte {error.offset}: {error.because}; what follows is not read"
        while text.read(CHUNK):
            pass
    if outline.partial and not scanner.packets:
        raise Broken(base, "no whole packet; record or copy the file again")
    outline.text_bytes = text.count


class _Decoder:
    """Decodes the bytes of a packet into the event that a Chrome file would have. It keeps the strings that packets
    refer to.
    """

    def __init__(self, sequences: dict[int, PacketSequence]) -> None:
        self._sequences = sequences

    def arg_scan(self) -> Scan:
        """A fast way to a few args of many packets."""
        return ArgScan(self._sequences)

    def strings_at(self, sequence: int, offset: int) -> tuple[Generation, int, int]:
        """The strings that a sequence has at a byte, and the range of bytes in which it has them."""
        return strings_at(self._sequences, sequence, offset)

    def arg(self, annotation: bytes, strings: Generation) -> tuple[str, Any] | None:
        """Key and value of a ``DebugAnnotation``; None if it is damaged, or has several keys."""
        try:
            keys = [tag for tag, _, _ in fields(annotation, 0, len(annotation)) if tag in _KEYS]
            return None if len(keys) != 1 else key_and_value(annotation, 0, len(annotation), strings)
        except DamagedError:
            return None

    def __call__(self, text: bytes, offset: int, /) -> dict[str, Any]:
        number = 0
        try:
            for tag, value, _ in fields(text, 0, len(text)):
                if tag == wire.PACKET_SEQUENCE:
                    number = value
            return {"bp": "e", **as_event(text, strings_at(self._sequences, number, offset)[0])}
        except DamagedError:
            return {}


def raw_events(rows: PacketRows, tracks: FileTracks, tally: Tally) -> RawEvents:
    """The raw events of all packets of a file: beginnings are paired with ends, ids of flows become events, and what
    augment added is left out.
    """
    events = rows.events
    columns = {name: events.take(name) for name in events.columns}
    # The rows that augment added. Names the points of all other counters
    is_ours = np.array([text.startswith("augment.") for text in rows.strings.all], np.bool_)
    of_track = np.array([tracks[uuid].added for uuid in rows.tracks] or [False], np.bool_)
    added: Bools = is_ours[columns["category"]] | ((columns["kind"] == ord("C")) & of_track[columns["track"]])
    # points of a counter are named after its track
    counters = np.flatnonzero((columns["kind"] == ord("C")) & ~added & (columns["name"] == 0))
    if len(counters):
        names = np.array([rows.strings.number(tracks[uuid].name) for uuid in rows.tracks], np.int32)
        columns["name"][counters] = names[columns["track"][counters]]
    kept = ~added
    # set the durations of slices. Returns the column of phases.
    kind, dur = columns["kind"], columns["dur"]
    begins = np.flatnonzero(kind == ord("B"))
    ends = rows.ends
    before = np.searchsorted(begins, ends.take("before")) if len(begins) < len(kind) else ends.take("before")
    end_of = matched(
        columns["ts"][begins], columns["track"][begins], ends.take("ts"), ends.take("track"), before, len(rows.tracks)
    )
    closed = begins[end_of != NO_INDEX]
    lasted = ends.take("ts")[end_of[end_of != NO_INDEX]] - columns["ts"][closed]
    dur[closed] = np.where(dur[closed] < 0, dur[closed], lasted)
    phase = kind.copy()
    phase[closed] = COMPLETE
    open_ones = begins[(end_of == NO_INDEX) & kept[begins]]
    dur[open_ones] = 0
    for code, count in (("slice_without_end", len(open_ones)), ("end_without_slice", ends.count - len(closed))):
        if count:
            tally.counts[code] += count
            tally.first.setdefault(code, int(columns["offset"][open_ones[0]]) if len(open_ones) else 0)
    # make slices without a category on a stream kernels, unless they wait: some vendors write no category
    bare = np.flatnonzero((columns["category"] == 0) & (phase == COMPLETE) & (columns["kind"] == ord("B")))
    if len(bare):
        is_stream = np.array(
            [tracks.is_stream(uuid) and not dialects.ASCEND_PLANE.fullmatch(tracks[uuid].name) for uuid in rows.tracks],
            np.bool_,
        )
        bare = bare[is_stream[columns["track"][bare]]]
        numbers = rows.strings.number("kernel"), rows.strings.number("cuda_sync")
        threads = [tracks[uuid].name.endswith(dialects.ASCEND_COLLECTIVES_THREAD) for uuid in rows.tracks]
        track, name, ts = (columns[key][bare] for key in ("track", "name", "ts"))
        waits = dialects.no_work(track, name, rows.strings.all, np.array(threads, np.bool_), ts, dur[bare])
        columns["category"][bare] = np.where(waits, numbers[1], numbers[0])
    flows = _flow_events(rows, columns, kept)
    order = np.argsort(np.concatenate([2 * np.flatnonzero(kept), 2 * flows.after + 1]), kind="stable")
    raw: dict[str, Any] = {}
    for name in COLUMNS:
        column = phase if name == "phase" else columns[name]
        raw[name] = np.concatenate([column[kept], flows.column(name, column)])[order]
    row_of = np.empty(len(order), np.int64)
    row_of[order] = np.arange(len(order))
    new_row = np.cumsum(kept) - 1
    size_rows, sizes = rows.sizes.take("row"), rows.sizes.take("value")
    of_kept = kept[size_rows]
    first_flow, uuids = int(kept.sum()), list(rows.tracks)
    return RawEvents(
        **raw,
        sizes=SparseColumn(row_of[new_row[size_rows[of_kept]]], sizes[of_kept]),
        flows=SparseColumn(row_of[first_flow:], flows.id),
        strings=rows.strings.all,
        places=[
            (device, stream, device, stream) if track < 0 else tracks.place(uuids[track], device, stream)
            for track, device, stream in rows.places
        ],
        names=tracks.names(rows.tracks),
        tally=tally,
        event_count=len(order),
    )


_POSITIVE = np.int64(2**63 - 1)  #: a negative flow id would stand for a text


class _FlowEvents(Struct, frozen=True):
    """Beginnings, steps and ends of flows. Each has the time and place of the row ``after`` which it comes."""

    after: Int64s
    phase: Any
    name: Any
    id: Int64s

    def column(self, column: str, of_rows: Any) -> Any:
        """A column of the flow events."""
        if column == "phase":
            return self.phase
        if column in ("name", "category"):
            return self.name
        if column in ("dur", "length"):
            return np.zeros(len(self.after), of_rows.dtype)
        if column == "correlation":
            return np.full(len(self.after), NO_CORRELATION, np.int64)
        return of_rows[self.after]


def _flow_events(rows: PacketRows, columns: dict[str, Any], kept: Bools) -> _FlowEvents:
    """Each row of a flow leads to the next one in time. A flow ends where its id is reused."""
    row, ids, last = (rows.flows.take(name) for name in ("row", "value", "last"))
    chosen = kept[row]
    row, ids, last = row[chosen], ids[chosen], last[chosen]
    order = np.lexsort((row, columns["ts"][row], ids))
    row, ids, last = row[order], ids[order], last[order]
    linked = (ids[1:] == ids[:-1]) & (last[:-1] == 0)
    if not linked.any():
        return _FlowEvents(*(np.zeros(0, kind) for kind in (np.int64, np.uint8, np.int32, np.int64)))
    out, into = row[:-1][linked], row[1:][linked]
    known = [dialects.CATEGORIES.get(text.lower(), Category.OTHER) for text in rows.strings.all]
    category = np.array(known, np.uint8)[columns["category"]]
    on_gpu = np.isin(category, ON_DEVICE)
    back = on_gpu[out] & ~on_gpu[into]  # Perfetto could not draw these arrows, since clocks differ
    out, into = np.where(back, into, out), np.where(back, out, into)
    correlation = columns["correlation"]
    same = (correlation[out] == correlation[into]) & (correlation[out] != NO_CORRELATION)
    launched = same | (on_gpu[into] & ~on_gpu[out])
    numbers = [rows.strings.number(name) for name in ("ac2g", "fwdbwd", "flow")]
    hosts = (category[out] == Category.CPU_OP) & (category[into] == Category.CPU_OP)
    tasks = np.array([text.startswith(dialects.ASCEND_TASK) for text in rows.strings.all], np.bool_)
    hosts &= ~tasks[columns["name"][into]]  # from a queue
    name = np.where(launched, numbers[0], np.where(hosts, numbers[1], numbers[2])).astype(np.int32)
    flow_id = np.where(launched & (correlation[out] != NO_CORRELATION), correlation[out], ids[1:][linked])
    flow_id &= _POSITIVE
    by_start = np.lexsort((flow_id, out))  # all arrows of one id from one row share a beginning
    again = np.zeros(len(out), np.bool_)
    again[by_start[1:]] = (out[by_start[1:]] == out[by_start[:-1]]) & (flow_id[by_start[1:]] == flow_id[by_start[:-1]])
    first = ~again
    phase = np.concatenate([np.full(int(first.sum()), ord("s")), np.full(len(into), ord("f"))]).astype(np.uint8)
    return _FlowEvents(
        np.concatenate([out[first], into]),
        phase,
        np.concatenate([name[first], name]),
        np.concatenate([flow_id[first], flow_id]),
    )


_MOST_IIDS = 1 << 20  #: of one kind; larger numbers are left to Python
_MOST_SEQUENCES = 1 << 16
_MASK = (1 << 64) - 1


class FastScanner(PacketScanner):
    """Takes packets in the order of the file. Compiled code handles nearly all of them."""

    def __init__(self) -> None:
        super().__init__()
        self._scan = native("packet_scan.scan_packets")
        self._keys = (at.KeyText * len(KEYS))()  # type: ignore[operator]
        self._texts = [np.frombuffer(key.encode() + b"\0" * 8, np.uint8) for key in KEYS]
        for key, text, code in zip(self._keys, self._texts, KEYS.values(), strict=True):
            key.text, key.size, key.code = address(text), len(text) - 8, code
        self._track_slots, self._place_slots = _Slots(), _Slots()
        self._blocks: dict[int, _Block] = {}
        self._addresses = np.zeros(_MOST_SEQUENCES, np.int64)
        self._snapshots_seen = 0
        state = self.rows.scan
        state.key_texts, state.key_count = address(self._keys), len(KEYS)
        state.sequences, state.sequence_count = address(self._addresses), _MOST_SEQUENCES

    def scan(self, data: bytes, base: int) -> int:
        """Take the whole packets of ``data``, which is the text from byte ``base`` on. Returns the first byte not
        taken.

        Raises:
            Broken: the text there is neither a packet nor a field that may be skipped.
        """
        size = len(data)
        padded = np.frombuffer(data + b"\0" * 16, np.uint8)
        start = address(padded)
        state = self.rows.scan
        state.position = 0
        rows, tracks, places = self.rows, self._track_slots, self._place_slots
        while True:
            # the compiled code gets the numbers of new tracks and places
            if new := _later(rows.tracks, tracks):
                tracks.extend(((uuid, 0, 0), number) for uuid, number in new)
            if added := _later(rows.places, places):
                places.extend((_as_numbers(key), number) for key, number in added)
            state.track_slots, state.track_mask = tracks.where()
            state.place_slots, state.place_mask = places.where()
            state.packets = self.packets
            why = self._scan(start, start + size, base, state)
            self.packets, position = state.packets, state.position
            if why == at.MORE:
                return position
            if why == at.GROW:
                for table in (self.rows.events, self.rows.ends, self.rows.sizes, self.rows.flows):
                    if table.count * 8 >= table.room * 7:
                        table.grow(table.room)
                continue
            # Take one packet in Python
            for number, block in self._blocks.items():
                block.pull_clock(self.sequences[number])
            after = self.step(data, position, base)
            changed = [self.last_sequence]
            if self.snapshots != self._snapshots_seen:
                self._snapshots_seen = self.snapshots
                changed = list(self.sequences)
            for number in changed:
                if number in self.sequences and number < _MOST_SEQUENCES:
                    if number not in self._blocks:
                        self._blocks[number] = _Block()
                        self._addresses[number] = address(self._blocks[number].values)
                    self._blocks[number].refresh(self.sequences[number], self)
            if after == position:
                return position
            state.position = after


def _later(numbers: dict[Any, int], slots: _Slots) -> list[tuple[Any, int]]:
    """The entries added since the slots were last filled, in insertion order."""
    new = len(numbers) - slots.taken
    if not new:
        return []
    slots.taken = len(numbers)
    latest = reversed(numbers.items())
    return [next(latest) for _ in range(new)]


def _as_numbers(place: tuple[Any, ...]) -> tuple[int, int, int] | None:
    """A place's key as integers for the compiled code; None if it cannot be represented."""
    numbers = [at.ABSENT if number is ABSENT else number for number in place]
    if all(type(number) is int and -(1 << 63) <= number < 1 << 63 for number in numbers):
        return (numbers[0], numbers[1], numbers[2])
    return None


class _Slots:
    """An open-addressing table from three integers to a number."""

    def __init__(self) -> None:
        self.taken = 0
        self._known: list[tuple[tuple[int, int, int], int]] = []
        self._slots = np.full((64, 4), -1, np.int64)

    def where(self) -> tuple[int, int]:
        """The address and the mask."""
        return address(self._slots), len(self._slots) - 1

    def extend(self, items: Any) -> None:
        """Add keys."""
        new = [(key, number) for key, number in items if key is not None]
        self._known += new
        if 2 * len(self._known) > len(self._slots):
            size = 64
            while size < 4 * len(self._known):
                size *= 2
            self._slots = np.full((size, 4), -1, np.int64)
            new = self._known
        for key, number in new:
            first, second, third = ((number + (1 << 63)) % (1 << 64) - (1 << 63) for number in key)
            # The Python version of the compiled ``slot_of``
            many = 0x9E3779B97F4A7C15
            hashed = (first * many ^ second * 0xC2B2AE3D27D4EB4F) & _MASK
            slot_of = (((hashed ^ third) & _MASK) * many & _MASK) >> 40
            slot = slot_of & (len(self._slots) - 1)
            while self._slots[slot, 3] >= 0:
                slot = (slot + 1) & (len(self._slots) - 1)
            self._slots[slot] = first, second, third, number


class _Block:
    """The state of a sequence in the form that compiled code uses."""

    def __init__(self) -> None:
        self.values = at.Sequence()
        self._numbers: list[npt.NDArray[np.int32]] = [np.zeros(64, np.int32) for _ in range(3)]
        self._taken = 0
        self._generation: object = None

    def pull_clock(self, sequence: PacketSequence) -> None:
        """Copy the progress of an incremental clock back to Python."""
        if self.values.clock_kind == at.MOVING_CLOCK:
            sequence.clocks[self.values.clock_number].trace_ns = self.values.clock_trace

    def refresh(self, sequence: PacketSequence, scanner: PacketScanner) -> None:
        """Update the block with new state."""
        now = sequence.now
        if now is not self._generation:
            self._generation, self._taken = now, 0
            self._numbers = [np.zeros(64, np.int32) for _ in range(3)]
        for kind, iid, number in now.news[self._taken :]:
            if iid < _MOST_IIDS:
                numbers = self._numbers[kind]
                if iid >= len(numbers):
                    larger = np.zeros(max(2 * len(numbers), iid + 1), np.int32)
                    larger[: len(numbers)] = numbers
                    self._numbers[kind] = numbers = larger
                numbers[iid] = number
        self._taken = len(now.news)
        values = self.values
        values.valid, values.default_track = sequence.valid, signed(sequence.track)
        for place, numbers in zip((values.names, values.categories, values.keys), self._numbers, strict=True):
            place.table, place.count = address(numbers), len(numbers)
        kind, known = at.TRACE_CLOCK, None
        try:
            known = scanner.clock(0, sequence)
        except KeyError:
            kind = at.NO_CLOCK
        if known is not None:
            kind = at.FIXED_CLOCK
            if known.incremental:  # a clock that several sequences share cannot advance here
                kind = at.MOVING_CLOCK if sequence.clocks.get(sequence.clock) is known else at.NO_CLOCK
            shifts = (known.trace_ns, known.shown)
            if not all(-(1 << 62) < shift < 1 << 62 for shift in shifts) or known.unit_ns > 1 << 20:
                kind = at.NO_CLOCK
            else:
                values.clock_trace, values.clock_shown = known.trace_ns, known.shown
                values.clock_unit = known.unit_ns
        values.clock_kind = kind
        values.clock_number = sequence.clock or scanner.trace_clock
