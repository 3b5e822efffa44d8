"""What the writers' kernels write, once more in Python: row by row, text by text."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np

from augment.core.annotations import SliceTrack, Texts
from augment.writers.perfetto.packets import ArgsEncoder, Events, text_args
from augment.writers.perfetto.wire import (
    COUNTER,
    END,
    EVENT_CATEGORY_IID,
    EVENT_NAME_IID,
    EVENT_TRACK,
    EVENT_TYPE,
    NEEDED,
    PACKET_EVENT,
    PACKET_FLAGS,
    PACKET_SEQUENCE,
    PACKET_TIMESTAMP,
    SEQUENCE,
    message,
    number,
    varint,
)
from augment.writers.templates import (
    MISSING,
    Column,
    Number,
    Piece,
    Template,
    TemplateArgs,
    TemplateChoice,
    json_text,
    rows_of,
)


def rendered(template: Template) -> bytes:
    """The text of every row."""
    count = rows_of(template)
    columns = [_texts_of_piece(piece, slice(0, count), count) for piece in template]
    return b"".join(map(b"".join, zip(*columns, strict=True)))


def _texts_of_piece(piece: Piece, rows: slice, size: int) -> Iterable[bytes]:
    if isinstance(piece, bytes):
        return itertools.repeat(piece, size)
    if isinstance(piece, TemplateArgs):
        members = [_texts_of_arg(name, column, rows) for name, column in piece.columns.items()]
        return [b"".join(row)[1:] for row in zip(*members, strict=True)]
    return _texts(piece, rows)


def _texts_of_arg(name: str, column: Column, rows: slice) -> list[bytes]:
    """``,"name":value``, or nothing where there is no value."""
    key = b"," + json_text(name) + b":"
    codes = (column.values if isinstance(column, Number) else column.codes)[rows]
    texts = [key + text for text in _texts(column, rows)]
    for row in np.flatnonzero(codes == MISSING).tolist():
        texts[row] = b""
    return texts


def _texts(column: Column, rows: slice) -> list[bytes]:
    if isinstance(column, TemplateChoice):
        return [column.values[code] if code != MISSING else b"" for code in column.codes[rows].tolist()]
    numbers = column.values[rows].tolist()
    if not column.decimals:
        return [b"%d" % value for value in numbers]
    scale = 10**column.decimals
    form = b"%%d.%%0%dd" % column.decimals
    texts = [form % divmod(value, scale) if value >= 0 else b"-" + form % divmod(-value, scale) for value in numbers]
    return [text.rstrip(b"0").rstrip(b".") for text in texts] if column.trim else texts


_SEQUENCE = number(PACKET_SEQUENCE, SEQUENCE)
_FLAGS = number(PACKET_FLAGS, NEEDED)
_KINDS = {kind: number(EVENT_TYPE, kind) for kind in range(5)}
_TIMESTAMP, _TRACK, _CATEGORY, _NAME = (
    varint(field << 3) for field in (PACKET_TIMESTAMP, EVENT_TRACK, EVENT_CATEGORY_IID, EVENT_NAME_IID)
)


def packets(events: Events) -> bytes:
    """The packets of events."""
    columns = (events.kind, events.ts, events.track, events.category, events.name)
    pieces = events.blobs.pieces() if events.blobs else [b""] * len(events)
    return b"".join(map(_packet, *(column.tolist() for column in columns), pieces))


def _packet(kind: int, ts: int, track: int, category: int, name: int, blob: bytes) -> bytes:
    event = _KINDS[kind] + _TRACK + varint(track)
    if category:
        event += _CATEGORY + varint(category)
    if name:
        event += _NAME + varint(name)
    flags = _FLAGS if kind != END and kind != COUNTER else b""
    return message(1, _TIMESTAMP + varint(ts) + _SEQUENCE + flags + message(PACKET_EVENT, event + blob))


def slice_args(track: SliceTrack, encoder: ArgsEncoder) -> list[bytes]:
    """The args of each slice of an added track."""
    made = [b""] * len(track.ts)
    for name, values in track.args.items():
        if isinstance(values, Texts):
            which, blobs = text_args(values, name, encoder)
            codes = blobs.pieces()
            for row, code in enumerate(which.tolist()):
                made[row] += codes[code] if code >= 0 else b""
        else:
            encoder.key(name)
            for row, value in enumerate(values.tolist()):
                made[row] += encoder.arg(name, value) if value != -1 else b""
    return made
