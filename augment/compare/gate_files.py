"""The gate's outcome for other programs: Markdown for a pull request, JUnit XML for CI."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape, quoteattr

from augment.compare.gate import Limit, Line, Status
from augment.compare.totals import Figure
from augment.core.text import signed_text, value_text

WORDS: dict[Status, str] = {
    "pass": "PASS",
    "fail": "FAIL",
    "uncertain": "CANNOT TELL",
    "skipped": "SKIPPED",
    "info": "INFO",
}
_MARKS: dict[Status, str] = {"pass": "✅", "fail": "❌", "uncertain": "❔", "skipped": "➖", "info": "ℹ️"}


def markdown(lines: Sequence[Line], control: str, test: str, notes: Sequence[str] = ()) -> str:
    """A heading with the verdict, a table, and below it the ``notes``."""
    rows = ["| | figure | baseline | test | change | confidence interval | limit | |", "|---" * 8 + "|"]
    for line in lines:
        limit = limit_text(line.limit, line.figure) if line.limit else ""
        cells = (_MARKS[line.status], f"`{line.figure.name}`", *figures_of(line), limit, line.reason)
        rows.append(f"| {' | '.join(cells)} |")
    below = [text for note in notes for text in ("", f"⚠️ {note}")]
    return "\n".join([f"### {test} against {control}: {_verdict(lines)}", "", *rows, *below, ""])


def _verdict(lines: Sequence[Line]) -> str:
    gated = [line.status for line in lines if line.limit]
    if failed := gated.count("fail"):
        return f"{failed} of {len(gated)} figures regressed"
    if unknown := gated.count("uncertain"):
        return f"cannot tell for {unknown} of {len(gated)} figures"
    return "no regression"


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
    if interval and line.confidence is not None:
        how = "pairs of steps" if line.paired else "independent steps"
        how = how if line.run_count is None else f"{line.run_count} runs"
        interval = f" (with noise {interval}: {100 * line.confidence:g} % confidence interval, {how})"
    limit = f" limit {limit_text(line.limit, line.figure)};" if line.limit else ""
    return f"{line.figure.name}: {before} → {after}, {change}{interval};{limit} {line.reason}"


def figures_of(line: Line) -> tuple[str, str, str, str]:
    """Baseline, test, change, and the confidence interval of the change, as text."""
    if line.test is None:
        return "–", "–", "–", ""
    after = value_text(line.test, line.figure.unit)
    if line.control is None or line.change is None:
        return "–", after, "–", ""
    before = value_text(line.control, line.figure.unit)
    if line.limit is None:
        return before, after, signed_text(line.change, line.figure.unit), ""
    interval = ""
    if line.low is not None and line.high is not None:
        interval = f"{_change(line.low, line.control, line.figure)} … {_change(line.high, line.control, line.figure)}"
    return before, after, _change(line.change, line.control, line.figure), interval


def limit_text(limit: Limit, figure: Figure) -> str:
    """``5 %``, or ``≤ 80.000 ms``."""
    if limit.bound is None:
        return f"{100 * (limit.share or 0):g} %"
    return f"{'≥' if figure.better == 'higher' else '≤'} {value_text(limit.bound, figure.unit)}"


def _change(delta: float, control: float, figure: Figure) -> str:
    """A change as a share of the baseline; unscaled for ratios and for a baseline of 0."""
    if figure.unit == "ratio" or not control:
        return signed_text(delta, figure.unit)
    return f"{100 * delta / control:+.1f} %"
