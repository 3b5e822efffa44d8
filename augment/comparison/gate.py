"""The gate: is the test worse than the baseline, by more than the noise and more than is allowed?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from augment.comparison.noise import Noise, noise_of
from augment.comparison.totals import FIGURES, Figure, Samples
from augment.errors import UsageError, expect_known

ALPHA = 0.05  #: how often equal jobs may fail
WHOLE = "step_ns"
ENOUGH_STEPS = 4  #: a side: with fewer, true regressions pass more often (docs/diff.md, by benchmarks/gate_power.py)
FLOOR = 0.01  #: of the step: a part of the time that grew by less fails nothing
_UNITS = {
    "": 1, "ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9, "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30,
}  # fmt: skip
_LIMIT = re.compile(r"\s*([0-9.]+(?:e[+-]?\d+)?)\s*(%|[a-zA-Zµ]*)\s*")

Status = Literal["pass", "fail", "skipped"]


@dataclass(frozen=True, slots=True)
class Limit:
    """What a figure may do: get worse by ``share`` of the baseline, or, absolutely, be no worse than ``bound``."""

    share: float | None = None
    bound: float | None = None


@dataclass(frozen=True)
class Limits:
    """``max_regress`` for each figure that ``figures`` does not name; None there leaves the figure out."""

    max_regress: Limit = Limit(share=0.05)
    figures: Mapping[str, Limit | None] = field(default_factory=dict)
    alpha: float = ALPHA

    def of(self, figure: Figure) -> Limit | None:
        """The limit of ``figure``; None if it is not gated."""
        if figure.name in self.figures:
            return self.figures[figure.name]
        return None if figure.better == "neither" else self.max_regress


@dataclass(frozen=True, slots=True)
class Line:
    """One figure. The change lies between ``low`` and ``high``; None where the noise is not known."""

    figure: Figure
    limit: Limit
    status: Status
    reason: str
    control: float | None = None
    test: float | None = None
    low: float | None = None
    high: float | None = None


def check(control: Samples, test: Samples, limits: Limits | None = None) -> list[Line]:
    """A line for each figure that is gated.

    The change of each figure lies in an interval: Welch's, over the steps, so wide that all of them together are wrong
    no more often than ``limits.alpha``; half of that is the step's own, half all others'. A figure fails if every
    change in its interval is for the worse, and some are as bad as its limit. So noise alone seldom fails, and a true
    regression of the limit's size seldom passes. With one step on a side no noise is known, and the limit alone
    decides. A part of the step's time that grew by less than :data:`FLOOR` of the step fails nothing.
    """
    limits = limits or Limits()
    asked = [(one, limit) for one in FIGURES if (limit := limits.of(one)) is not None]
    both = [one.name for one, _ in asked if one.name in control and one.name in test]
    chance = dict.fromkeys(both, limits.alpha / 2 / max(len(both) - 1, 1)) | {WHOLE: limits.alpha / 2}
    noises = {name: noise_of(control[name], test[name], 1 - chance[name]) for name in both}
    return [_line(one, limit, control, test, noises.get(one.name)) for one, limit in asked]


def doubt(control: Samples, test: Samples, lines: Sequence[Line]) -> str:
    """Why a regression may have passed, in a sentence: too few steps; empty if there are enough, or all limits bounds.

    Args:
        control: as of :func:`check`, and ``test``, too.
        test: its figures.
        lines: what :func:`check` found.
    """
    counts = len(control[WHOLE]), len(test[WHOLE])
    relative = any(one.control is not None and one.limit.bound is None for one in lines)
    if min(counts) >= ENOUGH_STEPS or not relative:
        return ""
    steps = f"{counts[0]} of the baseline, {counts[1]} of the test"
    return f"few steps ({steps}): a true regression may pass as noise; record {ENOUGH_STEPS} or more on each side"


def limit_of(text: str) -> Limit:
    """``5%`` of the baseline, or an absolute bound: ``80ms``, ``40GB``, ``0.8``.

    Raises:
        UsageError: it is neither.
    """
    found = _LIMIT.fullmatch(text)
    if not found or (found[2] != "%" and found[2] not in _UNITS):
        units = ", ".join(filter(None, _UNITS))
        raise UsageError(f"{text!r} is no limit: say 5% of the baseline, or a bound as 80ms (units: {units})")
    try:
        number = float(found[1])
    except ValueError as error:
        raise UsageError(f"{text!r} is no limit: {error}") from error
    return Limit(share=number / 100) if found[2] == "%" else Limit(bound=number * _UNITS[found[2]])


def limits_of(
    config: Mapping[str, Any], max_regress: str | None = None, metrics: Mapping[str, str] | None = None
) -> Limits:
    """The limits of a configuration file, and over it those of the command line.

    Args:
        config: ``max_regress``, ``alpha``, and a table ``metrics`` of limits by figure; ``false`` leaves one out.
        max_regress: instead of the file's.
        metrics: before the file's.

    Raises:
        UsageError: a key or figure that does not exist, or no limit.
    """
    for key in config:
        expect_known(key, ("max_regress", "alpha", "metrics"), "setting of the gate")
    names = [one.name for one in FIGURES]
    figures: dict[str, Limit | None] = {}
    for name, value in {**config.get("metrics", {}), **(metrics or {})}.items():
        expect_known(name, names, "figure")
        figures[name] = None if value is False else limit_of(str(value))
    general = limit_of(str(max_regress or config.get("max_regress", "5%")))
    if general.share is None:
        raise UsageError("max_regress must be a share of the baseline, such as 5%")
    alpha = config.get("alpha", ALPHA)
    if not isinstance(alpha, float) or not 0 < alpha < 1:
        raise UsageError(f"alpha must be a probability such as {ALPHA}, not {alpha!r}")
    return Limits(general, figures, alpha)


def _line(figure: Figure, limit: Limit, control: Samples, test: Samples, noise: Noise | None) -> Line:
    lacking = [side for side, samples in (("baseline", control), ("test", test)) if figure.name not in samples]
    if "test" in lacking or (lacking and limit.bound is None):
        return Line(figure, limit, "skipped", f"not recorded in the {' and the '.join(lacking)}")
    after = float(test[figure.name].mean())
    before = None if lacking else float(control[figure.name].mean())
    low, high = (noise.low, noise.high) if noise else (None, None)
    failed, reason = _judged(figure, limit, before, after, noise, _floor(figure, control))
    return Line(figure, limit, "fail" if failed else "pass", reason, before, after, low, high)


def _judged(
    figure: Figure, limit: Limit, before: float | None, after: float, noise: Noise | None, floor: float
) -> tuple[bool, str]:
    """Whether it fails, and why."""
    worse = -1 if figure.better == "higher" else 1
    if limit.bound is not None or before is None:
        failed = (after - (limit.bound or 0)) * worse > 0
        return failed, "beyond its bound" if failed else "within its bound"
    delta, allowed = worse * (after - before), (limit.share or 0) * abs(before)
    if noise is None:
        failed = delta > 0 and delta >= max(allowed, floor)
        return failed, f"{'beyond' if failed else 'within'} the limit; one step a side, so the noise is not known"
    least, most = sorted((worse * noise.low, worse * noise.high))
    if least > 0 and most >= allowed and delta >= floor:
        return True, "worse beyond the noise, and perhaps by as much as the limit"
    if least > 0:
        return False, "worse, but by less than the limit"
    return False, "better beyond the noise" if most < 0 else "within the noise"


def _floor(figure: Figure, control: Samples) -> float:
    """The least growth of a part of the step's time that matters."""
    is_part = figure.unit == "ns" and figure.name not in (WHOLE, "mean_launch_delay_ns")
    return FLOOR * float(control[WHOLE].mean()) if is_part else 0.0
