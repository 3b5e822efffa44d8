"""Converts the source's events to Perfetto's: ends first, then beginnings and instants with their args, in text
order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import numpy as np

from augment.arrays import Bools, Int32s, Int64s, Values
from augment.core.jsontext import lenient_json
from augment.core.trace import COMPLETE, GPU_WORK, Decode, Trace, args_of_event, json_event
from augment.facts.source.event_args import PADDING, Block, PacketDecode, blocks, decoded, decoded_event
from augment.kernels import encode_packets as kernel
from augment.kernels.dictionary import KnownBytes
from augment.kernels.native import address, native
from augment.writers.perfetto import packets, wire
from augment.writers.perfetto.plan import NEVER, Plan
from augment.writers.perfetto.tracks import Tracks

STAGES_MEMBER = "gpuRenderStages"  #: of a source that has render stages
_STAGE_OF_COMPUTE = 2  #: RenderStageCategory
_ROWS = 1 << 18


class SourceEvents:
    """The events of a trace's source, in pieces in the order of writing."""

    def __init__(self, trace: Trace, plan: Plan, tracks: Tracks, interned: packets.InternedTexts) -> None:
        self._trace, self._plan, self._tracks = trace, plan, tracks
        self._encoder = packets.ArgsEncoder(interned)
        events = trace.events
        columns = events.name, events.category_name
        names, categories = trace.context.threads.all([partial(_counts, trace, column, plan) for column in columns])
        self._names = _numbers(trace, names, interned, wire.INTERNED_NAMES)
        self._categories = _numbers(trace, categories, interned, wire.INTERNED_CATEGORIES)
        self._late: dict[int, bytes] = {}
        self._is_late = np.zeros(len(events), np.bool_)
        self._is_late[plan.late] = True
        # add args that the text of a slice lacks: a negative duration, and the args of the event that ends the slice
        extras: dict[int, dict[str, Any]] = {}
        for row in np.flatnonzero((events.dur < 0) & (events.phase == COMPLETE)).tolist():
            extras[row] = {"dur_ns": int(events.dur[row])}
        for row, end in plan.ended_by.items():
            if args := args_of_event(plan.texts.get(end, {})):
                extras[row] = args
        if not extras:
            return
        place = np.empty(len(events), np.int64)
        place[plan.order[:]] = np.arange(len(plan.order))
        more = packets.blobs_of(self._encoder.args(args) for args in extras.values())
        places = np.concatenate([plan.suffix_places, place[list(extras)]])
        order = np.argsort(places, kind="stable")
        known = plan.suffixes
        data = np.concatenate([known.data, more.data])
        start = np.concatenate([known.start, more.start + len(known.data)])[order]
        plan.suffix_places = places[order]
        plan.suffixes = packets.Blobs(data, start, np.concatenate([known.size, more.size])[order])

    def all(self) -> Generator[packets.Events | Callable[[], packets.Events], None, None]:
        """All events, in the order of the file. What makes events may be called by any thread, once."""
        plan, events = self._plan, self._trace.events
        # the ends of slices with a duration may all come first, because Perfetto sorts by time
        for start in range(0, len(plan.slice_rows), _ROWS):
            rows = plan.slice_rows[start : start + _ROWS]
            dur = plan.dur(events, rows)
            lasting = np.flatnonzero((dur > 0) & (dur != NEVER))
            rows = rows[lasting]
            yield packets.ends(events.ts[rows] + dur[lasting], plan.track[rows])
        order = plan.order[:]
        offsets, lengths = events.offset[order], events.length[order]
        del order
        decode, appended = self._trace.source.decode, (plan.suffix_places, plan.suffixes)
        maker: ArgsScanner | _PlainBlobs
        if decode is json_event:  # the kernel reads this form
            maker = ArgsScanner(self._encoder, *appended)
        elif isinstance(decode, PacketDecode):
            maker = PacketArgsScanner(self._encoder, *appended, decode)
        else:
            maker = _PlainBlobs(self._encoder, plan, decode)
        for block in blocks(self._trace.source.text, offsets, lengths):
            rows = plan.order[block.start : block.stop]
            blobs = maker.blobs(block, offsets, lengths)
            late = self._is_late[rows]
            if late.any():
                kept = blobs.take(np.flatnonzero(late)).pieces()
                self._late.update(zip(rows[late].tolist(), kept, strict=True))
            yield partial(self._begun, rows, blobs, ~late)
        for start in range(0, len(self._plan.late), _ROWS):
            rows = self._plan.late[start : start + _ROWS]
            yield self._begun(rows, packets.blobs_of(self._late[row] for row in rows.tolist()))
        # each number in the args of a counter event becomes a point of a separate counter
        points: dict[int, tuple[list[int], list[float]]] = {}
        rows = np.flatnonzero(events.phase == ord("C"))
        places = self._tracks.place_of_track[events.track[rows]]
        for row, place in zip(rows.tolist(), places.tolist(), strict=True):
            event = plan.texts[row]
            for key, value in args_of_event(event).items():
                number = _number(value)
                if number is None:
                    plan.repairs["counter_without_number"] += 1
                    continue
                which = "" if event.get("id") is None else f"id: {event['id']}"
                name = " ".join(filter(None, (str(event.get("name") or ""), which, key)))
                ts, values = points.setdefault(self._tracks.of_counter(place, name), ([], []))
                ts.append(int(events.ts[row]))
                values.append(number)
        for track, (ts, values) in points.items():
            yield packets.counters(np.array(ts, np.int64), np.array(values), track)

    def _begun(self, rows: Int64s, blobs: packets.Blobs, drawn: Bools | None = None) -> packets.Events:
        plan, events = self._plan, self._trace.events
        made = packets.Events(
            plan.kind[rows].astype(np.int64),
            events.ts[rows],
            plan.track[rows],
            self._categories.take(events.category_name[rows]),
            self._names.take(events.name[rows]),
            blobs,
        )
        if drawn is not None and not drawn.all():
            made, rows = made.take(drawn), rows[drawn]
        return packets.with_ends(made, (made.kind == wire.BEGIN) & (plan.dur(events, rows) == 0))


def _number(value: Any) -> float | None:
    """A counter's value. A number may be quoted, as in Perfetto."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) or not isinstance(value, str) else None


def _counts(trace: Trace, column: Values[np.int32], plan: Plan) -> Int64s:
    """How many events have each string of the trace."""
    counts = np.zeros(len(trace.strings), np.int64)
    for start in range(0, len(column), _ROWS):
        block = slice(start, start + _ROWS)
        counts += np.bincount(column[block][plan.kind[block] != 0], minlength=len(counts))
    return counts


def _numbers(trace: Trace, counts: Int64s, interned: packets.InternedTexts, kind: int) -> Int64s:
    """The number of each string of the trace that occurs. Frequent strings get small numbers, which take fewer
    bytes.
    """
    numbers = np.zeros(len(counts), np.int64)
    for index in np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)].tolist():
        if trace.strings[index] or kind == wire.INTERNED_NAMES:
            numbers[index] = interned.number(kind, trace.strings[index])
    return numbers


class _PlainBlobs:
    """As :class:`ArgsScanner`, for sources that are neither JSON nor packets."""

    def __init__(self, encoder: packets.ArgsEncoder, plan: Plan, decode: Decode) -> None:
        self._encoder, self._decode = encoder, decode
        self._places, self._suffixes = plan.suffix_places, plan.suffixes

    def blobs(self, block: Block, offsets: Int64s, lengths: Any) -> packets.Blobs:
        """The blobs of the rows of a block."""
        made = [self._encoder.args(args_of_event(event)) for event in decoded(block, offsets, lengths, self._decode)]
        first, last = np.searchsorted(self._places, (block.start, block.stop)).tolist()
        part = slice(first, last)
        for place, piece in zip(self._places[part].tolist(), self._suffixes.take(part).pieces(), strict=True):
            made[place - block.start] += piece
        return packets.blobs_of(made)


_OUT_BYTES = 4 << 20
_CODE_BYTES = 64  #: more than any arg takes whose texts are numbered
_MOST_SEQUENCES = 64  #: sequences whose codes are kept at the same time


class ArgsScanner:
    """Makes the blobs of rows of a JSON source: their args, taken from the text, followed by their suffixes.

    Args:
        encoder: makes the code of a key, or of a key with its value, at its first occurrence.
        suffix_rows: rows of ``suffixes``, ascending, in the numbering of :meth:`blobs`.
        suffixes: the fields to append.
    """

    _of_packets = 0
    _decode: Decode = staticmethod(json_event)

    def __init__(self, encoder: packets.ArgsEncoder, suffix_rows: Int64s, suffixes: packets.Blobs) -> None:
        self._encoder = encoder
        self._known = KnownBytes()
        self._suffixes = [np.ascontiguousarray(each, np.int64) for each in (suffix_rows, suffixes.start, suffixes.size)]
        self._suffix_data = suffixes.data
        self._code = np.zeros(_CODE_BYTES, np.uint8)
        self._state = kernel.Encoding()
        self._state.suffixes, self._state.code = address(suffixes.data), address(self._code)
        self._out, self._next_out = np.empty(_OUT_BYTES, np.uint8), np.empty(_OUT_BYTES, np.uint8)

    def blobs(self, block: Block, offsets: Int64s, lengths: Int32s) -> packets.Blobs:
        """The blobs of the rows of a block. They are valid until the next call but one."""
        self._out, self._next_out = self._next_out, self._out
        offsets = np.ascontiguousarray(offsets[block.start : block.stop])
        lengths = np.ascontiguousarray(lengths[block.start : block.stop])
        count = len(offsets)
        start, size = np.empty(count, np.int64), np.empty(count, np.int64)
        state, origin = self._state, address(block.data)
        state.row = state.at = 0
        state.ready_row = -1
        scan_args: Callable[[], int] | None = None
        while True:
            out = self._out
            if scan_args is None:
                source, rows = (origin + PADDING, block.base, offsets, lengths), (start, size, block.start)
                tables = *self._suffixes, self._known.known, state, self._of_packets
                scan_args = native("encode_blobs.scan_args").prepared(*source, address(out), len(out), *rows, *tables)
            why = scan_args()
            if why == kernel.DONE:
                return packets.Blobs(out, start, size)
            if why == kernel.FULL:
                self._out = np.concatenate([out, np.empty(len(out) + state.ready_size, np.uint8)])
                scan_args = None
                continue
            if why == kernel.FULL_TABLES:
                self._known.grow()
                continue
            row = state.row
            offset = int(offsets[row])
            if why == kernel.OTHER_STRINGS:
                self._turn_to(state.sequence, offset)
                scan_args = None
                continue
            at = offset - block.base + PADDING
            event = block.data[at : at + int(lengths[row])].data
            missed = slice(state.miss_start - origin, state.miss_end - origin)
            if why == kernel.ODD_ROW or not self._learn(block.data[missed].tobytes(), event, offset):
                args = args_of_event(decoded_event(event.tobytes(), offset, self._decode))
                self._ready = np.frombuffer(self._encoder.args(args) + b"\0" * 8, np.uint8)
                self._state.ready_row, self._state.ready_size = row, len(self._ready) - 8
                self._state.ready = address(self._ready)

    def _turn_to(self, sequence: int, offset: int) -> None:
        """Switch to the strings that a sequence of packets has at a byte."""
        raise NotImplementedError

    def _learn(self, text: bytes, event: memoryview, offset: int) -> bool:
        """Tell compiled code what it missed: a key, or a key with its value. False if it cannot be told without the
        rest of its event.

        Pieces are missed in their order within an event, so texts get the same numbers as without compiled code, but
        where a key stands twice.
        """
        is_key = bool(self._state.miss_is_key)
        arg = self._arg_in(text, is_key, event, offset)
        if arg is None:
            return False
        code = self._encoder.key(arg[0]) if is_key else self._encoder.arg(*arg)
        self._code.data[: len(code)] = code
        self._state.code_size = len(code)
        return True

    def _arg_in(self, text: bytes, is_key: bool, event: memoryview, offset: int) -> tuple[str, Any] | None:  # noqa: ARG002
        """The arg in a piece of the text; None if there is none, or if its key has escapes, so that other text may be
        the same key. ``is_key`` says that the piece has no value. It is of ``event``, which begins at ``offset``.
        """
        try:
            args = lenient_json(b'{"' + text + b'":0}' if is_key else b"{" + text + b"}")
        except ValueError:
            return None
        [(key, value)] = args.items()
        is_plain = (b'"' + text + b'"' if is_key else text).startswith(b'"' + key.encode() + b'"')
        return (key, value) if is_plain else None


class PacketArgsScanner(ArgsScanner):
    """As :class:`ArgsScanner`, for a source of packets. Codes are kept for each set of strings that packets refer
    to.
    """

    _of_packets = 1

    def __init__(
        self, encoder: packets.ArgsEncoder, suffix_rows: Int64s, suffixes: packets.Blobs, decode: PacketDecode
    ) -> None:
        super().__init__(encoder, suffix_rows, suffixes)
        self._decode: PacketDecode = decode
        self._state.begins = self._state.ends = -1
        self._strings: Any = None
        self._by_sequence: dict[int, tuple[Any, KnownBytes]] = {}
        self._offset, self._args = -1, dict[str, Any]()  # of the last packet with something new

    def _turn_to(self, sequence: int, offset: int) -> None:
        strings, begins, ends = self._decode.strings_at(sequence, offset)
        known = self._by_sequence.get(sequence)
        if known is None or known[0] is not strings:
            if len(self._by_sequence) >= _MOST_SEQUENCES:
                self._by_sequence.clear()
            known = self._by_sequence[sequence] = strings, KnownBytes()
        self._strings, self._known = known
        self._state.begins, self._state.ends = begins, ends

    def _arg_in(self, text: bytes, is_key: bool, event: memoryview, offset: int) -> tuple[str, Any] | None:
        if offset != self._offset:
            self._offset, self._args = offset, args_of_event(decoded_event(event.tobytes(), offset, self._decode))
        arg = self._decode.arg(text, self._strings)
        if arg is None or arg[0] not in self._args:  # a packet that is damaged elsewhere has no args
            return None
        return arg if is_key or repr(arg[1]) == repr(self._args[arg[0]]) else None


def write_stages(trace: Trace, file: wire.Writable, shift_ns: int) -> None:
    """Write all kernels, copies and sets, with their args, as Perfetto's render stages, which its table ``gpu_slice``
    and its pages about GPUs show. ``shift_ns`` is added to all times.

    A stage is called as its specification, which is interned; so each name of a kernel is a specification. These
    packets have a sequence of their own, by which the reader knows that they repeat what track events tell.
    """
    events = trace.events
    rows = events.slices_of(*GPU_WORK)
    rows = rows[events.offset[rows].argsort(kind="stable")]
    offsets, lengths = events.offset[rows], events.length[rows]
    known: dict[str, int] = {}
    flags = wire.CLEARED | wire.NEEDED
    for block in blocks(trace.source.text, offsets, lengths):
        some = rows[block.start : block.stop]
        columns = (
            events.ts[some].tolist(),
            events.dur[some].tolist(),
            events.correlation[some].tolist(),
            events.track[some].tolist(),
            trace.names_of(some),
            decoded(block, offsets, lengths, trace.source.decode),
        )
        for ts, dur, correlation, track, name, event in zip(*columns, strict=True):
            place = trace.tracks[track]
            queue = f"GPU {place.device} stream {place.stream}"
            new = b""
            for text in (queue, name):
                if text not in known:
                    known[text] = len(known) + 1
                    entry = wire.number(1, known[text]) + wire.text(2, text) + wire.number(4, _STAGE_OF_COMPUTE)
                    new += wire.message(wire.INTERNED_STAGES, entry)
            stage = wire.number(wire.STAGE_ID, max(correlation, 0)) + wire.number(wire.STAGE_DURATION, max(dur, 0))
            if isinstance(place.device, int):
                stage += wire.number(wire.STAGE_GPU, place.device)
            stage += wire.number(wire.STAGE_QUEUE_IID, known[queue]) + wire.number(wire.STAGE_KIND_IID, known[name])
            for key, value in args_of_event(event).items():
                if not isinstance(value, str):
                    value = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
                stage += wire.message(wire.STAGE_EXTRA, wire.text(1, key) + wire.text(2, value))
            packet = wire.number(wire.PACKET_TIMESTAMP, ts + shift_ns) + wire.number(wire.PACKET_FLAGS, flags)
            packet += wire.message(wire.PACKET_INTERNED, new) if new else b""
            packet += wire.message(wire.PACKET_STAGE, stage)
            file.write(wire.packet(packet, wire.STAGES_SEQUENCE))
            flags = wire.NEEDED
