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

UNCERTAIN = 4  #: the exit code where nothing is worse for certain, and something may be


@click.command(
    "check", short_help="Exit with 1 if a run is worse than a baseline, with 4 if that cannot be told: a gate for CI."
)
@click.argument("test", metavar="TEST")
@click.option(
    "--baseline", required=True, metavar="CONTROL|METRICS.json",
    help="What to compare with: a trace, a folder of ranks, or the metrics that augment run wrote.",
)  # fmt: skip
@click.option("--max-regress", metavar="5%", help="How much worse a figure may get.  [default: 5%]")
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME[=LIMIT]",
    help="Gate one more figure, or by another limit: 3% of the baseline, or a bound as 80ms; may be given again.",
)  # fmt: skip
@click.option(
    "--parts", is_flag=True, help="Gate the step's parts, too (idle time, communication …), not its whole alone."
)
@click.option(
    "--uncertain", type=click.Choice(["tell", "pass", "fail"]), default="tell", show_default=True,
    help="Where the noise is too great to tell: exit with 4, 0 or 1.",
)  # fmt: skip
@click.option(
    "--region",
    metavar="PATTERN",
    help="Of traces, take the annotations of this name, or pattern with * and ?, as steps.",
)
@click.option("--config", metavar="GATE.toml", help="Limits from a file; options here come before it.")
@click.option("--markdown", metavar="FILE", help="Also write a table for a comment on a pull request.")
@click.option("--junit", metavar="FILE", help="Also write JUnit's XML.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each figure.")
@click.option("--quiet", is_flag=True, help="Print the figures that fail, or may fail, alone.")
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
    """Exit with 1 if TEST is worse than the baseline, by more than the noise and more than is allowed.

    TEST is a trace, a folder of ranks, or metrics, as the baseline is. The step's time and the peak of memory are
    gated, more on request. A line is printed for each, with the confidence interval of its change by the variation of
    the steps, and one for each other figure that explains the change. If the interval is too wide to tell, the exit
    code is 4, and the line says how many more steps are needed. If nothing is worse, it is 0.
    """
    from augment.commands.runs import label_of
    from augment.commands.terminal import bar, complain, emit
    from augment.comparison import gate, gate_files
    from augment.comparison.first_step import without_outlying_first_step
    from augment.comparison.regions import offer

    limits = gate.limits_of(_config(config), max_regress, dict(_pair(one) for one in metrics), parts=parts)
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
    """The figures of each step of a run, read from traces or from metrics, and which regions the traces have."""
    import os

    from augment.commands.runs import traces_of
    from augment.commands.show import is_sidecar, read_sidecar
    from augment.comparison.baseline import samples_of_sidecar
    from augment.comparison.regions import regions_of
    from augment.comparison.steps import windows_in
    from augment.comparison.totals import mean_of_ranks, samples_of

    if not os.path.exists(path):
        raise InputError(path, "no such file or folder")
    sidecars = [] if not os.path.isdir(path) else sorted(map(str, Path(path).glob("*.metrics.json")))
    sidecars = [one for one in sidecars if not one.endswith(("job.metrics.json", ".diff.metrics.json"))]
    if not os.path.isdir(path) and is_sidecar(path):
        sidecars = [path]
    if sidecars:
        return mean_of_ranks([samples_of_sidecar(one, read_sidecar(one)) for one in sidecars]), {}
    found = []
    regions: Regions = {}
    for trace in traces_of(path, shown):
        windows = windows_in(trace, region)
        if not len(windows):
            raise InputError(trace.source.path, "holds no operator, launch or GPU work that could be compared")
        found.append(samples_of(trace, windows))
        regions = regions or regions_of(trace)
    return mean_of_ranks(found), regions


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

    told = dataclasses.asdict(line)
    told["figure"], told["unit"] = line.figure.name, line.figure.unit
    return json.dumps(told, ensure_ascii=False)
