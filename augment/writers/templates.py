"""Renders templates of events and their columns as text, one per row."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from augment.arrays import Int64s, numbered
from augment.core import Texts
from augment.kernels.native import address, native
from augment.kernels.text_rows import CHOICE, LITERAL, NUMBER, TextStep


class Number(Struct, frozen=True):
    """A column of fixed-point numbers: ``values`` int64 are units of ``10 ** -decimals``.

    All ``decimals`` are written, unless ``trim`` leaves out zeros at the end, and the point when only they follow.
    """

    values: Int64s
    decimals: int = 0
    trim: bool = False


class TemplateChoice(Struct, frozen=True):
    """A column of JSON texts: ``codes`` int64 index ``values``."""

    codes: Int64s
    values: Sequence[bytes]


Column: TypeAlias = Number | TemplateChoice


class TemplateArgs(Struct, frozen=True):
    """Members ``"name":value`` of an object, with commas between; one whose value is ``NO_VALUE`` is left out."""

    columns: Mapping[str, Column]


Piece: TypeAlias = bytes | Column | TemplateArgs
Template: TypeAlias = Sequence[Piece]  #: the text of a row is the concatenation of its pieces
Rendered: TypeAlias = bytes | memoryview  #: a piece of the text; a view is only valid until the next


def micros(ns: Int64s) -> Number:
    """Nanoseconds as microseconds, the unit of Chrome files: exact, with three decimals."""
    return Number(ns, 3)


def number(values: Int64s | npt.NDArray[np.float64]) -> Column:
    """``values`` as JSON numbers: integers as they are, finite floats rounded to six decimals."""
    if values.dtype.kind in "iu":
        return Number(values.astype(np.int64, copy=False))
    if np.abs(values).max(initial=0.0) < 9e12:  # millionths fit in 64 bits
        return Number(np.rint(values * 1e6).astype(np.int64), 6, trim=True)
    return TemplateChoice(np.arange(len(values)), [b"%r" % value for value in values.tolist()])


def choice(texts: Texts) -> TemplateChoice:
    """``texts`` as JSON strings. Only texts that occur are encoded."""
    codes, which = numbered(texts.codes)
    none = int(np.count_nonzero(codes < 0))  # missing texts come first, and become NO_VALUE
    return TemplateChoice(which - none, [json_text(texts.values[i]) for i in codes[none:].tolist()])


def json_text(text: str) -> bytes:
    r"""``text`` as a JSON string in UTF-8, with ``\u`` escapes only where needed.

    Perfetto refuses a whole file because of an escaped half of a surrogate pair (all versions), or a string that ends
    in a backslash (before v53). The former becomes ``?``, the latter gets a trailing blank.
    """
    if text.endswith("\\"):
        text += " "
    return json.dumps(text, ensure_ascii=False).encode("utf-8", "replace")


def rows_of(template: Template) -> int:
    """The number of rows of a template's columns."""
    for piece in template:
        if isinstance(piece, Number):
            return len(piece.values)
        if isinstance(piece, TemplateChoice):
            return len(piece.codes)
    raise ValueError("a template needs a column")


_BUFFER_BYTES = 1 << 20
_ROWS = 1 << 14  #: rows whose columns are assembled at a time
_NUMBER_BYTES = 24  #: the longest number: a sign, 19 digits, a point and a leading zero
_SLACK = 8  #: bytes that a copy may read and write beyond the end


class _Program(Struct):
    """A template as arrays: one step per literal, column or arg. The prefix of a step is written first."""

    steps: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    columns: list[Int64s] = field(default_factory=list)
    prefixes: bytearray = field(default_factory=bytearray)
    pool: bytearray = field(default_factory=bytearray)
    ends: list[int] = field(default_factory=lambda: [0])  #: text i of the pool is ``ends[i]:ends[i + 1]``
    row_bytes: int = 0  #: the greatest length of a row

    def add(self, prefix: bytes, column: Column | None, *, arg: bool = False) -> None:
        """Add a step that writes ``prefix`` and a value of ``column``. A step of an ``arg`` without a value writes
        nothing.
        """
        start = len(self.prefixes)
        self.prefixes += prefix
        self.row_bytes += len(prefix)
        kind, detail, trim = LITERAL, 0, False
        if isinstance(column, Number):
            kind, detail, trim = NUMBER, column.decimals, column.trim
            self.columns.append(column.values)
            self.row_bytes += _NUMBER_BYTES
        elif isinstance(column, TemplateChoice):
            kind, detail = CHOICE, len(self.ends) - 1
            self.columns.append(column.codes)
            for text in column.values:
                self.pool += text
                self.ends.append(len(self.pool))
            self.row_bytes += max(map(len, column.values), default=0)
        self.steps.append((kind, start, len(self.prefixes), detail, trim, arg))


def render(template: Template) -> Iterator[memoryview]:
    """The text of all rows, in pieces. Each piece is valid until the next."""
    program = _Program()
    for piece in template:
        if isinstance(piece, TemplateArgs):
            for name, column in piece.columns.items():
                key = b"," + json_text(name) + b":"  # the comma is dropped before the first arg of a row
                program.add(key, column, arg=True)
            program.add(b"", None)  # args after these begin anew
        elif isinstance(piece, bytes):
            program.add(piece, None)
        else:
            program.add(b"", piece)
    yield from _run(program, rows_of(template))


def _run(program: _Program, count: int) -> Iterator[memoryview]:
    render_rows = native("text_rows.render_rows")
    steps = (TextStep * len(program.steps))(*program.steps)  # type: ignore[operator]
    prefixes, pool = (np.frombuffer(bytes(text) + bytes(_SLACK), np.uint8) for text in (program.prefixes, program.pool))
    ends = np.array(program.ends, np.int64)
    out = np.empty(max(_BUFFER_BYTES, 4 * program.row_bytes) + _SLACK, np.uint8)
    written = np.zeros(1, np.int64)
    block = np.empty((_ROWS, len(program.columns)), np.int64)
    tables = address(steps), len(steps), address(prefixes), address(pool), ends
    last = address(out) + len(out) - program.row_bytes - _SLACK
    for start in range(0, count, _ROWS):
        rows = min(_ROWS, count - start)
        for place, column in enumerate(program.columns):
            block[:rows, place] = column[start : start + rows]
        done = 0
        while done < rows:
            done = render_rows(*tables, block[:rows].ravel(), done, rows, address(out), last, written)
            yield out[: int(written[0]) - address(out)].data
