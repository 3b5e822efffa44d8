"""Names and call paths as numbers that both sides share."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from augment.arrays.ordering import compressed
from augment.arrays.types import NO_INDEX, Int32s, Int64s

#: patterns of what differs between runs in names of the same thing, and the replacements; extend them here
RUN_DEPENDENT: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^ProfilerStep\s*#\s*\d+$"), "ProfilerStep"),
    (re.compile(r"^(Torch-Compiled Region): \d+/\d+(?:_\d+)*$"), r"\1"),  # numbered in order of compilation
    (re.compile(r"^(enumerate\(DataLoader\))#_\w+\.__next__$"), r"\1"),  # loading in one process or in several
    (re.compile(r"0x[0-9a-fA-F]{5,}"), "0x…"),  # addresses
    (re.compile(r"\b(?=\w*\d)[0-9a-z]{24,}\b"), "…"),  # the digest of a compiled graph
)


def settled_name(name: str) -> str:
    """``name`` without the parts that differ between runs."""
    for pattern, stands_for in RUN_DEPENDENT:
        name = pattern.sub(stands_for, name)
    return name


def short_name(name: str) -> str:
    """HTA's short name: without everything in ``<>`` and ``()``, and only the part after the last blank.

    Copies, memsets, and names without such brackets are unchanged; so are names of which nothing would be left.
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
    """The names of both sides: equal names have equal numbers."""

    def __init__(self, *, short: bool = False) -> None:
        self.texts: list[str] = []
        self._short = short
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.texts)

    def of(self, codes: Int32s, strings: Sequence[str]) -> Int32s:
        """The numbers of ``codes``, which are indexes into ``strings``."""
        distinct, place_of = compressed(codes, len(strings))
        numbers = np.array([self.number(strings[code]) for code in distinct.tolist()], np.int32)
        result: Int32s = numbers[place_of[codes]] if len(codes) else codes
        return result

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
    """The call paths of both sides: a number for each chain of names from the outermost call inwards."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.parent: list[int] = []
        self.name: list[int] = []
        self._numbers: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.parent)

    def of(self, parent: Int32s, name: Int32s) -> Int32s:
        """The paths of calls ``name`` within calls of the paths ``parent`` (:data:`NO_INDEX` for none)."""
        key = (parent.astype(np.int64) + 1) << 32 | name
        distinct, which = np.unique(key, return_inverse=True)
        numbers = [self._number((int(code) >> 32) - 1, int(code) & 0xFFFFFFFF) for code in distinct.tolist()]
        return np.array(numbers, np.int32)[which]

    def chain(self, path: int) -> list[int]:
        """The paths from the outermost to ``path`` itself."""
        paths = []
        while path != NO_INDEX:
            paths.append(path)
            path = self.parent[path]
        return paths[::-1]

    def text(self, path: int) -> str:
        """The path as text, ``outer > inner``; empty for no path."""
        return " > ".join(self.names.texts[self.name[each]] for each in self.chain(path))

    def parents(self) -> Int64s:
        """The parent of each path, int64."""
        return np.array(self.parent, np.int64)

    def _number(self, parent: int, name: int) -> int:
        key = parent, name
        if key not in self._numbers:
            self._numbers[key] = len(self.parent)
            self.parent.append(parent)
            self.name.append(name)
        return self._numbers[key]
