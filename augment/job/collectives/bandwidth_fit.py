"""A model of the duration of collectives by size, Hockney's ``alpha + bytes / beta``; predictions for rings and trees.

The least-squares fit uses the median duration of each distinct size, weighted by the number of collectives, with errors
relative to the duration; alpha is not negative. It needs three sizes, the largest at least four times the smallest, and
predicts nothing beyond twice the largest.

A ring of n ranks does an all-reduce in ``2(n-1)`` hops, other collectives in ``n-1``. So the latency of a hop is alpha
divided by the hops, and the bandwidth is beta times nccl-tests' factor. With the same hops a double tree would take
``2·log2(n)·hop + 2·bytes/bandwidth`` (textbook).
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from augment.arrays.ordering import each
from augment.arrays.types import Int64s
from augment.facts.names.kernel_types import ALL_REDUCE, bus_factor
from augment.job.matching.matching import Floats

FEWEST_SIZES = 3
LEAST_RANGE = 4
BEYOND = 2  #: the fit is valid up to this multiple of the largest size


class Fit(Struct, frozen=True):
    """``alpha_ns`` and ``beta_gbps`` of ``count`` collectives of ``least`` to ``most`` bytes.

    ``r2`` is that of the relative durations.
    """

    alpha_ns: float
    beta_gbps: float
    r2: float
    count: int
    least: int
    most: int

    def predicted_ns(self, size: int) -> float | None:
        """The predicted duration of a collective of ``size`` bytes; None far beyond the fitted sizes."""
        return self.alpha_ns + size / self.beta_gbps if size <= BEYOND * self.most else None

    def tree_ns(self, kind: str, ranks: int, size: int) -> float | None:
        """The predicted duration of an all-reduce on trees with the same hops; None for other kinds."""
        if kind != ALL_REDUCE or ranks < 2:
            return None
        hop = self.alpha_ns / (2 * (ranks - 1))
        return 2 * math.log2(ranks) * hop + 2 * size / (self.beta_gbps * (bus_factor(kind, ranks) or 1))


def fit(size: Int64s, time_ns: Int64s) -> Fit | None:
    """Fit durations to sizes in bytes; None for too few or too similar sizes, or if larger ones do not take longer."""
    known = (size > 0) & (time_ns > 0)
    size, time_ns = size[known], time_ns[known]
    distinct, which, counts = np.unique(size, return_inverse=True, return_counts=True)
    if len(distinct) < FEWEST_SIZES or int(distinct[-1]) < LEAST_RANGE * int(distinct[0]):
        return None
    times = np.array([np.median(time_ns[rows]) for _, rows in each(which, len(distinct))])
    x, weight = distinct.astype(np.float64), counts / times**2
    alpha, slope = _line(x, times, weight)
    if slope <= 0:
        return None
    left = float((weight * (times - alpha - slope * x) ** 2).sum())
    level = float((weight * times).sum() / weight.sum())
    whole = float((weight * (times - level) ** 2).sum())
    return Fit(alpha, 1 / slope, 1 - left / whole if whole else 0.0, len(size), int(distinct[0]), int(distinct[-1]))


def _line(x: Floats, y: Floats, weight: Floats) -> tuple[float, float]:
    """The weighted least-squares fit of ``y = a + b·x`` with ``a`` not negative."""
    total = weight.sum()
    x0, y0 = (weight * x).sum() / total, (weight * y).sum() / total
    slope = float((weight * (x - x0) * (y - y0)).sum() / (weight * (x - x0) ** 2).sum())
    alpha = float(y0 - slope * x0)
    if alpha >= 0:
        return alpha, slope
    return 0.0, float((weight * x * y).sum() / (weight * x * x).sum())
