"""Student's t and Fisher's F distributions: all that would be needed of SciPy.

SciPy is larger than all other requirements together, which matters on CI machines that only run the gate.
"""

from __future__ import annotations

import math


def tail_of_student(t: float, freedom: float) -> float:
    """The probability that Student's t with ``freedom`` degrees of freedom exceeds ``t`` >= 0."""
    return 0.5 * _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def quantile_of_student(probability: float, freedom: float) -> float:
    """The quantile of Student's t at ``probability`` > 0.5, by bisection."""
    low, high = 0.0, 1.0
    while tail_of_student(high, freedom) > 1 - probability:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail_of_student(middle, freedom) > 1 - probability else (low, middle)
    return (low + high) / 2


def tail_of_fisher(f: float, freedom: float) -> float:
    """The probability that Fisher's F with ``freedom`` degrees of freedom on both sides exceeds ``f`` >= 0."""
    return _incomplete_beta(freedom / 2, freedom / 2, 1 / (1 + f))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by Lentz's method on its continued fraction (DLMF 8.17.22)."""
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
    """``value``, but never 0."""
    return value if abs(value) > tiny else tiny
