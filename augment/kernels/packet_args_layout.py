"""How ``packet_args.py`` and its Python side, ``readers/perfetto/arg_scan.py``, share memory."""

from __future__ import annotations

DONE, MISS, ODD_ROW, OTHER_STRINGS = 0, 1, 2, 3  #: why ``scan_args`` stopped
# what `state` holds: its int64 at these byte offsets
(
    ROW,  # which row it is at
    SEQUENCE,  # the sequence whose strings the tables have, from byte BEGINS to byte ENDS; of OTHER_STRINGS the wanted
    BEGINS,
    ENDS,
    KEYS,  # by the iids of keys, which column each is, or UNWANTED (int64)
    KEY_COUNT,
    VALUES,  # of each column, the address of its values by the iids of strings: value << 8 | flag, or UNKNOWN (int64)
    VALUE_COUNT,
    CATEGORIES,  # of each column, a bit for each category (int64)
    IS_TEXT,  # of each column (int64)
    MISS_COLUMN,
    MISS_IID,
) = range(0, 96, 8)
STATE = 12
UNWANTED = UNKNOWN = -1
