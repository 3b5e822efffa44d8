"""Tiny traces for the writers' tests: a Chrome text and the few columns of a trace that writers look at."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from augment import AugmentedTrace, Findings, Trace
from augment.arrays import Int32s, Int64s
from augment.core import Annotation, Category, EventTable, Source, SparseColumn, Texts, Track

HEAD = b'{"schemaVersion": 1, "traceEvents": [\n'
TAIL = b'\n  ],\n  "traceName": "x"}'
STREAM_7 = Track(0, 0, 7, 0, 7, "python", "stream 7 ")
PYTHON = Track(0, 4242, 4243, process_name="python")


@dataclass(frozen=True)
class Text:
    """The text of a source, in pieces of ``piece`` bytes that are overwritten as soon as the next is asked for."""

    whole: bytes
    piece: int = 7

    def read_at(self, offsets: Int64s, lengths: Int32s) -> list[bytes]:
        return [self.whole[o : o + n] for o, n in zip(offsets.tolist(), lengths.tolist(), strict=True)]

    @property
    def gzip_tail(self) -> bytes | None:
        return None

    def chunks(self) -> Iterable[memoryview]:
        for start in range(0, len(self.whole), self.piece):
            chunk = bytearray(self.whole[start : start + self.piece])
            yield memoryview(chunk)
            chunk[:] = b"#" * len(chunk)


def chrome_trace(
    events: Sequence[dict[str, Any]] = (), tracks: Sequence[Track] = (STREAM_7, PYTHON), path: str = "t.json"
) -> Trace:
    """A trace whose text has ``events``, and whose table has those with a time: on the first track if on no other."""
    body = b",\n".join(json.dumps(event, ensure_ascii=False).encode() for event in events)
    text = HEAD + body + TAIL
    timed = sorted((event for event in events if "ts" in event), key=lambda event: float(event["ts"]))
    places = {(track.pid, track.tid): index for index, track in enumerate(tracks)}
    strings = [str(event["name"]) for event in timed]
    n = len(timed)
    ids = [(row, event["id"]) for row, event in enumerate(timed) if "id" in event]
    for row, (_, name) in enumerate(ids):
        if isinstance(name, str):
            ids[row] = (ids[row][0], -2 - len(strings))
            strings.append(name)
    table = EventTable(
        ts=np.array([round(event["ts"] * 1000) for event in timed], np.int64),
        dur=np.array([round(event.get("dur", 0) * 1000) for event in timed], np.int64),
        phase=np.array([ord(event["ph"]) for event in timed], np.uint8),
        category=np.array([Category[event.get("cat", "other").upper()] for event in timed], np.uint8),
        category_name=np.zeros(n, np.int32),
        name=np.arange(n, dtype=np.int32),
        track=np.array([places.get((event.get("pid"), event.get("tid")), 0) for event in timed], np.int32),
        correlation=np.full(n, -1, np.int64),
        offset=np.zeros(n, np.int64),
        length=np.zeros(n, np.int32),
        bytes=SparseColumn(np.zeros(0, np.int64), np.zeros(0, np.int64)),
        flow_id=SparseColumn(np.array([i[0] for i in ids], np.int64), np.array([i[1] for i in ids], np.int64)),
    )
    source = Source(
        path=path,
        name=Path(path).name,
        sha256="0" * 64,
        format="chrome_json",
        event_count=len(events),
        text=Text(text),
        text_bytes=len(text),
        insert_at=len(HEAD) + len(body),
        insert_comma=bool(events),
    )
    return Trace(table, strings, tuple(tracks), source)


def with_source(trace: Trace, **changes: Any) -> Trace:
    """``trace`` with other members of its source."""
    return trace.changed(source=replace(trace.source, **changes))


def augmented(trace: Trace, *annotations: Annotation) -> AugmentedTrace:
    """``trace`` with ``annotations`` as the findings of an analysis called ``example``."""
    return AugmentedTrace(trace, {"example": Findings([], annotations)})


def ns(*values: int) -> Int64s:
    """An int64 column."""
    return np.array(values, np.int64)


def texts(*values: str) -> Texts:
    """A column of different texts."""
    return Texts(np.arange(len(values), dtype=np.int32), values)


def written(path: Path) -> bytes:
    """The text of a written trace."""
    return gzip.decompress(path.read_bytes())


def stripped(text: bytes) -> bytes:
    """``text`` without the block of added events."""
    return re.sub(rb',?(\n\{"cat":"augment\.[^\n]*)+\n', b"", text)


def added_events(path: Path) -> list[dict[str, Any]]:
    """The added events of a written trace, metadata included."""
    events = json.loads(written(path))["traceEvents"]
    return [event for event in events if event.get("cat", "").startswith("augment.")]
