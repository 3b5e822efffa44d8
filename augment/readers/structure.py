"""Finds where JSON values begin and end, with numpy over bytes. It needs no compiler and works for any layout."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from augment.arrays.types import Int32s, Int64s
from augment.readers.raw import Text

_KIND = np.zeros(256, np.int8)
_KIND[[ord("{"), ord("[")]] = 1
_KIND[[ord("}"), ord("]")]] = -1
_FIRST_BYTES = 4 << 10


class Structure(NamedTuple):
    """For each byte, int32: its bracket (1 opens, -1 closes, 0 for other bytes and inside strings), and the depth after
    it.
    """

    brackets: Int32s
    depth: Int32s


def structure(text: Text) -> Structure:
    """The structure of ``text``, which must begin outside of any string. Arrays of ``len(text)``."""
    quotes = text == ord('"')
    quotes[_escaped(text)] = False
    # a byte is in a string if an odd number of quotes stands before it; the closing quote itself counts as inside
    open_after = np.cumsum(quotes, dtype=np.int32) & 1
    in_string = (open_after | quotes).astype(np.bool_)
    brackets = np.where(in_string, np.int8(0), _KIND[text]).astype(np.int32)
    return Structure(brackets, np.cumsum(brackets, dtype=np.int32))


def _escaped(text: Text) -> Int64s:
    """Positions that a backslash escapes: those after a run of backslashes of odd length."""
    slashes = np.flatnonzero(text == ord("\\"))
    if not len(slashes):
        return slashes
    first = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)
    run = np.diff(first, append=len(slashes))
    after = slashes[first] + run
    escaped: Int64s = after[(run % 2 == 1) & (after < len(text))]
    return escaped


def nested_deeper(text: bytes, most: int) -> bool:
    """Whether braces and brackets nest deeper than ``most`` in one JSON value."""
    if text.count(b"{") + text.count(b"[") <= most:
        return False
    return bool(structure(np.frombuffer(text, np.uint8)).depth.max() > most)


def nested_end(text: Text) -> int:
    """The position after the object or array that ``text`` begins with; -1 if it does not end in ``text``."""
    size = 0
    while size < len(text):
        size = min(max(_FIRST_BYTES, 4 * size), len(text))  # most end soon, and no text is looked at more than twice
        closed = structure(text[:size]).depth == 0
        end = int(np.argmax(closed))
        if closed[end]:
            return end + 1
    return -1
