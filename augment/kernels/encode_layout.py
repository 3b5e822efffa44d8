"""How Python and ``encode_args.py`` share memory: the places of what they tell each other, as byte offsets."""

from __future__ import annotations

PACKET_ROOM = 96  #: bytes of a packet besides its blob, at most, with those written beyond its end

DONE, MISS, ODD_ROW, FULL = 0, 1, 2, 3  #: why :func:`~augment.kernels.encode_args.scan_args` stopped
# what `state` holds: its int64 at these byte offsets
(ROW, AT, MISS_START, MISS_END, MISS_HASH, MISS_IS_KEY, SUFFIX, READY_ROW, READY, READY_SIZE, ARGS_END,
 KEYS) = range(0, 96, 8)  # fmt: skip
MOST_KEYS = 64  #: of one event's args; more are left to Python
STATE = 12 + MOST_KEYS
# what `tables` holds after the dictionary
SUFFIX_ROWS, SUFFIX_STARTS, SUFFIX_SIZES, SUFFIXES, SUFFIX_COUNT = range(64, 104, 8)
