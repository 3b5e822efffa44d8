"""``augment check``: a gate for CI."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from augment.commands.options import debug
from augment.errors import InputError, UsageError

if TYPE_CHECKING:
    from augment.commands.terminal import Bar
    from augment.comparison.regions import Regions
    from augment.comparison.totals import Samples

UNCERTAIN = 4  #: the exit code where no figure fails for certain, and some may


@click.command(
    "check", short_help="A gate for CI: exit with 1 if a run is worse than a baseline, with 4 if that is uncertain."
)
@click.argument("test", metavar="TEST")
@click.option(
    "--baseline",
    required=True,
    metavar="CONTROL|METRICS.json",
    help="The baseline: a trace, a folder of ranks, or metrics that augment run wrote.",
)
@click.option("--max-regress", metavar="5%", help="By how much a figure may get worse.  [default: 5%]")
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME[=LIMIT]",
    help="Gate another figure, or set its limit: 3% of the baseline, or a bound such as 80ms; repeatable.",
)
@click.option("--parts", is_flag=True, help="Also gate the parts of the step time (idle time, communication …).")
@click.option(
    "--uncertain",
    type=click.Choice(["tell", "pass", "fail"]),
    default="tell",
    show_default=True,
    help="If the noise is too great to decide: exit with 4, 0 or 1.",
)
@click.option(
    "--region",
    metavar="PATTERN",
    help="Use the occurrences of this annotation (or pattern with * and ?) as steps.",
)
@click.option("--config", metavar="GATE.toml", help="Read limits from a file; options override it.")
@click.option(
    "--markdown", metavar="FILE", help="Also write a Markdown table, such as for a comment on a pull request."
)
@click.option("--junit", metavar="FILE", help="Also write JUnit XML.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per figure.")
@click.option("--quiet", is_flag=True, help="Print only figures that fail or may fail.")
@debug
def command(
    test: str,
    baseline: str,
    max_regress: str | None,
    metrics: tuple[str, ...],
    parts: bool,
    uncertain: str,
    region: str | None,
    config: str | None,
    markdown: str | None,
    junit: str | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Exit with 1 if TEST is worse than the baseline by more than the noise and more than the limit.

    TEST is a trace, a folder of ranks, or metrics, like the baseline. The gate covers the step time and the peak of
    memory, and more on request. Each gets a line with the confidence interval of its change, from the variation of the
    steps; other figures get one if they explain the change. If an interval is too wide to decide, the exit code is 4,
    and the line says how many more steps are needed. If nothing is worse, it is 0.
    """
    from augment.commands.runs import label_of
    from augment.commands.terminal import bar, complain, emit
    from augment.comparison import gate, gate_files
    from augment.comparison.first_step import without_outlying_first_step
    from augment.comparison.regions import offer

    limits = gate.limits_of(_config(config), max_regress, dict(_pair(text) for text in metrics), parts=parts)
    with bar(1, quiet=quiet) as shown:
        (before, offered), (after, found) = _samples(baseline, region, shown), _samples(test, region, shown)
    notes = []
    if min(len(before["step_ns"]), len(after["step_ns"])) < 2 and (note := offer(offered, found)):
        notes.append(note)
    before, after, note = without_outlying_first_step(before, after)
    if note:
        notes.append(note)
    lines = gate.check(before, after, limits)
    names = label_of(baseline), label_of(test)
    if markdown:
        _write(markdown, gate_files.markdown(lines, *names, notes))
    if junit:
        _write(junit, gate_files.junit(lines, *names))
    if not quiet:
        for note in notes:
            complain(note)
    for line in lines:
        if as_json:
            emit(_as_json(line))
        elif not quiet or line.status in ("fail", "uncertain"):
            emit(f"{gate_files.WORDS[line.status]:7} {gate_files.text_of(line)}")
    statuses = {line.status for line in lines}
    if "fail" in statuses:
        return 1
    return {"tell": UNCERTAIN, "pass": 0, "fail": 1}[uncertain] if "uncertain" in statuses else 0


def _samples(path: str, region: str | None, shown: Bar) -> tuple[Samples, Regions]:
    """The figures of each step of a run, from traces or metrics, and the regions in the traces."""
    import os

    from augment.commands.runs import traces_of
    from augment.comparison.baseline import samples_of_sidecar
    from augment.comparison.regions import regions_of
    from augment.comparison.steps import windows_in
    from augment.comparison.totals import mean_of_ranks, samples_of
    from augment.sidecars import is_sidecar, read_sidecar

    if not os.path.exists(path):
        raise InputError(path, "no such file or folder")
    sidecars = [] if not os.path.isdir(path) else sorted(map(str, Path(path).glob("*.metrics.json")))
    sidecars = [path for path in sidecars if not path.endswith(("job.metrics.json", ".diff.metrics.json"))]
    if not os.path.isdir(path) and is_sidecar(path):
        sidecars = [path]
    if sidecars:
        return mean_of_ranks([samples_of_sidecar(path, read_sidecar(path)) for path in sidecars]), {}
    samples = []
    regions: Regions = {}
    for trace in traces_of(path, shown):
        windows = windows_in(trace, region)
        if not len(windows):
            raise InputError(trace.source.path, "holds no operator, launch or GPU work that could be compared")
        samples.append(samples_of(trace, windows))
        regions = regions or regions_of(trace)
    return mean_of_ranks(samples), regions


def _config(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    from augment.toml import read_toml

    return read_toml(path)


def _pair(text: str) -> tuple[str, str]:
    name, equals, limit = text.partition("=")
    if equals and not limit.strip():
        raise UsageError(f"--metric {text}: must be NAME or NAME=LIMIT, such as step_ns=3%")
    return name.strip(), limit.strip()


def _write(path: str, text: str) -> None:
    from augment.writers.files import replacing

    with replacing(Path(path)) as file:
        file.write(text.encode())


def _as_json(line: Any) -> str:
    import dataclasses
    import json

    record = dataclasses.asdict(line)
    record["figure"], record["unit"] = line.figure.name, line.figure.unit
    return json.dumps(record, ensure_ascii=False)
