"""Writes Protobuf's wire format and the few messages of Perfetto's schema that we use, by field number.

Numbers are those of perfetto/protos/perfetto/trace. The tests decode the output with Perfetto's own classes.
"""

from __future__ import annotations

import functools
import struct
from typing import Protocol

SEQUENCE = 1  #: trusted_packet_sequence_id of the packets of a file
TRACKS_SEQUENCE = 2  #: of those that describe tracks: in that of the events, each thread would become an arg of events
STAGES_SEQUENCE = 0x6175_6771  #: of render stages that repeat what track events of the file tell
SAMPLES_SEQUENCE = 0x6175_7000  #: the first of those of stack samples
CLEARED, NEEDED = 1, 2  #: sequence_flags: incremental state begins here, or is relied upon

# TracePacket
PACKET_CHROME_EVENTS, PACKET_TIMESTAMP, PACKET_SEQUENCE, PACKET_EVENT, PACKET_INTERNED = 5, 8, 10, 11, 12
PACKET_FLAGS, PACKET_COMPRESSED, PACKET_STAGE, PACKET_DESCRIPTOR, PACKET_FIRST = 13, 50, 53, 60, 87
PACKET_DEFAULTS, PACKET_SAMPLE = 59, 135
# TrackEvent
EVENT_CATEGORY_IID, EVENT_ANNOTATION, EVENT_TYPE, EVENT_NAME_IID, EVENT_TRACK = 3, 4, 9, 10, 11
EVENT_COUNTER, EVENT_DOUBLE_COUNTER, EVENT_FLOW, EVENT_LAST_FLOW, EVENT_CORRELATION = 30, 44, 47, 48, 52
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4  #: values of EVENT_TYPE
# GpuRenderStageEvent
STAGE_ID, STAGE_DURATION, STAGE_EXTRA, STAGE_GPU, STAGE_QUEUE_IID, STAGE_KIND_IID = 1, 2, 6, 11, 13, 14
# StackSample and its parts: TaskContext, CounterDescriptor, StackSampleDefaults in TracePacketDefaults, Frame
SAMPLE_TASK_IID, SAMPLE_CALLSTACK_IID, SAMPLE_WEIGHT = 2, 6, 11
TASK_PID, COUNTER_UNIT, NANOSECONDS, DEFAULTS_SAMPLES = 2, 3, 1, 100
FRAME_FUNCTION_IID, FRAME_MAPPING_IID, FRAME_ADDRESS = 2, 3, 4
# InternedData, whose entries are all {iid = 1, text = 2}
INTERNED_CATEGORIES, INTERNED_NAMES, INTERNED_KEYS, INTERNED_STRINGS = 1, 2, 3, 29
INTERNED_STAGES = 24
INTERNED_FUNCTIONS, INTERNED_FRAMES, INTERNED_CALLSTACKS, INTERNED_MAPPINGS, INTERNED_TASKS = 5, 6, 7, 19, 48
INTERNED_IS_JSON = 20_000  #: our own field in such an entry, which other readers skip: the text is a value's JSON
# DebugAnnotation
VALUE_KEY, VALUE_BOOL, VALUE_UINT, VALUE_INT, VALUE_DOUBLE, VALUE_STRING = 1, 2, 3, 4, 5, 17
# TrackDescriptor
TRACK_UUID, TRACK_NAME, TRACK_PROCESS, TRACK_THREAD, TRACK_PARENT, TRACK_COUNTER = 1, 2, 3, 4, 5, 8
TRACK_CHILD_ORDER, TRACK_RANK, TRACK_DESCRIPTION = 11, 12, 14
BY_RANK = 3  #: TRACK_CHILD_ORDER: children by TRACK_RANK, ascending
PROCESS_PID, PROCESS_NAME = 1, 6
THREAD_PID, THREAD_TID, THREAD_NAME = 1, 2, 5
COUNTER_CATEGORIES, COUNTER_UNIT_NAME, COUNTER_SHARE_KEY = 2, 6, 7
# ChromeEventBundle.metadata
BUNDLE_METADATA, METADATA_NAME, METADATA_TEXT, METADATA_JSON = 2, 1, 2, 5

_UINT64 = (1 << 64) - 1
_SMALL = [bytes([value]) for value in range(128)]


class Writable(Protocol):
    """A destination of bytes."""

    def write(self, data: bytes | memoryview, /) -> object:
        """Write the bytes."""


def varint(value: int) -> bytes:
    """A varint; a negative number as its 64-bit two's complement."""
    if 0 <= value < 128:
        return _SMALL[value]
    if 0 <= value < 1 << 14:
        return bytes((value & 127 | 128, value >> 7))
    value &= _UINT64
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


_tag = functools.cache(varint)  #: of the few tags that occur


def number(field: int, value: int) -> bytes:
    """An integer, enum or bool field."""
    return _tag(field << 3) + (_SMALL[value] if 0 <= value < 128 else varint(value))


def message(field: int, content: bytes) -> bytes:
    """A bytes or message field."""
    size = len(content)
    return _tag(field << 3 | 2) + (_SMALL[size] if size < 128 else varint(size)) + content


def text(field: int, value: str) -> bytes:
    """A string field."""
    return message(field, value.encode("utf-8", "replace"))


def double(field: int, value: float) -> bytes:
    """A double field."""
    return _tag(field << 3 | 1) + struct.pack("<d", value)


def packet(content: bytes, sequence: int = SEQUENCE) -> bytes:
    """One packet of a trace, as a member of a sequence."""
    return message(1, number(PACKET_SEQUENCE, sequence) + content)


def descriptor(content: bytes) -> bytes:
    """The packet that describes a track."""
    return packet(message(PACKET_DESCRIPTOR, content), TRACKS_SEQUENCE)
