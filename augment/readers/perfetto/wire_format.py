"""Reads Protobuf's wire format, and lists the tags of the messages of Perfetto's schema that this reader uses.

A tag is ``field << 3 | wire type``. A field with a known number but the wrong type is skipped like an unknown field.
Numbers are those of perfetto/protos/perfetto/trace. Packets that others hold compressed are put in their place.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5

# Trace
TRACE_PACKET = 1 << 3 | LENGTH
# TracePacket
PACKET_CHROME_EVENTS, PACKET_CLOCKS, PACKET_EVENT = (n << 3 | LENGTH for n in (5, 6, 11))
PACKET_INTERNED, PACKET_COMPRESSED, PACKET_STAGE = (n << 3 | LENGTH for n in (12, 50, 53))
PACKET_DEFAULTS, PACKET_DESCRIPTOR = (n << 3 | LENGTH for n in (59, 60))
PACKET_TIMESTAMP, PACKET_SEQUENCE, PACKET_FLAGS, PACKET_CLEARED, PACKET_CLOCK = (
    n << 3 | VARINT for n in (8, 10, 13, 41, 58)
)
CLEARED, NEEDED = 1, 2  #: of PACKET_FLAGS: incremental state begins here, or is relied upon
# TracePacketDefaults and TrackEventDefaults
DEFAULT_CLOCK, DEFAULT_EVENT, DEFAULT_TRACK = 58 << 3 | VARINT, 11 << 3 | LENGTH, 11 << 3 | VARINT
# ClockSnapshot and Clock
SNAPSHOT_CLOCK, SNAPSHOT_PRIMARY = 1 << 3 | LENGTH, 2 << 3 | VARINT
CLOCK_ID, CLOCK_TIME, CLOCK_INCREMENTAL, CLOCK_UNIT = (n << 3 | VARINT for n in (1, 2, 3, 4))
# TrackEvent
EVENT_DELTA_US, EVENT_CATEGORY_IID, EVENT_TYPE, EVENT_NAME_IID, EVENT_TRACK, EVENT_TIME_US = (
    n << 3 | VARINT for n in (1, 3, 9, 10, 11, 16)
)
EVENT_ANNOTATION, EVENT_CATEGORY, EVENT_NAME = (n << 3 | LENGTH for n in (4, 22, 23))
EVENT_COUNTER, EVENT_DOUBLE_COUNTER = 30 << 3 | VARINT, 44 << 3 | FIXED64
EVENT_FLOW_OLD, EVENT_LAST_FLOW_OLD = 36 << 3 | VARINT, 42 << 3 | VARINT
EVENT_FLOW, EVENT_LAST_FLOW = 47 << 3 | FIXED64, 48 << 3 | FIXED64
EVENT_GPU_CORRELATION, LAUNCHED_STAGE = 3000 << 3 | LENGTH, 1 << 3 | VARINT
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4  #: values of EVENT_TYPE
# InternedData, and its entries: most are {iid = 1, text = 2}
INTERNED_CATEGORY, INTERNED_NAME, INTERNED_KEY, INTERNED_CONTEXT, INTERNED_STAGE, INTERNED_STRING = (
    n << 3 | LENGTH for n in (1, 2, 3, 23, 24, 29)
)
INTERNED_KERNEL, INTERNED_LAUNCH_KEY = 1000 << 3 | LENGTH, 1001 << 3 | LENGTH
ENTRY_IS_JSON = 20_000 << 3 | VARINT  #: our own extension: the text is a value's JSON
ENTRY_IID, ENTRY_TEXT, ENTRY_DEMANGLED, ENTRY_KIND = 1 << 3 | VARINT, 2 << 3 | LENGTH, 3 << 3 | LENGTH, 4 << 3 | VARINT
# DebugAnnotation
VALUE_KEY_IID, VALUE_BOOL, VALUE_UINT, VALUE_INT, VALUE_POINTER, VALUE_STRING_IID = (
    n << 3 | VARINT for n in (1, 2, 3, 4, 7, 17)
)
VALUE_DOUBLE, VALUE_STRING, VALUE_NESTED, VALUE_JSON, VALUE_KEY, VALUE_DICT, VALUE_ARRAY = (
    5 << 3 | FIXED64,
    *(n << 3 | LENGTH for n in (6, 8, 9, 10, 11, 12)),
)
# TrackDescriptor, ProcessDescriptor, ThreadDescriptor, CounterDescriptor
TRACK_UUID, TRACK_PARENT = 1 << 3 | VARINT, 5 << 3 | VARINT
TRACK_NAME, TRACK_PROCESS, TRACK_THREAD, TRACK_COUNTER, TRACK_STATIC_NAME, TRACK_ATRACE_NAME, TRACK_DESCRIPTION = (
    n << 3 | LENGTH for n in (2, 3, 4, 8, 10, 13, 14)
)
PROCESS_PID, PROCESS_NAME = 1 << 3 | VARINT, 6 << 3 | LENGTH
THREAD_PID, THREAD_TID, THREAD_NAME = 1 << 3 | VARINT, 2 << 3 | VARINT, 5 << 3 | LENGTH
COUNTER_CATEGORY, COUNTER_UNIT_NAME, COUNTER_SHARE_KEY = 2 << 3 | LENGTH, 6 << 3 | LENGTH, 7 << 3 | LENGTH
# ChromeEventBundle.metadata
BUNDLE_METADATA, METADATA_NAME, METADATA_TEXT, METADATA_JSON = (n << 3 | LENGTH for n in (2, 1, 2, 5))
METADATA_BOOL, METADATA_INT = 3 << 3 | VARINT, 4 << 3 | VARINT
# GpuRenderStageEvent, its ExtraData and ComputeKernelLaunch
OUR_STAGES, STAGES_MEMBER = 0x6175_6771, "gpuRenderStages"  #: the sequence of stages that we added; who has any
STAGE_ID, STAGE_DURATION, STAGE_QUEUE, STAGE_GPU = (n << 3 | VARINT for n in (1, 2, 3, 11))
STAGE_QUEUE_IID, STAGE_KIND_IID, STAGE_KERNEL_IID, STAGE_NAME_IID = (n << 3 | VARINT for n in (13, 14, 19, 20))
STAGE_EXTRA, STAGE_NAME, STAGE_LAUNCH = (n << 3 | LENGTH for n in (6, 17, 21))
EXTRA_NAME, EXTRA_VALUE = 1 << 3 | LENGTH, 2 << 3 | LENGTH
LAUNCH_GRID, LAUNCH_GROUP, LAUNCH_ARG = (n << 3 | LENGTH for n in (1, 2, 3))
SIZE_X, SIZE_Y, SIZE_Z = (n << 3 | VARINT for n in (1, 2, 3))
ARG_KEY_IID, ARG_INT, ARG_UINT, ARG_STRING_IID = (n << 3 | VARINT for n in (1, 3, 4, 7))
ARG_KEY, ARG_DOUBLE, ARG_STRING = 2 << 3 | LENGTH, 5 << 3 | FIXED64, 6 << 3 | LENGTH


class DamagedError(Exception):
    """These bytes are not a message."""


def varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """The varint at ``at``, below 2**64, and the position after it.

    Raises:
        DamagedError: the varint does not end before ``stop``, or is too long.
    """
    value = shift = 0
    while at < stop and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
    raise DamagedError


def fields(data: bytes, at: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """The fields of the message ``data[at:stop]``: tag, value, end.

    The value is an unsigned number. For a :data:`LENGTH` field it is the position at which the field's bytes begin, and
    ``end`` the position at which they end. For other fields ``end`` is the position after the field.

    Raises:
        DamagedError: a field does not end before ``stop``, or has an unused type.
    """
    while at < stop:
        tag = data[at]
        at += 1
        if tag > 127:
            tag, at = varint(data, at - 1, stop)
        wire = tag & 7
        if wire == VARINT:
            if at < stop and data[at] < 128:
                at += 1
                yield tag, data[at - 1], at
            else:
                value, at = varint(data, at, stop)
                yield tag, value, at
        elif wire == LENGTH:
            size, at = varint(data, at, stop)
            if at + size > stop:
                raise DamagedError
            at += size
            yield tag, at - size, at
        else:
            size = 8 if wire == FIXED64 else 4
            if wire not in (FIXED64, FIXED32) or at + size > stop or tag < 8:
                raise DamagedError
            at += size
            yield tag, int.from_bytes(data[at - size : at], "little"), at


def text(data: bytes, start: int, stop: int) -> str:
    """The text of a field."""
    return data[start:stop].decode("utf-8", "replace")


def signed(value: int) -> int:
    """An int64 or int32 field's number."""
    return value - (1 << 64) if value >> 63 else value


def double(value: int) -> float:
    """A double field's number."""
    number: float = struct.unpack("<d", value.to_bytes(8, "little"))[0]
    return number


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
    if tag != TRACE_PACKET or size > MAX_PACKET_BYTES:
        raise DamagedError
    return start, start + size


def _packed(data: bytes, at: int, stop: int) -> int:
    """The first byte of the packets that the packet ``data[at:stop]`` holds compressed, which end it; 0 if none do."""
    stop = min(stop, len(data))
    try:
        while at < stop:
            tag, at = varint(data, at, stop)
            _, at = varint(data, at, stop)
            if tag == PACKET_COMPRESSED:
                return at
            if tag & 7 != VARINT:
                break
    except DamagedError:
        pass
    return 0
