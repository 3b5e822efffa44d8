"""How Python and ``arg_columns_compiled.py`` share memory; named so that a change makes compiled code anew."""

from __future__ import annotations

DONE, MISS, ODD_ROW = 0, 1, 2  #: why :func:`~augment.derived.arg_columns_compiled.scan_columns` stopped
ABSENT, PLAIN, CONVERTED, DROPPED = 0, 1, 2, 3  #: what a column has for a row; ABSENT for null, too
# what `state` holds: its int64 at these byte offsets
ROW, MISS_START, MISS_END, MISS_HASH, MISS_IS_KEY, ARGS_END = range(0, 48, 8)
STATE = 6
# what the code of a known key holds, and that of a key with its value
KEY_INDEX, KEY_CATEGORIES, KEY_IS_TEXT = range(0, 24, 8)
VALUE_FLAG, VALUE = range(0, 16, 8)
