"""Compiled code of the Perfetto writer: the blobs of many events. A blob holds the args in the event's text, then its
suffixes.
"""

from __future__ import annotations

from augment.kernels.encode_args import event_args
from augment.kernels.encode_layout import DONE, FULL, PACKET_ROOM, Encoding
from augment.kernels.encode_packet_args import packet_args
from augment.kernels.encode_packets import copy_bytes
from augment.kernels.known_bytes import Known
from augment.kernels.memory import Column, compiled


@compiled
def put_ready(data: int, size: int, out: int, last: int) -> int:
    """Write bytes that are encoded already. Returns the address after them, or ``-1 - FULL``."""
    if out + size + PACKET_ROOM > last:
        return -1 - FULL
    copy_bytes(out, data, size)
    return out + size


@compiled
def put_suffixes(
    row: int, suffix: int, rows: Column, starts: Column, sizes: Column, out: int, last: int, state: Encoding
) -> tuple[int, int]:
    """Write the suffixes of a row, from ``suffix`` on. Returns the address after them, or ``-1 - FULL``, and the
    suffix after them.
    """
    while out >= 0 and suffix < len(rows) and rows[suffix] == row:
        out = put_ready(state.suffixes + starts[suffix], sizes[suffix], out, last)
        suffix += 1
    return out, suffix


@compiled
def scan_args(
    origin: int, base: int, offsets: Column, lengths: Column, out: int, room: int, starts: Column, sizes: Column,
    first: int, suffix_rows: Column, suffix_starts: Column, suffix_sizes: Column, known: Known, state: Encoding,
    of_packets: int,
) -> int:  # fmt: skip
    """Write the blobs of the rows at ``offsets``, from ``state.row`` on, to ``out + state.at`` and on.

    ``origin`` is the address of byte ``base`` of the text. ``first`` is the number of the first row in the numbering of
    ``suffix_rows``. A row's blob begins with its args, or with what Python stored at ``state.ready`` if it is
    ``state.ready_row``; its suffixes follow. The text of rows is JSON, or packets in Perfetto's format.
    """
    last = out + room
    while state.row < len(offsets):
        row, begin = state.row, out + state.at
        start = origin + offsets[row] - base
        stop = start + lengths[row]
        if state.ready_row == row:
            end = put_ready(state.ready, state.ready_size, begin, last)
        elif of_packets != 0:
            end = packet_args(start, stop, offsets[row], begin, last, known, state)
        else:
            end = event_args(start, stop, begin, last, known, state)
        end, suffix = put_suffixes(
            first + row, state.suffix, suffix_rows, suffix_starts, suffix_sizes, end, last, state
        )  # fmt: skip
        if end < 0:
            return -1 - end
        starts[row] = state.at
        sizes[row] = end - begin
        state.at = end - out
        state.row = row + 1
        state.suffix = suffix
    return DONE
