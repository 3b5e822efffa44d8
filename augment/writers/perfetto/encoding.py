"""Converts track events to packets: the Python side of the kernels, and the events that those leave to Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from augment.annotations import SliceTrack, Texts
from augment.kernels import encode_layout as kernel
from augment.kernels.native import address, native
from augment.writers.perfetto.args import ArgsEncoder
from augment.writers.perfetto.packets import Blobs, Events, text_args

_OUT_BYTES = 4 << 20


def encode(events: Events) -> Iterator[memoryview]:
    """The packets of ``events``, in pieces. Each piece is valid until the next."""
    blobs = events.blobs
    largest = int(blobs.size.max(initial=0)) if blobs else 0
    out = np.empty(max(_OUT_BYTES, largest + 2 * kernel.PACKET_ROOM), np.uint8)
    columns = [address(column) for column in (events.kind, events.ts, events.track, events.category, events.name)]
    pieces = [address(column) for column in (blobs.data, blobs.start, blobs.size)] if blobs else [0, 0, 0]
    progress = np.zeros(1, np.int64)
    encode_rows = native("encode_packets.encode_rows")
    row, count = 0, len(events)
    while row < count:
        row = encode_rows(row, count, *columns, *pieces, address(out), len(out), address(progress))
        yield out[: int(progress[0])].data


def slice_args(track: SliceTrack, encoder: ArgsEncoder) -> Blobs:
    """The args of an added track's slices."""
    count = len(track.ts)
    steps: list[tuple[int, ...]] = []
    held: list[Any] = []
    widest = 0
    for name, column in track.args.items():
        if isinstance(column, Texts):
            which, codes = text_args(column, name, encoder)
            columns: list[npt.NDArray[Any]] = [which, codes.data, codes.start, codes.size]
            widest += int(codes.size.max(initial=0))
        else:
            key = np.frombuffer(encoder.key(name) + b"\0" * 8, np.uint8)
            columns = [np.ascontiguousarray(column, np.int64), key, np.array([len(key) - 8], np.int64)]
            widest += len(key) + 16
        held.append(columns)
        steps.append((*(address(column) for column in columns), 0)[:4])
    program = np.array(steps, np.int64).reshape(-1, 4)
    out = np.empty(count * widest + 8, np.uint8)
    start, size = np.empty(count, np.int64), np.empty(count, np.int64)
    native("encode_packets.columns_to_args")(
        count, address(program), len(steps), address(out), address(start), address(size)
    )
    out.resize(int(start[-1] + size[-1]) + 8 if count else 8, refcheck=False)  # most args are shorter than the widest
    return Blobs(out, start, size)
