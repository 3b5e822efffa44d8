"""Packets that others hold compressed, put in their place: augment's own output, and that of Perfetto's recorder."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from augment.readers.perfetto import wire_format as wire
from augment.readers.perfetto.wire_format import DamagedError, varint

LOOK_AT = 1 << 14  #: bytes at the beginning of a text in which a packet with others must begin
MAX_PACKET_BYTES = MAX_UNPACKED_BYTES = 256 << 20
_CHUNK = 1 << 18
_HEADER = 32  #: bytes that hold the numbers of a packet before the packets that it holds


def holds_packed(head: bytes) -> bool:
    """Whether ``head``, the first bytes of a text, has a packet that holds others compressed."""
    at = 0
    try:
        while at < len(head):
            start, stop = _packet(head, at)
            if _packed(head, start, stop):
                return True
            at = stop
    except DamagedError:
        pass
    return False


class PackedText:
    """The text with the packets that others hold compressed in their place. A damaged one stays as it is, for the
    reader to count.
    """

    damage = None

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read, self._held, self._out, self._plain = read, b"", memoryview(b""), False

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes; empty at the end."""
        while not self._out and not self._plain:
            self._out = memoryview(self._next())
            if not self._out:
                break
        if self._plain and not self._out:
            data, self._held = self._held[:size], self._held[size:]
            return data or self._read(size)
        data = bytes(self._out[:size])
        self._out = self._out[size:]
        return data

    def _next(self) -> bytes:
        """The next packet, or what it holds; empty at the end, and where no packet begins."""
        self._fill(_HEADER)
        try:
            start, stop = _packet(self._held, 0)
        except DamagedError:
            self._plain = True
            return b""
        self._fill(stop)
        packet, self._held = self._held[:stop], self._held[stop:]
        if packed := _packed(packet, start, stop):
            try:
                return zlib.decompressobj().decompress(packet[packed:stop], MAX_UNPACKED_BYTES) or packet
            except zlib.error:
                pass
        return packet

    def _fill(self, size: int) -> None:
        """Hold as many bytes, unless the text ends before."""
        pieces, count = [self._held], len(self._held)
        while count < size and (more := self._read(_CHUNK)):
            pieces.append(more)
            count += len(more)
        self._held = b"".join(pieces)


def _packet(data: bytes, at: int) -> tuple[int, int]:
    """The first byte of the packet at ``at``, and the one after it, which may lie beyond ``data``.

    Raises:
        DamagedError: no packet begins there.
    """
    tag, start = varint(data, at, len(data))
    size, start = varint(data, start, len(data))
    if tag != wire.TRACE_PACKET or size > MAX_PACKET_BYTES:
        raise DamagedError
    return start, start + size


def _packed(data: bytes, at: int, stop: int) -> int:
    """The first byte of the packets that the packet ``data[at:stop]`` holds compressed, which end it; 0 if none do."""
    stop = min(stop, len(data))
    try:
        while at < stop:
            tag, at = varint(data, at, stop)
            _, at = varint(data, at, stop)
            if tag == wire.PACKET_COMPRESSED:
                return at
            if tag & 7 != wire.VARINT:
                break
    except DamagedError:
        pass
    return 0
