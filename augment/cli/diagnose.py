"""``augment diagnose``: a quick health check: what is wrong with a run, and how much would a fix save?"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from augment.cli.options import DONE_IN_PART, TRACE, FromStdin, client_of, debug, server_options, tables_option

if TYPE_CHECKING:
    from augment.client import Client
    from augment.core import Trace
    from augment.errors import AugmentError
    from augment.pipeline.request import Request

Report = dict[str, Any]
Unread = tuple["AugmentError", bool]
_LEVELS = ("high", "warning")
_SHOWN = 3  #: files that are passed over


@click.command("diagnose", short_help="Say what is wrong with a run: verdict and findings.")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT…", type=TRACE)
@click.option(
    "--fail-on", type=click.Choice(_LEVELS), help="Exit with 1 if a finding of at least medium confidence is as grave."
)
@click.option("--json", "form", flag_value="json", help="Print one JSON object per trace, one per line.")
@click.option("--markdown", "form", flag_value="markdown", help="Print Markdown, for a comment or a summary of CI.")
@click.option("--region", default="", metavar="NAME", help="Use each occurrence of this annotation as a step.")
@click.option("--graph-capture", metavar="FILE", help="A trace of the capture of the CUDA graphs, with shapes.")
@tables_option
@server_options
@debug
def command(
    inputs: tuple[str, ...],
    fail_on: Literal["high", "warning"] | None,
    form: str | None,
    region: str,
    graph_capture: str | None,
    tables: tuple[str, ...],
    **server: Any,
) -> int:
    """Say what is wrong with each INPUT: a trace, a metrics file, or a folder or glob of traces. Nothing is written.

    The verdict comes first, then what the rules found (!), what they looked at and where little would be saved (✓), and
    what the trace has no data for (–), with what would provide it. Rules about what the run does not do are left out.
    For a folder of ranks, the job's verdict comes first, then what is grave in each of them; of many ranks with the
    same kinds of finding, one is shown.
    """
    from augment.batch.inputs import no_trace
    from augment.cli.terminal import complain, emit, say, wrapped
    from augment.core.text import capitalized, counted, first_of
    from augment.errors import UnknownFormat, UsageError
    from augment.pipeline.request import Request
    from augment.readers.attachments import Evidence
    from augment.results.report.health import is_dump, is_grave, json_of, lines_of, of_jobs

    names, failures = _named(inputs)
    if graph_capture and len(names) != 1:
        raise UsageError(f"--graph-capture: is of one trace, not of {len(names)}")
    request = Request(region=region, tables=tables, evidence=Evidence({"graph_capture": graph_capture})).check()
    with client_of(**server) as client:
        jobs, reports, unread = _there(client, names, request) if client else (None, *_reports(names, request))
    passed_over = [str(error) for error, is_named in unread if not is_named and isinstance(error, UnknownFormat)]
    failures += [error for error, is_named in unread if is_named or not isinstance(error, UnknownFormat)]
    for error in failures:
        complain(str(error))
    shown = [*(of_jobs(reports) if jobs is None else jobs), *reports]
    spooled = {str(name) for name in inputs if isinstance(name, FromStdin)}
    shown = [{**report, "input": "-"} if report["input"] in spooled else report for report in shown]
    if passed_over and form is None:
        complain(f"passed over {counted(len(passed_over), 'file')}: {first_of(passed_over, _SHOWN)}")
    if not shown:
        if not failures:
            complain(str(no_trace(", ".join(inputs))))
        return failures[0].exit_code if failures else UnknownFormat.exit_code
    of = [report.get("folder", report["input"]) for report in shown if "folder" in report or report.get("joined")]
    if form is None:
        from augment.job.rank_answers import in_folder

        whole = {name for name in of if of.count(name) == 1 and os.path.isdir(inputs[0])}
        for report in shown:
            if cures := report.get("cures"):
                folder = report.get("folder", inputs[0])
                report["cures"] = in_folder(cures, folder, {} if folder in whole else report.get("traces", {}))
    lines: Iterable[str]
    if form == "json":
        lines = map(json_of, shown)
    else:
        lines = lines_of(shown, markdown=form == "markdown", brief=len(shown) > 1)
    for line in lines:
        emit(line if form else wrapped(line))
    if form is None and len(inputs) == 1 and (failures or not all(is_dump(name) for name, _ in names)):  # not drawn
        is_file = len(reports) < 2 and all(report["input"] in dict(names) for report in reports)
        has_page = is_file or any(report.get("joined", bool(jobs)) for report in shown)  # or of a job
        alone = (name for name in of if of.count(name) == 1)
        path = next(alone, "") if len(of) > 1 else "-" if spooled else inputs[0]
        is_drawn = len(reports) != 1 or reports[0].get("is_drawn", True)  # a log alone has nothing to draw
        has_tables = not is_drawn and reports[0]["has_tables"]
        hints = list(_next(path, request, has_page=has_page, is_drawn=is_drawn, has_tables=has_tables)) if path else []
        if not region and len(reports) == 1 and (regions := reports[0].get("regions")):
            from augment.compare.compared_steps import offer

            hints += map(capitalized, filter(None, [offer(regions, command=f"augment diagnose {shlex.quote(path)} ")]))
        if hints:
            for line in ("", *[f"of the first of {len(of)} jobs:"] * (len(of) > 1), *hints):
                say(line)
    failed = fail_on and any(is_grave(row, fail_on) for report in shown for row in report["rows"])
    partial = (row for report in shown for row in report["rows"] if row["rule"] == "partial_recording")
    cut_off = any(row["figures"].get("problem") == "truncated" for row in partial)
    return 1 if failures or failed else DONE_IN_PART if cut_off else 0


def _next(path: str, request: Request, *, has_page: bool, is_drawn: bool, has_tables: bool) -> Iterator[str]:
    """The commands that come next: the timeline of the input, or of the trace that its metrics are of, or else its
    tables; and a page with the same figures, if there is one of it."""
    from augment.cli.open import choice_in
    from augment.core.output_files import METRICS_SUFFIX, output_path
    from augment.errors import AugmentError
    from augment.results.report.health import trace_of

    shown = trace_of(path)
    if shown is None or not (shown == "-" or os.path.exists(shown)):  # a glob, a URL, or metrics alone
        return
    with contextlib.suppress(AugmentError):  # several traces, or nothing to draw
        if is_drawn and (not os.path.isdir(shown) or choice_in(shown)):
            yield f"the timeline:   augment open {shlex.quote(shown)}"
    if has_tables:
        yield f"the tables:     augment show {shlex.quote(shown)}"
    capture = request.evidence.paths.get("graph_capture", "")
    tables = [("--tables", file) for file in request.tables]
    given = [("--region", request.region), *tables, ("--graph-capture", capture)]
    options = "".join(f" {name} {shlex.quote(value)}" for name, value in given if value)
    if has_page and os.path.isfile(path) and (request.tables or capture):  # of which a report has none
        metrics = shlex.quote(str(output_path(os.path.basename(path), Path(), METRICS_SUFFIX)))
        yield f"a page to send: augment run {shlex.quote(path)}{options} -o . && augment report {metrics}"
    elif has_page and (os.path.isfile(path) or not options):
        yield f"a page to send: augment report {shlex.quote(path)}{options}"


def _reports(names: Sequence[tuple[str, bool]], request: Request) -> tuple[list[Report], list[Unread]]:
    """The reports on all readable files, and the errors of the others, each with whether it counts as named: also a
    dump of the flight recorder does, as a rank whose dump is not read would be one that left none."""
    from augment.cli.terminal import bar
    from augment.core.records import NcclLogs
    from augment.core.text import counted
    from augment.errors import AugmentError
    from augment.readers.attachments.nccl_log import MOST_KEPT, read_nccl_log
    from augment.readers.attachments.tables import with_tables
    from augment.results.report.health import dump_in, is_dump, logs_together, on_dumps, report_on

    def beside(trace: Trace) -> Trace:
        if others := together.get(trace.source.path, [])[1:]:
            logs = list(first.logs if (first := trace.context.attached(NcclLogs)) else ())
            for path in others:
                logs.append(read_nccl_log(path, most=MOST_KEPT - sum(len(log.collectives) for log in logs)))
            trace = trace.changed(NcclLogs(tuple(logs)))
        return with_tables(request.evidence.added_to(trace), *request.tables, region=request.region)

    reports, unread, dumps = [], [], []
    together = logs_together([name for name, _ in names]) if len(names) > 1 else {}
    for name, is_named in names:
        if together.get(name) == []:  # judged with another one
            continue
        judged_together = False
        try:
            judged_together = is_dump(name)
            if (dump := dump_in(name)) is not None:
                dumps.append(dump)
                continue
            with bar(1, quiet=False) as shown:
                report = report_on(name, shown.stage, beside=beside)
            if logs := together.get(name):
                job = os.path.basename(os.path.dirname(os.path.abspath(name)))
                report["input"] = f"job {job}, {counted(len(logs), 'log')} of NCCL"
            reports.append(report)
        except AugmentError as error:
            unread.append((error, is_named or judged_together))
    return [*on_dumps(dumps), *reports], unread


def _there(
    client: Client, names: Sequence[tuple[str, bool]], request: Request
) -> tuple[list[Report], list[Report], list[Unread]]:
    """The reports on jobs, then the same as :func:`_reports`, from a server by folder. Metrics are judged here."""
    from augment.batch.jobs import folder_title
    from augment.batch.remote import progress_of
    from augment.cli.terminal import bar
    from augment.errors import InputError
    from augment.results.sidecars import is_sidecar

    metrics = [(name, named) for name, named in names if os.path.exists(name) and is_sidecar(name)]
    reports, unread = _reports(metrics, request)
    jobs: list[Report] = []
    folders: dict[str, dict[str, bool]] = {}
    for name, named in names:
        if (name, named) not in metrics:
            folders.setdefault(os.path.dirname(name) or ".", {})[name] = named
    for folder, traces in folders.items():
        try:
            with bar(1, quiet=False) as shown:
                name, progress = folder_title(folder), progress_of(shown.stage)
                diagnosis = client.diagnose(list(traces), request, name=name, progress=progress)
        except InputError as error:  # raised for a single trace
            unread.append((error, any(traces.values())))
            continue
        jobs += [{**report, "folder": folder} for report in diagnosis.reports if report["input"] not in traces]
        reports += [report for report in diagnosis.reports if report["input"] in traces]
        unread += [(error, traces[name]) for name, error in diagnosis.failed.items()]
    return jobs, reports, unread


def _named(inputs: Sequence[str]) -> tuple[list[tuple[str, bool]], list[AugmentError]]:
    """The files that ``inputs`` stand for, each with whether the user named it explicitly; and errors of inputs."""
    from augment.batch.inputs import choose_inputs
    from augment.errors import AugmentError
    from augment.results.sidecars import is_sidecar

    def holds_metrics(name: str) -> bool:
        try:
            return is_sidecar(name)
        except AugmentError:  # a folder, a glob, or missing: handled below
            return False

    metrics = [(name, [name] if holds_metrics(name) else _written(name)) for name in inputs]
    sidecars = [path for _, paths in metrics for path in paths]
    made = choose_inputs([name for name, paths in metrics if not paths], None, also=("flight_recorder",))
    traces = [(item.path, item.named) for item in made.inputs]
    return [*((name, True) for name in sidecars), *traces], [error for _, error in made.refused]


def _written(path: str) -> list[str]:
    """The metrics in a folder that augment wrote, those of the job first; or those beside a trace that it wrote."""
    from augment.cli.runs import metrics_of

    if os.path.isdir(path):
        return metrics_of(path)
    stem, augmented, _ = path.rpartition(".augmented.")
    beside = f"{stem}.metrics.json"
    return [beside] if augmented and os.path.isfile(beside) else []
