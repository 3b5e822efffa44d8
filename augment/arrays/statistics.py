"""Mean, deviation and percentiles of values, and of stepping series weighted by time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from augment.arrays.ordering import grouped, ordered
from augment.arrays.types import Bools, Int64s, Places

OUTLIER = 3.5  #: robust deviations from the median beyond which a value is an outlier (Iglewicz and Hoaglin 1993)
FEWEST = 4  #: the least number of values among which outliers are defined
_MOST_KEYS = 1 << 62
_DEVIATION = 0.6745  #: the median absolute deviation of a normal distribution of deviation 1


class Distribution(NamedTuple):
    """Statistics of durations: sample deviation (over n - 1; 0 for one), percentiles interpolated linearly, as in
    pandas."""

    mean: float
    std: float
    min: int
    p25: float
    p50: float
    p75: float
    max: int


class TimeWeighted(NamedTuple):
    """Statistics of a stepping series, weighted by time. A percentile is the least value that the series does not
    exceed for that share of the time."""

    mean: float
    std: float
    p25: float
    p50: float
    p75: float


Summary = tuple[int, int, float, int, int, float]  #: count, sum, mean, minimum, maximum, sample deviation (0 for one)


def grouped_statistics(durations: Int64s, bounds: Places) -> Iterator[Summary]:
    """The summary of each group of ``durations``, between two adjacent ``bounds``; each group is non-empty."""
    starts, count = bounds[:-1], np.diff(bounds)
    if not len(starts):
        return
    total = np.add.reduceat(durations, starts)
    mean = total / count
    squares = np.add.reduceat((durations - np.repeat(mean, count)) ** 2, starts)
    std = np.sqrt(squares / np.maximum(count - 1, 1))
    least, greatest = np.minimum.reduceat(durations, starts), np.maximum.reduceat(durations, starts)
    columns = (count, total, mean, least, greatest, std)
    yield from zip(*(column.tolist() for column in columns), strict=True)


def grouped_medians(values: Int64s, code: Int64s, bounds: Places) -> npt.NDArray[np.float64]:
    """The median of the ``values`` of each ``code``; ``bounds`` are those of the groups, each of which is non-empty.
    For an even number of values it is the mean of the two in the middle."""
    low, groups = int(values.min(initial=0)), len(bounds) - 1
    span = int(values.max(initial=0)) - low + 1
    if values.dtype == np.int64 and span * groups < _MOST_KEYS:  # a single sort, of keys
        keys = code.astype(np.int64)
        keys *= span
        keys += values
        keys -= low
        ascending, less = ordered(keys), np.arange(groups) * span - low
    else:
        order = np.argsort(values)
        ascending, less = values[order[grouped(code[order], groups)]], np.zeros(groups, values.dtype)
    low, high = (ascending[place // 2] - less for place in (bounds[:-1] + bounds[1:] - 1, bounds[:-1] + bounds[1:]))
    medians: npt.NDArray[np.float64] = low + (high - low) / 2
    return medians


def distribution(durations: Int64s) -> Distribution | None:
    """The distribution of ``durations`` (int64, any order); None if there are none."""
    if not len(durations):
        return None
    ascending = ordered(durations)
    std = float(ascending.std(ddof=1)) if len(ascending) > 1 else 0.0
    p25, p50, p75 = (percentile(ascending, percent) for percent in (25, 50, 75))
    return Distribution(float(ascending.mean()), std, int(ascending[0]), p25, p50, p75, int(ascending[-1]))


def time_weighted(values: npt.NDArray[Any], held_ns: Int64s) -> TimeWeighted | None:
    """The statistics of a series that held each of ``values`` for ``held_ns`` (int64, >= 0); None if it held for no
    time."""
    time = int(held_ns.sum())
    if not time:
        return None
    narrow = values.dtype.kind == "i" and values.min() >= 0 and values.max() < 1 << 16
    order = np.argsort(values.astype(np.uint16) if narrow else values, kind="stable")  # 16 bits: sorted by radix
    until = np.cumsum(held_ns[order])
    p25, p50, p75 = (float(values[order[np.searchsorted(until, -(-time * quarter // 4))]]) for quarter in (1, 2, 3))
    weight = held_ns / time
    mean = float((values * weight).sum())  # np.dot's last digit depends on where its arrays lie in memory
    std = float(np.sqrt(((values - mean) ** 2 * weight).sum()))
    return TimeWeighted(mean, std, p25, p50, p75)


def beyond_others(values: Int64s, starts: Places) -> tuple[Int64s, Bools]:
    """By how much each of ``values`` exceeds the median of the others in its run; and whether there are others (else
    it is 0). A run begins at each of ``starts``, and its values ascend."""
    lengths = np.diff(np.append(starts, len(values)))
    first, count = np.repeat(starts, lengths), np.repeat(lengths, lengths)
    position = np.arange(len(values)) - first
    others = np.maximum(count - 1, 1)
    low, high = ((others - 1) // 2, others // 2)
    low, high = (np.minimum(first + bound + (bound >= position), len(values) - 1) for bound in (low, high))
    middle = values[low] + (values[high] - values[low]) // 2
    return np.where(count > 1, values - middle, 0), count > 1


def median(values: npt.NDArray[Any]) -> float:
    """The middle of numbers, or the mean of both middles; NaN of none: ``np.median`` without loading masked arrays."""
    if not len(values):
        return float("nan")
    middle = len(values) // 2
    low = middle - (len(values) % 2 == 0)
    parted = np.partition(values, [low, middle])
    return (float(parted[low]) + float(parted[middle])) / 2


def robust_z(values: Int64s) -> npt.NDArray[np.float64] | None:
    """The distance of each of ``values`` from their median, in robust deviations; None if too few, or if most are
    equal."""
    distance = values.astype(np.float64) - median(values)
    deviation = median(np.abs(distance)) / _DEVIATION
    return distance / deviation if len(values) >= FEWEST and deviation > 0 else None


def percentiles(values: Int64s, *percents: int) -> list[float]:
    """The :func:`percentile` of ``values`` (int64, not empty, in any order) for each of ``percents``."""
    last = len(values) - 1
    places = {last * percent // 100 for percent in percents}
    parted = np.partition(values, sorted({*places, *(min(place + 1, last) for place in places)}))
    return [percentile(parted, percent) for percent in percents]


def percentile(ascending: Int64s, percent: int) -> float:
    """The percentile of ``ascending`` (int64, not empty), interpolated linearly with integers and one final
    division."""
    place, rest = divmod((len(ascending) - 1) * percent, 100)
    low = int(ascending[place])
    return low + (int(ascending[place + 1]) - low) * rest / 100 if rest else float(low)
