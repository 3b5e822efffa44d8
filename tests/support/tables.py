"""Tiny traces made by hand, straight as tables: times in ns, an event a line.

trace_of(
    call("cudaLaunchKernel", 0, 5, correlation=1),
    kernel("gemm", 10, 30, correlation=1),
)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field

from augment import Trace
from augment.arrays.types import Int32s, Int64s
from augment.core.annotations import SliceTrack, Texts
from augment.core.context import Context
from augment.core.findings import Outcome
from augment.core.trace import COMPLETE, NO_CORRELATION, Category, EventTable, Identity, Source, SparseColumn, Track


class Event(Struct, frozen=True):
    """A slice of a trace made by hand."""

    category: Category
    name: str
    ts: int
    end: int
    track: Track
    correlation: int = NO_CORRELATION
    bytes: int | None = None
    args: dict[str, Any] = field(default_factory=dict)
    phase: int = COMPLETE
    flow: int | None = None


def kernel(
    name: str, ts: int, end: int, *, device: Identity = 0, stream: Identity = 7, correlation: int = NO_CORRELATION,
    pid: Identity = 0,
) -> Event:  # fmt: skip
    """A kernel on a stream."""
    return Event(Category.KERNEL, name, ts, end, Track(0, pid, stream, device, stream), correlation)


def copy(
    name: str, ts: int, end: int, bytes: int | None = None, *, device: Identity = 0, stream: Identity = 7,
    correlation: int = NO_CORRELATION,
) -> Event:  # fmt: skip
    """A copy, or a memset if its name says so."""
    category = Category.GPU_MEMSET if name.startswith("Memset") else Category.GPU_MEMCPY
    return Event(category, name, ts, end, Track(0, 0, stream, device, stream), correlation, bytes)


def call(name: str, ts: int, end: int, *, thread: int = 1, correlation: int = NO_CORRELATION) -> Event:
    """A call of the runtime, or of the driver if its name begins with ``cu`` and not ``cuda``."""
    driver = name.startswith("cu") and not name.startswith("cuda")
    category = Category.CUDA_DRIVER if driver else Category.CUDA_RUNTIME
    return Event(category, name, ts, end, Track(0, 100, thread), correlation)


def launched_kernel(name: str, called: tuple[int, int], ran: tuple[int, int], **more: Any) -> tuple[Event, Event]:
    """The call that launches a kernel, and the kernel, each from when to when; ``more`` is the kernel's."""
    return call("cudaLaunchKernel", *called, correlation=more["correlation"]), kernel(name, *ran, **more)


def launched(name: str, at: int, ts: int, end: int, stream: int, correlation: int) -> list[Event]:
    """A kernel and its launch, which takes 5."""
    return [*launched_kernel(name, (at, at + 5), (ts, end), stream=stream, correlation=correlation)]


def op(name: str, ts: int, end: int, *, thread: int = 1, args: dict[str, Any] | None = None) -> Event:
    """An operator on the host."""
    return Event(Category.CPU_OP, name, ts, end, Track(0, 100, thread), args=args or {})


def shaped(*dims: list[Any], types: str = "c10::BFloat16", values: dict[int, str] | None = None) -> dict[str, Any]:
    """The args of an operator that was recorded with shapes, all of its tensors of one type; ``values`` by place."""
    return {
        "Input Dims": list(dims),
        "Input type": [types if dim else "Scalar" for dim in dims],
        "Concrete Inputs": [(values or {}).get(place, "") for place in range(len(dims))],
    }


def annotation(name: str, ts: int, end: int, *, thread: int = 1) -> Event:
    """An annotation of the user, or a step, on the host."""
    return Event(Category.USER_ANNOTATION, name, ts, end, Track(0, 100, thread))


def python(name: str, ts: int, end: int, *, thread: int = 1) -> Event:
    """A Python function on the host."""
    return Event(Category.PYTHON_FUNCTION, name, ts, end, Track(0, 100, thread))


def sync(name: str, ts: int, end: int, *, stream: int = -1, correlation: int = NO_CORRELATION, **args: Any) -> Event:
    """A ``cuda_sync`` slice."""
    return Event(Category.CUDA_SYNC, name, ts, end, Track(0, 0, stream, 0, stream), correlation, None, args)


def fwdbwd(phase: str, flow: int, ts: int, *, thread: int = 1) -> Event:
    """An end of a flow from an operator (``s``) to its backward (``f``)."""
    return Event(Category.FWDBWD, "fwdbwd", ts, ts, Track(0, 100, thread), phase=ord(phase), flow=flow)


def trace_of(*events: Event, beside: Sequence[object] = ()) -> Trace:
    """The trace of ``events``, which may come in any order, with what was recorded ``beside`` it."""
    ordered = sorted(events, key=lambda item: item.ts)
    strings = _Numbered(text for each in ordered for text in (each.name, each.category.name.lower()))
    tracks = _Numbered(each.track for each in ordered)
    texts = [json.dumps({"args": each.args}).encode() for each in ordered]
    flows = [row for row, each in enumerate(ordered) if each.flow is not None]
    sized = [row for row, each in enumerate(ordered) if each.bytes is not None]
    table = EventTable(
        ts=_int64(each.ts for each in ordered),
        dur=_int64(each.end - each.ts for each in ordered),
        phase=np.array([each.phase for each in ordered], np.uint8),
        category=np.array([each.category for each in ordered], np.uint8),
        category_name=_int32(strings[each.category.name.lower()] for each in ordered),
        name=_int32(strings[each.name] for each in ordered),
        track=_int32(tracks[each.track] for each in ordered),
        correlation=_int64(each.correlation for each in ordered),
        offset=np.cumsum([0, *map(len, texts)])[:-1].astype(np.int64),
        length=_int32(map(len, texts)),
        bytes=SparseColumn(_int64(sized), _int64(ordered[row].bytes or 0 for row in sized)),
        flow_id=SparseColumn(_int64(flows), _int64(ordered[row].flow or 0 for row in flows)),
    )
    text = b"".join(texts)
    source = Source("t.json", "t.json", "0" * 64, "chrome_json", len(ordered), _Text(text), len(text))
    return Trace(table, list(strings), tuple(tracks), source, context=Context(beside))


def rows_of(outcome: Outcome, *columns: str) -> list[tuple[Any, ...]]:
    """``columns`` of the rows of an outcome."""
    return [tuple(getattr(row, column) for column in columns) for row in outcome.rows]


def slices_of(track: SliceTrack) -> list[dict[str, Any]]:
    """The slices of an added track with their args, those without a value left out."""
    columns = {"name": track.names, **track.args}
    slices = []
    for index, (ts, dur) in enumerate(zip(track.ts.tolist(), track.dur.tolist(), strict=True)):
        values = {name: _value(column, index) for name, column in columns.items()}
        slices.append({"ts": ts, "dur": dur} | {name: value for name, value in values.items() if value is not None})
    return slices


def _value(column: Texts | Int64s, index: int) -> str | int | None:
    if isinstance(column, Texts):
        code = int(column.codes[index])
        return None if code < 0 else column.values[code]
    value = int(column[index])
    return None if value == -1 else value


class _Numbered(dict[Any, int]):
    """Distinct values and their numbers, in the order in which they come."""

    def __init__(self, values: Iterable[Any]) -> None:
        super().__init__()
        for value in values:
            self.setdefault(value, len(self))


class _Text:
    """The decompressed source."""

    def __init__(self, text: bytes) -> None:
        self.text = text

    def read_at(self, offsets: Int64s, lengths: Int32s) -> list[bytes]:
        pairs = zip(offsets.tolist(), lengths.tolist(), strict=True)
        return [self.text[offset : offset + length] for offset, length in pairs]

    @property
    def gzip_tail(self) -> bytes | None:
        return None

    def chunks(self) -> Iterable[memoryview]:
        yield memoryview(self.text)


def _int64(values: Iterable[int]) -> Int64s:
    return np.array(list(values), np.int64)


def _int32(values: Iterable[int]) -> Int32s:
    return np.array(list(values), np.int32)
