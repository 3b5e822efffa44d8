"""The memory that Python and ``encode_blobs.py`` share: byte offsets of the values that they exchange."""

from __future__ import annotations

PACKET_ROOM = 96  #: the most bytes of a packet besides its blob, including bytes written beyond its end

#: why :func:`~augment.kernels.encode_blobs.scan_args` stopped
DONE, MISS, ODD_ROW, FULL, OTHER_STRINGS = 0, 1, 2, 3, 4
# what `state` holds: its int64 at these byte offsets. The tables hold the strings of a SEQUENCE of packets from byte
# BEGINS to byte ENDS
(ROW, AT, MISS_START, MISS_END, MISS_HASH, MISS_IS_KEY, SUFFIX, READY_ROW, READY, READY_SIZE, ARGS_END, SEQUENCE,
 BEGINS, ENDS, KEYS) = range(0, 120, 8)  # fmt: skip
MOST_KEYS = 64  #: the most args of one event; events with more are left to Python
STATE = 15 + MOST_KEYS
# what `tables` holds after the dictionary
SUFFIX_ROWS, SUFFIX_STARTS, SUFFIX_SIZES, SUFFIXES, SUFFIX_COUNT = range(64, 104, 8)
