"""The memory that ``packet_args.py`` and its Python side, ``readers/perfetto/arg_scan.py``, share."""

from __future__ import annotations

from augment.kernels.memory import record

DONE, MISS, ODD_ROW, OTHER_STRINGS = 0, 1, 2, 3  #: why ``scan_args`` stopped
UNWANTED = UNKNOWN = -1


@record
class ArgTable:
    """The values of an arg: see ``arg_columns_scan.Column``. There is room for one in each row."""

    rows: int  #: addresses: int64
    values: int  #: int64
    flags: int  #: bytes
    count: int
    category_bits: int  #: the categories whose events have the arg
    is_text: int
    known: int  #: the address of what is stored of strings, by iid: value << 8 | flag, or UNKNOWN (int64)


@record
class ArgScan:
    """The progress, and the strings of a sequence of packets."""

    row: int  #: the current row
    sequence: int  #: whose strings the tables have, from byte ``begins`` to ``ends``; of OTHER_STRINGS the wanted
    begins: int
    ends: int
    keys: int  #: the address of the column of each key by its iid, or UNWANTED (int64)
    key_count: int
    value_count: int  #: of ``ArgTable.known``
    miss_column: int  #: of MISS: the arg and the string that Python must store
    miss_iid: int
