"""The rows by kind of work: families of kernels, and the waiting between them. They add up to the step time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from augment.arrays.types import NO_INDEX
from augment.compare.calls import Side
from augment.compare.diff_rows import KindRow
from augment.compare.ledger import CONTROL, TEST, Ledger
from augment.compare.names import Names
from augment.compare.noise import chance_of, corrected
from augment.compare.tiling import TileKind, Tiles
from augment.compare.totals import verdict_of
from augment.facts.gpu.gpu_work import gpu_work

_COUNT, _SUM, _OWNED = range(3)
#: what time without a family is called
_WITHOUT = {
    TileKind.HOST_WAIT: "host_wait",
    TileKind.KERNEL_WAIT: "kernel_wait",
    TileKind.OTHER: "other_wait",
    TileKind.HOST: "host",
}


class ByKind:
    """Collects counts, sums of durations and owned time by kind of work.

    Args:
        steps: the number of compared steps.
        names: the names of both sides, also those of families.
    """

    def __init__(self, steps: int, names: Names) -> None:
        self._steps, self._names, self._lanes = steps, names, 0
        self._ledger = Ledger(3 * steps)

    def add_work(self, which: int, side: Side, devices: Sequence[int | None]) -> None:
        """Count the work of one rank's devices that was launched in the steps."""
        for device in devices:
            if device is None:
                continue
            gpu = gpu_work(side.trace).devices[device]
            places = np.arange(gpu.start, gpu.stop)
            places = places[side.work.step[places] >= 0]
            step, family = side.work.step[places].astype(np.int64), side.work.family[places]
            self._ledger.add(which, family, _COUNT * self._steps + step, np.ones(len(places), np.int64))
            self._ledger.add(which, family, _SUM * self._steps + step, side.work.ns[places])

    def add_tiles(self, which: int, tiles: Tiles) -> None:
        """Add the owners of one device's time."""
        self._lanes += which == TEST
        waiting = np.array([self._names.number(_WITHOUT.get(kind, "")) for kind in TileKind], np.int32)
        key = np.where(tiles.family == NO_INDEX, waiting[tiles.kind], tiles.family)
        self._ledger.add(which, key, _OWNED * self._steps + tiles.step, tiles.ns)

    def rows(self, judged_from: int = 0) -> list[KindRow]:
        """A row for each kind, the largest differences of owned time first."""
        entries = [(key, sums.reshape(2, 3, self._steps)) for key, sums in self._ledger if sums.any()]
        adjusted = corrected([chance_of(*sums[:, _OWNED, judged_from:].astype(np.float64)) for _, sums in entries])
        whole = sum(int(sums[TEST, _OWNED].sum() - sums[CONTROL, _OWNED].sum()) for _, sums in entries)
        rows = []
        for (key, sums), p in zip(entries, adjusted, strict=True):
            (count, total, owned), (count_after, total_after, owned_after) = sums.sum(axis=2).tolist()
            delta = owned_after - owned
            rows.append(
                KindRow(
                    kind_of_work=self._names.texts[key],
                    control_count=count,
                    test_count=count_after,
                    control_sum_ns=total,
                    test_sum_ns=total_after,
                    control_ns=owned,
                    test_ns=owned_after,
                    delta_ns=delta,
                    delta_per_step_ns=delta / (self._steps * max(self._lanes, 1)),
                    share_ratio=delta / whole if whole else None,
                    p=p,
                    verdict=verdict_of(p, delta),
                )
            )
        return sorted(rows, key=lambda row: (-abs(row.delta_ns), row.kind_of_work))
