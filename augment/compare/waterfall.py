"""Splits the difference of step time into parts that add up to it, to the nanosecond."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from msgspec import Struct

from augment.arrays.types import NO_INDEX, Int64s
from augment.compare.call_tables import change_of
from augment.compare.diff_rows import PartChange, PartRow
from augment.compare.ledger import CONTROL, TEST, Ledger
from augment.compare.names import Names, Paths
from augment.compare.noise import chance_of, corrected
from augment.compare.tiling import BEFORE, TileKind, Tiles
from augment.compare.totals import verdict_of
from augment.facts.gpu.kernel_families import UNKNOWN

NAMES_SHOWN = 4  #: kernel names shown per part
_BITS = 28  #: bits of a path, and of a name, in a key
_WORK = (TileKind.COMPUTATION, TileKind.EXPOSED_COMMUNICATION, TileKind.EXPOSED_MEMORY)


class _WaterfallPart(Struct, frozen=True):
    """The content of one part: owners (keys of the ledger) and their operator (a name's number)."""

    kind: TileKind
    operator: int
    keys: tuple[int, ...]
    renamed: bool = False


class Waterfall:
    """Collects the tiles of both sides, then yields the parts.

    Args:
        steps: the number of compared steps.
        names: the names of both sides.
        paths: the call paths of both sides.
    """

    def __init__(self, steps: int, names: Names, paths: Paths) -> None:
        self._ledger, self._names, self._paths = Ledger(steps), names, paths
        self._lanes = 0
        self._family: dict[int, int] = {}  # of each owner

    def add(self, side: int, tiles: Tiles) -> None:
        """Add the tiles of one rank's device."""
        self._lanes += side == TEST
        key = (tiles.kind.astype(np.int64) << 2 * _BITS) | (tiles.path.astype(np.int64) + 1) << _BITS
        key |= tiles.name.astype(np.int64) + 1
        self._ledger.add(side, key, tiles.step, tiles.ns)
        owners, first = np.unique(key, return_index=True)
        for owner, family in zip(owners.tolist(), tiles.family[first].tolist(), strict=True):
            self._family.setdefault(owner, family)

    def rows(self, operators: tuple[set[int], set[int]], judged_from: int = 0) -> list[PartRow]:
        """The parts, largest differences first.

        Args:
            operators: the paths of operators in the control, and in the test.
            judged_from: the first step that counts for the noise.
        """
        parts = [part for part in self._parts(operators) if self._sums(part).any()]
        sums = [self._sums(part) for part in parts]
        adjusted = corrected([chance_of(*part[:, judged_from:].astype(np.float64)) for part in sums])
        whole = sum(int(part[TEST].sum() - part[CONTROL].sum()) for part in sums)
        rows = [self._row(*part, whole) for part in zip(parts, sums, adjusted, strict=True)]
        return sorted(rows, key=lambda row: (-abs(row.delta_ns), row.kind, row.operator, row.test_names))

    def _parts(self, operators: tuple[set[int], set[int]]) -> Iterable[_WaterfallPart]:
        """Groups owners by operator and name. Owners of one side only go to the innermost operator of both sides.

        There they are matched by family, then whatever their family. Work that no operator launched, but an annotation
        (or a step) of both sides, is matched by family alone.
        """
        shared, every = operators[CONTROL] & operators[TEST], operators[CONTROL] | operators[TEST]
        before = self._names.number(BEFORE)
        owners: dict[tuple[TileKind, int, int], list[int]] = {}
        for key, _ in self._ledger:
            owners.setdefault((self._kind(key), self._operator(self._path(key)), self._name(key)), []).append(key)
        left: dict[tuple[TileKind, int, bool], list[list[int]]] = {}
        for (kind, operator, _), keys in owners.items():
            occurs = self._occurs(keys)
            home = self._home(keys[0], shared)
            if all(occurs) or kind not in _WORK or self._name(keys[0]) == before:
                yield _WaterfallPart(kind, operator, tuple(keys))
            elif home != NO_INDEX:
                left.setdefault((kind, self._operator(home), True), []).append(keys)
            elif not any(path in every for path in self._paths.chain(self._path(keys[0]))):
                left.setdefault((kind, operator, False), []).append(keys)
            else:
                yield _WaterfallPart(kind, operator, tuple(keys))
        for (kind, operator, is_operator), groups in left.items():
            yield from self._matched(kind, operator, groups, is_operator)

    def _matched(
        self, kind: TileKind, operator: int, groups: list[list[int]], is_operator: bool
    ) -> Iterator[_WaterfallPart]:
        """The parts of what only one side has: renamed where the other side has its like, else each by itself."""
        rest: list[list[int]] = []
        families: dict[int, list[list[int]]] = {}
        for keys in groups:
            families.setdefault(self._family[keys[0]], []).append(keys)
        for family, alike in families.items():
            together = tuple(key for keys in alike for key in keys)
            if self._names.texts[family] != UNKNOWN and all(self._occurs(together)):
                yield _WaterfallPart(kind, operator, together, renamed=True)
            else:
                rest += alike
        together = tuple(key for keys in rest for key in keys)
        if is_operator and together and all(self._occurs(together)):
            yield _WaterfallPart(kind, operator, together, renamed=True)
        else:
            yield from (_WaterfallPart(kind, self._operator(self._path(keys[0])), tuple(keys)) for keys in rest)

    def _occurs(self, keys: Sequence[int]) -> tuple[bool, bool]:
        """Whether any of ``keys`` owns time in the control, and in the test."""
        sums = [self._ledger[key] for key in keys]
        return any(owner[CONTROL].any() for owner in sums), any(owner[TEST].any() for owner in sums)

    def _home(self, key: int, shared: set[int]) -> int:
        """The path of the innermost operator around ``key`` that both sides have."""
        known = [path for path in self._paths.chain(self._path(key)) if path in shared]
        return known[-1] if known else NO_INDEX

    def _operator(self, path: int) -> int:
        """The name of the innermost call of ``path``."""
        return self._paths.name[path] if path != NO_INDEX else NO_INDEX

    def _kind(self, key: int) -> TileKind:
        return TileKind(key >> 2 * _BITS)

    def _name(self, key: int) -> int:
        return (key & (1 << _BITS) - 1) - 1

    def _path(self, key: int) -> int:
        return (key >> _BITS & (1 << _BITS) - 1) - 1

    def _sums(self, part: _WaterfallPart) -> Int64s:
        total: Int64s = sum((self._ledger[key] for key in part.keys), np.zeros((2, self._ledger.width), np.int64))
        return total

    def _row(self, part: _WaterfallPart, sums: Int64s, p: float | None, whole: int) -> PartRow:
        control, test = int(sums[CONTROL].sum()), int(sums[TEST].sum())
        delta = test - control
        return PartRow(
            kind=part.kind.name.lower(),
            change=_change(part, control, test),
            operator=self._names.texts[part.operator] if part.operator != NO_INDEX else "",
            path=self._paths.text(self._path(max(part.keys, key=self._difference))),
            control_names=self._texts(part, CONTROL),
            test_names=self._texts(part, TEST),
            control_ns=control,
            test_ns=test,
            delta_ns=delta,
            delta_per_step_ns=delta / (self._ledger.width * max(self._lanes, 1)),
            share_ratio=delta / whole if whole else None,
            p=p,
            verdict=verdict_of(p, delta),
        )

    def _difference(self, key: int) -> int:
        return abs(int(self._ledger[key][TEST].sum() - self._ledger[key][CONTROL].sum()))

    def _texts(self, part: _WaterfallPart, side: int) -> list[str]:
        """The names of the part's owners on one side, the longest first."""
        owners: dict[int, int] = {}
        for key in part.keys:
            name, ns = self._name(key), int(self._ledger[key][side].sum())
            if name >= 0 and ns:
                owners[name] = owners.get(name, 0) + ns
        longest = sorted(owners, key=lambda name: (-owners[name], name))[:NAMES_SHOWN]
        return [self._names.texts[name] for name in longest]


def _change(part: _WaterfallPart, control: int, test: int) -> PartChange:
    """The kind of change: work appears and disappears, waiting only grows and shrinks."""
    if part.renamed:
        return "renamed"
    change = change_of(control, test)
    if part.kind in _WORK:
        return change
    return "increased" if change == "added" else "decreased" if change == "deleted" else change
