"""``augment report``: one self-contained page to send to a colleague, or to keep with a run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from augment.cli.options import TRACE, as_given, client_of, debug, labels_option, server_options

if TYPE_CHECKING:
    from augment.client import Client
    from augment.results.report.sections import Document


@click.command("report", short_help="Write one self-contained HTML page about a trace, a job, a comparison or runs.")
@click.argument("source", metavar="INPUT|METRICS.json|DIR", type=TRACE)
@click.argument("test", metavar="[TEST]", required=False, type=TRACE)
@click.option("--diff", "comparing", is_flag=True, help="Compare two traces: augment report --diff CONTROL TEST.")
@click.option(
    "--trend", is_flag=True, help="Figures over the runs in DIR: a history, or a folder with metrics for each run."
)
@labels_option("In a history, use only runs with this label; repeatable.")
@click.option("-o", "--output", "out", metavar="FILE", help="Output file.  [default: SOURCE.report.html, here]")
@click.option(
    "--markdown",
    is_flag=True,
    help="Print (or with -o write) the short form instead, as Markdown for a pull request or ticket.",
)
@click.option(
    "--region", default="", metavar="NAME", help="Of a trace: use each occurrence of this annotation as a step."
)
@click.option("--static", metavar="DIR", help="Also write each chart into DIR as SVG and PNG (vl-convert-python).")
@server_options
@debug
def command(
    source: str,
    test: str | None,
    comparing: bool,
    trend: bool,
    labels: dict[str, str],
    out: str | None,
    markdown: bool,
    region: str,
    static: str | None,
    **server: Any,
) -> int:
    """Write one self-contained HTML page: verdict, findings, charts and tables; it opens from an e-mail, offline.

    The page is made from metrics: those in METRICS.json, of a job in a folder that augment run wrote, or of a
    comparison. A trace, or a folder of traces, is analysed first; with --server, the server does that. With --trend,
    the folder is that of augment history (also a URL), or has a folder with metrics for each run.
    """
    import tempfile

    from augment.cli.terminal import emit, say
    from augment.core.text import size
    from augment.errors import UsageError
    from augment.results.sidecars import Sidecar, readable

    if region and (test or trend or server["server"] or os.path.isdir(source)):
        raise UsageError("--region: supported for one trace that is analysed here")
    if bool(test) != comparing:
        raise UsageError("name one INPUT, or with --diff a control and a test")
    with readable(source):
        with tempfile.TemporaryDirectory() as scratch, client_of(**server) as client:
            made = _document(source, test, trend, labels, scratch, client, region)
        if static:
            from augment.results.report.page import write_charts

            for path in write_charts(made, Path(static)):
                emit(str(path))
        if markdown:
            from augment.results.report.page import markdown as short_form

            if out:
                _write(short_form(made), Path(out))
            else:
                emit(short_form(made).rstrip("\n"))
        else:
            from augment.results.report.page import page

            name = os.path.basename(os.path.abspath(test or source))
            name = name if os.path.isdir(test or source) else Sidecar.of(name, {}).trace
            path = Path(out or f"{name}.report.html")
            _write(text := page(made), path)
            say(f"{size(len(text.encode()))}; opens in any browser, without a network")
    return 0


def _write(text: str, path: Path) -> None:
    from augment.batch import locations
    from augment.cli.terminal import emit

    locations.write(str(path), text.encode())
    emit(str(path))


def _document(
    source: str, test: str | None, trend: bool, labels: dict[str, str], scratch: str, client: Client | None, region: str
) -> Document:
    import subprocess

    from augment.batch.inputs import has_events
    from augment.cli.runs import files_of, label_of, labels_of
    from augment.cli.show import analysed, analysed_folder, in_folder
    from augment.core.output_files import DIFF_METRICS_SUFFIX
    from augment.errors import UsageError
    from augment.history.store import is_store
    from augment.pipeline.request import Request
    from augment.results.report.health import dump_in, is_dump, on_dumps
    from augment.results.report.page import document_of, document_of_metrics, trend_of
    from augment.results.report.sections import Document
    from augment.results.sidecars import read_sidecar

    if test:
        if client:  # a server compares
            made = client.diff(files_of(source), files_of(test), name=label_of(test), out=scratch).files[-1]
        else:
            command = [sys.executable, "-m", "augment", "diff", source, test, "-o", scratch, "--quiet"]
            if failed := subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
                raise click.exceptions.Exit(failed)  # it has said why
            made = next(Path(scratch).glob(f"*{DIFF_METRICS_SUFFIX}"))
        called = dict(zip(("control", "test"), labels_of(source, test), strict=True))
        return document_of_metrics({**read_sidecar(str(made)), "runs": called})
    if trend or labels:
        return trend_of(source, labels)

    def analyse(path: str) -> Any:
        if client:
            # The metrics of a trace or of the job in a folder, from a server
            from augment.batch.inputs import choose_inputs
            from augment.batch.jobs import folder_title
            from augment.errors import AugmentError

            if not os.path.isdir(path):
                return client.augment(path, out=scratch, metrics_only=True).metrics
            inputs = choose_inputs([path], scratch).inputs
            traces = {item.key: item.path for item in inputs}
            job = client.augment_job(traces, name=folder_title(path), metrics_only=True, out=scratch)
            if job.files:
                return job.metrics
            for outcome in job.traces.values():
                if not isinstance(outcome, AugmentError):
                    return outcome.metrics
            raise next(outcome for outcome in job.traces.values() if isinstance(outcome, AugmentError))
        if not os.path.isdir(path):
            return analysed(path, Request(region=region))
        return analysed_folder(path)

    if os.path.isdir(source) and not is_store(source):
        files = files_of(source)
        no_traces = all(is_dump(file) or not has_events(file) for file in files)
        if no_traces and (dumps := [dump for file in files if (dump := dump_in(file))]):
            hang, *others = on_dumps(dumps)
            if others:
                raise UsageError(f"{source}: holds dumps of {1 + len(others)} jobs; name the folder of one")
            return Document(hang["input"], "job", hang["verdict"], (("dumps", f"{len(dumps)}"),), (), hang["rows"])
        return document_of_metrics(in_folder(source, analyse))
    return document_of(source, analyse, as_given(source))
