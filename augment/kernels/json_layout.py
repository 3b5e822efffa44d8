"""The constants that the compiled scanner and its Python side share: result codes and places in memory.

Every place is an int64 at a byte offset of one of three arrays: ``state`` (counters), ``tables`` (addresses and sizes
of the columns and dictionaries), ``fields`` (the event at hand).
"""

from __future__ import annotations

from augment.kernels.interned import DICTIONARY

PHASES = frozenset(
    "XBEIiCbnestfSTpFPNODMvRc(){}VO="
)  #: of the Trace Event Format, those of its older versions included

MORE, END, GROW, BROKEN = 0, 1, 2, 3  #: why the scanner stopped
NOTE_ODD, NOTE_METADATA, NOTE_UNUSABLE = 0, 1, 2

# what `state` counts: its int64 at these byte offsets
(POSITION, ROWS, STRINGS, POOL, POOL_WANTED, PLACES, NOTES, SIZES, FLOWS, EVENTS, LAST_END, LINES, LINE_POOL,
 NO_LINES, UNDIVIDED, MISSING_COMMAS, FIRST_MISSING) = range(0, 17 * 8, 8)  # fmt: skip
STATE = 17

# where the tables are: their addresses and sizes, at these byte offsets of `tables`
(TS_COLUMN, DUR_COLUMN, PHASE_COLUMN, CATEGORY_COLUMN, NAME_COLUMN, PLACE_COLUMN, CORRELATION_COLUMN, OFFSET_COLUMN,
 LENGTH_COLUMN, SIZE_ROWS, SIZE_VALUES, FLOW_ROWS, FLOW_VALUES, NOTE_TABLE, ROW_ROOM,
 NOTE_ROOM) = range(0, 16 * 8, 8)  # fmt: skip
STRING_DICTIONARY = NOTE_ROOM + 8
LINE_DICTIONARY = STRING_DICTIONARY + DICTIONARY
LINE_HEADS, PLACE_SLOTS, PLACE_KEYS, PLACE_ROOM, ARGS, END_OF_TABLES = range(
    LINE_DICTIONARY + DICTIONARY, LINE_DICTIONARY + DICTIONARY + 6 * 8, 8
)
TABLES = END_OF_TABLES // 8
PLACE_WIDTH, HEAD_WIDTH, NOTE_WIDTH = 5 * 8, 6 * 8, 4 * 8

# what `fields` holds of the event at hand: its int64 at these byte offsets
(PHASE, TS, DUR, NAME, NAME_END, NAME_HASH, CATEGORY, CATEGORY_END, CATEGORY_HASH, PID_KIND, PID, PID_END, PID_HASH,
 TID_KIND, TID, TID_END, TID_HASH, ID, CORRELATION, DEVICE, STREAM, SIZE, SEEN, LINE) = range(0, 24 * 8, 8)  # fmt: skip
HEAD_AT = 24 * 8  #: where the head of the event is assembled
FIELDS = 24 + 6
TO_END, TO_HASH = 8, 16  #: offsets from a string field to the end of the string and to its hash
HAS_PHASE, HAS_TS, HAS_DUR, HAS_NAME, HAS_ID, HAS_SIZE, HAS_DEVICE, HAS_STREAM = (1 << k for k in range(8))
HAS_CATEGORY, HAS_HEAD = 1 << 8, 1 << 9
HEAD = HAS_PHASE | HAS_NAME | HAS_CATEGORY  #: what a line must contain to be kept, besides pid and tid
LONGEST_LINE = 2048
GIVE_UP_LINES = 256  #: after so many events without a line end nearby, the text counts as not laid out in lines
NUMBER, STRING, MISSING = 0, 1, 2  #: kinds of a pid or tid
SLICE, METADATA = ord("X"), ord("M")
ABSENT = -(1 << 63)  #: the place of a device or stream that the args lack
