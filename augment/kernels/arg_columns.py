"""Compiled code of ``derived/source/arg_columns_scan.py``: reads a few args of many events from the events' JSON."""

from __future__ import annotations

import numpy as np

from augment.kernels.args import (
    find_args,
    find_args_by_member,
    keep_args,
    take_args,
)
from augment.kernels.interned import FULL
from augment.kernels.memory import compiled, load_byte, load_int, load_int32
from augment.kernels.tokens import CLOSE_BRACE, ODD, skip_blank


@compiled
def scan_columns(
    origin: int, base: int, place: int, count: int, offsets: int, lengths: int, first: int, wanted: int
) -> int:
    """Take the args of the rows from ``place`` on. Returns ``count`` when all rows are done, the place of a row that
    Python must read, or ``-1 - place`` when the columns are full at that row.

    ``origin`` is the address of byte ``base`` of the text. ``offsets`` (int64) and ``lengths`` (int32) locate each row
    in the text. Rows are numbered from ``first`` on.
    """
    while place < count:
        start = origin + load_int(offsets + 8 * place) - base
        stop = start + load_int32(lengths + 4 * place)
        args = find_args(start, stop)
        if args == ODD:
            return place
        if args:
            i = take_args(stop, args, first + place, 0, wanted)
            if i == FULL:
                return np.int64(-1) - place
            if i < 0 or (load_byte(skip_blank(stop, i)) != CLOSE_BRACE and find_args_by_member(start, stop) != args):
                return place
            keep_args(wanted)
        place += 1
    return place
