"""Track events to packets: the Python side of the kernels, and what those leave to Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from augment.annotations import SliceTrack, Texts
from augment.arrays.types import Int32s, Int64s
from augment.derived.source.event_text import PADDING, Block, decoded_event
from augment.jsontext import lenient_json
from augment.kernels import encode_layout as kernel
from augment.kernels.known_bytes import KnownBytes
from augment.kernels.native import native
from augment.trace import args_of_event
from augment.writers.perfetto.args import ArgsEncoder
from augment.writers.perfetto.packets import Blobs, Events, text_args

_OUT_BYTES = 4 << 20


def encode(events: Events) -> Iterator[memoryview]:
    """The packets of ``events``, in pieces that are valid until the next."""
    blobs = events.blobs
    largest = int(blobs.size.max(initial=0)) if blobs else 0
    out = np.empty(max(_OUT_BYTES, largest + 2 * kernel.PACKET_ROOM), np.uint8)
    columns = [column.ctypes.data for column in (events.kind, events.ts, events.track, events.category, events.name)]
    pieces = [one.ctypes.data for one in (blobs.data, blobs.start, blobs.size)] if blobs else [0, 0, 0]
    progress = np.zeros(1, np.int64)
    encode_rows = native("encode_packets.encode_rows")
    row, count = 0, len(events)
    while row < count:
        row = encode_rows(row, count, *columns, *pieces, out.ctypes.data, len(out), progress.ctypes.data)
        yield out[: int(progress[0])].data


class ArgsScanner:
    """Blobs of rows of the source: their args, taken from the text, then their suffixes.

    Args:
        encoder: makes the code of a key, or of a key with its value, when it is met for the first time.
        suffix_rows: rows of ``suffixes``, ascending, numbered as the rows of :meth:`blobs` are.
        suffixes: what to add.
    """

    def __init__(self, encoder: ArgsEncoder, suffix_rows: Int64s, suffixes: Blobs) -> None:
        self._encoder = encoder
        self._known = KnownBytes()
        self._suffixes = (suffix_rows, suffixes.start, suffixes.size, suffixes.data)
        self._state = np.zeros(kernel.STATE, np.int64)
        self._out = np.empty(_OUT_BYTES, np.uint8)
        self._row, self._args = -1, dict[str, Any]()  # the row met last that had something new

    def blobs(self, block: Block, offsets: Int64s, lengths: Int32s) -> Blobs:
        """The blobs of the rows of a block; valid until the next call."""
        offsets = np.ascontiguousarray(offsets[block.start : block.stop])
        lengths = np.ascontiguousarray(lengths[block.start : block.stop])
        count = len(offsets)
        start, size = np.empty(count, np.int64), np.empty(count, np.int64)
        state = self._state
        state[kernel.ROW // 8] = state[kernel.AT // 8] = 0
        state[kernel.READY_ROW // 8] = -1
        while True:
            out = self._out
            why = native("encode_args.scan_args")(
                block.data.ctypes.data + PADDING, block.base, count, offsets.ctypes.data, lengths.ctypes.data,
                out.ctypes.data, len(out), start.ctypes.data, size.ctypes.data, block.start, self._tables(),
                state.ctypes.data,
            )  # fmt: skip
            if why == kernel.DONE:
                return Blobs(out, start, size)
            if why == kernel.FULL:
                self._out = np.concatenate([out, np.empty(len(out) + int(state[kernel.READY_SIZE // 8]), np.uint8)])
                continue
            row = int(state[kernel.ROW // 8])
            at = int(offsets[row]) - block.base + PADDING
            text = block.data[at : at + int(lengths[row])].tobytes()
            if why == kernel.ODD_ROW or not self._learn(block.start + row, text, block.data):
                self._make_ready(row, text)

    def _tables(self) -> int:
        columns = [column.ctypes.data for column in self._suffixes]
        self._held = np.array([*self._known.addresses(), *columns, len(self._suffixes[0])], np.int64)
        return self._held.ctypes.data

    def _learn(self, row: int, event: bytes, data: npt.NDArray[np.uint8]) -> bool:
        """Enter what was missed: an integer's key, or a key with its value. False if it is no JSON.

        The event is encoded as a whole before: so texts get the numbers that they get without compiled code.
        """
        if row != self._row:
            self._row, self._args = row, args_of_event(decoded_event(event))
            self._encoder.args(self._args)
        origin = data.ctypes.data
        start, end = (int(self._state[k // 8]) - origin for k in (kernel.MISS_START, kernel.MISS_END))
        text = data[start:end].tobytes()
        is_key = bool(self._state[kernel.MISS_IS_KEY // 8])
        try:
            args = lenient_json(b'{"' + text + b'":0}' if is_key else b"{" + text + b"}")
        except ValueError:
            return False
        for key, value in args.items():
            if key not in self._args or not (is_key or repr(value) == repr(self._args[key])):
                return False  # not what counts of this event
        code = self._encoder.key(next(iter(args))) if is_key else self._encoder.args(args)
        self._known.add(int(self._state[kernel.MISS_HASH // 8]), text, code)
        return True

    def _make_ready(self, row: int, text: bytes) -> None:
        self._ready = np.frombuffer(self._encoder.args(args_of_event(decoded_event(text))) + b"\0" * 8, np.uint8)
        for place, value in (
            (kernel.READY_ROW, row), (kernel.READY, self._ready.ctypes.data), (kernel.READY_SIZE, len(self._ready) - 8)
        ):  # fmt: skip
            self._state[place // 8] = value


def slice_args(track: SliceTrack, encoder: ArgsEncoder) -> Blobs:
    """The args of an added track's slices."""
    count = len(track.ts)
    steps: list[tuple[int, ...]] = []
    held: list[Any] = []
    widest = 0
    for name, column in track.args.items():
        if isinstance(column, Texts):
            which, codes = text_args(column, name, encoder)
            columns: list[npt.NDArray[Any]] = [which, codes.data, codes.start, codes.size]
            widest += int(codes.size.max(initial=0))
        else:
            key = np.frombuffer(encoder.key(name) + b"\0" * 8, np.uint8)
            columns = [np.ascontiguousarray(column, np.int64), key, np.array([len(key) - 8], np.int64)]
            widest += len(key) + 16
        held.append(columns)
        steps.append((*(one.ctypes.data for one in columns), 0)[:4])
    program = np.array(steps, np.int64).reshape(-1, 4)
    out = np.empty(count * widest + 8, np.uint8)
    start, size = np.empty(count, np.int64), np.empty(count, np.int64)
    native("encode_packets.columns_to_args")(
        count, program.ctypes.data, len(steps), out.ctypes.data, start.ctypes.data, size.ctypes.data
    )
    out.resize(int(start[-1] + size[-1]) + 8 if count else 8, refcheck=False)  # most args are shorter than the widest
    return Blobs(out, start, size)
