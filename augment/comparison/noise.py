"""Is a difference more than noise? Welch's t-test, a bootstrap interval, and Holm's correction.

The steps of each side are the samples. Student's distribution is computed here: the one thing that would be needed of
SciPy, whose installation is larger than everything else together, on machines of CI that want nothing but the gate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ALPHA = 0.01  #: how often noise alone may be called a difference
CONFIDENCE = 0.95  #: of an interval
ROUNDING = 1e-12  #: what is less beside the means is none
RESAMPLES = 2000
SEED = 20_240_501

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Noise:
    """Of the difference of means, test less control: the probability ``p`` of one as large by chance, the interval by
    Welch, ``low`` to ``high``, and by resampling, ``bootstrap_low`` to ``bootstrap_high``, of the same confidence."""

    p: float
    low: float
    high: float
    bootstrap_low: float
    bootstrap_high: float


def noise_of(control: Floats, test: Floats, confidence: float = CONFIDENCE) -> Noise | None:
    """The noise of the difference of means; None if a side has fewer than two samples: then it is not known."""
    p = chance_of(control, test)
    if p is None:
        return None
    delta, error, freedom = _welch(control, test)
    if not error:
        return Noise(p, delta, delta, delta, delta)
    reach = quantile_of_student((1 + confidence) / 2, freedom) * error
    return Noise(p, delta - reach, delta + reach, *_bootstrap(control, test, confidence))


def chance_of(control: Floats, test: Floats) -> float | None:
    """The ``p`` of :func:`noise_of` alone."""
    if min(len(control), len(test)) < 2:
        return None
    delta, error, freedom = _welch(control, test)
    if not error:
        return 0.0 if delta else 1.0
    return 2 * tail_of_student(abs(delta) / error, freedom)


def corrected(ps: Sequence[float | None]) -> list[float | None]:
    """Holm's adjusted probabilities: those below alpha are wrong, all together, no more often than alpha."""
    known = sorted((p, place) for place, p in enumerate(ps) if p is not None)
    adjusted: list[float | None] = [None] * len(ps)
    least = 0.0
    for rank, (p, place) in enumerate(known):
        least = max(least, min(1.0, p * (len(known) - rank)))
        adjusted[place] = least
    return adjusted


def _welch(control: Floats, test: Floats) -> tuple[float, float, float]:
    """The difference of means, its standard error (0 of counts that are the same in every step), the freedom."""
    delta = float(test.mean() - control.mean())
    shares = [float(side.var(ddof=1)) / len(side) for side in (control, test)]
    error = math.sqrt(sum(shares))
    least = ROUNDING * max(abs(float(control.mean())), abs(float(test.mean())))
    if error <= least:
        return delta if abs(delta) > least else 0.0, 0.0, 1.0
    parts = sum(share**2 / (len(side) - 1) for share, side in zip(shares, (control, test), strict=True))
    return delta, error, sum(shares) ** 2 / parts


def tail_of_student(t: float, freedom: float) -> float:
    """The probability that Student's t of ``freedom`` degrees exceeds ``t`` >= 0."""
    return 0.5 * _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def quantile_of_student(probability: float, freedom: float) -> float:
    """The t that is not exceeded with ``probability`` > 0.5: by bisection."""
    low, high = 0.0, 1.0
    while tail_of_student(high, freedom) > 1 - probability:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail_of_student(middle, freedom) > 1 - probability else (low, middle)
    return (low + high) / 2


def _bootstrap(control: Floats, test: Floats, confidence: float) -> tuple[float, float]:
    """The percentile interval of the difference of means; the same for the same samples."""
    random = np.random.default_rng(SEED)
    means = [side[random.integers(0, len(side), (RESAMPLES, len(side)))].mean(axis=1) for side in (control, test)]
    low, high = np.quantile(means[1] - means[0], ((1 - confidence) / 2, (1 + confidence) / 2))
    return float(low), float(high)


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (DLMF 8.17.22), after Lentz."""
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    tiny = 1e-300
    c, d = 1.0, 1 / _away(1 - (a + b) * x / (a + 1), tiny)
    fraction = d
    for m in range(1, 500):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _away(1 + numerator * d, tiny)
            c = _away(1 + numerator / c, tiny)
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * fraction


def _away(value: float, tiny: float) -> float:
    """``value``, but not zero."""
    return value if abs(value) > tiny else tiny
