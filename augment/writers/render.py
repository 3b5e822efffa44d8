"""Columns to JSON text: a template of an event and its columns in, one text a row out.

There are two ways that give the same bytes: :func:`_plain`, and for many rows the compiled one of
``render_native.py``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from augment.annotations import Texts
from augment.derived.ordering import numbered
from augment.kernels.load import Load
from augment.trace import Int64s

MISSING = -1  #: a member of :class:`Args` with this value or code is left out

_PLAIN_ROWS = 4096
_FEW_ROWS = 2000  #: for fewer rows of one template the compiled way is not worth its preparation
_MANY_ROWS = 50_000  #: loading the compiled code costs about as much as rendering so many rows without it
_load = Load()


@dataclass(frozen=True, slots=True)
class Number:
    """A column of fixed-point numbers: ``values`` int64 are units of ``10 ** -decimals``.

    All ``decimals`` are written, unless ``trim`` leaves out zeros at the end, and the point when only they follow.
    """

    values: Int64s
    decimals: int = 0
    trim: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """A column of JSON texts: ``codes`` int64 index ``values``."""

    codes: Int64s
    values: Sequence[bytes]


Column: TypeAlias = Number | Choice


@dataclass(frozen=True, slots=True)
class Args:
    """Members ``"name":value`` of an object, with commas between; one whose value is :data:`MISSING` is left out."""

    columns: Mapping[str, Column]


Piece: TypeAlias = bytes | Column | Args
Template: TypeAlias = Sequence[Piece]  #: the text of a row is that of its pieces, one after the other
Rendered: TypeAlias = bytes | memoryview  #: a piece of the text; a view is only valid until the next


def micros(ns: Int64s) -> Number:
    """Nanoseconds as the microseconds that Chrome files have: exactly, with three decimals."""
    return Number(ns, 3)


def number(values: Int64s | npt.NDArray[np.float64]) -> Column:
    """``values`` as JSON numbers: integers as they are, finite floats rounded to six decimals."""
    if values.dtype.kind in "iu":
        return Number(values.astype(np.int64, copy=False))
    if np.abs(values).max(initial=0.0) < 9e12:  # millionths fit in 64 bits
        return Number(np.rint(values * 1e6).astype(np.int64), 6, trim=True)
    return Choice(np.arange(len(values)), [b"%r" % value for value in values.tolist()])


def choice(texts: Texts) -> Choice:
    """``texts`` as JSON strings; only those that occur are encoded."""
    found, which = numbered(texts.codes)
    none = int(np.count_nonzero(found < 0))  # which stands first, and becomes MISSING
    return Choice(which - none, [json_text(texts.values[i]) for i in found[none:].tolist()])


def json_text(text: str) -> bytes:
    r"""``text`` as a JSON string in UTF-8 without ``\u`` escapes of what needs none.

    Perfetto refuses whole files over an escaped half of a surrogate pair (all versions) and over a string that ends in
    a backslash (before v53): the first becomes ``?`` and the second gets a blank.
    """
    if text.endswith("\\"):
        text += " "
    return json.dumps(text, ensure_ascii=False).encode("utf-8", "replace")


def rows_of(template: Template) -> int:
    """The number of rows of a template's columns."""
    for piece in template:
        if isinstance(piece, Number):
            return len(piece.values)
        if isinstance(piece, Choice):
            return len(piece.codes)
    raise ValueError("a template needs a column")


def argument_key(name: str) -> bytes:
    """``,"name":``, what comes before an arg's value; the first arg of a row goes without the comma."""
    return b"," + json_text(name) + b":"


Renderer: TypeAlias = Callable[[Template], Iterator[Rendered]]


def renderer(total: int) -> Renderer:
    """How to make the texts of every row of a template, in order and in bounded pieces, if ``total`` rows will come."""
    if not _load.pays(total, _MANY_ROWS):
        return _plain
    from augment.writers.render_native import render_native

    return lambda template: (render_native if rows_of(template) >= _FEW_ROWS else _plain)(template)


def _plain(template: Template) -> Iterator[bytes]:
    count = rows_of(template)
    for start in range(0, count, _PLAIN_ROWS):
        rows = slice(start, min(start + _PLAIN_ROWS, count))
        size = rows.stop - start
        columns = [_texts_of_piece(piece, rows, size) for piece in template]
        yield b"".join(map(b"".join, zip(*columns, strict=True)))


def _texts_of_piece(piece: Piece, rows: slice, size: int) -> Iterable[bytes]:
    if isinstance(piece, bytes):
        return itertools.repeat(piece, size)
    if isinstance(piece, Args):
        members = [_texts_of_arg(name, column, rows) for name, column in piece.columns.items()]
        return [b"".join(row)[1:] for row in zip(*members, strict=True)]
    return _texts(piece, rows)


def _texts_of_arg(name: str, column: Column, rows: slice) -> list[bytes]:
    """``,"name":value``, or nothing where there is no value."""
    key = argument_key(name)
    codes = (column.values if isinstance(column, Number) else column.codes)[rows]
    texts = [key + text for text in _texts(column, rows)]
    for row in np.flatnonzero(codes == MISSING).tolist():
        texts[row] = b""
    return texts


def _texts(column: Column, rows: slice) -> list[bytes]:
    if isinstance(column, Choice):
        return [column.values[code] if code != MISSING else b"" for code in column.codes[rows].tolist()]
    numbers = column.values[rows].tolist()
    if not column.decimals:
        return [b"%d" % value for value in numbers]
    scale = 10**column.decimals
    form = b"%%d.%%0%dd" % column.decimals
    texts = [form % divmod(value, scale) if value >= 0 else b"-" + form % divmod(-value, scale) for value in numbers]
    return [text.rstrip(b"0").rstrip(b".") for text in texts] if column.trim else texts
