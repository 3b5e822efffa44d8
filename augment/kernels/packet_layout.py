"""The constants that the compiled packet scan and its Python side share: result codes, and byte offsets in memory."""

from __future__ import annotations

MORE, BY_HAND, GROW = 0, 1, 2  #: why the scan stopped: no whole packet left, Python must take one, table full

# `state`: the progress of the scan
(POSITION, EVENTS, ENDS, SIZES, FLOWS, PACKETS) = range(0, 48, 8)
# and the current event: its kind, the number of flows including its own, its args by their codes
(OWN_KIND, OWN_TRACK, OWN_NAME, OWN_CATEGORY, OWN_FLOWS, OWN_HAS_SIZE, OWN_ARGS) = range(48, 104, 8)
NESTED = OWN_ARGS + 7 * 8  #: the ends of the values that enclose the current position in an arg
DEEPEST = 64  #: the greatest nesting of args; deeper values are left out
LEAST_DEEP_BYTES = 2 * (DEEPEST + 1)  #: bytes of an arg that nests deeper: each level has a tag and a size
STATE = NESTED // 8 + DEEPEST
# `tables`: addresses of columns and the number of rows that they hold
(TS, DUR, KIND, CATEGORY, NAME, TRACK, PLACE, CORRELATION, OFFSET, LENGTH, END_TS, END_TRACK, END_BEFORE, SIZE_ROW,
 SIZE_VALUE, FLOW_ROW, FLOW_VALUE, FLOW_LAST, EVENT_ROOM, END_ROOM, SIZE_ROOM,
 FLOW_ROOM) = range(0, 176, 8)  # fmt: skip
# and the numbers' tables: slots of (key, key, key, number); keys of args as text; blocks of sequences
TRACK_SLOTS, TRACK_MASK, PLACE_SLOTS, PLACE_MASK, KEY_TEXTS, KEY_COUNT, BLOCKS, BLOCK_COUNT = range(176, 240, 8)
TABLES = 30
SLOT = 32  #: bytes of a slot; a slot whose number is -1 is free
KEY_TEXT = 24  #: bytes of an entry of KEY_TEXTS: address, size, code
# a sequence's block
(VALID, DEFAULT_TRACK, CLOCK_KIND, CLOCK_NUMBER, CLOCK_TRACE, CLOCK_SHOWN, CLOCK_UNIT, NAMES, NAME_COUNT, CATEGORIES,
 CATEGORY_COUNT, KEYS, KEYS_COUNT) = range(0, 104, 8)  # fmt: skip
BLOCK = 13
TRACE_CLOCK, MOVING_CLOCK, FIXED_CLOCK, NO_CLOCK = 0, 1, 2, 3  #: of CLOCK_KIND: the trace's, incremental, any other
# codes of args that are columns
CORRELATION_ARG, DEVICE_ARG, STREAM_ARG, SIZE_ARG, DURATION_ARG, AGENT_ARG = range(1, 7)
ABSENT = -(1 << 63)  #: the place of a device or stream that the args lack
