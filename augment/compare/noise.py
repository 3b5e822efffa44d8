"""Is a difference more than noise? t-tests of pairs or of independent samples, bootstrap intervals, Holm's correction.

The steps of each side are the samples, and steps at equal positions form pairs. Variation that both sides share
(warm-up,
steps that depend on the data) is not noise of the difference:

- All-positive samples are compared by their logarithms, ``x`` of the control and ``y`` of the test, so that differences
  are ratios. Other samples are compared directly.
- The pairs are *alike* if ``F = var(x + y) / var(x - y)`` exceeds the quantile :data:`ALIKE` of Fisher's F distribution
  with n - 1 and n - 1 degrees of freedom; for independent samples of equal variance that is rare.
- If alike, the difference is ``mean(y - x) ± t(n - 1) * sd(y - x) / sqrt(n)``: Student's paired t-test.
- Otherwise it is ``mean(y) - mean(x) ± t(v) * sqrt(var(x) / n + var(y) / m)``: Welch's t-test on all samples of both
  sides.

A figure whose logarithms differ otherwise than its printed means is compared directly: an interval is of the number
beside it. With ``trim`` the means leave out that share of the smallest and of the largest samples, and Yuen's tests
take the place of Student's and Welch's: an outlier then hardly moves the estimate, nor widens the interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

ALPHA = 0.01  #: rate at which noise alone may be called a difference
CONFIDENCE = 0.95  #: of intervals
ALIKE = 0.95  #: quantile of Fisher's F: 1 - ALIKE is the rate at which independent steps are paired
TRIM = 0.2  #: share of the shortest steps, and of the longest, that a robust estimate leaves out
FEWEST = 3  #: steps a side for an interval; Student's t of one degree of freedom reaches anywhere
IRREGULAR = 2  #: times the larger mean: an interval that is wider is of samples too irregular to judge
NEAR = 0.1  #: of the means and their difference: a ratio that differs from this by more is of something else
ROUNDING = 1e-12  #: differences below this fraction of the means count as 0
MOST_STEPS = 10_000  #: the largest advice
RESAMPLES = 2000
SEED = 20_240_501

Floats = npt.NDArray[np.float64]


class Noise(Struct, frozen=True):
    """The noise of the difference, test minus control, in the figure's unit.

    ``p`` is the probability of such a difference by chance; ``delta`` is the estimate of the difference (of ratios:
    their mean times the control's mean); ``low`` to ``high`` is its confidence interval by the t-test,
    ``bootstrap_low`` to ``bootstrap_high`` by resampling. ``paired`` says that steps were compared in pairs.
    """

    p: float
    delta: float
    low: float
    high: float
    bootstrap_low: float
    bootstrap_high: float
    paired: bool


class _Samples(Struct, frozen=True):
    """Transformed samples: ``unit`` is the control's (trimmed) mean if they are logarithms, else None.

    ``error`` is the standard error of ``delta``, 0 without any variation; ``freedom`` is its degrees of freedom.
    """

    control: Floats
    test: Floats
    unit: float | None
    paired: bool
    delta: float
    error: float
    freedom: float

    @property
    def p(self) -> float:
        if not self.error:
            return 0.0 if self.delta else 1.0
        return 2 * tail_of_student(abs(self.delta) / self.error, self.freedom)

    def in_unit(self, difference: float) -> float:
        """``difference`` in the figure's unit."""
        return difference if self.unit is None else self.unit * math.expm1(difference)


def noise_of(
    control: Floats, test: Floats, confidence: float = CONFIDENCE, trim: float = 0.0, ratios: bool = True
) -> Noise | None:
    """The noise of the difference; None (unknown) if a side has fewer than two samples. Without ``ratios`` positive
    samples are compared directly, too."""
    compared = _compared(control, test, trim, ratios)
    if compared is None:
        return None
    reach = quantile_of_student((1 + confidence) / 2, compared.freedom) * compared.error if compared.error else 0.0
    if compared.error:
        # The percentile interval of the difference, of pairs or of each side's samples; deterministic
        random = np.random.default_rng(SEED)
        sides = [compared.test - compared.control] if compared.paired else [compared.control, compared.test]
        means = [side[random.integers(0, len(side), (RESAMPLES, len(side)))].mean(axis=1) for side in sides]
        differences = means[0] if compared.paired else means[1] - means[0]
        low, high = np.quantile(differences, ((1 - confidence) / 2, (1 + confidence) / 2))
        low, high = float(low), float(high)
    else:
        low, high = (compared.delta, compared.delta)
    return Noise(
        p=compared.p,
        delta=compared.in_unit(compared.delta),
        low=compared.in_unit(compared.delta - reach),
        high=compared.in_unit(compared.delta + reach),
        bootstrap_low=compared.in_unit(low),
        bootstrap_high=compared.in_unit(high),
        paired=compared.paired,
    )


def interval_of(control: Floats, test: Floats) -> Noise | None:
    """The noise of the difference of the means; None if steps are too few, or too irregular to judge."""
    means = float(control.mean()), float(test.mean())
    noise = noise_of(control, test) if min(len(control), len(test)) >= FEWEST else None
    if noise and abs(noise.delta - (means[1] - means[0])) > NEAR * min(abs(means[1] - means[0]), *map(abs, means)):
        noise = noise_of(control, test, ratios=False)
    return None if noise is None or is_irregular(noise, control, test) else noise


def is_irregular(noise: Noise, control: Floats, test: Floats) -> bool:
    """Whether an interval is so wide that it says nothing."""
    return noise.high - noise.low > IRREGULAR * max(abs(float(control.mean())), abs(float(test.mean())))


def hidden_by_outliers(control: Floats, test: Floats) -> Noise | None:
    """The noise of the trimmed means, where these differ by more than chance and the means do not; else None."""
    plain, trimmed = noise_of(control, test), noise_of(control, test, trim=TRIM)
    if plain is None or trimmed is None or plain.low * plain.high > 0 or trimmed.low * trimmed.high <= 0:
        return None
    return trimmed


def chance_of(control: Floats, test: Floats) -> float | None:
    """Only the ``p`` of :func:`noise_of`; None with fewer than :data:`FEWEST` samples on a side."""
    compared = _compared(control, test) if min(len(control), len(test)) >= FEWEST else None
    return None if compared is None else compared.p


def trimmed_mean(samples: Floats, trim: float) -> float:
    """The mean without the share ``trim`` of the smallest samples, and of the largest."""
    cut = int(trim * len(samples))
    return float(np.sort(samples)[cut : len(samples) - cut].mean())


def steps_lacking(control: Floats, test: Floats, allowed: float, confidence: float, trim: float = 0.0) -> int | None:
    """The number of additional steps per side for an interval narrower than ``allowed``, in the figure's unit.

    Assumes that they vary like the existing ones. None if unknown, or more than :data:`MOST_STEPS`.
    """
    compared = _compared(control, test, trim)
    if compared is None or allowed <= 0:
        return None
    width = allowed if compared.unit is None else math.log1p(allowed / compared.unit)
    have = min(len(compared.control), len(compared.test))

    def narrow(count: int) -> bool:
        freedom, error = compared.freedom * (count - 1) / (have - 1), compared.error * math.sqrt(have / count)
        return 2 * quantile_of_student((1 + confidence) / 2, freedom) * error < width

    low, high = have, MOST_STEPS
    if not narrow(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if narrow(middle) else (middle, high)
    return high - have


def corrected(ps: Sequence[float | None]) -> list[float | None]:
    """Holm's adjusted probabilities, which bound the rate of any false positive among all tests."""
    known = sorted((p, place) for place, p in enumerate(ps) if p is not None)
    adjusted: list[float | None] = [None] * len(ps)
    least = 0.0
    for rank, (p, place) in enumerate(known):
        least = max(least, min(1.0, p * (len(known) - rank)))
        adjusted[place] = least
    return adjusted


def _compared(control: Floats, test: Floats, trim: float = 0.0, ratios: bool = True) -> _Samples | None:
    """The comparison of samples, in pairs if they are alike."""
    if min(len(control), len(test)) < 2:
        return None
    unit = None
    if ratios and control.min() > 0 and test.min() > 0:
        unit, control, test = trimmed_mean(control, trim), np.log(control), np.log(test)
    count = min(len(control), len(test))
    before, after = control[:count], test[:count]
    together, apart = float((before + after).var()), float((before - after).var())
    # whether the pairs are alike: their sums vary more than their differences, by more than chance
    if together > 0 and tail_of_fisher(together / apart if apart else math.inf, count - 1) < 1 - ALIKE:
        mean, variance, pairs = _location(after - before, trim)
        compared = _Samples(before, after, unit, True, mean, math.sqrt(variance), pairs - 1)
    else:
        sides = [_location(side, trim) for side in (control, test)]
        variance = sum(variance for _, variance, _ in sides)
        parts = sum(variance**2 / (count - 1) for _, variance, count in sides)
        freedom = variance**2 / parts if parts else 1.0
        compared = _Samples(control, test, unit, False, sides[1][0] - sides[0][0], math.sqrt(variance), freedom)
    least = ROUNDING * max(1.0 if unit else 0.0, abs(float(control.mean())), abs(float(test.mean())))
    if compared.error <= least:
        return replace(compared, delta=compared.delta if abs(compared.delta) > least else 0.0, error=0.0)
    return compared


def _location(samples: Floats, trim: float) -> tuple[float, float, int]:
    """The trimmed mean, its variance (of the samples with their extremes pulled in), and how many samples it is of."""
    cut = int(trim * len(samples))
    ordered = np.sort(samples)
    kept = ordered[cut : len(samples) - cut]
    pulled_in = float(np.clip(ordered, kept[0], kept[-1]).var(ddof=1))
    return float(kept.mean()), pulled_in * (len(samples) - 1) / (len(kept) * (len(kept) - 1)), len(kept)


# Student's t and Fisher's F distributions: all that would be needed of SciPy.
#
# SciPy is larger than all other requirements together, which matters on CI machines that only run the gate.


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
