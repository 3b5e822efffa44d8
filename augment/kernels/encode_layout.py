"""The memory that Python and ``encode_blobs.py`` share."""

from __future__ import annotations

from typing import Annotated

from augment.kernels.memory import Column, record

PACKET_ROOM = 96  #: the most bytes of a packet besides its blob, including bytes written beyond its end
MOST_KEYS = 64  #: the most args of one event; events with more are left to Python

#: why :func:`~augment.kernels.encode_blobs.scan_args` stopped
DONE, MISS, ODD_ROW, FULL, OTHER_STRINGS = 0, 1, 2, 3, 4


@record
class Encoding:
    """The progress of :func:`~augment.kernels.encode_blobs.scan_args`, and what it asks of Python."""

    row: int
    at: int  #: the end of what is written
    suffix: int  #: the next of all suffixes
    suffixes: int  #: the address of their bytes
    miss_start: int  #: the bytes whose code is lacking: addresses
    miss_end: int
    miss_hash: int
    miss_is_key: int
    ready_row: int  #: a row whose args Python has encoded, their address and size
    ready: int
    ready_size: int
    args_end: int  #: of the current event
    key_hash: int  #: of the current arg
    arg: int  #: the last that was written, as in ``Known.nexts``
    sequence: int  #: the tables hold the strings of this sequence of packets, from byte ``begins`` to ``ends``
    begins: int
    ends: int
    keys: Annotated[Column, MOST_KEYS]  #: hashes of the keys of the current event


@record
class Step:
    """An arg of all rows: addresses. A value of -1 is left out."""

    values: int  #: of a text the number of its encoded arg
    data: int  #: the encoded args, or the key
    starts: int  #: of the encoded args; 0: the values are integers
    sizes: int  #: of the encoded args; of the key its size
