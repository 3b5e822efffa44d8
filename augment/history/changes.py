"""When did a figure change from run to run, and is a new run like those before it?

Both rules are for runs that vary around a level that changes now and then; single outliers are allowed, and runs may
depend on those before them or be of two kinds. All-positive values are compared by their logarithms.

**Change points.** The spread is Qn (Rousseeuw and Croux 1993) of the differences between successive runs, divided by
the square root of 2: a level that changes affects one difference. Runs that depend on each other, or are of two kinds
of machines, vary more from month to month than that says: so the spread is also that of the differences between the
means of successive blocks of 2, 4, 8 … runs, times the root of half their length, which is the same for independent
runs; the largest counts. Values further than :data:`CLIP` spreads from the
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
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from augment.compare import gate, noise, totals
from augment.history.store import Run

ALPHA = 0.01  #: rate at which a figure that never changed has a change point
FEWEST = 3  #: runs on each side of a change
CLIP = 2.0  #: spreads
LEAST_CHANGE = 0.01  #: smaller changes of the level, relative to it, are not told
EFFICIENCY = 0.65  #: degrees of freedom of Qn, relative to those of the standard deviation
BLOCKS = 12  #: blocks of runs, at least, whose means tell how much runs depend on each other
DEPENDENCE_FROM = 32  #: runs; fewer do not tell
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
    reach = noise.quantile_of_student((1 + confidence) / 2, EFFICIENCY * (count - 1))
    reach *= spread * math.sqrt(1 + math.pi / (2 * count))
    bounds = (level, level - reach, level + reach)
    return Prediction(*(math.exp(bound) for bound in bounds)) if logarithms else Prediction(*bounds)


def series(runs: Sequence[Run], figure: str) -> Mapping[tuple[str, int], tuple[list[Run], list[Change]]]:
    """The runs with a figure by device and number of ranks, in their order, and its changes from run to run."""
    groups: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        if figure in run.figures:
            groups.setdefault((run.labels.get("device", ""), run.rank_count), []).append(run)
    medians = {key: [run.figures[figure].median for run in of] for key, of in groups.items()}
    return {key: (of, changes(np.array(medians[key], np.float64))) for key, of in groups.items()}


def changes(runs: Floats, alpha: float = ALPHA) -> list[Change]:
    """The changes of the level of ``runs``, which are in order of time."""
    if len(runs) < 2 * FEWEST:
        return []
    values = np.log(runs) if (runs > 0).all() else runs
    differences = np.diff(values)
    spread = (qn(differences) or float(differences.std(ddof=1))) / math.sqrt(2)
    # That of runs from which that of a mean follows as of independent ones
    length = 2 if len(values) >= DEPENDENCE_FROM else len(values)
    while BLOCKS * length <= len(values):
        means = np.convolve(values, np.full(length, 1 / length), "valid")
        spread = max(spread, qn(means[length:] - means[:-length]) * math.sqrt(length / 2))
        length *= 2
    # The values with outliers moved towards the running median
    padded = np.pad(values, _WINDOW // 2, mode="reflect")
    middle = np.median(np.lib.stride_tricks.sliding_window_view(padded, _WINDOW), axis=1)
    tamed = np.clip(values, middle - CLIP * spread, middle + CLIP * spread)
    # the bounds between which the level changes by LEAST_CHANGE at least
    bounds = [0, *sorted(_searched(tamed, 0, spread, alpha)), len(runs)]
    while True:
        levels = [float(np.median(runs[a:b])) for a, b in itertools.pairwise(bounds)]
        sizes = [abs(b - a) / (abs(a) or 1.0) for a, b in itertools.pairwise(levels)]
        if min(sizes, default=math.inf) >= LEAST_CHANGE:
            return [Change(first, *levels[i : i + 2]) for i, first in enumerate(bounds[1:-1])]
        del bounds[1 + int(np.argmin(sizes))]


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
    return t > 0 and (math.isinf(t) or 2 * noise.tail_of_student(t, EFFICIENCY * (count - 1)) * tries < alpha / 2)


# The gate against many runs: is a run worse than those before it by more than runs differ and more than the limit?


FEWEST_RUNS = 5  #: runs that make a baseline


class Baseline(Struct, frozen=True):
    """The runs of one figure since its level last changed; ``change`` is that change, at ``runs[0]``."""

    runs: Sequence[Run]
    change: Change | None


def baselines(runs: Sequence[Run]) -> Mapping[totals.Figure, Baseline]:
    """The baseline of each figure that any run has; ``runs`` are in order of time."""
    made = {}
    for figure in totals.FIGURES:
        having = [run for run in runs if figure.name in run.figures]
        changed = changes(_values(having, figure))
        last = changed[-1] if changed else None
        if having:
            made[figure] = Baseline(having[last.first :] if last else having, last)
    return made


def check(baseline: Mapping[totals.Figure, Baseline], run: Run, limits: gate.GateLimits) -> list[gate.Line]:
    """A line for each gated figure of ``run``, then for each other figure that is not as usual.

    A run fails where its change exceeds the limit and it is outside the prediction interval of the runs before it. It
    is uncertain where the interval contains both no change and a change as large as the limit, and with fewer than
    :data:`FEWEST_RUNS` runs. ``limits.alpha`` is the rate of runs like those before that are
    outside on either side: half of it for the step, half for all other gated figures.
    """
    limited = [(figure, limit) for figure in totals.FIGURES if (limit := limits.of(figure)) is not None]
    others = max(sum(figure.name != gate.WHOLE for figure, _ in limited), 1)
    step = run.figures[gate.WHOLE].median
    lines = []
    for figure, limit in limited:
        confidence = 1 - limits.alpha / (1 if figure.name == gate.WHOLE else others)
        lines.append(_line(figure, limit, baseline.get(figure), run, confidence, step))
    for figure, known in baseline.items():
        if limits.of(figure) is None and figure.name in run.figures and len(known.runs) >= FEWEST_RUNS:
            line = _line(figure, gate.Limit(share=0.0), known, run, 1 - limits.alpha, step)
            if line.low is not None and line.high is not None and line.low * line.high > 0 and _matters(line, step):
                reason = "unlike the runs before; not gated"
                lines.append(gate.Line(figure, None, "info", reason, line.control, line.test, line.change))
    return lines


def _values(runs: Sequence[Run], figure: totals.Figure) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([run.figures[figure.name].median for run in runs], np.float64)


def _line(
    figure: totals.Figure, limit: gate.Limit, baseline: Baseline | None, run: Run, confidence: float, step: float
) -> gate.Line:
    if figure.name not in run.figures:
        return gate.Line(figure, limit, "skipped", "not recorded in the test")
    test = run.figures[figure.name].median
    sign = -1 if figure.better == "higher" else 1
    if limit.bound is not None:
        failed = sign * (test - limit.bound) > 0
        reason = "beyond its bound" if failed else "within its bound"
        return gate.Line(figure, limit, "fail" if failed else "pass", reason, test=test)
    count = len(baseline.runs) if baseline else 0
    if baseline is None or count < FEWEST_RUNS:
        since = f" since {baseline.runs[0].name}, where it changed" if baseline and baseline.change else ""
        have = f"{count} run{'' if count == 1 else 's'}"
        return gate.Line(figure, limit, "uncertain", f"{have}{since}; {FEWEST_RUNS} make a baseline", test=test)
    usual = prediction(_values(baseline.runs, figure), confidence)
    least, most = sorted((sign * (test - usual.high), sign * (test - usual.low)))
    allowed = (limit.share or 0) * abs(usual.level)
    floor = gate.FLOOR * step if figure.unit == "ns" and figure.name != gate.WHOLE else 0.0
    status, reason = _judged(least, most, sign * (test - usual.level), allowed, floor)
    if status == "uncertain":
        percent = 50 * (usual.high - usual.low) / abs(usual.level) if usual.level else 0.0
        reason = f"cannot tell {100 * (limit.share or 0):g} %: runs differ by ± {percent:.1f} %"
    low, high = test - usual.high, test - usual.low
    return gate.Line(
        figure, limit, status, reason, usual.level, test, test - usual.level, low, high, confidence, run_count=count
    )


def _judged(least: float, most: float, delta: float, allowed: float, floor: float) -> tuple[gate.Status, str]:
    """The status of a change that is from ``least`` to ``most`` worse, and the reason."""
    if most <= 0:
        return "pass", "better than the runs before" if most < 0 else "as the runs before"
    if most < floor or (least > 0 and delta < floor):
        return "pass", f"grew by less than {100 * gate.FLOOR:g} % of the step"
    if least > 0:
        if delta > allowed:
            return "fail", "worse than the runs before by more than the limit"
        return "pass", "worse than the runs before, but by less than the limit"
    return ("pass", "as the runs before") if most <= allowed else ("uncertain", "")


def _matters(line: gate.Line, step: float) -> bool:
    """Whether a change that is not gated is worth a line."""
    assert line.change is not None
    assert line.control is not None
    if line.figure.unit == "ns":
        return abs(line.change) >= gate.FLOOR * step
    return abs(line.change) >= gate.FLOOR * (1 if line.figure.unit == "ratio" else abs(line.control))
