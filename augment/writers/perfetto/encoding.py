"""Converts track events to packets: the Python side of the kernels, and the events that those leave to Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from augment.core.annotations import SliceTrack, Texts
from augment.kernels import encode_packets as kernel
from augment.kernels.native import address, native
from augment.writers.perfetto.args import ArgsEncoder
from augment.writers.perfetto.packets import Blobs, Events, text_args

_OUT_BYTES = 4 << 20


def encode(events: Events) -> Iterator[memoryview]:
    """The packets of ``events``, in pieces. Each piece is valid until the next."""
    blobs = events.blobs
    largest = int(blobs.size.max(initial=0)) if blobs else 0
    out = np.empty(max(_OUT_BYTES, largest + 2 * kernel.PACKET_ROOM), np.uint8)
    columns = (events.kind, events.ts, events.track, events.category, events.name)
    none = np.empty(0, np.int64)
    pieces = (address(blobs.data), blobs.start, blobs.size) if blobs else (0, none, none)
    progress = np.zeros(1, np.int64)
    encode_rows = native("encode_packets.encode_rows")
    row, count = 0, len(events)
    while row < count:
        row = encode_rows(row, *columns, *pieces, address(out), len(out), progress)
        yield out[: int(progress[0])].data


def slice_args(track: SliceTrack, encoder: ArgsEncoder) -> Blobs:
    """The args of an added track's slices."""
    count = len(track.ts)
    steps = (kernel.ArgStep * len(track.args))()  # type: ignore[operator]
    held: list[Any] = []
    widest = 0
    for step, (name, column) in zip(steps, track.args.items(), strict=True):
        if isinstance(column, Texts):
            values, codes = text_args(column, name, encoder)
            data, step.starts, step.sizes = codes.data, address(codes.start), address(codes.size)
            widest += int(codes.size.max(initial=0))
        else:
            values, codes = np.ascontiguousarray(column, np.int64), None
            data = np.frombuffer(encoder.key(name) + b"\0" * 8, np.uint8)
            step.sizes = len(data) - 8
            widest += len(data) + 16
        step.values, step.data = address(values), address(data)
        held.append((values, data, codes))
    out = np.empty(count * widest + 8, np.uint8)
    start, size = np.empty(count, np.int64), np.empty(count, np.int64)
    native("encode_packets.columns_to_args")(address(steps), len(steps), address(out), start, size)
    out.resize(int(start[-1] + size[-1]) + 8 if count else 8, refcheck=False)  # most args are shorter than the widest
    return Blobs(out, start, size)
