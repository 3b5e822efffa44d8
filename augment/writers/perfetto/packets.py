"""Track events as columns with one entry per row. ``encoding.py`` converts them to packets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from augment.arrays.ordering import numbered
from augment.arrays.types import Bytes, Int64s
from augment.core.annotations import Texts
from augment.writers.perfetto.args import ArgsEncoder
from augment.writers.perfetto.wire import (
    BEGIN,
    COUNTER,
    END,
    EVENT_DOUBLE_COUNTER,
    varint,
)


class Blobs(Struct, frozen=True):
    """One byte string per row: row ``i`` has ``data[start[i]:][:size[i]]``. Seven bytes follow the last one."""

    data: Bytes
    start: Int64s
    size: Int64s

    def take(self, rows: npt.NDArray[Any] | slice) -> Blobs:
        """The byte strings of ``rows``; the data are shared."""
        return Blobs(self.data, self.start[rows], self.size[rows])

    def pieces(self) -> list[bytes]:
        """The bytes of each row."""
        return [
            self.data[start : start + size].tobytes()
            for start, size in zip(self.start.tolist(), self.size.tolist(), strict=True)
        ]


class Events(Struct, frozen=True):
    """Track events in int64 columns, one per row. ``blobs`` holds encoded fields. A category or name of 0 means
    none.
    """

    kind: Int64s
    ts: Int64s
    track: Int64s
    category: Int64s
    name: Int64s
    blobs: Blobs | None = None

    def __len__(self) -> int:
        return len(self.ts)

    def take(self, rows: npt.NDArray[Any]) -> Events:
        """The events of ``rows``."""
        kind, ts, track, category, name = (
            column[rows] for column in (self.kind, self.ts, self.track, self.category, self.name)
        )
        return Events(kind, ts, track, category, name, self.blobs.take(rows) if self.blobs else None)


def column(value: int | npt.NDArray[Any], count: int) -> Int64s:
    """A column of ``count`` rows, from a single value or from the given values."""
    if isinstance(value, int):
        return np.full(count, value, np.int64)
    return np.ascontiguousarray(value, np.int64)


def blobs_of(pieces: Iterable[bytes]) -> Blobs:
    """Blobs from byte strings in order."""
    held = list(pieces)
    size = np.array([len(piece) for piece in held], np.int64)
    return Blobs(np.frombuffer(b"".join(held) + b"\0" * 8, np.uint8), np.cumsum(size) - size, size)


def text_args(texts: Texts, name: str, encoder: ArgsEncoder) -> tuple[Int64s, Blobs]:
    """The index of the blob of each row (-1: none), and a blob with the arg ``name`` for each value of ``texts`` that
    occurs.
    """
    codes, which = numbered(texts.codes)
    none = int(np.count_nonzero(codes < 0))
    return which - none, blobs_of(encoder.arg(name, texts.values[code]) for code in codes[none:].tolist())


def slices(ts: Int64s, dur: Int64s, track: Any, category: Any, name: Any, blobs: Blobs) -> tuple[Events, Events]:
    """The ends and the beginnings of slices of ``dur`` >= 0, to be written in this order.

    Perfetto keeps the file's order for packets of equal time. So each slice ends before the next begins. Only a slice
    without duration ends right after its beginning.
    """
    count = len(ts)
    track, category, name = (column(values, count) for values in (track, category, name))
    lasting = dur > 0
    begins = Events(column(BEGIN, count), ts, track, category, name, blobs)
    return ends((ts + dur)[lasting], track[lasting]), with_ends(begins, ~lasting)


def ends(ts: Int64s, track: Int64s) -> Events:
    """Ends of slices."""
    none = column(0, len(ts))
    return Events(column(END, len(ts)), ts, track, none, none)


def with_ends(begins: Events, ended: npt.NDArray[np.bool_]) -> Events:
    """``begins`` with an end at the same time right after each row that is ``ended``."""
    if not ended.any():
        return begins
    rows = np.repeat(np.arange(len(begins)), 1 + ended.astype(np.int64))
    is_end = np.zeros(len(rows), np.bool_)
    is_end[1:] = rows[1:] == rows[:-1]
    both = begins.take(rows)
    both.kind[is_end] = END
    for values in (both.category, both.name, *((both.blobs.size,) if both.blobs else ())):
        values[is_end] = 0
    return both


def counters(ts: Int64s, values: npt.NDArray[np.float64], track: int) -> Events:
    """Points of a counter."""
    record = np.empty(len(ts) + 1, np.dtype([("tag", "u1", 2), ("value", "<f8")]))
    record["tag"] = np.frombuffer(varint(EVENT_DOUBLE_COUNTER << 3 | 1), np.uint8)
    record["value"][:-1] = values
    none = column(0, len(ts))
    start = np.arange(len(ts), dtype=np.int64) * record.itemsize
    blobs = Blobs(record.view(np.uint8), start, column(record.itemsize, len(ts)))
    return Events(column(COUNTER, len(ts)), ts, column(track, len(ts)), none, none, blobs)
