"""The gate: is the test worse than the baseline by more than the noise and more than the limit?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal
from xml.sax.saxutils import escape, quoteattr

import numpy as np
from msgspec import Struct, convert, field, to_builtins
from msgspec.structs import replace

from augment.compare.noise import FEWEST, TRIM, Noise, is_irregular, noise_of, steps_lacking, trimmed_mean
from augment.compare.totals import FIGURES, Figure, Samples
from augment.core.old_names import FIGURES as OLD
from augment.core.text import SIZES, four_digits, signed_text, value_text
from augment.errors import UsageError, expect_known

ALPHA = 0.05  #: rate at which equal jobs may fail
WHOLE = "wall_ns"
GATED = (WHOLE, "memory_peak_bytes")  #: the default: parts of a step trade against each other
FLOOR = 0.01  #: fraction of the step: growth of a part below this neither fails nor explains
_UNITS = {
    "": 1,
    "ns": 1,
    "us": 1e3,
    "µs": 1e3,
    "ms": 1e6,
    "s": 1e9,
    "B": 1,
    "kB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}
_LIMIT = re.compile(r"\s*([0-9.]+(?:e[+-]?\d+)?)\s*(%|[a-zA-Zµ]*)\s*")

Status = Literal["pass", "fail", "uncertain", "skipped", "info"]


class Limit(Struct, frozen=True):
    """The limit of a figure: get worse by at most ``share`` of the baseline, or be no worse than ``bound``."""

    share: float | None = None
    bound: float | None = None


class GateLimits(Struct, frozen=True):
    """The limits of all figures.

    ``figures`` holds limits by figure; None excludes one. :data:`GATED` is gated by ``max_regress``, and with ``parts``
    so are all other figures that have a better direction.
    """

    max_regress: Limit = Limit(share=0.05)
    figures: Mapping[str, Limit | None] = field(default_factory=dict)
    alpha: float = ALPHA
    parts: bool = False

    def of(self, figure: Figure) -> Limit | None:
        """The limit of ``figure``; None if it is not gated."""
        if figure.name in self.figures:
            return self.figures[figure.name]
        gated = figure.name in GATED or (self.parts and figure.better != "neither")
        return self.max_regress if gated else None


class Line(Struct, frozen=True):
    """The outcome of one figure; ``limit`` is None for a figure that only explains (``info``).

    ``control`` and ``test`` are means without the share :data:`TRIM` of the shortest and of the longest steps (of all
    steps, where long steps alone decide). ``change`` lies between ``low`` and ``high`` with ``confidence``; None where
    the noise is unknown. For all-positive samples it comes from the means of logarithms, so it may differ a little from
    ``test`` minus ``control``. ``paired`` says that steps were compared in pairs.
    """

    figure: Figure
    limit: Limit | None
    status: Status
    reason: str
    control: float | None = None
    test: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    paired: bool = False
    run_count: int | None = None  #: of a baseline of many runs; None where steps of one run were compared
    trimmed: bool = False  #: whether the means leave out the shortest and the longest steps


def check(control: Samples, test: Samples, limits: GateLimits | None = None) -> list[Line]:
    """A line for each gated figure, then one for each other figure that explains the change of the step.

    A figure fails if its change exceeds the limit and its confidence interval excludes no change. It is uncertain if
    the interval contains both no change and a change as large as the limit. Otherwise it passes.

    The change is that of the trimmed means (:data:`TRIM`), so that a long step now and then decides nothing. Where long
    steps make the plain mean differ from that, a figure that would pass fails by the same rule for the plain mean, and
    is uncertain if the plain mean exceeds the limit even without the longest tenth of the steps of each side.

    The width of the interval is chosen so that equal runs fail, over all gated figures together, at most at the rate
    ``limits.alpha``; half of that belongs to the step, half to all other figures. With one step on a side the noise is
    unknown, and the limit alone decides; two that exceed it cannot tell. A part of the step's time that grew by less
    than :data:`FLOOR` of the step does not fail.
    """
    limits = limits or GateLimits()
    limited = [(figure, limit) for figure in FIGURES if (limit := limits.of(figure)) is not None]
    others = max(
        sum(figure.name != WHOLE and figure.name in control and figure.name in test for figure, _ in limited), 1
    )
    lines = []
    for figure, limit in limited:
        confidence = 1 - limits.alpha / (1 if figure.name == WHOLE else others)
        lines.append(_line(figure, limit, control, test, confidence))
    explaining = [
        figure for figure in FIGURES if limits.of(figure) is None and figure.name in control and figure.name in test
    ]
    explained = []
    for figure in explaining:
        # the line of an ungated figure that explains the change of the step; None if it hardly changed
        before, after = float(control[figure.name].mean()), float(test[figure.name].mean())
        step = float(test[WHOLE].mean() - control[WHOLE].mean())
        if figure.unit == "ns" and _is_part(figure):
            small = abs(after - before) < FLOOR * float(control[WHOLE].mean())
            reason = f"a part of the step, which changed by {signed_text(step, 'ns')}"
        else:
            small = abs(after - before) < FLOOR * (1 if figure.unit == "ratio" else abs(before))
            reason = "not gated"
        explained.append(None if small else Line(figure, None, "info", reason, before, after, after - before))
    return lines + [line for line in explained if line is not None]


def cannot_tell(lines: Sequence[Line], reason: str) -> list[Line]:
    """The lines without a decision."""
    return [
        replace(line, status="uncertain", reason=reason) if line.status in ("pass", "fail") else line for line in lines
    ]


def limit_of(text: str, where: str = "limit") -> Limit:
    """``5%`` of the baseline, or an absolute bound: ``80ms``, ``40GB``, ``0.8``. ``where``, such as an option, is named
    in errors.

    Raises:
        UsageError: the text is neither.
    """
    match = _LIMIT.fullmatch(text)
    if not match or (match[2] != "%" and match[2] not in _UNITS):
        units = ", ".join(filter(None, _UNITS))
        raise UsageError(
            f"{where}: {text!r} is not a limit: write 5% of the baseline, or a bound such as 80ms (units: {units})"
        )
    try:
        number = float(match[1])
    except ValueError as error:
        raise UsageError(f"{where}: {text!r} is not a limit: {error}") from error
    return Limit(share=number / 100) if match[2] == "%" else Limit(bound=number * _UNITS[match[2]])


def limits_of(
    config: Mapping[str, Any],
    max_regress: str | None = None,
    metrics: Mapping[str, str] | None = None,
    *,
    parts: bool = False,
) -> GateLimits:
    """The limits of a configuration file, overridden by those of the command line.

    Args:
        config: ``max_regress``, ``alpha``, ``parts``, and a table ``metrics`` of limits by figure; ``true`` means
            ``max_regress``, ``false`` excludes the figure.
        max_regress: overrides that of the file.
        metrics: override those of the file; an empty limit means ``max_regress``.
        parts: also gate the step's parts.

    Raises:
        UsageError: a key or figure does not exist, or a limit is invalid.
    """
    for key in config:
        expect_known(key, ("max_regress", "alpha", "parts", "metrics"), "setting of the gate")
    where = "--max-regress" if max_regress else "max_regress"
    text = str(max_regress or config.get("max_regress", "5%"))
    general = limit_of(text, where)
    if general.share is None:
        raise UsageError(f"{where}: {text!r} is no share of the baseline, such as 5%; --metric NAME=LIMIT sets a bound")
    names = [figure.name for figure in FIGURES]
    figures: dict[str, Limit | None] = {}
    for given, value in {**config.get("metrics", {}), **(metrics or {})}.items():
        name = OLD.get(given, given)
        expect_known(name, names, "figure")
        if isinstance(value, bool) or value == "":
            figures[name] = None if value is False else general
        else:
            figures[name] = limit_of(str(value), f"--metric {given}" if given in (metrics or {}) else name)
    alpha = config.get("alpha", ALPHA)
    if not isinstance(alpha, float) or not 0 < alpha < 1:
        raise UsageError(f"alpha must be a probability such as {ALPHA}, not {alpha!r}")
    in_file = config.get("parts", False)
    if not isinstance(in_file, bool):
        raise UsageError(f"parts must be true or false, not {in_file!r}")
    return GateLimits(general, figures, alpha, parts or in_file)


def _line(figure: Figure, limit: Limit, control: Samples, test: Samples, confidence: float) -> Line:
    lacking = [side for side, samples in (("baseline", control), ("test", test)) if figure.name not in samples]
    if "test" in lacking or (lacking and limit.bound is None):
        return Line(figure, limit, "skipped", f"not recorded in the {' and the '.join(lacking)}")
    if lacking:
        after = trimmed_mean(test[figure.name], TRIM)
        return Line(figure, limit, *_within_bound(figure, limit, after), test=after)
    before, after = trimmed_mean(control[figure.name], TRIM), trimmed_mean(test[figure.name], TRIM)
    trimmed = TRIM * len(test[figure.name]) >= 1
    count = min(len(control[figure.name]), len(test[figure.name]))
    noise = noise_of(control[figure.name], test[figure.name], confidence, TRIM) if count >= FEWEST else None
    if limit.bound is not None:
        status, reason = _within_bound(figure, limit, after)
    elif noise is None:
        delta = _worse(figure) * (after - before)
        failed = delta > max((limit.share or 0) * abs(before), _floor(figure, control))
        status = "pass" if not failed else "fail" if count == 1 else "uncertain"
        few = "two steps per side are too few for an interval, so the noise is unknown"
        if count == 1:
            only = "each" if len(control[figure.name]) == len(test[figure.name]) else "on a side"
            few = f"one step {only}: judged by the limit alone, no interval"
        reason = f"{'beyond' if failed else 'within'} the limit; {few}"
    else:
        status, reason = _judged(figure, limit, noise, control, test, confidence)
        plain = noise_of(control[figure.name], test[figure.name], confidence)
        assert plain is not None
        beyond = not noise.low <= plain.delta <= noise.high
        if status == "pass" and beyond and (long := _long_steps(figure, limit, plain, control, test)):
            (status, reason), noise, trimmed = long, plain, False
            before, after = float(control[figure.name].mean()), float(test[figure.name].mean())
    if noise is None:
        return Line(figure, limit, status, reason, before, after, after - before)
    if is_irregular(noise, control[figure.name], test[figure.name]):
        return Line(figure, limit, status, reason, before, after, noise.delta)
    interval = noise.delta, noise.low, noise.high, confidence, noise.paired
    return Line(figure, limit, status, reason, before, after, *interval, trimmed=trimmed)


def _within_bound(figure: Figure, limit: Limit, after: float) -> tuple[Status, str]:
    failed = (after - (limit.bound or 0)) * _worse(figure) > 0
    return ("fail", "beyond its bound") if failed else ("pass", "within its bound")


def _judged(
    figure: Figure, limit: Limit, noise: Noise, control: Samples, test: Samples, confidence: float
) -> tuple[Status, str]:
    """The status by the interval, and the reason."""
    worse, floor = _worse(figure), _floor(figure, control)
    before = trimmed_mean(control[figure.name], TRIM)
    allowed = (limit.share or 0) * abs(before)
    least, most = sorted((worse * noise.low, worse * noise.high))
    if most <= 0:
        return "pass", "better beyond the noise" if most < 0 else "no worse"
    if most < floor or (least > 0 and worse * noise.delta < floor):
        return "pass", f"grew by less than {100 * FLOOR:g} % of the step"
    if least > 0:
        if worse * noise.delta > allowed:
            return "fail", f"worse by more than the limit{'' if least > allowed else ', or by noise somewhat less'}"
        return "pass", "worse, but by less than the limit"
    if most <= allowed:
        return "pass", "within the noise, and within the limit"
    lacking = steps_lacking(control[figure.name], test[figure.name], allowed, confidence, TRIM)
    # The reason of an uncertain figure: ``cannot tell 5 %: noise ± 8 %; record 8 more steps on each side``
    percent = 50 * (noise.high - noise.low) / abs(before) if before else 0.0
    reach = f": noise ± {percent:,.{0 if percent >= 10 else 1}f} %" if before else ""
    if is_irregular(noise, control[figure.name], test[figure.name]):
        reach = ": steps too irregular for an interval"
    if lacking is None:
        advice = "the steps vary too much for any number of steps"
    else:
        advice = f"record {lacking} more step{'s' if lacking > 1 else ''} on each side"
    uncertainty = f"cannot tell {100 * (limit.share or 0):g} %{reach}; {advice}"
    return "uncertain", uncertainty


def _long_steps(
    figure: Figure, limit: Limit, noise: Noise, control: Samples, test: Samples
) -> tuple[Status, str] | None:
    """The status by the plain means, of which ``noise`` is; None if they are within the limit, or a tenth of the steps
    is why they are not."""
    worse, sides = _worse(figure), (control[figure.name], test[figure.name])
    allowed = max((limit.share or 0) * abs(float(sides[0].mean())), _floor(figure, control))
    if worse * noise.delta > allowed and min(worse * noise.low, worse * noise.high) > 0:
        return "fail", "worse by more than the limit, by long steps"
    rest = [np.sort(worse * side)[: len(side) - max(len(side) // 10, 1)].mean() for side in sides]
    if rest[1] - rest[0] > allowed:
        return "uncertain", "cannot tell whether long steps are chance; record more steps"
    return None


def _worse(figure: Figure) -> int:
    return -1 if figure.better == "higher" else 1


def _is_part(figure: Figure) -> bool:
    """Whether the figure is a part of the step's time."""
    return figure.unit == "ns" and figure.name not in (WHOLE, "mean_launch_delay_ns")


def _floor(figure: Figure, control: Samples) -> float:
    """The smallest relevant growth of a part of the step's time."""
    return FLOOR * float(control[WHOLE].mean()) if _is_part(figure) else 0.0


# The gate's outcome for other programs: Markdown for a pull request, JUnit XML for CI.


WORDS: dict[Status, str] = {
    "pass": "PASS",
    "fail": "FAIL",
    "uncertain": "CANNOT TELL",
    "skipped": "SKIPPED",
    "info": "INFO",
}
_MARKS: dict[Status, str] = {"pass": "✅", "fail": "❌", "uncertain": "❔", "skipped": "➖", "info": "ℹ️"}


def row_of(line: Line) -> dict[str, Any]:
    """The line as JSON has it."""
    return {**to_builtins(line), "figure": line.figure.name, "unit": line.figure.unit}


def line_of(row: Mapping[str, Any]) -> Line:
    """The line that :func:`row_of` made this row of."""
    figures = {figure.name: figure for figure in FIGURES}
    return convert({**row, "figure": to_builtins(figures[row["figure"]])}, Line)


def status_of(lines: Sequence[Line]) -> Status:
    """The status of all figures together."""
    statuses = {line.status for line in lines}
    return "fail" if "fail" in statuses else "uncertain" if "uncertain" in statuses else "pass"


def markdown(lines: Sequence[Line], control: str, test: str, notes: Sequence[str] = ()) -> str:
    """A heading with the verdict, a table, and below it the ``notes``."""
    rows = ["| | figure | baseline | test | change | confidence interval | limit | |", "|---" * 8 + "|"]
    for line in lines:
        limit = limit_text(line.limit, line.figure) if line.limit else ""
        cells = (_MARKS[line.status], f"`{line.figure.name}`", *figures_of(line), limit, line.reason)
        rows.append(f"| {' | '.join(cells)} |")
    gated = [line.status for line in lines if line.limit]
    failed, unknown = gated.count("fail"), gated.count("uncertain")
    verdict = f"cannot tell for {unknown} of {len(gated)} figures" if unknown else "no regression"
    verdict = f"{failed} of {len(gated)} figures regressed" if failed else verdict
    below = [text for note in notes for text in ("", f"⚠️ {note}")]
    return "\n".join([f"### {test} against {control}: {verdict}", "", *rows, *below, ""])


def junit(lines: Sequence[Line], control: str, test: str) -> str:
    """A test suite with one case per gated figure; an uncertain figure is a skipped case."""
    lines = [line for line in lines if line.limit]
    tags = {"fail": "failure", "skipped": "skipped", "uncertain": "skipped"}
    counts = {tag: sum(tags.get(line.status) == tag for line in lines) for tag in tags.values()}
    head = f'tests="{len(lines)}" failures="{counts["failure"]}" skipped="{counts["skipped"]}"'
    cases = []
    for line in lines:
        case = f'  <testcase classname="augment.check" name={quoteattr(line.figure.name)}'
        if line.status == "pass":
            cases.append(f"{case}/>")
        else:
            tag = tags[line.status]
            cases.append(
                f"{case}>\n    <{tag} message={quoteattr(line.reason)}>{escape(text_of(line))}</{tag}>\n  </testcase>"
            )
    name = quoteattr(f"{test} against {control}")
    return "\n".join(
        ['<?xml version="1.0" encoding="UTF-8"?>', f"<testsuite name={name} {head}>", *cases, "</testsuite>", ""]
    )


def texts_of(lines: Sequence[Line], *, brief: bool) -> Iterator[str]:
    """The lines for a terminal: a line for each gated figure, then a table of those that explain; ``brief``: only
    figures that fail or may fail."""
    for line in lines:
        if line.status != "info" and (not brief or line.status in ("fail", "uncertain")):
            yield f"{WORDS[line.status]:7} {text_of(line)}"
    ungated = [line for line in lines if line.status == "info"]
    if not ungated or brief:
        return
    yield "INFO    what else changed, on average of the steps; not gated (--metric NAME gates it):"
    rows = [(line.figure.name, *figures_of(line)[:3]) for line in ungated]
    name, before, after, change = (max(map(len, column)) for column in zip(*rows, strict=True))
    for row in rows:
        yield f"INFO      {row[0]:{name}}  {row[1]:>{before}} → {row[2]:>{after}}  {row[3]:>{change}}"


def text_of(line: Line) -> str:
    """One line for a figure, with the interval of its change."""
    if line.test is None:
        return f"{line.figure.name}: {line.reason}"
    before, after, change, interval = figures_of(line)
    mean = ""
    if interval and line.confidence is not None:
        how = "pairs of steps" if line.paired else "independent steps"
        how = how if line.run_count is None else f"{line.run_count} runs"
        mean = "" if line.run_count is not None else "trimmed mean " if line.trimmed else "mean "
        interval = f" (with noise {interval}: {100 * line.confidence:g} % confidence interval, {how})"
    limit = f" limit {limit_text(line.limit, line.figure)};" if line.limit else ""
    return f"{line.figure.name}: {mean}{before} → {after}, {change}{interval};{limit} {line.reason}"


def figures_of(line: Line) -> tuple[str, str, str, str]:
    """Baseline, test, their difference, and the interval of the change (after its estimate if that differs much)."""
    if line.test is None:
        return "–", "–", "–", ""
    after = level(line.test, line.figure.unit)
    if line.control is None or line.change is None:
        return "–", after, "–", ""
    before = level(line.control, line.figure.unit)
    if line.limit is None:
        return before, after, signed_text(line.change, line.figure.unit), ""
    change, estimate, low, high = (
        "" if delta is None else _change(delta, line.control, line.figure)
        for delta in (line.test - line.control, line.change, line.low, line.high)
    )
    interval = f"{low} … {high}" if low and high else ""
    within = line.low is None or line.high is None or line.low <= line.test - line.control <= line.high
    return before, after, change, interval if within else f"{estimate}, {interval}"


def limit_text(limit: Limit, figure: Figure) -> str:
    """``5 %``, or ``≤ 80.000 ms``."""
    if limit.bound is None:
        return f"{100 * (limit.share or 0):g} %"
    return f"{'≥' if figure.better == 'higher' else '≤'} {level(limit.bound, figure.unit)}"


def level(value: float, unit: str) -> str:
    """A figure with its unit; sizes with four digits, so that a change beyond a limit shows."""
    return four_digits(value, SIZES) if unit == "bytes" else value_text(value, unit)


def level_text(before: float, after: float, name: str) -> str:
    """``changed from 80.123 ms to 84.012 ms (+4.9 %)``, of the figure ``name`` of many runs."""
    unit = next(each.unit for each in FIGURES if each.name == name)
    percent = "" if not before or unit == "ratio" else f" ({100 * (after - before) / abs(before):+.1f} %)"
    return f"changed from {level(before, unit)} to {level(after, unit)}{percent}"


def _change(delta: float, control: float, figure: Figure) -> str:
    """A change as a share of the baseline; unscaled for ratios and for a baseline of 0."""
    if figure.unit == "ratio" or not control:
        return signed_text(delta, figure.unit)
    return f"{100 * delta / control:+.1f} %"
