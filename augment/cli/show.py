"""``augment show``: shows metrics as tables."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from augment.cli.options import TRACE, GroupedCommand, analyses_of, complete_analysis, debug, requesting, row_limit

if TYPE_CHECKING:
    from augment.pipeline.request import Request
    from augment.results.sidecars import Sidecar

ROWS = 20  #: rows of a table by default
TABLES = 5  #: number of tables shown if no names are given
#: the main tables, in this order; the steps that the verdict speaks of come before all other periods
MAIN = (
    "diagnosis",
    "memory_snapshot",
    "inference_phases",
    "mean_step",
    "steps",
    "temporal_breakdown",
    "kernel_family_breakdown",
    "kernel_breakdown",
    "idle_time_breakdown",
    "user_annotation_breakdown",
    "memory_profile",
    "operator_breakdown",
)
CLOCKS = "clock_alignment"
#: the columns of steps that a mean step is made of; --all shows the others
STEP = (
    *("rank", "device", "step", "start_ns", "wall_ns", "busy_ns", "compute_ns", "exposed_communication_ns"),
    *("exposed_memory_ns", "idle_ns", "host_wait_ns", "kernel_wait_ns", "other_wait_ns", "is_steady"),
)


@click.command("show", cls=GroupedCommand, short_help="Show metrics as tables.")
@click.argument("source", metavar="INPUT|METRICS.json|FOLDER", type=TRACE)
@click.argument("analyses", nargs=-1, metavar="[ANALYSIS…]", shell_complete=complete_analysis)
@requesting()
@row_limit(ROWS)
@click.option("--all", "whole", is_flag=True, help="Show every table, not just the main ones.")
@click.option("--json", "as_json", is_flag=True, help="Print the analyses as JSON, with all rows.")
@click.option("--csv", "as_csv", is_flag=True, help="Print the table of the one ANALYSIS as CSV, with all rows.")
@click.option("--markdown", is_flag=True, help="Print Markdown tables.")
@click.option("--parquet", metavar="DIR", help="Write all rows as ANALYSIS.parquet, the verdict, diagnostics, times.")
@click.option(
    "--xlsx",
    metavar="FILE",
    help="Write an Excel workbook: GPU time by kind and kernel, by operator and shape; all tables.",
)
@debug
def command(
    source: str,
    analyses: tuple[str, ...],
    request: Request,
    limit: int,
    whole: bool,
    as_json: bool,
    as_csv: bool,
    markdown: bool,
    parquet: str | None,
    xlsx: str | None,
) -> None:
    """Show metrics as tables, from a metrics file or from a trace, which is then analysed; of a FOLDER, its job's.

    Without names, the verdict and the five main tables are shown. A unique prefix of a name suffices. Only --xlsx
    and --parquet write files. The latter writes one for each analysis; it also accepts a folder of metrics, and the
    columns run, trace and rank tell the source of each row.
    """
    import json

    forms = {"--json": as_json, "--csv": as_csv, "--markdown": markdown, "--parquet": parquet is not None}
    if sum(forms.values()) > 1:
        raise click.UsageError(f"{' and '.join(name for name, given in forms.items() if given)}: choose one")
    from msgspec.structs import replace

    from augment.cli.terminal import emit
    from augment.results.sidecars import Sidecar, in_job, is_sidecar, read_sidecar, sidecars_in, with_device_names

    if parquet is not None and os.path.isdir(source):
        request = replace(request, only=(*analyses_of(analyses), *request.only))
        sidecars = [replace(each, content=_chosen(in_job(each.content), request)) for each in sidecars_in([source])]
        _write_parquet(sidecars, parquet, request.only)
        return
    if os.path.isdir(source):
        known: dict[str, Any] | None = in_folder(source, analysed_folder)
    else:
        known = read_sidecar(source) if is_sidecar(source) else None
    only = analyses_of(analyses, None if known is None else known["analyses"])
    request = replace(request, only=(*only, *request.only))
    sidecar = analysed(source, request) if known is None else _chosen(in_job(known), request)
    if xlsx is not None:
        from pathlib import Path

        from augment.writers.table_files import write_xlsx

        write_xlsx(sidecar, Path(xlsx))
        emit(xlsx)
    elif parquet is not None:
        _write_parquet([Sidecar.of(source, sidecar)], parquet, request.only)
    elif as_csv:
        _print_csv(sidecar)
    elif as_json:
        emit(json.dumps(sidecar["analyses"], indent=1, ensure_ascii=False))
    else:
        from augment.cli.options import as_given
        from augment.cli.table_output import print_markdown, print_sidecar
        from augment.results.report.health import trace_of

        shown = sidecar if request.only or request.skip or whole else main_tables(sidecar)
        (print_markdown if markdown else print_sidecar)(with_device_names(shown), limit, trace_of(as_given(source)))


def in_folder(folder: str, analyse: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """The metrics that augment wrote into a folder, those of the job if there are several; else ``analyse`` makes them.

    Raises:
        InputError: there are several and no job's, or no trace.
    """
    from augment.cli.runs import metrics_of
    from augment.errors import InputError
    from augment.results.sidecars import read_sidecar

    metrics = metrics_of(folder)
    first, several = _standing_for_all(metrics) if metrics else ("", "")
    if several:
        raise InputError(folder, f"holds the metrics of {several}; name one: {first}")
    made = read_sidecar(first) if metrics else analyse(folder)
    if cures := made.get("verdict", {}).get("cures"):
        from augment.job import rank_answers

        made["verdict"]["cures"] = rank_answers.in_folder(cures, folder)
    return made


def _standing_for_all(metrics: Sequence[str]) -> tuple[str, str]:
    """The metrics of all roles, else of a job, else of a trace; and what there is several of, if there is."""
    from augment.core.output_files import JOB_METRICS, is_of_job

    if roles := [name for name in metrics if os.path.basename(name) == f"roles.{JOB_METRICS}"]:
        return roles[0], ""
    if jobs := [name for name in metrics if is_of_job(name)]:
        return jobs[0], f"{len(jobs)} jobs, or recordings of one" if len(jobs) > 1 else ""
    return metrics[0], f"{len(metrics)} traces that are no job" if len(metrics) > 1 else ""


def analysed_folder(folder: str) -> dict[str, Any]:
    """The metrics of the roles in a folder of traces, of its only job, or of its only trace.

    Raises:
        InputError: there is none, or there are several jobs, recordings of one, or traces that are no job.
    """
    import subprocess
    import sys
    import tempfile
    from pathlib import Path

    from augment.cli.runs import files_of
    from augment.core.output_files import METRICS_SUFFIX
    from augment.errors import InputError
    from augment.results.sidecars import read_sidecar

    files_of(folder)
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "augment", "run", folder, "-o", scratch, "--quiet"]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        made = [str(path) for path in Path(scratch).rglob(f"*{METRICS_SUFFIX}")]
        if not made:  # it has said why, or there are outputs alone
            raise click.exceptions.Exit(done.returncode) if done.returncode else InputError(folder, "holds no trace")
        first, several = _standing_for_all(made)
        if several:
            look, each = f"augment diagnose {shlex.quote(folder)}", f"augment run {shlex.quote(folder)} -o OUT"
            raise InputError(folder, f"holds {several}; name one; look at all: {look}; metrics of each: {each}")
        return read_sidecar(first)


def main_tables(sidecar: dict[str, Any]) -> dict[str, Any]:
    """The sidecar with the first five tables of :data:`MAIN` that have rows, and the number of the others; unchanged
    if it has none of these; without any if no analysis has rows. That of a job has all tables but ``aggregates``, with
    ranks that are alike in one row, and ranks whose clocks are in doubt first. The diagnosis is reduced to its
    findings, the steps to :data:`STEP`; with steps, no table is of the recording as a whole."""
    from augment.results.report.sections import heading, severity_of
    from augment.results.sidecars import in_steady_steps

    analyses = dict(sidecar["analyses"])
    if "traces" in sidecar["source"]:
        aggregated = bool(analyses.pop("aggregates", {}).get("rows"))
        for name, each in analyses.items():
            rows = sorted(each["rows"], key=lambda row: row["status"] != "refused") if name == CLOCKS else each["rows"]
            analyses[name] = {**each, "rows": folded(rows)}
        return {**sidecar, "analyses": analyses, "others": int(aggregated)}
    if "diagnosis" in analyses:
        columns: tuple[str, ...] = ("severity", "rule", "title", "saved_ns", "saved_ratio", "confidence")
        problems = [row for row in analyses["diagnosis"]["rows"] if row["status"] == "found"]
        if all(row["in_verdict"] for row in problems):  # the verdict says them
            columns = columns[:2] + columns[3:]
        said = [{**row, "title": heading(row), "severity": severity_of(row)} for row in problems]
        rows = [{name: row[name] for name in columns} for row in said]
        analyses["diagnosis"] = {**analyses["diagnosis"], "rows": rows}
    steady = in_steady_steps(sidecar, "steps")
    if any(row["step"] is not None for row in steady):
        analyses.pop("temporal_breakdown", None)
        rows = [{name: row[name] for name in STEP if name in row} for row in analyses["steps"]["rows"]]
        analyses["steps"] = {**analyses["steps"], "rows": rows}
        analyses["mean_step"] = {"status": "done", "rows": mean_steps(steady)}
    chosen = [name for name in MAIN if analyses.get(name, {}).get("rows")][:TABLES]
    if not chosen:
        nothing = "verdict" in sidecar and not any(analysis["rows"] for analysis in sidecar["analyses"].values())
        there = {name: each for name, each in analyses.items() if each["rows"] or each["status"] == "failed"}
        return {**sidecar, "analyses": {}, "lacking": True} if nothing else {**sidecar, "analyses": there or analyses}
    shown = {name: analyses[name] for name in chosen}
    others = sum(bool(analysis["rows"]) for analysis in sidecar["analyses"].values()) - len({*chosen} - {"mean_step"})
    return {**sidecar, "analyses": shown, "diagnostics": [], "others": others}


def folded(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each set of ranks whose rows are equal but for the rank and its trace, at the place of the first."""
    from augment.job.ranks import ranks_text

    alike: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        alike.setdefault(repr({**row, "rank": None, "trace": None}), []).append(row)
    if len(alike) == len(rows) or "rank" not in rows[0]:
        return list(rows)
    return [
        {
            name: ranks_text(row["rank"] for row in group) if name == "rank" and len(group) > 1 else value
            for name, value in group[0].items()
            if name != "trace"
        }
        for group in alike.values()
    ]


def mean_steps(steady: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each device: the mean of the steps that the verdict speaks of, and its parts as shares."""
    rows = []
    for rank, device in dict.fromkeys((row["rank"], row["device"]) for row in steady if row["busy_ns"] is not None):
        steps = [row for row in steady if (row["rank"], row["device"]) == (rank, device)]
        wall = sum(row["wall_ns"] for row in steps)
        parts = {name: sum(row[name] for row in steps) for name in STEP[5:-1]}
        ratios = {f"{name.removesuffix('_ns')}_ratio": part / max(wall, 1) for name, part in parts.items()}
        rows.append({"rank": rank, "device": device, "step_count": len(steps), "wall_ns": wall / len(steps), **ratios})
    return rows


def _print_csv(sidecar: dict[str, Any]) -> None:
    """Print the rows of the only analysis as CSV.

    Raises:
        UsageError: there are several.
    """
    import csv
    import io
    import sys

    from augment.cli.terminal import emit
    from augment.errors import UsageError

    if len(sidecar["analyses"]) != 1:
        raise UsageError("--csv: name one analysis, such as augment show FILE temporal_breakdown --csv")
    ((_, analysis),) = sidecar["analyses"].items()
    rows = analysis["rows"]
    if not rows:
        return
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(rows[0])
    table.writerows(
        [(" → ".join(map(str, value)) if isinstance(value, list) else value) for value in row.values()] for row in rows
    )
    emit(text.getvalue().removesuffix("\n"), exact=not sys.stdout.isatty())


def _chosen(sidecar: dict[str, Any], request: Request) -> dict[str, Any]:
    """The sidecar with only the requested analyses.

    Raises:
        UsageError: an analysis is not in the file, or an option needs the trace.
    """
    from augment.core.attachment_kinds import KINDS
    from augment.errors import UsageError, expect_known

    only, skip, evidence = request.only, request.skip, request.evidence
    needs_trace = {
        "--option": request.options,
        "--steps": request.steps,
        "--tables": request.tables,
        "--peak": request.peaks,
        "--region": request.region,
        **{f"--{kind.option}": evidence.paths.get(kind.name) for kind in KINDS},
    }
    if given := next((name for name, value in needs_trace.items() if value), None):
        raise UsageError(f"{given}: these metrics are already computed; name the trace to compute them again")
    known = sidecar["analyses"]
    for name in (*only, *skip):
        expect_known(name, known, "analysis in this file")
    chosen = {name: analysis for name, analysis in known.items() if (not only or name in only) and name not in skip}
    return {**sidecar, "analyses": chosen}


def analysed(path: str, request: Request) -> dict[str, Any]:
    """The sidecar that ``augment run`` would write."""
    request.check()
    from augment.cli.terminal import bar
    from augment.core.threads import MOST_THREADS, keep_freed_memory, processors
    from augment.job.rank_answers import with_its_ranks
    from augment.pipeline import augment
    from augment.readers import read
    from augment.writers.metrics import as_read

    keep_freed_memory()
    threads = min(processors(), MOST_THREADS)
    with bar(1, quiet=False) as shown:
        shown.stage(f"reading {path}")
        trace = read(path, threads=threads)
        evidence = request.evidence.near(path, trace.rank, trace.source.world_size)
        trace = evidence.added_to(with_its_ranks(trace))
        augmented = augment(trace, request, progress=lambda name, _done, _of: shown.stage(name), threads=threads)
        for why in evidence.unused(augmented):
            shown.say(f"augment: {why}")
    return as_read(augmented)


def _write_parquet(sidecars: Sequence[Sidecar], folder: str, only: Sequence[str]) -> None:
    """Write a file for each analysis, and what is beside them unless ``only`` some are wanted; print the paths."""
    from augment.cli.terminal import emit
    from augment.results.sidecars import frames_of
    from augment.writers.table_files import write_parquet

    for name, table in frames_of(sidecars).items():
        if only and name not in only:
            continue
        path = os.path.join(folder, f"{name}.parquet")
        write_parquet(table, path)
        emit(path)
