"""Encodes the args of the source's events: in compiled code, and in Python for the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from augment.arrays.types import Int32s, Int64s
from augment.core.jsontext import lenient_json
from augment.core.trace import Decode, args_of_event, json_event
from augment.facts.source.event_args import PADDING, Block, PacketDecode, decoded_event
from augment.kernels import encode_packets as kernel
from augment.kernels.dictionary import KnownBytes
from augment.kernels.native import address, native
from augment.writers.perfetto.args import ArgsEncoder
from augment.writers.perfetto.packets import Blobs

_OUT_BYTES = 4 << 20
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

    def __init__(self, encoder: ArgsEncoder, suffix_rows: Int64s, suffixes: Blobs) -> None:
        self._encoder = encoder
        self._known = KnownBytes()
        self._suffixes = [np.ascontiguousarray(each, np.int64) for each in (suffix_rows, suffixes.start, suffixes.size)]
        self._suffix_data = suffixes.data
        self._state = kernel.Encoding()
        self._state.suffixes = address(suffixes.data)
        self._out, self._next_out = np.empty(_OUT_BYTES, np.uint8), np.empty(_OUT_BYTES, np.uint8)
        self._row, self._args = -1, dict[str, Any]()  # the last row with something new

    def blobs(self, block: Block, offsets: Int64s, lengths: Int32s) -> Blobs:
        """The blobs of the rows of a block. They are valid until the next call but one."""
        self._out, self._next_out = self._next_out, self._out
        offsets = np.ascontiguousarray(offsets[block.start : block.stop])
        lengths = np.ascontiguousarray(lengths[block.start : block.stop])
        count = len(offsets)
        start, size = np.empty(count, np.int64), np.empty(count, np.int64)
        state = self._state
        state.row = state.at = 0
        state.ready_row = -1
        while True:
            out = self._out
            why = native("encode_blobs.scan_args")(
                address(block.data) + PADDING,
                block.base,
                offsets,
                lengths,
                address(out),
                len(out),
                start,
                size,
                block.start,
                *self._suffixes,
                self._known.known,
                state,
                self._of_packets,
            )
            if why == kernel.DONE:
                return Blobs(out, start, size)
            if why == kernel.FULL:
                self._out = np.concatenate([out, np.empty(len(out) + state.ready_size, np.uint8)])
                continue
            row = state.row
            offset = int(offsets[row])
            if why == kernel.OTHER_STRINGS:
                self._turn_to(state.sequence, offset)
                continue
            at = offset - block.base + PADDING
            text = block.data[at : at + int(lengths[row])].tobytes()
            if why == kernel.ODD_ROW or not self._learn(block.start + row, text, offset, block.data):
                self._make_ready(row, text, offset)

    def _turn_to(self, sequence: int, offset: int) -> None:
        """Switch to the strings that a sequence of packets has at a byte."""
        raise NotImplementedError

    def _learn(self, row: int, event: bytes, offset: int, data: npt.NDArray[np.uint8]) -> bool:
        """Add what compiled code missed: a key, or a key with its value. False if it is not the arg of this event that
        counts.

        The event is encoded as a whole first, so that texts get the same numbers as without compiled code.
        """
        if row != self._row:
            self._row, self._args = row, args_of_event(decoded_event(event, offset, self._decode))
            self._encoder.args(self._args)
        origin = address(data)
        text = data[self._state.miss_start - origin : self._state.miss_end - origin].tobytes()
        is_key = bool(self._state.miss_is_key)
        args = self._args_in(text, is_key)
        if args is None:
            return False
        for key, value in args.items():
            if key not in self._args or not (is_key or repr(value) == repr(self._args[key])):
                return False
        code = self._encoder.key(next(iter(args))) if is_key else self._encoder.args(args)
        self._known.add(self._state.miss_hash, text, code, self._state.key_hash)
        return True

    def _args_in(self, text: bytes, is_key: bool) -> dict[str, Any] | None:
        """The arg in a piece of the text; None if there is none. ``is_key`` says that the piece has no value."""
        try:
            return lenient_json(b'{"' + text + b'":0}' if is_key else b"{" + text + b"}")  # type: ignore[no-any-return]
        except ValueError:
            return None

    def _make_ready(self, row: int, text: bytes, offset: int) -> None:
        args = args_of_event(decoded_event(text, offset, self._decode))
        self._ready = np.frombuffer(self._encoder.args(args) + b"\0" * 8, np.uint8)
        self._state.ready_row, self._state.ready_size = row, len(self._ready) - 8
        self._state.ready = address(self._ready)


class PacketArgsScanner(ArgsScanner):
    """As :class:`ArgsScanner`, for a source of packets. Codes are kept for each set of strings that packets refer
    to.
    """

    _of_packets = 1

    def __init__(self, encoder: ArgsEncoder, suffix_rows: Int64s, suffixes: Blobs, decode: PacketDecode) -> None:
        super().__init__(encoder, suffix_rows, suffixes)
        self._decode: PacketDecode = decode
        self._state.begins = self._state.ends = -1
        self._strings: Any = None
        self._by_sequence: dict[int, tuple[Any, KnownBytes]] = {}

    def _turn_to(self, sequence: int, offset: int) -> None:
        strings, begins, ends = self._decode.strings_at(sequence, offset)
        known = self._by_sequence.get(sequence)
        if known is None or known[0] is not strings:
            if len(self._by_sequence) >= _MOST_SEQUENCES:
                self._by_sequence.clear()
            known = self._by_sequence[sequence] = strings, KnownBytes()
        self._strings, self._known = known
        self._state.begins, self._state.ends = begins, ends

    def _args_in(self, text: bytes, is_key: bool) -> dict[str, Any] | None:  # noqa: ARG002 - the signature of its base
        arg = self._decode.arg(text, self._strings)
        return None if arg is None else dict([arg])
