"""``augment open``: shows a trace in the Perfetto UI, with the added tracks in view."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from augment.cli.options import TRACE, debug, moment

if TYPE_CHECKING:
    from augment.batch.conversion import Report
    from augment.batch.inputs import Input
    from augment.batch.jobs import Job
    from augment.viewer.preparing import Prepared
    from augment.viewer.server import TraceServer

TIMEOUT_S = 60.0


@click.command("open", short_help="Show a trace, or all ranks of a job, in the Perfetto UI.")
@click.argument("file", metavar="FILE|FOLDER", type=TRACE)
@click.option(
    "--rank",
    type=click.IntRange(min=0),
    metavar="N",
    help="Of FOLDER, show this rank alone, with what its job tells where a run has written into FOLDER.",
)
@click.option("--offline", is_flag=True, help="Also serve the UI, for machines without internet access (extra [ui]).")
@click.option("--whole", is_flag=True, help="Show all of a trace that is larger than most browsers hold.")
@click.option(
    "--at",
    "moments",
    metavar="A[-B]",
    callback=moment,
    help="Zoom to this moment or period, ms since the first event, as in diagnose and the report.",
)
@click.option("--no-browser", is_flag=True, help="Only print the link.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="N",
    help="Listen on port N; 0: any free port. Ports other than 9001 need --offline.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="Exit after this time without a request, but wait five minutes for the first; 0: never.",
)
@debug
def command(
    file: str,
    rank: int | None,
    offline: bool,
    whole: bool,
    moments: tuple[float, float] | None,
    no_browser: bool,
    port: int | None,
    timeout: float,
) -> int:
    """Open FILE in the Perfetto UI: the rows that say what is wrong pinned, a step in the middle in view.

    A raw trace is augmented first, into a temporary folder, unless a newer augmented one lies next to it. The ranks in
    FOLDER are merged into one timeline, likewise. The UI is
    https://ui.perfetto.dev; the trace itself goes only from this command to the browser. The command serves it on
    127.0.0.1 until it has been fetched and requests have stopped, or for five minutes if it is never fetched. Ctrl-C
    ends the command. The link is printed on stdout.
    """
    from contextlib import closing
    from tempfile import TemporaryDirectory

    from augment.errors import InputError, UsageError, expect_regular
    from augment.viewer.engine import ui_folder
    from augment.viewer.server import PORT, TraceServer

    if port not in (None, PORT) and not offline:
        raise UsageError(f"--port {port}: ui.perfetto.dev fetches only from port {PORT}; other ports need --offline")
    if not os.path.exists(file):
        raise InputError(file, "no such file" if rank is None else "no such folder")
    expect_regular(file)
    if rank is not None and not os.path.isdir(file):
        raise UsageError(f"--rank: needs a folder; {file} is none")
    chosen = choice_in(file) if rank is None and os.path.isdir(file) else file  # before anything waits for a port
    ui = ui_folder() if offline else None
    at = PORT if port is None else port
    with closing(TraceServer(at)) as server, TemporaryDirectory(prefix="augment-open-") as folder:
        prepared = _prepared(file, chosen, rank, Path(folder), whole, moments)
        return _serve(server, prepared, ui, not no_browser, timeout)


def _prepared(
    file: str, chosen: str | Job, rank: int | None, folder: Path, whole: bool, moments: tuple[float, float] | None
) -> Prepared:
    from augment.cli.terminal import bar
    from augment.viewer.preparing import Prepared, prepare

    with bar(1, quiet=False) as shown:

        def tell(text: str) -> None:
            shown.say(f"augment: {text}")

        if rank is not None:
            chosen = trace_of(file, rank, folder, tell, shown.stage)
        elif not isinstance(chosen, str):
            chosen = _timeline_of(chosen, file, folder, tell, shown.stage, whole)
        prepared = prepare(chosen, folder, tell, shown.stage, whole=whole)
    if moments is None:
        return prepared
    start_ms, end_ms = moments
    return Prepared(prepared.path, prepared.view.at(round(start_ms * 1e6), round(end_ms * 1e6)))


def choice_in(folder: str) -> str | Job:
    """What to open of a folder: its only trace, or its job; what augment wrote if it has no traces.

    Raises:
        AugmentError: it holds no trace, or ranks of several jobs.
    """
    from augment.batch.inputs import no_trace
    from augment.batch.merged_timeline import only_job
    from augment.errors import InputError
    from augment.results.report.health import is_dump
    from augment.writers.perfetto import SUFFIX

    if not (inputs := _traces_in(folder)):
        written = sorted(map(str, Path(folder).glob(f"*{SUFFIX}")))
        timeline = os.path.join(folder, f"job{SUFFIX}")
        if timeline in written or len(written) == 1:
            return timeline if timeline in written else written[0]
        if not written:
            raise no_trace(folder)
        raise InputError(folder, f"holds {len(written)} augmented traces; name one")
    if len(inputs) == 1:
        return inputs[0].path
    if all(is_dump(item.path) for item in inputs):
        what = "holds dumps of the flight recorder, which have nothing to draw; who hangs: augment diagnose"
        raise InputError(folder, f"{what} {shlex.quote(folder)}")
    return only_job(inputs, asked=False)


def _timeline_of(
    job: Job, folder: str, scratch: Path, say: Callable[[str], None], stage: Callable[[str], None], whole: bool
) -> str:
    """The timeline of the ranks of a job, made in ``scratch`` unless ``folder`` has one not older than they are."""
    from msgspec.structs import replace

    from augment.batch.conversion import BROWSER_TEXT_BYTES, RunPlan
    from augment.batch.merged_timeline import default_output, merge
    from augment.cli.merge import say_merged
    from augment.job.rank_answers import in_folder
    from augment.writers.perfetto import SUFFIX

    changed_ns = max(os.stat(rank.input.path).st_mtime_ns for rank in job.members)
    for made in (Path(default_output(job)), Path(job.folder, f"job{SUFFIX}")):
        if made.exists() and made.stat().st_mtime_ns >= changed_ns:
            say(f"opening {made.name}, which is in {folder} and newer than its ranks")
            return str(made)
    timeline = str(scratch / f"job{SUFFIX}")
    merged = merge(job, timeline, RunPlan(timeline_bytes=None if whole else BROWSER_TEXT_BYTES), stage)
    say_merged(replace(merged, verdict=tuple(in_folder(merged.verdict, folder))), say)
    say(f"merged the ranks in {folder} into a temporary folder; augment run --merge keeps what it makes")
    return timeline


def _traces_in(folder: str) -> list[Input]:
    from augment.batch.inputs import choose_inputs, has_events

    return [item for item in choose_inputs([folder], None).inputs if has_events(item.path)]


def trace_of(folder: str, rank: int, scratch: Path, say: Callable[[str], None], report: Report) -> str:
    """The path of the augmented trace of a rank of the only job in a folder, made in ``scratch`` if none is there, with
    what its job tells; of its trace if no run has written into the folder.

    Raises:
        AugmentError: there is no such rank, or there are several; its trace cannot be read.
    """
    from augment.batch.conversion import Progress, RunPlan, convert_or_raise
    from augment.batch.inputs import Input, of_ranks
    from augment.batch.job_question import alone, compared, draw, job_digest, jobs_of, summary_of
    from augment.batch.manifest import results_in
    from augment.errors import InputError
    from augment.job.rank_answers import drawn

    inputs = _traces_in(folder)
    known = {result.path: result for result in results_in(folder)}
    results = [result for result in known.values() if result.rank == rank]
    paths = [result.path for result in results] or [item.path for item in of_ranks(inputs, [range(rank, rank + 1)])]
    if len(paths) != 1:
        raise InputError(
            folder, f"holds {len(paths)} traces of rank {rank}" + "".join(f"; {path}" for path in paths[:2])
        )
    if not results:
        if len(inputs) > 1:
            say(f"the verdict of its job: augment diagnose {shlex.quote(folder)}")
        return paths[0]
    if there := next(filter(os.path.exists, results[0].traces), ""):
        return there
    members = [Input(path, folder, named=False) for path in known]
    job = next(job for job in jobs_of(members, known) if any(member.input.path == paths[0] for member in job.members))
    with_summaries = ((member, summary_of(known[member.input.path])) for member in job.members)
    summaries = [(member, path) for member, path in with_summaries if path]
    plan = RunPlan(compares=True)
    item = Input(paths[0], str(scratch), named=True)
    written = convert_or_raise(item, plan, Progress(stage=report))
    if len(summaries) > 1:
        report("what the job tells")
        answer = compared(summaries, plan.request, alone)
        place = next(place for place, (member, _) in enumerate(summaries) if member.input.path == item.path)
        if answer.is_drawn(place):
            written = draw(item, written, drawn(answer, place), job_digest(answer.hashes, plan.request))
    if not written.traces:
        raise InputError(item.path, written.message)
    return written.traces[0]


def _serve(server: TraceServer, prepared: Prepared, ui: Path | None, browse: bool, timeout: float) -> int:
    from augment.cli.terminal import complain, emit, say
    from augment.viewer.server import PERFETTO_UI
    from augment.viewer.view import ui_link

    address = server.offer(prepared.path, ui)
    link = ui_link(server.url if ui else PERFETTO_UI, address, prepared.view)
    try:
        emit(link)
        if not (browse and _browser_opens(server.once(link))):
            say(f"augment: serving {prepared.path.name} on port {server.port}; open the link in a browser here")
            import socket

            say("augment: for a browser on another machine, run there first:")
            say(f"  ssh -L {server.port}:127.0.0.1:{server.port} {socket.gethostname()}")
        if server.wait(timeout):
            return 0
    except KeyboardInterrupt:
        return 0  # the normal way to end the command
    complain(f"nobody fetched {prepared.path.name}; the link works only while this command runs (--timeout 0: forever)")
    return 1


def _browser_opens(address: str) -> bool:
    """Open an address in a browser, unless only a text browser exists, which would take over this terminal."""
    if sys.platform != "darwin" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    import webbrowser

    return webbrowser.open(address)
