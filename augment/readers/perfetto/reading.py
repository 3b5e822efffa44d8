"""Reads a text of packets: makes the trace and the decoder that later decodes packets again."""

from __future__ import annotations

from typing import Any

from augment.core.trace import Trace
from augment.errors import MalformedTrace
from augment.facts.source.event_args import Scan
from augment.readers.assembly import Outline, assemble
from augment.readers.containers import CHUNK, OpenText, TextAgain
from augment.readers.limits import Limits
from augment.readers.perfetto import wire_format as wire
from augment.readers.perfetto.arg_scan import ArgScan
from augment.readers.perfetto.fast import FastScanner
from augment.readers.perfetto.scan import PacketScanner
from augment.readers.perfetto.slices import raw_events
from augment.readers.perfetto.state import Generation, PacketSequence, strings_at
from augment.readers.perfetto.values import as_event, key_and_value
from augment.readers.perfetto.wire_format import DamagedError, fields
from augment.readers.raw import Broken

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
        _scan(path, _CountedPackets(head, text), scanner, outline, text.limits)
    except Broken as error:
        raise MalformedTrace(path, error.offset, error.because) from error
    if text.damage:
        outline.partial = "; ".join(filter(None, (text.damage, outline.partial)))
    outline.members = _members(scanner)
    raw = raw_events(scanner.rows, scanner.tracks, scanner.tally)
    again = TextAgain(path, outline.text_bytes, ahead=text.is_read_ahead)
    decode = _Decoder(scanner.sequences)
    return assemble(path, name, text.sha256(), again, raw, outline, decode, text.threads)


class _CountedPackets:
    """A text that counts its bytes."""

    def __init__(self, head: bytes, text: OpenText) -> None:
        self._head, self._text, self.count = head, text, 0

    def read(self) -> bytes:
        """The next piece; empty at the end."""
        piece, self._head = self._head or self._text.read(CHUNK), b""
        self.count += len(piece)
        return piece


def _scan(path: str, text: _CountedPackets, scanner: PacketScanner, outline: Outline, limits: Limits) -> None:
    """Take all packets. Text after the first invalid packet is not examined."""
    held, base, ended = b"", 0, False
    try:
        while not ended:
            pieces, size = [held], len(held)
            want = max(_WINDOW, 2 * size)
            while size < want and not ended:
                pieces.append(text.read())
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
        while text.read():
            pass
    if outline.partial and not scanner.packets:
        raise Broken(base, "no whole packet; record or copy the file again")
    outline.text_bytes = text.count


def _members(scanner: PacketScanner) -> dict[str, Any]:
    """The members that Kineto writes beside the events. Times are absolute, whatever base the Chrome file had."""
    members = {name: value for name, value in scanner.members.items() if name != "baseTimeNanoseconds"}
    if "deviceProperties" not in members and (models := scanner.tracks.models()):
        members["deviceProperties"] = [{"id": device, "name": model} for device, model in models]
    return members


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
            sequence = self._sequences.get(number) or PacketSequence()
            return {"bp": "e", **as_event(text, sequence.at(offset))}
        except DamagedError:
            return {}
