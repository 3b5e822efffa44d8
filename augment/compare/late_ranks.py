"""Whether most ranks of a job only wait for a rank whose own work takes longer.

A collective ends on all its ranks together. So if a rank is late, exposed communication grows on all the others, and
the mean of all ranks shows it as the largest part of the difference, although the cause is on the late rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from augment.compare.ledger import TEST
from augment.compare.names import Names
from augment.compare.tiling import TileKind, Tiles
from augment.core.text import signed_text

MOST = 0.5  #: of the difference: what is communication on the other ranks, and what the cause explains on the late one
FEW = 0.25  #: of the others' communication: no more than this is on the late rank
_CAUSES = {
    TileKind.COMPUTATION: "computing",
    TileKind.EXPOSED_MEMORY: "exposed copies",
    TileKind.HOST_WAIT: "waiting for the host",
    TileKind.OTHER: "other waits",
}


class RankParts:
    """By how much a rank's time differs, ns over all steps, by kind, and by what the host did while it was waited for.

    Args:
        label: what the rank is called.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self._ns: Counter[tuple[TileKind, int]] = Counter()

    def add(self, side: int, tiles: Tiles) -> None:
        """Add the tiles of one of its devices on one side."""
        name = np.where(tiles.kind == TileKind.HOST_WAIT, tiles.name, -1).astype(np.int64)
        keys, which = np.unique(tiles.kind.astype(np.int64) << 32 | (name + 1), return_inverse=True)
        sums = np.zeros(len(keys), np.int64)
        np.add.at(sums, which, tiles.ns)
        for key, ns in zip(keys.tolist(), sums.tolist(), strict=True):
            self._ns[TileKind(key >> 32), (key & (1 << 32) - 1) - 1] += ns if side == TEST else -ns

    @property
    def total_ns(self) -> int:
        """Of everything."""
        return sum(self._ns.values())

    @property
    def communication_ns(self) -> int:
        """Of exposed communication."""
        return self._ns[TileKind.EXPOSED_COMMUNICATION, -1]

    def cause(self, sign: int, names: Names) -> tuple[str, int]:
        """What else differs most in the direction ``sign``, and by how much."""
        parts = [(sign * ns, kind, name) for (kind, name), ns in self._ns.items() if kind in _CAUSES]
        if not parts:
            return "", 0
        ns, kind, name = max(parts)
        return _CAUSES[kind] + (f" ({names.texts[name]})" if name >= 0 else ""), ns


def late_rank(ranks: Sequence[RankParts], steps: int, names: Names) -> str:
    """A sentence on the one rank that others wait for longer than before, or no longer; empty if there is none.

    Args:
        ranks: of the job.
        steps: how many steps were compared.
        names: of both sides.
    """
    if len(ranks) < 2:
        return ""
    mean = sum(rank.total_ns for rank in ranks) / len(ranks)
    sign = 1 if mean > 0 else -1
    waits = [sign * rank.communication_ns for rank in ranks]
    late = min(range(len(ranks)), key=waits.__getitem__)
    others = np.delete(waits, late)
    if others.min() < MOST * abs(mean) or waits[late] > FEW * others.min() or not mean:
        return ""
    cause, ns = ranks[late].cause(sign, names)
    if ns < MOST * (float(np.median(others)) - waits[late]):
        return ""
    size = signed_text(sign * ns / max(steps, 1), "ns")
    who = "the other rank" if len(ranks) == 2 else "the other ranks"
    where = f"On {ranks[late].label} communication takes {'no longer' if sign > 0 else 'as long as before'}"
    return f"{where}: there it is {cause}, {size}, and {who} may only {'wait' if sign > 0 else 'have waited'} for it."
