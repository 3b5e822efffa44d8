"""``augment check``: a gate for CI."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from augment.cli.options import TRACE, debug, labels_option
from augment.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from augment.cli.terminal import Bar
    from augment.compare.gate import GateLimits, Line

UNCERTAIN = 4  #: the exit code if no figure fails for certain, but some may fail


@click.command(
    "check", short_help="A gate for CI: exit with 1 if a run is worse than a baseline, with 4 if that is uncertain."
)
@click.argument("test", metavar="TEST", type=TRACE)
@click.option(
    "--baseline",
    metavar="CONTROL|METRICS.json",
    help="The baseline: a trace, a folder of ranks, or metrics that augment run wrote.",
)
@click.option(
    "--against-history",
    "store",
    metavar="STORE",
    help="In place of --baseline: many runs, as augment history stores them.",
)
@labels_option("Only runs with this label, of a history; repeatable.")
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
    baseline: str | None,
    store: str | None,
    labels: dict[str, str],
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
    """Exit with 1 if TEST is worse than the baseline by more than the limit, and not by noise alone.

    A figure fails (1) if its change exceeds the limit and the confidence interval of its change excludes no change;
    whether it fails cannot be told (4) if the interval includes both no change and the limit; else it passes (0).

    TEST is a trace, a folder of ranks, or metrics, like the baseline. The gate covers the step time and the peak
    memory, and more on request. Each gets a line with the interval, which comes from the variation of the steps; other
    figures get one if they explain the change. A long step now and then does not count. Where the gate cannot tell, the
    line says how many more steps are needed.

    With --against-history the baseline is many runs, and the interval comes from how they differ. Runs before the last
    change of a figure do not count.
    """
    from augment.cli.terminal import bar, complain, emit
    from augment.compare import gate

    if (baseline is None) == (store is None):
        raise UsageError("name one of --baseline and --against-history")
    if labels and store is None:
        raise UsageError("--label and --branch choose runs of --against-history")
    limits = gate.limits_of(_config(config), max_regress, dict(_pair(text) for text in metrics), parts=parts)
    with bar(1, quiet=quiet) as shown:
        if store is not None:
            lines, names, notes = _against_runs(store, labels, test, region, limits, shown)
        else:
            lines, names, notes = _against_steps(baseline or "", test, region, limits, shown)
    if markdown:
        _write(markdown, gate.markdown(lines, *names, notes))
    if junit:
        _write(junit, gate.junit(lines, *names))
    for note in notes if not quiet else ():
        complain(note)
    for text in map(_as_json, lines) if as_json else gate.texts_of(lines, brief=quiet):
        emit(text)
    statuses = {line.status for line in lines}
    if "fail" in statuses:
        return 1
    return {"tell": UNCERTAIN, "pass": 0, "fail": 1}[uncertain] if "uncertain" in statuses else 0


_Outcome = tuple["Sequence[Line]", tuple[str, str], list[str]]  #: lines, names of baseline and test, notes


def _against_steps(baseline: str, test: str, region: str | None, limits: GateLimits, shown: Bar) -> _Outcome:
    """Compare the steps of two runs."""
    from augment.cli.runs import label_of, recording_of
    from augment.compare import gate
    from augment.compare.compared_steps import offer, without_outlying_first_step
    from augment.compare.diff_verdict import difference

    control, changed = recording_of(baseline, region, shown), recording_of(test, region, shown)
    before, after = control.samples, changed.samples
    notes = []
    if min(len(before["wall_ns"]), len(after["wall_ns"])) < 2 and (note := offer(control.regions, changed.regions)):
        notes.append(note)
    before, after, note = without_outlying_first_step(before, after)
    if note:
        notes.append(note)
    lines = gate.check(before, after, limits)
    if control.in_steps != changed.in_steps:
        whole, steps = (baseline, test) if changed.in_steps else (test, baseline)
        notes.append(f"{whole} has no steps: its whole recording cannot be compared with a step of {steps}")
        lines = gate.cannot_tell(lines, "a step cannot be compared with a whole recording")
    elif ("busy_ns" in before) != ("busy_ns" in after):
        host_alone = baseline if "busy_ns" in after else test
        notes.append(f"{host_alone} has no GPU work: its steps are those of the host, not of a device")
        lines = gate.cannot_tell(lines, "only one side has GPU work")
    if devices := difference(control.device_names, changed.device_names):
        notes.append(devices)
    for path, recording in ((baseline, control), (test, changed)):
        notes += [f"{path} is not whole: {source['partial']}" for source in recording.sources if source.get("partial")]
    return lines, (label_of(baseline), label_of(test)), notes


def _against_runs(
    store: str, labels: dict[str, str], test: str, region: str | None, limits: GateLimits, shown: Bar
) -> _Outcome:
    """Compare a run with the runs of a history that have the labels, the same device and the same number of ranks."""
    from augment.cli.history import change_text
    from augment.cli.runs import label_of, recording_of, run_of
    from augment.core.text import counted
    from augment.history import Store
    from augment.history.changes import baselines as baselines_of
    from augment.history.changes import check as check_run

    run = run_of(recording_of(test, region, shown), label_of(test), labels)
    shown.stage(f"reading {store}")
    runs = [label for label in Store(store).runs(run.labels) if label.recordings != run.recordings]
    alike = [each for each in runs if each.rank_count == run.rank_count]
    baselines = baselines_of(alike)
    notes = [
        f"{figure.name} {change_text(known.change, figure.name)} at {known.runs[0].name}; compared with the runs since"
        for figure, known in baselines.items()
        if known.change and limits.of(figure)
    ]
    if not alike:
        wanted = ", ".join(f"{key}={value}" for key, value in run.labels.items())
        notes.append(f"{store} holds no other run of {counted(run.rank_count, 'rank')} with {wanted or 'any label'}")
    return check_run(baselines, run, limits), (f"{counted(len(alike), 'run')} of {store}", label_of(test)), notes


def _config(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    from augment.core.toml import read_toml

    return read_toml(path)


def _pair(text: str) -> tuple[str, str]:
    name, equals, limit = text.partition("=")
    if equals and not limit.strip():
        raise UsageError(f"--metric {text}: must be NAME or NAME=LIMIT, such as wall_ns=3%")
    return name.strip(), limit.strip()


def _write(path: str, text: str) -> None:
    from augment.writers.files import replacing

    with replacing(Path(path)) as file:
        file.write(text.encode())


def _as_json(line: Any) -> str:
    import json

    import msgspec

    record = msgspec.to_builtins(line)
    record["figure"], record["unit"] = line.figure.name, line.figure.unit
    return json.dumps(record, ensure_ascii=False)
