"""``augment diff``: compares two runs."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from augment.cli.options import (
    TRACE,
    GroupedCommand,
    client_of,
    debug,
    listed,
    memory_of_one,
    peaks_option,
    row_limit,
    server_options,
    tables_option,
)
from augment.core.output_files import SERVER_JOB
from augment.errors import UsageError

if TYPE_CHECKING:
    from augment.cli.terminal import Bar
    from augment.client import Client
    from augment.compare.outputs import Drawing
    from augment.core import Trace

ROWS = 10  #: rows of a table of several runs by default


@click.command(
    "diff", cls=GroupedCommand, short_help="Compare two runs: what differs, and whether it is more than noise."
)
@click.argument("control", metavar="CONTROL", type=TRACE)
@click.argument("tests", metavar="TEST…", type=TRACE, nargs=-1, required=True)
@click.option("-o", "--output", "out", metavar="DIR", help="Output folder; by default that of TEST.")
@click.option(
    "--step", metavar="N|N:M", help="Compare step N, or step N of the control with step M of the test.  [default: all]"
)
@click.option(
    "--region",
    metavar="PATTERN",
    help="Use the occurrences of this annotation (or pattern with * and ?) as steps, numbered from 0.",
)
@click.option("--control-rank", type=int, metavar="R", help="Compare only this rank of the control folder.")
@click.option("--test-rank", type=int, metavar="R", help="Compare with this rank of the test folder.")
@click.option("--functions", is_flag=True, help="Also match Python functions, if they were recorded.")
@click.option(
    "--to",
    "formats",
    multiple=True,
    metavar="FORMAT,…",
    callback=listed,
    help="Formats of the annotated test (see augment list).  [default: perfetto]",
)
@click.option("--overlay", is_flag=True, help="Also write both traces into one file in Perfetto's native format.")
@click.option("--label", default="", metavar="TEXT", help="Name of the control on the timeline.")
@click.option(
    "--min-delta-us",
    type=click.IntRange(min=0),
    metavar="N",
    help="Draw all differences of at least this size; 0: draw everything.  [default: what makes up 1 % of a step]",
)
@click.option(
    "--control-graph-capture",
    metavar="FILE",
    help="A trace of the capture of the control's CUDA graphs, with shapes; {rank} stands for the rank.",
)
@click.option("--test-graph-capture", metavar="FILE", help="Likewise of the test.")
@tables_option
@peaks_option
@memory_of_one
@server_options
@row_limit(None, "Print every table, at most N rows of each; 0: all.  [default: the main tables; of several runs 10]")
@click.option("--json", "as_json", is_flag=True, help="Print the sidecar instead of tables.")
@click.option("--quiet", is_flag=True, help="Print only the paths written.")
@debug
def command(
    control: str,
    tests: tuple[str, ...],
    out: str | None,
    step: str | None,
    region: str | None,
    control_rank: int | None,
    test_rank: int | None,
    functions: bool,
    formats: tuple[str, ...],
    overlay: bool,
    label: str,
    min_delta_us: int | None,
    control_graph_capture: str | None,
    test_graph_capture: str | None,
    tables: tuple[str, ...],
    peaks: tuple[str, ...],
    memory: int | None,
    limit: int | None,
    as_json: bool,
    quiet: bool,
    **server: Any,
) -> None:
    """Compare TEST with CONTROL: what differs, where the difference comes from, and whether it exceeds the noise.

    Each is a trace, or a folder with a trace of each rank. Steps are compared in order, as many as both have; ranks by
    their number. With several TESTs, in order of time: which rank and which collective changed, and since which run.

    The tables are printed. STEM.diff.pftrace (or .json.gz; STEM of the test) is the test's trace with the
    differences on its timeline; STEM.diff.metrics.json is the whole comparison. With several TESTs no file is written.
    """
    from augment.batch.inputs import identify
    from augment.batch.locations import expect_writable
    from augment.batch.memory_limit import bounded, expect_possible
    from augment.cli.runs import files_of, label_of, labels_of
    from augment.cli.terminal import bar, emit, say
    from augment.compare import diff
    from augment.compare.outputs import Drawing, write_all
    from augment.readers.attachments import Evidence
    from augment.writers import writer_named

    if len(tests) > 1:
        _several((control, *tests), region, limit, as_json, quiet)
        return
    (test,) = tests
    expect_possible(memory)
    for name in formats:
        writer_named(name)
    options: dict[str, Any] = {"step": _step(step), "region": region, "functions": functions}
    captures = {"control-graph-capture": control_graph_capture, "test-graph-capture": test_graph_capture}
    ranks: dict[str, Any] = {"control_rank": control_rank, "test_rank": test_rank}
    least_ns = None if min_delta_us is None else 1000 * min_delta_us
    drawing = Drawing(formats, label or label_of(control), least_ns, overlay, test_label=label_of(test))
    near = "" if SERVER_JOB.fullmatch(test) else test if os.path.isdir(test) else os.path.dirname(test)
    folder, opened = Path(out or near or "."), 0
    expect_writable(str(folder))
    with client_of(**server) as client, bar(1, quiet=quiet) as shown:
        if client:
            if memory is not None:
                raise UsageError("--memory: not supported with a server (it has --max-job-memory); leave --server out")
            sent = []
            for run, side, capture in zip((control, test), ("control-", "test-"), captures.values(), strict=True):
                evidence, files = Evidence({"graph_capture": capture}), files_of(run)
                evidence.check(len(files), side=side)
                of_ranks = {file: evidence.of(identify(file).rank) for file in files if capture}
                sent.append({file: path for file, of_rank in of_ranks.items() for path in of_rank.values()})
            beside = {"tables": tables, "peaks": peaks, "captures": tuple(sent)}
            paths = _there(client, control, test, options | ranks | beside, drawing, folder, shown)
        else:
            with bounded(_bound((control, test), memory), folder) as expect_room:

                def stage(what: str) -> None:
                    expect_room()  # for arrays, on the disk
                    shown.stage(what)

                sides = _sides((control, test), captures.values(), tables, peaks, shown)
                stage("comparing")
                made = diff(*sides, **(options | ranks))
                paths = write_all(made, folder, label_of(test), drawing, stage)
                opened = made.late[1] * (len(paths) // max(len(made.pairs), 1))  # of the rank that changed
                del sides, made  # within the bound
    if as_json:
        emit(paths[-1].read_text(encoding="utf-8").rstrip("\n"))
    elif quiet:
        emit("\n".join(map(str, paths)))
    else:
        from msgspec import json

        from augment.cli.table_output import print_diff

        print_diff(json.decode(paths[-1].read_bytes()), labels_of(control, test), limit)
        for path in paths:
            say(f"written: {path}")
        if len(paths) > 1:
            say(f"open it: augment open {shlex.quote(str(paths[opened]))}")


def _several(paths: Sequence[str], region: str | None, limit: int | None, as_json: bool, quiet: bool) -> None:
    """Print what changed among more than two runs.

    Raises:
        UsageError: an option is given that is for two runs.
    """
    from msgspec import to_builtins

    from augment.cli.runs import labels_of, traces_of
    from augment.cli.terminal import bar, emit
    from augment.compare.run_series import compare, figures_of

    given = click.get_current_context()
    for option in given.command.params:
        name = option.name or ""
        is_given = given.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
        if is_given and name not in ("control", "tests", "region", "limit", "as_json", "quiet", "debug"):
            raise UsageError(f"{option.opts[0]}: of two runs only")
    labels = labels_of(*paths)
    with bar(1, quiet=quiet) as shown:
        runs = [figures_of(label, traces_of(path, shown), region) for label, path in zip(labels, paths, strict=True)]
    made = to_builtins(compare(runs))
    if as_json:
        import json

        emit(json.dumps(made, indent=1, ensure_ascii=False))
        return
    emit("\n".join(made["verdict"]))
    if made["rows"] and not quiet:
        from augment.cli.table_output import print_rows

        shown_rows = [{name: value for name, value in row.items() if name != "runs_ns"} for row in made["rows"]]
        print_rows("What changed, per step", shown_rows[: (ROWS if limit is None else limit) or None])


def _sides(
    paths: Sequence[str], captures: Iterable[str | None], tables: Sequence[str], peaks: Sequence[str], shown: Bar
) -> list[list[Trace]]:
    """The traces of both sides, with the captures of their graphs and the user's tables."""
    from augment.cli.runs import files_of, traces_of
    from augment.readers.attachments import Evidence
    from augment.readers.attachments.tables import read_tables, with_tables

    read_tables(tables, peaks)  # refuses them before a large trace is read
    evidence = [Evidence({"graph_capture": capture}) for capture in captures]
    for path, of_side, side in zip(paths, evidence, ("control-", "test-"), strict=True):
        of_side.check(len(files_of(path)), side=side)
    return [
        [with_tables(of_side.added_to(trace), *tables, peaks=peaks) for trace in traces_of(path, shown)]
        for path, of_side in zip(paths, evidence, strict=True)
    ]


def _bound(paths: Sequence[str], memory: int | None) -> int | None:
    """The bound of memory; None if there is none, or all traces together need less."""
    from augment.batch.inputs import Input
    from augment.batch.memory_limit import bound_for
    from augment.cli.runs import files_of

    names = [] if memory is None else [name for path in paths for name in files_of(path) if os.path.exists(name)]
    return bound_for([Input(name, "", named=True, size=os.path.getsize(name)) for name in names], memory)


def _there(
    client: Client, control: str, test: str, options: dict[str, Any], drawing: Drawing, folder: Path, shown: Bar
) -> Sequence[Path]:
    """Compare on a server; returns the same files."""
    from augment.batch.remote import progress_of
    from augment.cli.runs import files_of, label_of

    return client.diff(
        files_of(control),
        files_of(test),
        name=label_of(test),
        **options,
        formats=drawing.formats,
        overlay=drawing.overlay,
        label=drawing.label,
        min_delta_us=None if drawing.min_delta_ns is None else drawing.min_delta_ns // 1000,
        out=folder,
        progress=progress_of(shown.stage),
    ).files


def _step(text: str | None) -> int | tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"([+-]?\d+)(?::([+-]?\d+))?", text)
    if not match:
        raise UsageError(f"--step {text}: must be the number of a step, or of one step per side, such as 3:5")
    return (int(match[1]), int(match[2])) if match[2] else int(match[1])
