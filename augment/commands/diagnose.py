"""``augment diagnose``: the quick health check: what is wrong with a run, and what would it save to change it?"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import click

from augment.commands.options import debug

if TYPE_CHECKING:
    from augment.errors import AugmentError

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
    left out. Of several ranks in a folder, the job's verdict comes first, then what is grave in each of them.
    """
    from augment.commands.terminal import complain, emit
    from augment.errors import UnknownFormat
    from augment.jsontext import json_line

    names, failures = _named(inputs)
    reports, unread = _reports(names)
    failures += unread
    for error in failures:
        complain(str(error))
    if not reports:
        if not failures:
            complain(f"{', '.join(inputs)}: nothing to judge: no trace, and no metrics that augment wrote")
        return failures[0].exit_code if failures else UnknownFormat.exit_code
    several = len(reports) > 1
    shown = [*_of_jobs(reports), *reports]
    for place, report in enumerate(shown):
        if form == "json":
            emit(json_line({name: report[name] for name in ("input", "verdict", "rows")}))
            continue
        for line in _lines(report, form == "markdown", brief=several):
            emit(line)
        if place < len(shown) - 1:
            emit("")
    grave = _LEVELS.get(fail_on or "", ())
    return 1 if failures or any(row.get("severity") in grave for one in shown for row in one["rows"]) else 0


def _reports(names: Sequence[tuple[str, bool]]) -> tuple[list[Report], list[AugmentError]]:
    """The reports on all that can be read, and why files cannot that the user named."""
    from augment.errors import AugmentError

    reports, failures = [], []
    for name, is_named in names:
        try:
            reports.append(_report(name))
        except AugmentError as error:  # noqa: PERF203
            failures += [error] if is_named else []
    return reports, failures


def _of_jobs(reports: Sequence[Report]) -> Iterator[Report]:
    """The report on each job: the ranks in one folder that communicate with each other."""
    from augment.job.answer import answer
    from augment.job.sidecar import document

    folders: dict[str, list[Report]] = {}
    for report in reports:
        if report["summary"]:
            folders.setdefault(os.path.dirname(report["input"]) or ".", []).append(report)
    for folder, ranks in folders.items():
        if len(ranks) < 2:
            continue
        result = answer([rank["summary"] for rank in ranks], [rank["input"] for rank in ranks])
        job = document(result, os.path.basename(os.path.abspath(folder)))
        name = f"job {job['source']['name']}, {len(ranks)} traces"
        yield {"input": name, "verdict": job["verdict"]["text"], "rows": []}


def _named(inputs: Sequence[str]) -> tuple[list[tuple[str, bool]], list[AugmentError]]:
    """The paths that ``inputs`` stand for, each with whether the user named that very file; and what is no input."""
    from augment.batch.inputs import plan
    from augment.errors import AugmentError
    from augment.sidecars import is_sidecar

    def holds_metrics(name: str) -> bool:
        try:
            return is_sidecar(name)
        except AugmentError:  # a folder, a glob, or nothing: told below
            return False

    metrics = [(name, [name] if holds_metrics(name) else _written(name)) for name in inputs]
    sidecars = [path for _, paths in metrics for path in paths]
    made = plan([name for name, paths in metrics if not paths], None)
    traces = [(item.path, item.named) for item in made.inputs]
    return [*((name, True) for name in sidecars), *traces], [error for _, error in made.refused]


def _written(folder: str) -> list[str]:
    """The metrics in a folder that augment wrote, those of the job first."""
    from augment.writers.files import METRICS_SUFFIX

    if not os.path.isdir(folder):
        return []
    names = [name for name in os.listdir(folder) if name.endswith(METRICS_SUFFIX) and ".diff." not in name]
    return [os.path.join(folder, name) for name in sorted(names, key=lambda name: (not name.startswith("job."), name))]


def _report(path: str) -> Report:
    """The verdict and the answers of all rules about one trace or metrics file, and a trace's summary for its job.

    Raises:
        InputError: it cannot be read, or the metrics have no diagnosis.
    """
    from augment.errors import UnknownFormat
    from augment.sidecars import is_sidecar, read_sidecar

    sidecar, summary = (read_sidecar(path), None) if is_sidecar(path) else _judged(path)
    analysis = sidecar["analyses"].get(_ANALYSIS)
    if "verdict" not in sidecar and analysis is None:
        raise UnknownFormat(path, "these metrics have no verdict: name the trace, or make them again with augment run")
    verdict = sidecar.get("verdict", {"text": [], "rows": []})
    rows = [row for row in verdict["rows"] if "rule" in row] if analysis is None else analysis["rows"]
    text = verdict["text"] or [f"Nothing could be judged: {(analysis or {}).get('reason', 'no rule ran')}."]
    return {"input": path, "verdict": text, "rows": rows, "summary": summary}


def _judged(path: str) -> tuple[dict[str, Any], bytes]:
    """The sidecar of a trace with the diagnosis alone, and its summary."""
    import msgspec

    from augment.commands.terminal import bar
    from augment.job.summary import summarize
    from augment.pipeline import augment
    from augment.readers import read
    from augment.writers.metrics import document, encode

    with bar(1, quiet=False) as shown:
        shown.stage(f"reading {path}")
        trace = read(path)
        shown.stage(_ANALYSIS)
        augmented = augment(trace, only=[_ANALYSIS])
    decoded: dict[str, Any] = msgspec.json.decode(encode(document(augmented)))
    return decoded, summarize(augmented)


def _lines(report: Report, markdown: bool, brief: bool) -> Iterator[str]:
    """A report; ``brief``: without what is fine, not there or small."""
    yield f"## {report['input']}" if markdown else f"{report['input']}:"
    yield ""
    yield " ".join(report["verdict"]) if markdown else "\n".join(f"  {sentence}" for sentence in report["verdict"])
    shown = [row for row in report["rows"] if row.get("status", "found") in _SIGNS]
    if brief:
        told = " ".join(report["verdict"])
        shown = [row for row in shown if row.get("severity") in _LEVELS["warning"] and row["title"] not in told]
    if shown:
        yield ""
    for row in shown:
        yield from _markdown(row) if markdown else _text(row, brief)


def _text(row: Report, brief: bool) -> Iterator[str]:
    status = row.get("status", "found")
    severity = f"{row['severity']}: " if status == "found" else ""
    title = f"{row['title']} ({row['advice']} records it)" if status == "no_data" and row["advice"] else row["title"]
    yield f"  {_SIGNS[status]} {severity}{title}"
    if status == "found" and not brief:
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
