"""One timeline of all ranks of a job: ``augment run --merge -o FILE``, or ``augment merge``, its earlier name."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from augment.cli.options import TRACE, debug, memory_of_one, ranks_option, requesting, trust_option
from augment.errors import UsageError

if TYPE_CHECKING:
    from augment.batch.inputs import Input
    from augment.batch.merged_timeline import Merged
    from augment.client import Client
    from augment.pipeline.request import Request
    from augment.readers.attachments import Evidence

TIMELINE_SUFFIXES = (".pftrace", ".tar")


@click.command("merge", hidden=True)
@click.argument("inputs", nargs=-1, required=True, metavar="DIR…", type=TRACE)
@click.option("-o", "--output", "out", metavar="FILE", help="Output file.  [default: job.augmented.pftrace in DIR]")
@ranks_option
@requesting()
@trust_option
@click.option("--no-align", is_flag=True, help="Leave each rank on its own clock.")
@click.option("--all", "everything", is_flag=True, help="Leave nothing out, even if no browser can open the file.")
@memory_of_one
@click.option("--quiet", is_flag=True, help="Print only the path written, and errors.")
@debug
def command(
    inputs: tuple[str, ...],
    out: str | None,
    ranks: tuple[range, ...],
    request: Request,
    trust_clocks: bool,
    no_align: bool,
    everything: bool,
    memory: int | None,
    quiet: bool,
) -> int:
    """Write one timeline of all ranks of a job: an earlier name of augment run --merge -o FILE."""
    from msgspec.structs import replace

    request = replace(request, trust_clocks=trust_clocks).check()
    return write_timeline(inputs, out, ranks, request, align=not no_align, whole=everything, memory=memory, quiet=quiet)


def write_timeline(
    inputs: tuple[str, ...],
    out: str | None,
    ranks: tuple[range, ...],
    request: Request,
    *,
    align: bool,
    whole: bool,
    memory: int | None,
    quiet: bool,
) -> int:
    """Write the timeline of the one job of ``inputs``, print its path and what is said about it; the exit code.

    Raises:
        AugmentError: there are several jobs, none of its ranks can be read, or ``out`` is no timeline's name.
    """
    from augment.batch import locations
    from augment.batch.conversion import BROWSER_TEXT_BYTES, RunPlan
    from augment.batch.memory_limit import expect_possible
    from augment.batch.merged_timeline import default_output, merge, only_job
    from augment.cli.terminal import bar, complain, emit, say

    expect_possible(memory)
    if out and not out.endswith(TIMELINE_SUFFIXES):
        raise UsageError(f"-o {out}: a timeline must end in {' or '.join(TIMELINE_SUFFIXES)}")
    job = only_job(_inputs(inputs, ranks, request.evidence), request.tables)
    request.evidence.check(len(job.members))
    out = out or default_output(job)
    plan = RunPlan(
        request,
        align=align,
        fixed_ranks=bool(ranks),
        timeline_bytes=None if whole else BROWSER_TEXT_BYTES,
        memory=memory,
    )
    with bar(len(job.members), quiet=quiet) as shown:
        merged = merge(job, out, plan, shown.stage)
    emit(out)
    if not quiet:
        say_merged(merged, say)
        for diagnostic in merged.diagnostics:
            say(f"  {diagnostic.code}: {diagnostic.count:,} ({diagnostic.message})")
        if not locations.protocol(out):
            say(f"open it: augment open {shlex.quote(out)}")
    for _, error in merged.failed:
        complain(str(error))
    return 1 if merged.failed else 0


def merge_there(
    client: Client,
    inputs: tuple[str, ...],
    out: str,
    ranks: tuple[range, ...],
    request: Request,
    *,
    align: bool,
    whole: bool,
    memory: int | None,
    quiet: bool,
) -> int:
    """Have a server write the timeline of traces, or of its jobs; print its path and the notes on it; the exit code.

    Raises:
        UsageError: an option is not supported there.
        AugmentError: the server does not write it.
    """
    from augment.batch.jobs import folder_title
    from augment.batch.remote import progress_of
    from augment.cli.terminal import bar, emit, say
    from augment.core.output_files import SERVER_JOB

    if memory is not None or not out.endswith(".pftrace"):
        raise UsageError("--memory, a .tar: not supported where a server writes one timeline")
    jobs = [name for name in inputs if SERVER_JOB.fullmatch(name)]
    files = [name for name in inputs if name not in jobs]
    items = _inputs(tuple(files), ranks, request.evidence) if files else []
    traces = {**{name: name for name in jobs}, **{item.key: item.path for item in items}}
    with bar(len(traces), quiet=quiet) as shown:
        title = folder_title(files[0]) if len(files) == 1 and os.path.isdir(files[0]) else ""
        how = {"align": align, "everything": whole, "ranks": ranks, "progress": progress_of(shown.stage)}
        notes = client.merge(traces, out, request, name=title, **how)  # type: ignore[arg-type]
    emit(out)
    for note in () if quiet else (*notes, f"open it: augment open {shlex.quote(out)}"):
        say(note)
    return 0


def say_merged(merged: Merged, say: Callable[[str], object]) -> None:
    """Tell what a timeline shows, what was left out, and the job's verdict."""
    say(f"{merged.ranks} ranks" if merged.ranks != 1 else "1 rank")
    for line in (*filter(None, [merged.left_out]), *merged.notes):
        say(line)
    for sentence in merged.verdict:
        say(sentence)


def _inputs(names: tuple[str, ...], ranks: tuple[range, ...], evidence: Evidence) -> list[Input]:
    from augment.batch.inputs import ONLY_OUTPUTS, choose_inputs, of_ranks

    made = choose_inputs(names, None, evidence)
    for _, error in made.refused:
        raise error
    if not made.inputs:
        raise UsageError("; ".join(why for _, why in made.passed_over) or ONLY_OUTPUTS)
    return of_ranks(made.inputs, ranks) if ranks else made.inputs
