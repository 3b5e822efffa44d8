"""When did a figure change from run to run, and is a new run like those before it?

Both rules are for runs that vary independently and alike around a level that changes now and then; single outliers are
allowed. All-positive values are compared by their logarithms.

**Change points.** The spread is Qn (Rousseeuw and Croux 1993) of the differences between successive runs, divided by
the square root of 2: a level that changes affects one difference. Values further than :data:`CLIP` spreads from the
running median of five are moved there. For each split of the runs into two parts of at least :data:`FEWEST`, t is the
difference of the parts' means over its standard error; the largest is a change if its probability by Student's t, times
the number of splits (Bonferroni), is below half of :data:`ALPHA`. If none is, the same is done for each stretch against
the rest: a change that was undone. Each part is searched again (binary segmentation).

**Baseline.** The level is the median of the runs, and a new run lies within
``median ± t(v) * Qn * sqrt(1 + pi / (2 n))`` of it, a prediction interval of normal runs. Qn of few runs is less
certain than the standard deviation: with ``v = 0.65 (n - 1)`` degrees of freedom, simulated runs lie outside at the
nominal rate.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from augment.compare.student import quantile_of_student, tail_of_student

ALPHA = 0.01  #: rate at which a figure that never changed has a change point
FEWEST = 3  #: runs on each side of a change
CLIP = 2.0  #: spreads
LEAST_CHANGE = 0.01  #: smaller changes of the level, relative to it, are not told
EFFICIENCY = 0.65  #: degrees of freedom of Qn, relative to those of the standard deviation
_WINDOW = 5
_SMALL = {2: 0.399, 3: 0.994, 4: 0.512, 5: 0.844, 6: 0.611, 7: 0.857, 8: 0.669, 9: 0.872}

Floats = npt.NDArray[np.float64]


class Change(Struct, frozen=True):
    """From the run ``first`` on, an index, the median is ``after`` instead of ``before``."""

    first: int
    before: float
    after: float

    @property
    def ratio(self) -> float | None:
        """The change relative to the level before; None of a level of 0."""
        return (self.after - self.before) / abs(self.before) if self.before else None


class Prediction(Struct, frozen=True):
    """A new run has a figure from ``low`` to ``high``, and most likely ``level``."""

    level: float
    low: float
    high: float


def qn(values: Floats) -> float:
    """The spread of ``values``: an estimate of the standard deviation that half of them cannot spoil. Needs two."""
    count = len(values)
    apart = np.abs(values[:, None] - values[None, :])[np.triu_indices(count, 1)]
    half = count // 2 + 1
    place = half * (half - 1) // 2 - 1
    small = _SMALL.get(count, count / (count + (1.4 if count % 2 else 3.8)))
    return 2.2219 * small * float(np.partition(apart, place)[place])


def prediction(runs: Floats, confidence: float) -> Prediction:
    """Where a new run lies with ``confidence`` if it is like ``runs``, at least two."""
    logarithms = bool((runs > 0).all())
    values = np.log(runs) if logarithms else runs
    count, level = len(values), float(np.median(values))
    spread = qn(values) or float(values.std(ddof=1))
    reach = quantile_of_student((1 + confidence) / 2, EFFICIENCY * (count - 1))
    reach *= spread * math.sqrt(1 + math.pi / (2 * count))
    bounds = (level, level - reach, level + reach)
    return Prediction(*(math.exp(bound) for bound in bounds)) if logarithms else Prediction(*bounds)


def changes(runs: Floats, alpha: float = ALPHA) -> list[Change]:
    """The changes of the level of ``runs``, which are in order of time."""
    if len(runs) < 2 * FEWEST:
        return []
    values = np.log(runs) if (runs > 0).all() else runs
    differences = np.diff(values)
    spread = (qn(differences) or float(differences.std(ddof=1))) / math.sqrt(2)
    bounds = _merged(runs, [0, *sorted(_searched(_tamed(values, spread), 0, spread, alpha)), len(runs)])
    levels = [float(np.median(runs[a:b])) for a, b in itertools.pairwise(bounds)]
    return [Change(first, *levels[i : i + 2]) for i, first in enumerate(bounds[1:-1])]


def _tamed(values: Floats, spread: float) -> Floats:
    """The values with outliers moved towards the running median."""
    padded = np.pad(values, _WINDOW // 2, mode="reflect")
    middle = np.median(np.lib.stride_tricks.sliding_window_view(padded, _WINDOW), axis=1)
    return np.clip(values, middle - CLIP * spread, middle + CLIP * spread)


def _merged(runs: Floats, bounds: list[int]) -> list[int]:
    """The bounds between which the level changes by :data:`LEAST_CHANGE` at least."""
    while len(bounds) > 2:
        levels = [float(np.median(runs[a:b])) for a, b in itertools.pairwise(bounds)]
        sizes = [abs(b - a) / (abs(a) or 1.0) for a, b in itertools.pairwise(levels)]
        least = int(np.argmin(sizes))
        if sizes[least] >= LEAST_CHANGE:
            break
        del bounds[least + 1]
    return bounds


def _searched(values: Floats, offset: int, spread: float, alpha: float) -> list[int]:
    """The first places of new levels."""
    bounds = _split(values, spread, alpha) or _stretch(values, spread, alpha)
    if not bounds:
        return []
    bounds_ = [offset + bound for bound in bounds]
    for part, start in zip(np.split(values, bounds), (0, *bounds), strict=True):
        bounds_ += _searched(part, offset + start, spread, alpha)
    return bounds_


def _split(values: Floats, spread: float, alpha: float) -> list[int]:
    """The most probable split into two levels, if there is one."""
    count = len(values)
    places = np.arange(FEWEST, count - FEWEST + 1)
    if not len(places):
        return []
    before = np.cumsum(values)[places - 1]
    apart = np.abs(before / places - (values.sum() - before) / (count - places))
    t = _ratio(apart, spread * np.sqrt(1 / places + 1 / (count - places)))
    best = int(np.argmax(t))
    return [int(places[best])] if _is_change(float(t[best]), count, len(places), alpha) else []


def _stretch(values: Floats, spread: float, alpha: float) -> list[int]:
    """The most probable stretch of another level than what is around it, if there is one."""
    count = len(values)
    starts, ends = np.triu_indices(count + 1, FEWEST)
    inside = (starts >= FEWEST) & (ends <= count - FEWEST)
    starts, ends = starts[inside], ends[inside]
    if not len(starts):
        return []
    sums = np.concatenate(([0.0], np.cumsum(values)))
    length = ends - starts
    within = sums[ends] - sums[starts]
    apart = np.abs(within / length - (sums[-1] - within) / (count - length))
    t = _ratio(apart, spread * np.sqrt(1 / length + 1 / (count - length)))
    best = int(np.argmax(t))
    if not _is_change(float(t[best]), count, len(starts), alpha):
        return []
    return [int(starts[best]), int(ends[best])]


def _ratio(apart: Floats, error: Floats) -> Floats:
    """``apart / error``; differences beyond rounding without any error are infinitely many errors."""
    exact = np.where(apart > 1e-12, np.inf, 0.0)
    return np.divide(apart, error, out=exact, where=error > 0)


def _is_change(t: float, count: int, tries: int, alpha: float) -> bool:
    return t > 0 and (math.isinf(t) or 2 * tail_of_student(t, EFFICIENCY * (count - 1)) * tries < alpha / 2)
