"""Is a difference more than noise? t-tests of pairs or of independent samples, bootstrap intervals, Holm's correction.

The steps of each side are the samples, and steps at one position are a pair. What varies from step to step on both
sides alike (warm-up, steps that depend on the data) is no noise of the difference:

- samples that are all positive are compared by their logarithms, ``x`` of the control and ``y`` of the test, so that
  differences are ratios. Others are compared as they are;
- the pairs are *alike* if ``F = var(x + y) / var(x - y)`` is greater than the quantile :data:`ALIKE` of Fisher's
  distribution of n - 1 and n - 1 degrees of freedom: of independent samples of equal variance it seldom is;
- alike, the difference is ``mean(y - x) ± t(n - 1) * sd(y - x) / sqrt(n)``, Student's t-test of pairs;
- else it is ``mean(y) - mean(x) ± t(v) * sqrt(var(x) / n + var(y) / m)``, Welch's t-test, with all samples of both
  sides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from augment.comparison.student import quantile_of_student, tail_of_fisher, tail_of_student

ALPHA = 0.01  #: how often noise alone may be called a difference
CONFIDENCE = 0.95  #: of an interval
ALIKE = 0.95  #: of Fisher's F: how rarely independent steps may be taken for pairs
ROUNDING = 1e-12  #: what is less beside the means is none
MOST_STEPS = 10_000  #: more are never asked for
RESAMPLES = 2000
SEED = 20_240_501

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Noise:
    """Of the difference, test less control, in the figure's unit.

    ``p`` is the probability of one as large by chance; ``delta`` the estimate of the difference, of ratios their mean
    times the control's mean; ``low`` to ``high`` its confidence interval by the t-test, ``bootstrap_low`` to
    ``bootstrap_high`` by resampling. ``paired`` says that steps were compared in pairs.
    """

    p: float
    delta: float
    low: float
    high: float
    bootstrap_low: float
    bootstrap_high: float
    paired: bool


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Samples as they are compared: ``unit`` is the control's mean if they are logarithms, else None.

    ``error`` is the standard error of ``delta``, 0 of what never varies; ``freedom`` its degrees of freedom.
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
        """A difference in the figure's unit."""
        return difference if self.unit is None else self.unit * math.expm1(difference)


def noise_of(control: Floats, test: Floats, confidence: float = CONFIDENCE) -> Noise | None:
    """The noise of the difference; None if a side has fewer than two samples: then it is not known."""
    one = _compared(control, test)
    if one is None:
        return None
    reach = quantile_of_student((1 + confidence) / 2, one.freedom) * one.error if one.error else 0.0
    low, high = _bootstrap(one, confidence) if one.error else (one.delta, one.delta)
    return Noise(
        p=one.p,
        delta=one.in_unit(one.delta),
        low=one.in_unit(one.delta - reach),
        high=one.in_unit(one.delta + reach),
        bootstrap_low=one.in_unit(low),
        bootstrap_high=one.in_unit(high),
        paired=one.paired,
    )


def chance_of(control: Floats, test: Floats) -> float | None:
    """The ``p`` of :func:`noise_of` alone."""
    one = _compared(control, test)
    return None if one is None else one.p


def steps_lacking(control: Floats, test: Floats, allowed: float, confidence: float) -> int | None:
    """How many more steps a side need for an interval narrower than from nothing to ``allowed``, in the figure's unit.

    That is if they vary as those that there are; None if it is not known, or more than :data:`MOST_STEPS`.
    """
    one = _compared(control, test)
    if one is None or allowed <= 0:
        return None
    width = allowed if one.unit is None else math.log1p(allowed / one.unit)
    have = min(len(one.control), len(one.test))

    def narrow(count: int) -> bool:
        freedom, error = one.freedom * (count - 1) / (have - 1), one.error * math.sqrt(have / count)
        return 2 * quantile_of_student((1 + confidence) / 2, freedom) * error < width

    low, high = have, MOST_STEPS
    if not narrow(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if narrow(middle) else (middle, high)
    return high - have


def corrected(ps: Sequence[float | None]) -> list[float | None]:
    """Holm's adjusted probabilities: those below alpha are wrong, all together, no more often than alpha."""
    known = sorted((p, place) for place, p in enumerate(ps) if p is not None)
    adjusted: list[float | None] = [None] * len(ps)
    least = 0.0
    for rank, (p, place) in enumerate(known):
        least = max(least, min(1.0, p * (len(known) - rank)))
        adjusted[place] = least
    return adjusted


def _compared(control: Floats, test: Floats) -> _Comparison | None:
    """The samples compared, in pairs if they are alike."""
    if min(len(control), len(test)) < 2:
        return None
    unit = None
    if control.min() > 0 and test.min() > 0:
        unit, control, test = float(control.mean()), np.log(control), np.log(test)
    count = min(len(control), len(test))
    pairs = control[:count], test[:count]
    one = _pairwise(*pairs, unit) if _are_alike(*pairs) else _welch(control, test, unit)
    least = ROUNDING * max(1.0 if unit else 0.0, abs(float(control.mean())), abs(float(test.mean())))
    if one.error <= least:
        return replace(one, delta=one.delta if abs(one.delta) > least else 0.0, error=0.0)
    return one


def _are_alike(control: Floats, test: Floats) -> bool:
    together, apart = float((control + test).var()), float((control - test).var())
    return together > 0 and tail_of_fisher(together / apart if apart else math.inf, len(control) - 1) < 1 - ALIKE


def _pairwise(control: Floats, test: Floats, unit: float | None) -> _Comparison:
    apart = test - control
    error = float(apart.std(ddof=1)) / math.sqrt(len(apart))
    return _Comparison(control, test, unit, True, float(apart.mean()), error, len(apart) - 1)


def _welch(control: Floats, test: Floats, unit: float | None) -> _Comparison:
    delta = float(test.mean() - control.mean())
    shares = [float(side.var(ddof=1)) / len(side) for side in (control, test)]
    parts = sum(share**2 / (len(side) - 1) for share, side in zip(shares, (control, test), strict=True))
    freedom = sum(shares) ** 2 / parts if parts else 1.0
    return _Comparison(control, test, unit, False, delta, math.sqrt(sum(shares)), freedom)


def _bootstrap(one: _Comparison, confidence: float) -> tuple[float, float]:
    """The percentile interval of the difference, of pairs or of each side's samples; the same for the same samples."""
    random = np.random.default_rng(SEED)
    sides = [one.test - one.control] if one.paired else [one.control, one.test]
    means = [side[random.integers(0, len(side), (RESAMPLES, len(side)))].mean(axis=1) for side in sides]
    differences = means[0] if one.paired else means[1] - means[0]
    low, high = np.quantile(differences, ((1 - confidence) / 2, (1 + confidence) / 2))
    return float(low), float(high)
