"""The gate against many runs: is a run worse than those before it by more than runs differ and more than the limit?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from augment.compare.gate import FLOOR, WHOLE, GateLimits, Limit, Line, Status
from augment.compare.totals import FIGURES, Figure
from augment.history.changes import Change, changes, prediction
from augment.history.store import Run

FEWEST = 5  #: runs that make a baseline


class Baseline(Struct, frozen=True):
    """The runs of one figure since its level last changed; ``change`` is that change, at ``runs[0]``."""

    runs: Sequence[Run]
    change: Change | None


def baselines(runs: Sequence[Run]) -> Mapping[Figure, Baseline]:
    """The baseline of each figure that any run has; ``runs`` are in order of time."""
    made = {}
    for figure in FIGURES:
        having = [run for run in runs if figure.name in run.figures]
        changed = changes(_values(having, figure))
        last = changed[-1] if changed else None
        if having:
            made[figure] = Baseline(having[last.first :] if last else having, last)
    return made


def check(baseline: Mapping[Figure, Baseline], run: Run, limits: GateLimits) -> list[Line]:
    """A line for each gated figure of ``run``, then for each other figure that is not as usual.

    A run fails where its change exceeds the limit and it is outside the prediction interval of the runs before it. It
    is uncertain where the interval contains both no change and a change as large as the limit, and with fewer than
    :data:`FEWEST` runs. ``limits.alpha`` is the rate of runs like those before that are
    outside on either side: half of it for the step, half for all other gated figures.
    """
    limited = [(figure, limit) for figure in FIGURES if (limit := limits.of(figure)) is not None]
    others = max(sum(figure.name != WHOLE for figure, _ in limited), 1)
    step = run.figures[WHOLE].median
    lines = []
    for figure, limit in limited:
        confidence = 1 - limits.alpha / (1 if figure.name == WHOLE else others)
        lines.append(_line(figure, limit, baseline.get(figure), run, confidence, step))
    for figure, known in baseline.items():
        if limits.of(figure) is None and figure.name in run.figures and len(known.runs) >= FEWEST:
            line = _line(figure, Limit(share=0.0), known, run, 1 - limits.alpha, step)
            if line.low is not None and line.high is not None and line.low * line.high > 0 and _matters(line, step):
                reason = "unlike the runs before; not gated"
                lines.append(Line(figure, None, "info", reason, line.control, line.test, line.change))
    return lines


def _values(runs: Sequence[Run], figure: Figure) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([run.figures[figure.name].median for run in runs], np.float64)


def _line(figure: Figure, limit: Limit, baseline: Baseline | None, run: Run, confidence: float, step: float) -> Line:
    if figure.name not in run.figures:
        return Line(figure, limit, "skipped", "not recorded in the test")
    test = run.figures[figure.name].median
    sign = -1 if figure.better == "higher" else 1
    if limit.bound is not None:
        failed = sign * (test - limit.bound) > 0
        return Line(figure, limit, *_bound(failed), test=test)
    count = len(baseline.runs) if baseline else 0
    if baseline is None or count < FEWEST:
        since = f" since {baseline.runs[0].name}, where it changed" if baseline and baseline.change else ""
        have = f"{count} run{'' if count == 1 else 's'}"
        return Line(figure, limit, "uncertain", f"{have}{since}; {FEWEST} make a baseline", test=test)
    usual = prediction(_values(baseline.runs, figure), confidence)
    least, most = sorted((sign * (test - usual.high), sign * (test - usual.low)))
    allowed = (limit.share or 0) * abs(usual.level)
    floor = FLOOR * step if figure.unit == "ns" and figure.name != WHOLE else 0.0
    status, reason = _judged(least, most, sign * (test - usual.level), allowed, floor)
    if status == "uncertain":
        percent = 50 * (usual.high - usual.low) / abs(usual.level) if usual.level else 0.0
        reason = f"cannot tell {100 * (limit.share or 0):g} %: runs differ by ± {percent:.1f} %"
    low, high = test - usual.high, test - usual.low
    return Line(
        figure, limit, status, reason, usual.level, test, test - usual.level, low, high, confidence, run_count=count
    )


def _bound(failed: bool) -> tuple[Status, str]:
    return ("fail", "beyond its bound") if failed else ("pass", "within its bound")


def _judged(least: float, most: float, delta: float, allowed: float, floor: float) -> tuple[Status, str]:
    """The status of a change that is from ``least`` to ``most`` worse, and the reason."""
    if most <= 0:
        return "pass", "better than the runs before" if most < 0 else "as the runs before"
    if most < floor or (least > 0 and delta < floor):
        return "pass", f"grew by less than {100 * FLOOR:g} % of the step"
    if least > 0:
        if delta > allowed:
            return "fail", "worse than the runs before by more than the limit"
        return "pass", "worse than the runs before, but by less than the limit"
    return ("pass", "as the runs before") if most <= allowed else ("uncertain", "")


def _matters(line: Line, step: float) -> bool:
    """Whether a change that is not gated is worth a line."""
    assert line.change is not None
    assert line.control is not None
    if line.figure.unit == "ns":
        return abs(line.change) >= FLOOR * step
    return abs(line.change) >= FLOOR * (1 if line.figure.unit == "ratio" else abs(line.control))
