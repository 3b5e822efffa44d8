"""``augment check``: a gate for CI."""

from __future__ import annotations

import click

from augment.cli.options import TRACE, client_of, debug, labels_option, server_option
from augment.errors import UsageError

UNCERTAIN = 4  #: the exit code if no figure fails for certain, but some may fail


@click.command(
    "check", short_help="A gate for CI: exit with 1 if a run is worse than a baseline, with 4 if that is uncertain."
)
@click.argument("test", metavar="TEST", type=TRACE)
@click.argument("more", metavar="", nargs=-1)
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
@labels_option("Only runs with this label, of a history, or jobs of a server without --baseline; repeatable.")
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
    "--region", metavar="PATTERN", help="Use the occurrences of this annotation (or pattern with * and ?) as steps."
)
@click.option("--config", metavar="GATE.toml", help="Read limits from a file; options override it.")
@click.option(
    "--markdown", metavar="FILE", help="Also write a Markdown table, such as for a comment on a pull request."
)
@click.option("--junit", metavar="FILE", help="Also write JUnit XML.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per figure.")
@click.option("--quiet", is_flag=True, help="Print only figures that fail or may fail.")
@server_option
@debug
def command(
    test: str,
    more: tuple[str, ...],
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
    server: str | None,
) -> int:
    """Exit with 1 if TEST is worse than the baseline by more than the limit, and not by noise alone.

    A figure fails (1) if its change exceeds the limit and the confidence interval of its change excludes no change;
    whether it fails cannot be told (4) if the interval includes both no change and the limit; else it passes (0).

    TEST is a trace, a folder of ranks, or metrics, like the baseline. The gate covers the step time and the peak
    memory, and more on request. Each gets a line with the interval, which comes from the variation of the steps; other
    figures get one if they explain the change. A long step now and then does not count. Where the gate cannot tell, the
    line says how many more steps are needed.

    With --against-history the baseline is many runs, and the interval comes from how they differ. Runs before the last
    change of a figure do not count. With --server, TEST and CONTROL may also be jobs of it that have succeeded, such as
    jobs/3f0c; with --label in place of --baseline, its jobs with this label are the runs.
    """
    from augment.batch import locations
    from augment.batch.remote import progress_of
    from augment.cli.runs import label_of, recorded_at, recording_of
    from augment.cli.terminal import bar, complain, emit
    from augment.compare import gate
    from augment.core import jsontext, text, toml
    from augment.history import Store
    from augment.results.recordings import judged, judged_by_runs, run_of

    if more:
        raise UsageError(f"one run is judged: augment check --baseline {baseline or test} {more[0]}")
    if (baseline is None) == (store is None) and not (server and labels and baseline is None):
        raise UsageError("name one of --baseline and --against-history")
    if labels and store is None and not server:
        raise UsageError("--label chooses runs of --against-history, or jobs of --server")
    if server and store is not None:
        raise UsageError("--against-history: not supported with --server, whose jobs --label chooses")
    of_file = toml.read_toml(config) if config else {}
    limits = gate.limits_of(of_file, max_regress, dict(_pair(text) for text in metrics), parts=parts)
    with client_of(server) as client, bar(1, quiet=quiet) as shown:
        if client:
            sides = [recorded_at(test), [] if baseline is None else recorded_at(baseline)]
            tell = progress_of(shown.stage)
            done = client.check(*sides, labels=labels, limits=limits, region=region or "", progress=tell)
            lines, notes = done.lines, done.notes
            names = (done.baseline if baseline is None else label_of(baseline)), label_of(test)
        elif store is not None:
            run = run_of(recording_of(test, region, shown), label_of(test), labels)
            shown.stage(f"reading {store}")
            runs = Store(store).runs(run.labels)
            lines, notes = judged_by_runs(run, runs, store, limits)
            names = f"{text.counted(sum(each.is_like(run) for each in runs), 'run')} of {store}", label_of(test)
        else:
            control = recording_of(baseline or "", region, shown)
            changed = recording_of(test, region, shown)
            lines, notes = judged(control, changed, (baseline or "", test), limits)
            names = label_of(baseline or ""), label_of(test)
    if markdown:
        locations.write(markdown, gate.markdown(lines, *names, notes).encode())
    if junit:
        locations.write(junit, gate.junit(lines, *names).encode())
    for note in notes if not quiet else ():
        complain(note)
    for row in map(jsontext.json_line, map(gate.row_of, lines)) if as_json else gate.texts_of(lines, brief=quiet):
        emit(row)
    codes = {"fail": 1, "uncertain": {"tell": UNCERTAIN, "pass": 0, "fail": 1}[uncertain]}
    return codes.get(gate.status_of(lines), 0)


def _pair(text: str) -> tuple[str, str]:
    name, equals, limit = text.partition("=")
    if equals and not limit.strip():
        raise UsageError(f"--metric {text}: must be NAME or NAME=LIMIT, such as wall_ns=3%")
    return name.strip(), limit.strip()
