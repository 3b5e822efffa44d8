"""``augment run``: converts files, folders, globs and URLs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from augment.cli.batch_options import Batch, batch_options, trust_option
from augment.cli.options import debug, requesting, sizes
from augment.cli.remote import client_of, server_options
from augment.errors import UsageError

if TYPE_CHECKING:
    from augment.batch.convert import Settings
    from augment.batch.execution import Manner
    from augment.batch.inputs import Input, InputPlan
    from augment.batch.job_tracks import Errand
    from augment.batch.remote_job import RemoteJob
    from augment.batch.results import Result
    from augment.batch.stage import Stage
    from augment.batch.stages import Concluded
    from augment.cli.terminal import Bar
    from augment.pipeline.request import Request

_SEAMLESS = (
    "the waits of ranks are not drawn in the outputs of {} of them: the server that converted these is too old; "
    "--force converts them again"
)


@click.command("run", short_help="Augment traces: files, folders of ranks, globs, URLs.")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT…")
@click.option("-o", "--output", "out", metavar="DIR", help="Output folder; by default that of each input.")
@requesting(formats=True)
@batch_options
@click.option(
    "--parallelism",
    metavar="tp=N,…",
    callback=sizes,
    help="The sizes of the job's parallel dimensions (tp, cp, ep, dp, pp).  [default: recognised from the traces]",
)
@trust_option
@click.option("--merge", is_flag=True, help="Also write one timeline of all ranks of each job, as augment merge does.")
@server_options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per input instead of the paths written.")
@click.option("--quiet", is_flag=True, help="Print only paths and errors, no summary and no progress.")
@debug
def command(
    inputs: tuple[str, ...],
    out: str | None,
    request: Request,
    batch: Batch,
    parallelism: dict[str, int],
    trust_clocks: bool,
    merge: bool,
    as_json: bool,
    quiet: bool,
    **server: Any,
) -> int:
    """Write an augmented trace and its metrics for each INPUT: a file, a folder, a glob, or a URL of one.

    A folder stands for every trace below it, except hidden files and outputs of augment; other files in it are passed
    over. A bad file never stops the rest. The results for a folder or glob are recorded in augment-manifest.jsonl in
    the output folder: the next run converts only what is missing or has changed. When all ranks of a job are converted,
    each rank's outputs also tell for whom it waits and why, and its part of the job's critical path. The paths of the
    outputs are printed on stdout, one per line.
    """
    from msgspec.structs import replace

    from augment.batch.convert import Settings
    from augment.core.heap import keep_freed_memory

    keep_freed_memory()
    request = replace(request, parallelism=parallelism, trust_clocks=trust_clocks)
    made = batch.plan(inputs, out, request.check().evidence)
    request.evidence.check(len(made.inputs), server["server"])
    if server["server"] and (request.tables or request.peaks):
        option = "--tables" if request.tables else "--peak"
        raise UsageError(f"{option}: not supported with a server; leave --server out")
    if server["server"] and batch.memory is not None:
        raise UsageError("--memory: not supported with a server, which has --max-job-memory; leave --server out")
    if batch.scheduler:
        tables = tuple(os.path.abspath(path) for path in request.tables)
        request = replace(request, evidence=request.evidence.made_absolute(), tables=tables)
    alone = len(made.inputs) == 1 and made.inputs[0].root is None  # not a job
    stages = () if alone else _stages()
    count = len(made.inputs)
    settings = Settings(request, stages, threads=batch.threads_for_each(count), memory=batch.memory_for_each(count))
    with client_of(**server) as client:
        manner = replace(batch.manner(client), merge=merge)
        return _Run(made, settings, manner, as_json=as_json, quiet=quiet).all()


def _stages() -> tuple[Stage, ...]:
    from augment.batch.stages import STAGES

    return STAGES


class _Run:
    """One run of the command."""

    def __init__(self, made: InputPlan, settings: Settings, manner: Manner, *, as_json: bool, quiet: bool) -> None:
        self._plan, self._settings, self._manner = made, settings, manner
        self._as_json, self._quiet = as_json, quiet
        self._remote: RemoteJob | None = None
        self._results: list[Result] = []
        self._job_files: list[str] = []
        self._concluded: list[Concluded] = []

    def all(self) -> int:
        """Convert, print the results, and return the exit code."""
        from augment.batch.results import Result, failure
        from augment.cli.terminal import bar

        for name, error in self._plan.refused:
            self._take(failure(name, error))
        for name, why in self._plan.passed_over:
            self._take(Result(name, "passed_over", message=f"{name}: {why}"))
        with bar(len(self._plan.inputs), quiet=self._quiet) as shown:
            for result in self._convert(shown):
                self._take(result)
            self._conclude(shown)
        return self._close()

    def _convert(self, shown: Bar) -> Iterator[Result]:
        from augment.batch.execution import Watch, run

        def begun(inputs: Sequence[Input]) -> None:
            shown.expect(sum(item.size for item in inputs))
            if self._manner.scheduler or min(self._manner.jobs, len(inputs)) > 1:
                shown.stage("on the cluster" if self._manner.scheduler else f"{self._manner.jobs} at once")

        watch = Watch(
            begun=begun,
            finished=lambda item, _result: shown.done(item.size),
            announce=lambda text: shown.say(f"augment: {text}"),
            stage=lambda item, what: shown.stage(f"{item.basename}: {what}"),
            progress=shown.stage,
            concluded=lambda job: setattr(self, "_remote", job),
        )
        return run(self._plan.inputs, self._settings, self._manner, watch)

    def _conclude(self, shown: Bar) -> None:
        """Run the stages of whole jobs; a share (--shard) does not have all ranks, so it runs none."""
        if self._manner.shard or not self._settings.stages:
            return
        from augment.batch.execution import crew_of
        from augment.batch.stages import conclude

        results = {result.path: result for result in self._results}
        settings, remote = self._settings, self._remote
        here = conclude(settings.stages, self._plan.inputs, results, settings.request, crew_of(self._manner))
        for job in remote.concluded if remote else here:
            for path in job.written:
                self._tell(path)
                if job.joined:
                    self._job_files.append(path)
            if job.verdict:
                self._concluded.append(job)
            self._draw(job.errands, shown)
            if job.seamless:
                shown.say(f"augment: {_SEAMLESS.format(job.seamless)}")
        if remote:
            for path in remote.timelines:
                self._tell(path)
            for note in remote.notes:
                shown.say(f"augment: {note}")
        elif self._manner.merge:
            from augment.batch.merged_timeline import MergeChoice, merge_all

            choice = MergeChoice(self._settings.request, memory=self._settings.memory)
            for path, merged in merge_all(self._plan.inputs, results, choice, shown.stage):
                self._tell(path)
                if merged and merged.left_out:
                    shown.say(f"augment: {path}: {merged.left_out}")

    def _draw(self, errands: Sequence[Errand], shown: Bar) -> None:
        """Draw the waits of a job's ranks into their outputs."""
        from augment.batch.execution import Watch, draw

        watch = Watch(finished=lambda item, _result: shown.stage(f"{item.basename}: drawing waits"))
        failed = {
            result.path: result
            for result in draw(errands, self._settings, self._manner, watch)
            if result.status == "failed"
        }
        self._results = [failed.get(result.path, result) for result in self._results]

    def _tell(self, path: str) -> None:
        """Print the path of a file about a whole job."""
        from augment.cli.terminal import emit

        emit(_json({"status": "concluded", "outputs": [path]}) if self._as_json else path)

    def _take(self, result: Result) -> None:
        from augment.cli.terminal import emit

        self._results.append(result)
        if self._as_json:
            emit(_as_json(result))
        else:
            for path in result.outputs:
                emit(path)

    def _close(self) -> int:
        """Print the summary and the failures; return the exit code."""
        from augment.cli.run_summary import jobs, next_steps, summary, verdicts
        from augment.cli.terminal import complain, say

        failed = [result for result in self._results if result.status == "failed"]
        if not self._quiet:
            blocks = summary(self._results), jobs(self._plan.inputs, self._results, self._concluded)
            for lines in (*blocks, next_steps(self._results, self._job_files), verdicts(self._concluded)):
                for line in lines:
                    say(line)
        for result in failed:
            if result.traceback and _debugging():
                say_lines(result.traceback)
            complain(result.message)
        if len(self._results) == 1 and failed:
            return failed[0].exit_code
        if failed:
            return 1
        if not any(result.status in ("augmented", "done_before") for result in self._results):
            complain(_nothing(self._results))
            return 3
        return 0


def _nothing(results: Sequence[Result]) -> str:
    if len(results) == 1:
        return results[0].message
    return f"nothing was augmented: none of the {len(results)} files is a trace; name a file to see the reason"


def say_lines(text: str) -> None:
    """Print several lines for people unchanged."""
    sys.stderr.write(text)


def _debugging() -> bool:
    return "--debug" in sys.argv


def _as_json(result: Result) -> str:
    record: dict[str, Any] = {"input": result.path, "status": result.status, "outputs": list(result.outputs)}
    if result.message:
        record["message"] = result.message
    if result.partial:
        record["partial"] = result.partial
    return _json(record)


def _json(record: dict[str, Any]) -> str:
    from augment.core.jsontext import json_line

    return json_line(record)
