"""``augment run``: converts files, folders, globs and URLs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import click

from augment.cli import options
from augment.errors import UsageError

if TYPE_CHECKING:
    from augment.batch.conversion import Outputs, Result, RunPlan
    from augment.batch.inputs import ChosenInputs, Input
    from augment.batch.job_question import Concluded
    from augment.pipeline.request import Request

_SEAMLESS = (
    "the waits of ranks are not drawn in the outputs of {} of them: the server that converted these is too old; "
    "--force converts them again"
)
_WHOSE: tuple[Literal["all", "auto", "none"], ...] = ("all", "auto", "none")
_SHARD = re.compile(r"(\d+)/(\d+)")


def _shard(_context: click.Context, _parameter: click.Parameter, text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = _SHARD.fullmatch(text)
    if not match or int(match[1]) >= int(match[2]):
        raise click.BadParameter(f"{text!r} is not a share, such as 0/4, 1/4, 2/4 or 3/4")
    return int(match[1]), int(match[2])


def _outputs(context: click.Context, parameter: click.Parameter, text: str) -> Outputs:
    for word in _WHOSE:
        if text == word:
            return word
    try:
        return options.ranks_of(context, parameter, text)
    except click.BadParameter:
        raise click.BadParameter(f"{text!r} is none of {', '.join(_WHOSE)}, and no ranks such as 0,8,16-23") from None


@click.command("run", cls=options.GroupedCommand, short_help="Augment traces: files, folders of ranks, globs, URLs.")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT…", type=options.TRACE)
@click.option("-o", "--output", "out", metavar="DIR", help="Output folder; by default that of each input.")
@options.requesting(formats=True)
@click.option(
    "--jobs",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    metavar="N",
    help="Files to convert at once, each in its own process, as far as memory allows; 0: one per CPU.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Total CPUs, shared by the processes of --jobs; 0, the default: all CPUs, but at most 4 per file.",
)
@options.memory_option(
    "Most memory, such as 4G, shared by the processes of --jobs. A file that may need more is converted with "
    "its arrays on the disk of the output folder: slower, with the same results.  [default: no bound]"
)
@click.option(
    "--scheduler",
    metavar="dask://…|ray://…",
    help="Convert on the Dask or Ray cluster at this address (extra [dask] or [ray]).",
)
@options.ranks_option
@click.option(
    "--shard",
    callback=_shard,
    metavar="K/N",
    help="Convert only share K of N (K counts from 0), for N processes with one output folder.",
)
@click.option(
    "--outputs",
    callback=_outputs,
    default="all",
    show_default=True,
    metavar="all|auto|none|RANKS",
    help="Whose traces to write, of a folder; metrics are written of all. auto: the late ranks of each job, who waits "
    "longest for them, and one rank a node; or ranks such as 0,8,16-23. What is missing is written by a later run.",
)
@click.option("--force", is_flag=True, help="Convert inputs again that the manifest lists as done.")
@click.option(
    "--parallelism",
    metavar="tp=N,…",
    callback=options.sizes,
    help="The sizes of the job's parallel dimensions (tp, cp, ep, dp, pp).  [default: recognised from the traces]",
)
@options.trust_option
@click.option(
    "--merge",
    is_flag=True,
    help="Also write one timeline of all ranks of each job; only this, if -o names a .pftrace (or a .tar, for Perfetto "
    "58 and later).",
)
@click.option("--no-align", is_flag=True, help="Leave each rank on its own clock.")
@click.option(
    "--whole", "whole_timeline", is_flag=True, help="Leave nothing out of the timeline, even if no browser can open it."
)
@options.server_options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per input instead of the paths written.")
@click.option("--quiet", is_flag=True, help="Print only paths and errors, no summary and no progress.")
@options.debug
def command(
    inputs: tuple[str, ...],
    out: str | None,
    request: Request,
    jobs: int,
    threads: int,
    memory: int | None,
    scheduler: str | None,
    ranks: tuple[range, ...],
    shard: tuple[int, int] | None,
    outputs: Outputs,
    force: bool,
    parallelism: dict[str, int],
    trust_clocks: bool,
    merge: bool,
    no_align: bool,
    whole_timeline: bool,
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

    In the timeline of --merge each rank is a group of tracks, in order, with all tracks that augment adds. The first
    group shows the job as a whole: its critical path, the late ranks, and the number of waiting ranks. Clocks are
    aligned by the collectives that the ranks share, and arrows link the kernels of each collective. If the timeline is
    too large for a browser, steps and then ranks are left out; a message says so. Where -o names a timeline, INPUTs may
    also be jobs of --server, such as jobs/3f0c.
    """
    from msgspec.structs import replace

    from augment.batch.conversion import BROWSER_TEXT_BYTES, RunPlan
    from augment.batch.inputs import choose_inputs, of_ranks, share
    from augment.batch.locations import protocol
    from augment.cli.merge import TIMELINE_SUFFIXES, merge_there, write_timeline
    from augment.core.threads import keep_freed_memory, processors

    if not merge and (no_align or whole_timeline):
        raise UsageError(f"{'--no-align' if no_align else '--whole'}: needs --merge")
    request = replace(request, parallelism=parallelism, trust_clocks=trust_clocks).check()
    if merge and out and out.endswith(TIMELINE_SUFFIXES):
        apart = {"--scheduler": scheduler, "--shard": shard, "--json": as_json}
        if given := next((name for name, value in apart.items() if value), None):
            raise UsageError(f"{given}: not supported where -o names a timeline; name a folder")
        how = {"align": not no_align, "whole": whole_timeline, "memory": memory, "quiet": quiet}
        with options.client_of(**server) as client:
            if client:
                return merge_there(client, inputs, out, ranks, request, **how)  # type: ignore[arg-type]
        return write_timeline(inputs, out, ranks, request, **how)  # type: ignore[arg-type]
    keep_freed_memory()
    if out is None and any(isinstance(name, options.FromStdin) for name in inputs):
        out = "."
    if scheduler:  # other processes read the files
        inputs = tuple(name if protocol(name) else os.path.abspath(name) for name in inputs)
        out = out if out is None or protocol(out) else os.path.abspath(out)
    chosen = choose_inputs(inputs, out, request.evidence)
    chosen.inputs = of_ranks(chosen.inputs, ranks) if ranks else chosen.inputs
    chosen.inputs = share(chosen.inputs, *shard) if shard else chosen.inputs
    request.evidence.check(len(chosen.inputs))
    if server["server"] and outputs != "all":
        raise UsageError("--outputs: not supported with a server; leave --server out")
    if server["server"] and memory is not None:
        raise UsageError("--memory: not supported with a server, which has --max-job-memory; leave --server out")
    if scheduler:
        tables = tuple(os.path.abspath(path) for path in request.tables)
        request = replace(request, evidence=request.evidence.made_absolute(), tables=tables)
    compares = len(chosen.inputs) != 1 or chosen.inputs[0].root is not None  # else it is no job
    with options.client_of(**server) as client:
        plan = RunPlan(
            request,
            compares,
            outputs=outputs if compares or outputs == "none" else "all",
            merge=merge,
            align=not no_align,
            fixed_ranks=bool(ranks),
            timeline_bytes=None if whole_timeline else BROWSER_TEXT_BYTES,
            jobs=jobs or processors(),
            scheduler=scheduler,
            client=client,
            force=force,
            shard="-of-".join(map(str, shard or ())),
            threads=threads,
            memory=memory,
        )
        return _Command(chosen, plan.divided(len(chosen.inputs)), as_json=as_json, quiet=quiet).all()


class _Command:
    """Shows a run in the terminal."""

    def __init__(self, chosen: ChosenInputs, plan: RunPlan, *, as_json: bool, quiet: bool) -> None:
        self._chosen, self._plan = chosen, plan
        self._as_json, self._quiet = as_json, quiet
        self._results: list[Result] = []
        self._job_files: list[str] = []
        self._timelines: list[str] = []
        self._concluded: list[Concluded] = []

    def all(self) -> int:
        """Convert, print the results, and return the exit code."""
        from augment.batch.conversion import Progress, Result, failure
        from augment.batch.execution import Run
        from augment.cli.terminal import bar

        for name, error in self._chosen.refused:
            self._take(failure(name, error))
        for name, why in self._chosen.passed_over:
            self._take(Result(name, "passed_over", message=f"{name}: {why}"))
        plan = self._plan
        with bar(len(self._chosen.inputs), quiet=self._quiet) as shown:

            def begun(inputs: Sequence[Input]) -> None:
                shown.expect(sum(item.size for item in inputs))
                if plan.scheduler or min(plan.jobs, len(inputs)) > 1:
                    shown.stage("on the cluster" if plan.scheduler else f"{plan.jobs} at once")

            progress = Progress(
                begun=begun,
                finished=lambda item, _result: shown.done(item.size),
                announce=lambda text: shown.say(f"augment: {text}"),
                stage=shown.stage,
            )
            run = Run(self._chosen.inputs, plan, progress)
            for result in run.convert():
                self._take(result)
            for job in run.conclude():
                for path in job.written:
                    self._tell(path)
                self._job_files += job.written if job.joined else ()
                if job.verdict or job.notes:
                    self._concluded.append(job)
                if job.seamless:
                    shown.say(f"augment: {_SEAMLESS.format(job.seamless)}")
                run.draw(job)
                for item in job.missing:
                    self._print(run.results[item.path], run.results[item.path].traces)
            for path in run.merge():
                self._tell(path)
                self._timelines.append(path)
            self._results = [run.results.get(result.path, result) for result in self._results]
        return self._close()

    def _tell(self, path: str) -> None:
        """Print the path of a file about a whole job."""
        from augment.cli.terminal import emit
        from augment.core.jsontext import json_line

        emit(json_line({"status": "concluded", "outputs": [path]}) if self._as_json else path)

    def _take(self, result: Result) -> None:
        self._results.append(result)
        self._print(result, result.outputs)

    def _print(self, result: Result, paths: Sequence[str]) -> None:
        from augment.cli.terminal import emit

        for line in [_as_json(result)] if self._as_json else paths:
            emit(line)

    def _close(self) -> int:
        """Print the summary and the failures; return the exit code."""
        from augment.cli.terminal import complain, say

        failed = [result for result in self._results if result.status == "failed"]
        if not self._quiet:
            from augment.cli.run_summary import jobs, next_steps, summary, verdicts

            shares = ["when all shares are done, run the same command without --shard: it compares the ranks"]
            of_jobs = shares if self._plan.shard else jobs(self._chosen.inputs, self._results, self._concluded)
            last = next_steps(self._results, self._job_files, self._timelines)
            for lines in (verdicts(self._concluded), summary(self._results), of_jobs, last):
                for line in lines:
                    say(line)
        for result in failed:
            if result.traceback and "--debug" in sys.argv:
                sys.stderr.write(result.traceback)
            complain(result.message)
        if len(self._results) == 1 and failed:
            return failed[0].exit_code
        if failed:
            return 1
        in_part = [result for result in self._results if result.partial]
        for result in in_part:
            if self._quiet:
                complain(f"{result.path}: in part: {result.partial}")
            if result.traceback and "--debug" in sys.argv:
                sys.stderr.write(result.traceback)
        for note in dict.fromkeys(note for job in self._concluded for note in job.notes):
            complain(note)
        if in_part or any(job.notes for job in self._concluded):
            return options.DONE_IN_PART
        if not any(result.status in ("augmented", "done_before") for result in self._results):
            from augment.batch.inputs import ONLY_OUTPUTS, no_trace

            messages = [result.message for result in self._results] or [ONLY_OUTPUTS]
            folders = [os.path.dirname(result.path) or "." for result in self._results]
            complain(messages[0] if len(messages) == 1 else str(no_trace(folders[0])))
            return 3
        return 0


def _as_json(result: Result) -> str:
    from augment.core.jsontext import json_line

    record: dict[str, Any] = {"input": options.as_given(result.path), "status": result.status}
    record["outputs"] = list(result.outputs)
    if result.message:
        record["message"] = result.message
    if result.partial:
        record["partial"] = result.partial
    return json_line(record)
