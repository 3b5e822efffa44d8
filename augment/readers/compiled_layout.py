"""What the compiled scanner and its Python side agree on: results, and where things stand in memory.

Every place is an int64 at a byte offset of one of three arrays: ``state`` (counters), ``tables`` (addresses and sizes
of the columns and dictionaries), ``fields`` (the event at hand).
"""

from __future__ import annotations

MORE, END, GROW, BROKEN = 0, 1, 2, 3  #: why the scanner stopped
NOTE_ODD, NOTE_METADATA, NOTE_UNUSABLE = 0, 1, 2

FULL = -3  #: a table must grow first

# what `state` counts: its int64 at these byte offsets
(POSITION, ROWS, STRINGS, POOL, POOL_WANTED, PLACES, NOTES, SIZES, FLOWS, EVENTS, LAST_END, LINES, LINE_POOL,
 NO_LINES, UNDIVIDED, MISSING_COMMAS, FIRST_MISSING, ARGS, ARG_TEXTS, ARG_POOL,
 ARG_POOL_WANTED) = range(0, 21 * 8, 8)  # fmt: skip
STATE = 21
TO_POOL, TO_POOL_WANTED = 8, 16  #: from where the strings of a dictionary are counted

# where the tables are: their addresses and sizes, at these byte offsets of `tables`
(TS_COLUMN, DUR_COLUMN, PHASE_COLUMN, CATEGORY_COLUMN, NAME_COLUMN, PLACE_COLUMN, CORRELATION_COLUMN, OFFSET_COLUMN,
 LENGTH_COLUMN, SIZE_ROWS, SIZE_VALUES, FLOW_ROWS, FLOW_VALUES, NOTE_TABLE, ROW_ROOM,
 NOTE_ROOM) = range(0, 16 * 8, 8)  # fmt: skip
# a dictionary of byte strings: open-addressing slots (int32) of ids, and for each id hash, start and size in the pool
SLOTS, MASK, HASHES, STARTS, SIZES_OF, ROOM, BYTES, BYTES_ROOM, DICTIONARY = range(0, 9 * 8, 8)
STRING_DICTIONARY = NOTE_ROOM + 8
LINE_DICTIONARY = STRING_DICTIONARY + DICTIONARY
ARG_DICTIONARY = LINE_DICTIONARY + DICTIONARY
LINE_HEADS, PLACE_SLOTS, PLACE_KEYS, PLACE_ROOM, ARG_ROWS, ARG_VALUES, ARG_KINDS, ARG_ROOM, KEYS, END_OF_TABLES = range(
    ARG_DICTIONARY + DICTIONARY, ARG_DICTIONARY + DICTIONARY + 10 * 8, 8
)
TABLES = END_OF_TABLES // 8
# the keys of args that are wanted: an open-addressing table of these int64. FIELD is where the event at hand keeps a
# number, and HAS its bit; or FIELD is -1, and ARG the number of an arg that few events have
KEY_LENGTH, KEY_WORD, KEY_TEXT, FIELD, HAS, ARG, IS_TEXT, KEY_WIDTH = range(0, 8 * 8, 8)
KEY_BITS = 7
KEY_SLOTS = 1 << KEY_BITS
KEY_MIXER = 0x9E3779B97F4A7C15
IS_CODE = 1 << 7  #: added to the number of an arg, its kind: the value is a code of its JSON
PLACE_WIDTH, HEAD_WIDTH, NOTE_WIDTH = 5 * 8, 6 * 8, 4 * 8

# what `fields` holds of the event at hand: its int64 at these byte offsets
(PHASE, TS, DUR, NAME, NAME_END, NAME_HASH, CATEGORY, CATEGORY_END, CATEGORY_HASH, PID_KIND, PID, PID_END, PID_HASH,
 TID_KIND, TID, TID_END, TID_HASH, ID, CORRELATION, DEVICE, STREAM, SIZE, SEEN, LINE, TAKEN,
 TAKEN_ARGS) = range(0, 26 * 8, 8)  # fmt: skip
HEAD_AT = 26 * 8  #: where the head is put together
FIELDS = 26 + 6
TO_END, TO_HASH = 8, 16  #: from where a string field begins to where it ends, and its hash
HAS_PHASE, HAS_TS, HAS_DUR, HAS_NAME, HAS_ID, HAS_SIZE, HAS_DEVICE, HAS_STREAM = (1 << k for k in range(8))
HAS_CATEGORY, HAS_HEAD = 1 << 8, 1 << 9
HEAD = HAS_PHASE | HAS_NAME | HAS_CATEGORY  #: what a line that is worth keeping gives, besides pid and tid
LONGEST_LINE = 2048
GIVE_UP_LINES = 256  #: so many events without a line end nearby: the text is not laid out in lines
NUMBER, STRING, MISSING = 0, 1, 2  #: kinds of a pid or tid
SLICE, METADATA = ord("X"), ord("M")
ABSENT = -(1 << 63)  #: a device or stream that args do not give


def key_word(key: str) -> int:
    """A key as compiled code compares it first: its first eight bytes, mixed with its last eight if it is longer."""
    text = key.encode()
    word = int.from_bytes(text[:8].ljust(8, b"\0"), "little")
    if len(text) > 8:
        word ^= int.from_bytes(text[-8:], "little") * KEY_MIXER & (1 << 64) - 1
    return word
