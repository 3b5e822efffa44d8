"""``augment diagnose``: the quick health check: what is wrong with a run, and what would it save to change it?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import click

from augment.commands.options import debug

Report = dict[str, Any]
_ANALYSIS = "diagnosis"
_LEVELS = {"high": ("high",), "warning": ("high", "warning")}  #: what is at or above a level
_SIGNS = {"found": "!", "fine": "✓", "no_data": "–"}


@click.command("diagnose", short_help="Say what is wrong with a run: verdict and findings.")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT…")
@click.option("--fail-on", type=click.Choice(tuple(_LEVELS)), help="Exit with 1 if a finding is as grave as this.")
@click.option("--json", "form", flag_value="json", help="Print one JSON object per trace, one per line.")
@click.option("--markdown", "form", flag_value="markdown", help="Print Markdown, for a comment or a summary of CI.")
@debug
def command(inputs: tuple[str, ...], fail_on: Literal["high", "warning"] | None, form: str | None) -> int:
    """Say what is wrong with each INPUT: a trace, a metrics file, or a folder or glob of traces. Nothing is written.

    The verdict comes first, then what the rules found (!), what they looked at and found to be fine (✓), and what the
    trace has no data for (–), with the option of the profiler that records it. Rules about what the run does not do are
    left out.
    """
    from augment.commands.terminal import complain, emit
    from augment.errors import AugmentError
    from augment.jsontext import json_line

    grave = _LEVELS.get(fail_on or "", ())
    reports: list[Report] = []
    failed: AugmentError | None = None
    names, refused = _named(inputs)
    for error in refused:
        complain(str(error))
        failed = error
    for name, is_named in names:
        try:
            report = _report(name)
        except AugmentError as error:
            if is_named:
                complain(str(error))
                failed = error
            continue
        reports.append(report)
        for line in [json_line(report)] if form == "json" else _lines(report, form == "markdown", len(reports) == 1):
            emit(line)
    if failed and not reports:
        return failed.exit_code
    return 1 if failed or any(row["severity"] in grave for one in reports for row in one["rows"]) else 0


def _named(inputs: Sequence[str]) -> tuple[list[tuple[str, bool]], list[Any]]:
    """The paths that ``inputs`` stand for, each with whether the user named that very file; and what is no input."""
    from augment.batch.inputs import plan
    from augment.errors import AugmentError
    from augment.sidecars import is_sidecar

    def holds_metrics(name: str) -> bool:
        try:
            return is_sidecar(name)
        except AugmentError:  # a folder, a glob, or nothing: told below
            return False

    sidecars = [name for name in inputs if holds_metrics(name)]
    made = plan([name for name in inputs if name not in sidecars], None)
    traces = [(item.path, item.named) for item in made.inputs]
    return [*((name, True) for name in sidecars), *traces], [error for _, error in made.refused]


def _report(path: str) -> Report:
    """The verdict and the answers of all rules about one trace or metrics file.

    Raises:
        InputError: it cannot be read, or the metrics have no diagnosis.
    """
    from augment.commands.show import analysed
    from augment.errors import UnknownFormat
    from augment.request import Request
    from augment.sidecars import is_sidecar, read_sidecar

    sidecar = read_sidecar(path) if is_sidecar(path) else analysed(path, Request(only=(_ANALYSIS,)))
    if "verdict" not in sidecar:
        raise UnknownFormat(path, "these metrics have no verdict: name the trace, or make them again with augment run")
    answers = sidecar["analyses"].get(_ANALYSIS, {"rows": sidecar["verdict"]["rows"]})
    text = sidecar["verdict"]["text"] or [f"Nothing could be judged: {answers.get('reason', 'no rule ran')}."]
    return {"input": path, "verdict": text, "rows": answers["rows"]}


def _lines(report: Report, markdown: bool, first: bool) -> Iterator[str]:
    if not first:
        yield ""
    yield f"## {report['input']}" if markdown else f"{report['input']}:"
    yield ""
    yield " ".join(report["verdict"]) if markdown else "\n".join(f"  {sentence}" for sentence in report["verdict"])
    yield ""
    for row in report["rows"]:
        if row.get("status", "found") in _SIGNS:
            yield from _markdown(row) if markdown else _text(row)


def _text(row: Report) -> Iterator[str]:
    status = row.get("status", "found")
    severity = f"{row['severity']}: " if status == "found" else ""
    title = f"{row['title']} ({row['advice']} records it)" if status == "no_data" and row["advice"] else row["title"]
    yield f"  {_SIGNS[status]} {severity}{title}"
    if status == "found":
        for one in row.get("evidence", []):
            yield f"      {one}"
        yield f"      → {row['advice']}"
        if row.get("overlaps"):
            yield f"      overlaps with {', '.join(row['overlaps'])}: their savings do not add up"
        yield f"      {row['rule']}, confidence {row['confidence']}" + _where(row)


def _where(row: Report) -> str:
    from augment.commands.units import duration

    if row.get("start_ns") is None:
        return ""
    return f"; the longest of {row['count']}: {duration(row['dur_ns'])} on {row['track'] or 'the host'}"


def _markdown(row: Report) -> Iterator[str]:
    status = row.get("status", "found")
    if status == "found":
        certain = f"(`{row['rule']}`, confidence {row['confidence']})"
        yield f"- **{row['severity']}**: {row['title']}. {row['advice']}. {certain}"
    else:
        yield f"- {_SIGNS[status]} {row['title']}"
