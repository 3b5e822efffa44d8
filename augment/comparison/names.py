"""Names and call paths as numbers that both sides share."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from augment.arrays.ordering import compressed
from augment.arrays.types import Int32s, Int64s

#: what differs from run to run in the name of one and the same thing, and what stands for it: extend it here
RUN_DEPENDENT: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^ProfilerStep\s*#\s*\d+$"), "ProfilerStep"),
    (re.compile(r"^(Torch-Compiled Region): \d+/\d+(?:_\d+)*$"), r"\1"),  # numbered in the order of compilation
    (re.compile(r"^(enumerate\(DataLoader\))#_\w+\.__next__$"), r"\1"),  # by one process or by several
    (re.compile(r"0x[0-9a-fA-F]{5,}"), "0x…"),  # addresses
    (re.compile(r"\b(?=\w*\d)[0-9a-z]{24,}\b"), "…"),  # the digest of a compiled graph
)
NO_PATH = -1


def settled_name(name: str) -> str:
    """``name`` without what differs from run to run."""
    for pattern, stands_for in RUN_DEPENDENT:
        name = pattern.sub(stands_for, name)
    return name


def short_name(name: str) -> str:
    """HTA's short name: without all that stands in ``<>`` and ``()``, and of the rest what follows the last blank.

    Copies and memsets, and what has no such brackets, keep their name; so does what nothing would be left of.
    """
    if name.startswith(("Memcpy", "Memset")) or not ("<" in name or "(" in name):
        return name
    kept: list[str] = []
    depth = 0
    for char in name.replace("->", ""):
        if char in "<(":
            depth += 1
        elif char in ">)":
            depth = max(depth - 1, 0)
        elif not depth:
            kept.append(char)
    return "".join(kept).strip().rsplit(" ", 1)[-1] or name


class Names:
    """The names of both sides: a number for each that is the same."""

    def __init__(self, *, short: bool = False) -> None:
        self.texts: list[str] = []
        self._short = short
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.texts)

    def of(self, codes: Int32s, strings: Sequence[str]) -> Int32s:
        """The number of each of ``codes``, which index ``strings``."""
        distinct, place_of = compressed(codes, len(strings))
        numbers = np.array([self.number(strings[code]) for code in distinct.tolist()], np.int32)
        found: Int32s = numbers[place_of[codes]] if len(codes) else codes
        return found

    def number(self, name: str) -> int:
        """The number of ``name``."""
        text = settled_name(name)
        if self._short:
            text = short_name(text)
        if text not in self._numbers:
            self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return self._numbers[text]


class Paths:
    """The call paths of both sides: a number for each chain of names from a thread's outermost call inwards."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.parent: list[int] = []
        self.name: list[int] = []
        self._numbers: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.parent)

    def of(self, parent: Int32s, name: Int32s) -> Int32s:
        """The path of calls of ``name`` in calls of the path ``parent`` (:data:`NO_PATH` for none)."""
        key = (parent.astype(np.int64) + 1) << 32 | name
        distinct, which = np.unique(key, return_inverse=True)
        numbers = [self._number((int(one) >> 32) - 1, int(one) & 0xFFFFFFFF) for one in distinct.tolist()]
        return np.array(numbers, np.int32)[which]

    def chain(self, path: int) -> list[int]:
        """The paths from the outermost to ``path`` itself."""
        found = []
        while path != NO_PATH:
            found.append(path)
            path = self.parent[path]
        return found[::-1]

    def text(self, path: int) -> str:
        """``outer > inner``; nothing of no path."""
        return " > ".join(self.names.texts[self.name[one]] for one in self.chain(path))

    def parents(self) -> Int64s:
        """The path that each lies in, int64."""
        return np.array(self.parent, np.int64)

    def _number(self, parent: int, name: int) -> int:
        key = parent, name
        if key not in self._numbers:
            self._numbers[key] = len(self.parent)
            self.parent.append(parent)
            self.name.append(name)
        return self._numbers[key]
