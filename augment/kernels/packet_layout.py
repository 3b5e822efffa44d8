"""What the compiled packet scan and its Python side share: result codes, and records in memory."""

from __future__ import annotations

from typing import Annotated

from augment.kernels.memory import Column, record

MORE, BY_HAND, GROW = 0, 1, 2  #: why the scan stopped: no whole packet left, Python must take one, table full
DEEPEST = 64  #: the greatest nesting of args; deeper values are left out
LEAST_DEEP_BYTES = 2 * (DEEPEST + 1)  #: bytes of an arg that nests deeper: each level has a tag and a size
TRACE_CLOCK, MOVING_CLOCK, FIXED_CLOCK, NO_CLOCK = 0, 1, 2, 3  #: the trace's, incremental, any other
# codes of args that are columns
CORRELATION_ARG, DEVICE_ARG, STREAM_ARG, SIZE_ARG, DURATION_ARG, AGENT_ARG = range(1, 7)
ABSENT = -(1 << 63)  #: the place of a device or stream that the args lack


@record
class EventColumns:
    """The columns of events (addresses); int64, if no other type is given."""

    ts: int
    dur: int
    kind: int  #: bytes
    category: int  #: int32
    name: int  #: int32
    track: int  #: int32
    place: int  #: int32
    correlation: int
    offset: int
    length: int  #: int32
    count: int
    room: int


@record
class EndTable:
    """The columns of ends of slices."""

    ts: int
    track: int  #: int32
    before: int
    count: int
    room: int


@record
class SizeTable:
    """The columns of sizes."""

    row: int
    value: int
    count: int
    room: int


@record
class FlowTable:
    """The columns of flows."""

    row: int
    value: int
    last: int
    count: int
    room: int


@record
class Slot:
    """A slot of an open-addressing table from three numbers to one, which is -1 if the slot is free."""

    first: int
    second: int
    third: int
    number: int


@record
class KeyText:
    """The key of an arg that is a column."""

    text: int  #: its address
    size: int
    code: int


@record
class Numbers:
    """Of each iid the number of its string: int32 at an address."""

    table: int
    count: int


@record
class Sequence:
    """The state of a sequence of packets. A time is ``clock_trace + (time - clock_shown) * clock_unit``."""

    valid: int
    default_track: int
    clock_kind: int
    clock_number: int
    clock_trace: int
    clock_shown: int
    clock_unit: int
    names: Numbers
    categories: Numbers
    keys: Numbers


@record
class CurrentEvent:
    """The event at hand."""

    kind: int
    track: int
    name: int
    category: int
    flows: int  #: the number of all flows, including its own
    has_size: int
    args: Annotated[Column, 7]  #: by their codes
    nested: Annotated[Column, DEEPEST]  #: the ends of the values that enclose the current position in an arg


@record
class PacketScan:
    """The progress of the scan, and its tables (addresses)."""

    position: int
    packets: int
    events: EventColumns
    ends: EndTable
    sizes: SizeTable
    flows: FlowTable
    track_slots: int  #: of :class:`Slot`
    track_mask: int
    place_slots: int
    place_mask: int
    key_texts: int  #: of :class:`KeyText`
    key_count: int
    sequences: int  #: addresses of :class:`Sequence`, by number; 0: none
    sequence_count: int
    event: CurrentEvent
