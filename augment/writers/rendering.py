"""Renders templates and their columns as text, one per row."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct, field

from augment.arrays.types import Int64s
from augment.kernels.native import address, native
from augment.kernels.text_rows import CHOICE, LITERAL, NUMBER, TextStep
from augment.writers.render import Column, Number, Template, TemplateArgs, TemplateChoice, argument_key, rows_of

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
            self._add_to_pool(column)
        self.steps.append((kind, start, len(self.prefixes), detail, trim, arg))

    def _add_to_pool(self, column: TemplateChoice) -> None:
        for text in column.values:
            self.pool += text
            self.ends.append(len(self.pool))
        self.row_bytes += max(map(len, column.values), default=0)


def render(template: Template) -> Iterator[memoryview]:
    """The text of all rows, in pieces. Each piece is valid until the next."""
    program = _Program()
    for piece in template:
        if isinstance(piece, TemplateArgs):
            for name, column in piece.columns.items():
                program.add(argument_key(name), column, arg=True)
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
