"""``augment history``: figures of many runs."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from augment.cli.options import client_of, debug, labels_option, row_limit, server_option
from augment.core import old_names
from augment.errors import UsageError, expect_known

if TYPE_CHECKING:
    from augment.history import Run

_PLACE = "The folder of the runs, or a URL that fsspec knows."
_STORE = click.option("--store", metavar="DIR|URL", help=_PLACE)
_LATEST = "The latest runs to show; 0: all."


@click.group("history", short_help="Figures over many runs: add a run, list them, show when a figure changed.")
def command() -> None:
    """Keep the figures of many runs in a folder of small Parquet files (extra [history]).

    augment check --against-history compares a run with them.
    """


@command.command("add", short_help="Add a run: its folder of metrics or traces, or a file.")
@click.argument("sources", nargs=-1, required=True, metavar="DIR|METRICS.json|TRACE…")
@click.option("--store", required=True, metavar="DIR|URL", help=_PLACE)
@labels_option("A label of the run, such as branch=main or commit=1a2b3c; repeatable.")
@click.option("--time", "when", metavar="ISO", help="Time of the recording.  [default: the trace's own, or now]")
@debug
def add(sources: tuple[str, ...], store: str, labels: dict[str, str], when: str | None) -> None:
    """Add each source as a run: a folder of all ranks' metrics (or traces), or one file.

    A run is named after its label run or commit, else after its folder or file. Its GPU becomes the label device. A run
    that is added again with the same labels replaces the earlier one.
    """
    from augment.cli import terminal
    from augment.cli.runs import label_of, recording_of
    from augment.history import Store
    from augment.results.recordings import run_of

    time_ns = None
    if when is not None:
        try:
            time = datetime.fromisoformat(when.replace("Z", "+00:00"))
        except ValueError as error:
            raise UsageError(f"--time {when}: must be a time such as 2026-01-31T12:00:00Z") from error
        time_ns = int((time if time.tzinfo else time.replace(tzinfo=timezone.utc)).timestamp()) * 10**9
    opened = Store(store)
    with terminal.bar(len(sources), quiet=False) as shown:
        for source in sources:
            run = run_of(recording_of(source, None, shown), label_of(source), labels, time_ns)
            opened.add(run)
            terminal.emit(run.name)


@command.command("list")
@_STORE
@labels_option("Only runs with this label; repeatable.")
@row_limit(50, _LATEST)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per run, with all figures.")
@server_option
@debug
def list_runs(store: str | None, labels: dict[str, str], limit: int, as_json: bool, server: str | None) -> None:
    """List the runs, the oldest first: those of STORE, or with --server its jobs that have the labels."""
    from augment.cli import table_output, terminal
    from augment.core import text

    runs = _runs(store, labels, server)
    if as_json:
        from msgspec import to_builtins

        from augment.core import jsontext

        for run in runs[-limit:]:
            terminal.emit(jsontext.json_line(to_builtins(run)))
    elif runs:
        rows = [
            {
                "run": run.name,
                "recorded": run.recorded,
                "labels": run.labels_text(),
                "ranks": run.rank_count,
                "steps": run.figures["wall_ns"].step_count,
                "wall_ns": run.figures["wall_ns"].median,
            }
            for run in runs[-limit:]
        ]
        table_output.print_rows(text.counted(len(runs), "run"), rows)
    else:
        terminal.emit("no run")


@command.command("show", short_help="Show a figure of each run, and where its level changed.")
@click.argument("figure", default="wall_ns")
@_STORE
@labels_option("Only runs with this label; repeatable.")
@row_limit(50, _LATEST)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per run.")
@server_option
@debug
def show(figure: str, store: str | None, labels: dict[str, str], limit: int, as_json: bool, server: str | None) -> None:
    """Show FIGURE (by default wall_ns) of each run, and the runs where its level changed.

    The figure of a run is the median of its steps. Runs with different devices or numbers of ranks are kept apart.
    """
    from statistics import median

    from augment.cli import terminal
    from augment.compare import diff_verdict, gate
    from augment.history import series

    figure = old_names.FIGURES.get(figure, figure)
    title, unit = diff_verdict.figure_title(figure), figure.rpartition("_")[2]
    runs = _runs(store, labels, server)
    expect_known(figure, dict.fromkeys(name for run in runs for name in run.figures), "figure of these runs")
    for (device, ranks), (members, changed) in series(runs, figure).items():
        of = ", ".join(filter(None, (device, f"{ranks} ranks" if ranks > 1 else "")))
        values, change_at = [run.figures[figure] for run in members], {change.first: change for change in changed}
        level = float(median([value.median for value in values[: min(change_at, default=len(values))]]))
        rows: list[dict[str, Any]] = []
        for place, (run, value) in enumerate(zip(members, values, strict=True)):
            level = change_at[place].after if place in change_at else level
            row = {"run": run.name, "recorded": run.recorded, figure: value.median, f"level_{unit}": level}
            rows.append({**row, "steps": value.step_count, "changed": "←" if place in change_at else None})
        if as_json:
            from augment.core import jsontext

            for row in rows[-limit:]:
                terminal.emit(jsontext.json_line({**row, "device": device, "rank_count": ranks}))
            continue
        from augment.cli import table_output
        from augment.core import text

        table_output.print_rows(f"{text.capitalized(title)}{f' · {of}' if of else ''}", rows[-limit:])
        for place, change in sorted(change_at.items()):
            terminal.emit(f"{title} {gate.level_text(change.before, change.after, figure)} at {members[place].name}")
        if not changed:
            terminal.emit(f"no change of {title} was found")


def _runs(store: str | None, labels: dict[str, str], server: str | None) -> list[Run]:
    """The runs of a store, or those that a server's jobs are.

    Raises:
        UsageError: neither is named, or both are.
    """
    from augment.history import Run, Store

    if (store is None) == (server is None):
        raise UsageError("name one of --store and --server")
    with client_of(server) as client:
        if client is None:
            return Store(store or "").runs(labels)
        import msgspec

        return [msgspec.convert(row, Run) for row in client.history(labels)[0]]
