"""The input of rendering: a template of an event and its columns. ``rendering.py`` makes one text per row from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from augment.arrays.ordering import numbered
from augment.arrays.types import Int64s
from augment.core.annotations import Texts

MISSING = -1  #: a member of :class:`TemplateArgs` with this value or code is left out


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
    """Members ``"name":value`` of an object, with commas between; one whose value is :data:`MISSING` is left out."""

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
    none = int(np.count_nonzero(codes < 0))  # missing texts come first, and become MISSING
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


def argument_key(name: str) -> bytes:
    """``,"name":``, the text before the value of an arg. The comma is dropped before the first arg of a row."""
    return b"," + json_text(name) + b":"
