"""What the writers' kernels write, once more in Python: row by row, text by text."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np

from augment.arrays.types import NO_VALUE
from augment.core.annotations import SliceTrack, Texts
from augment.writers.perfetto import wire
from augment.writers.perfetto.packets import ArgsEncoder, Events, text_args
from augment.writers.templates import Column, Number, Piece, Template, TemplateArgs, TemplateChoice, json_text, rows_of


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
    for row in np.flatnonzero(codes == NO_VALUE).tolist():
        texts[row] = b""
    return texts


def _texts(column: Column, rows: slice) -> list[bytes]:
    if isinstance(column, TemplateChoice):
        return [column.values[code] if code != NO_VALUE else b"" for code in column.codes[rows].tolist()]
    numbers = column.values[rows].tolist()
    if not column.decimals:
        return [b"%d" % value for value in numbers]
    scale = 10**column.decimals
    form = b"%%d.%%0%dd" % column.decimals
    texts = [form % divmod(value, scale) if value >= 0 else b"-" + form % divmod(-value, scale) for value in numbers]
    return [text.rstrip(b"0").rstrip(b".") for text in texts] if column.trim else texts


_SEQUENCE = wire.number(wire.PACKET_SEQUENCE, wire.SEQUENCE)
_FLAGS = wire.number(wire.PACKET_FLAGS, wire.NEEDED)
_KINDS = {kind: wire.number(wire.EVENT_TYPE, kind) for kind in range(5)}
_TIMESTAMP, _TRACK, _CATEGORY, _NAME = (
    wire.varint(field << 3)
    for field in (wire.PACKET_TIMESTAMP, wire.EVENT_TRACK, wire.EVENT_CATEGORY_IID, wire.EVENT_NAME_IID)
)


def packets(events: Events) -> bytes:
    """The packets of events."""
    columns = (events.kind, events.ts, events.track, events.category, events.name)
    pieces = events.blobs.pieces() if events.blobs else [b""] * len(events)
    return b"".join(map(_packet, *(column.tolist() for column in columns), pieces))


def _packet(kind: int, ts: int, track: int, category: int, name: int, blob: bytes) -> bytes:
    event = _KINDS[kind] + _TRACK + wire.varint(track)
    if category:
        event += _CATEGORY + wire.varint(category)
    if name:
        event += _NAME + wire.varint(name)
    flags = _FLAGS if kind != wire.END and kind != wire.COUNTER else b""
    return wire.message(
        1, _TIMESTAMP + wire.varint(ts) + _SEQUENCE + flags + wire.message(wire.PACKET_EVENT, event + blob)
    )


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
