"""The gate's outcome for other programs: Markdown for a comment on a pull request, JUnit's XML for CI."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

from augment.comparison.gate import Limit, Line
from augment.comparison.totals import Figure

_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns"))
_SIZES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))


def markdown(lines: Sequence[Line], control: str, test: str, doubt: str = "") -> str:
    """A heading that says how it went, a table, and under it the ``doubt`` about it."""
    failed = sum(one.status == "fail" for one in lines)
    verdict = f"{failed} of {len(lines)} figures regressed" if failed else "no regression"
    rows = ["| | figure | baseline | test | change | noise of the change | limit | |", "|---" * 8 + "|"]
    marks = {"pass": "✅", "fail": "❌", "skipped": "➖"}
    for one in lines:
        cells = (
            marks[one.status],
            f"`{one.figure.name}`",
            *figures_of(one),
            limit_text(one.limit, one.figure),
            one.reason,
        )
        rows.append(f"| {' | '.join(cells)} |")
    below = ["", f"⚠️ {doubt}"] if doubt else []
    return "\n".join([f"### {test} against {control}: {verdict}", "", *rows, *below, ""])


def junit(lines: Sequence[Line], control: str, test: str) -> str:
    """A test suite with a case for each figure."""
    counts = {status: sum(one.status == status for one in lines) for status in ("fail", "skipped")}
    head = f'tests="{len(lines)}" failures="{counts["fail"]}" skipped="{counts["skipped"]}"'
    cases = []
    for one in lines:
        case = f'  <testcase classname="augment.check" name={quoteattr(one.figure.name)}'
        if one.status == "pass":
            cases.append(f"{case}/>")
        else:
            tag = "failure" if one.status == "fail" else "skipped"
            cases.append(
                f"{case}>\n    <{tag} message={quoteattr(one.reason)}>{escape(text_of(one))}</{tag}>\n  </testcase>"
            )
    name = quoteattr(f"{test} against {control}")
    return "\n".join(
        ['<?xml version="1.0" encoding="UTF-8"?>', f"<testsuite name={name} {head}>", *cases, "</testsuite>", ""]
    )


def text_of(line: Line) -> str:
    """One figure with its noise: a line."""
    if line.test is None:
        return f"{line.figure.name}: {line.reason}"
    before, after, change, noise = figures_of(line)
    noise = f" (noise {noise})" if noise else ""
    limit = limit_text(line.limit, line.figure)
    return f"{line.figure.name}: {before} → {after}, {change}{noise}; limit {limit}; {line.reason}"


def figures_of(line: Line) -> tuple[str, str, str, str]:
    """Baseline, test, change, and the noise of the change."""
    if line.test is None:
        return "–", "–", "–", ""
    after = value_text(line.test, line.figure.unit)
    if line.control is None:
        return "–", after, "–", ""
    delta = line.test - line.control
    noise = ""
    if line.low is not None and line.high is not None:
        noise = f"{_change(line.low, line.control, line.figure)} … {_change(line.high, line.control, line.figure)}"
    return value_text(line.control, line.figure.unit), after, _change(delta, line.control, line.figure), noise


def limit_text(limit: Limit, figure: Figure) -> str:
    """``5 %``, or ``≤ 80.000 ms``."""
    if limit.bound is None:
        return f"{100 * (limit.share or 0):g} %"
    return f"{'≥' if figure.better == 'higher' else '≤'} {value_text(limit.bound, figure.unit)}"


def value_text(value: float, unit: str) -> str:
    """A figure for people."""
    if unit == "ratio":
        return f"{100 * value:.1f} %"
    if unit == "count":
        return f"{value:,.1f}"
    scale, sign = next(
        (one for one in (_TIMES if unit == "ns" else _SIZES) if abs(value) >= one[0]),
        (1, unit if unit == "ns" else "B"),
    )
    return f"{value / scale:,.3f} {sign}" if scale > 1 else f"{value:,.0f} {sign}"


def _change(delta: float, control: float, figure: Figure) -> str:
    """As a share of the baseline; of ratios, and of nothing, as it is."""
    if figure.unit == "ratio":
        return f"{100 * delta:+.1f} points"
    return (
        f"{100 * delta / control:+.1f} %" if control else f"{'+' if delta >= 0 else ''}{value_text(delta, figure.unit)}"
    )
