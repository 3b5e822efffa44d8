"""The memory that ``packet_args.py`` and its Python side, ``readers/perfetto/arg_scan.py``, share."""

from __future__ import annotations

DONE, MISS, ODD_ROW, OTHER_STRINGS = 0, 1, 2, 3  #: why ``scan_args`` stopped
# what `state` holds: its int64 at these byte offsets
(
    ROW,  # the current row
    SEQUENCE,  # the sequence whose strings the tables have, from byte BEGINS to byte ENDS; of OTHER_STRINGS the wanted
    BEGINS,
    ENDS,
    KEYS,  # for each key by its iid, the column that it belongs to, or UNWANTED (int64)
    KEY_COUNT,
    VALUES,  # for each column, the address of its values by string iid: value << 8 | flag, or UNKNOWN (int64)
    VALUE_COUNT,
    CATEGORIES,  # for each column, one bit per category (int64)
    IS_TEXT,  # of each column (int64)
    MISS_COLUMN,
    MISS_IID,
) = range(0, 96, 8)
STATE = 12
UNWANTED = UNKNOWN = -1
