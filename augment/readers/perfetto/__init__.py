"""Perfetto's native protobuf: our own output, torch's native export, rocprofv3's output, and other track events.

Events that augment added to a trace (category ``augment.…``) are left out, because they are not part of the source.

The reading modules are imported only when a trace has this format.
"""

from __future__ import annotations

from augment.core import Trace
from augment.readers.containers import OpenText
from augment.readers.perfetto import wire_format as wire
from augment.readers.perfetto.wire_format import DamagedError, fields, varint

NAME = "perfetto"
SUFFIXES: tuple[str, ...] = (".pftrace",)
_LOOK_AT = 4096
#: what the first packets have, one at least; and types of fields that no packet has otherwise
_EVIDENCE = {wire.PACKET_TIMESTAMP, wire.PACKET_SEQUENCE, wire.PACKET_FLAGS, wire.PACKET_CLOCKS, wire.PACKET_EVENT}
_EVIDENCE |= {wire.PACKET_INTERNED, wire.PACKET_COMPRESSED, wire.PACKET_STAGE, wire.PACKET_DESCRIPTOR}
_EVIDENCE |= {wire.PACKET_DEFAULTS, *(number << 3 | wire.LENGTH for number in (33, 36, 89))}
_NUMBERS = frozenset((3, 8, 10, 13, 41, 42, 58, 79, 87, 98))  #: of fields that are varints
_TEXT = frozenset(range(32, 128)) | frozenset(b"\t\n\r\f")


def recognizes(head: bytes) -> bool:
    """Whether ``head``, the first bytes of a text, begins a trace of packets: its fields and types must be those of a
    packet.
    """
    if head[:1] != b"\n" or all(byte in _TEXT for byte in head[:64]):
        return False
    at, complete_count = 0, 0
    try:
        while at < min(len(head), _LOOK_AT):
            tag, start = varint(head, at, len(head))
            size, start = varint(head, start, len(head))
            if tag != wire.TRACE_PACKET:
                break
            known = _evidence(head, start, start + size)
            if known is None:
                return False
            complete_count += known
            at = start + size
    except DamagedError:
        pass  # ``head`` ends within the tag of a packet
    return complete_count > 0


def _evidence(head: bytes, start: int, stop: int) -> int | None:
    """The number of known fields in a packet; None if it is not a packet. The packet may extend beyond ``head``."""
    count = 0
    try:
        for tag, _, _ in fields(head, start, min(stop, len(head))):
            number, kind = tag >> 3, tag & 7
            if not number or number > 10_000 or (number in _NUMBERS and kind != wire.VARINT):
                return None
            count += tag in _EVIDENCE
    except DamagedError:
        if stop <= len(head):
            return None
        count += _unfinished(head, start) in _EVIDENCE
    return count


def _unfinished(head: bytes, at: int) -> int:
    """The tag of the field in which ``head`` ends; 0 if it ends at a boundary."""
    stop = len(head)
    try:
        while at < stop:
            tag, at = varint(head, at, stop)
            if tag & 7 == wire.LENGTH:
                size, at = varint(head, at, stop)
                if at + size > stop:
                    return tag
                at += size
            elif tag & 7 == wire.VARINT:
                _, at = varint(head, at, stop)
            else:
                at += 8 if tag & 7 == wire.FIXED64 else 4
    except DamagedError:
        pass
    return 0


def layout(head: bytes) -> str:  # noqa: ARG001 - the interface of all readers
    """The layout, which is always packets."""
    return "packets"


def read(path: str, text: OpenText, head: bytes) -> Trace:
    """The trace in ``text``. The bytes in ``head`` were already read from it.

    Raises:
        MalformedTrace: the text has no whole packet.
        LimitExceeded: it decompresses to more than a trace of its size would.
    """
    from augment.readers.perfetto.reading import trace_of

    return trace_of(path, NAME, text, head)
