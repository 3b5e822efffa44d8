"""Compiled code of ``derived/source/arg_columns_scan.py``: reads a few args of many events from the events' JSON."""

from __future__ import annotations

import numpy as np

from augment.kernels.args import find_args, find_args_by_member, keep_args, take_args
from augment.kernels.interned import FULL
from augment.kernels.memory import Column, compiled, load_byte
from augment.kernels.tokens import CLOSE_BRACE, ODD, skip_blank
from augment.kernels.wanted_args import Wanted


@compiled
def scan_columns(
    origin: int, base: int, place: int, offsets: Column, lengths: Column, first: int, wanted: Wanted
) -> int:
    """Take the args of the rows from ``place`` on. Returns the number of rows when all are done, the place of a row
    that Python must read, or ``-1 - place`` when the columns are full at that row.

    ``origin`` is the address of byte ``base`` of the text. ``offsets`` and ``lengths`` locate each row in the text.
    Rows are numbered from ``first`` on.
    """
    while place < len(offsets):
        start = origin + offsets[place] - base
        stop = start + lengths[place]
        args = find_args(start, stop)
        if args == ODD:
            return place
        if args:
            i = take_args(stop, args, first + place, wanted)
            if i == FULL:
                return np.int64(-1) - place
            if i < 0 or (load_byte(skip_blank(stop, i)) != CLOSE_BRACE and find_args_by_member(start, stop) != args):
                return place
            keep_args(wanted)
        place += 1
    return place
