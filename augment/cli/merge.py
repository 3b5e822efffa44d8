"""``augment merge``: one timeline of all ranks of a job."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from augment.cli.options import debug, memory_of_one, ranks_option, requesting, trust_option
from augment.errors import UsageError

if TYPE_CHECKING:
    from augment.batch.inputs import Input
    from augment.pipeline.request import Request
    from augment.readers.attachments import Evidence

_SUFFIXES = (".pftrace", ".tar")


@click.command("merge", short_help="Write one timeline of all ranks of a job.")
@click.argument("inputs", nargs=-1, required=True, metavar="DIR…")
@click.option(
    "-o",
    "--output",
    "out",
    metavar="FILE",
    help="Output file: a .pftrace, or a .tar for Perfetto 58 and later.  [default: job.augmented.pftrace in DIR]",
)
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
    """Write one timeline of all ranks of a job, given as a folder DIR, files or globs.

    Each rank is a group of tracks, in order, with all tracks that augment adds. The first group shows the job as a
    whole: its critical path, the late ranks, and the number of waiting ranks. Clocks are aligned by the collectives
    that the ranks share, and arrows link the kernels of each collective. If the timeline is too large for a browser,
    steps and then ranks are left out; a message says so. The path written is printed on stdout.
    """
    from msgspec.structs import replace

    from augment.batch import locations
    from augment.batch.memory_limit import expect_possible
    from augment.batch.merged_timeline import default_output, merge, only_job
    from augment.batch.run_plan import BROWSER_TEXT_BYTES, RunPlan
    from augment.cli.terminal import bar, complain, emit, say

    request.check()
    expect_possible(memory)
    if out and not out.endswith(_SUFFIXES):
        raise UsageError(f"-o {out}: a timeline must end in {' or '.join(_SUFFIXES)}")
    job = only_job(_inputs(inputs, ranks, request.evidence))
    request.evidence.check(len(job.members))
    out = out or default_output(job)
    plan = RunPlan(
        replace(request, trust_clocks=trust_clocks),
        align=not no_align,
        fixed_ranks=bool(ranks),
        timeline_bytes=None if everything else BROWSER_TEXT_BYTES,
        memory=memory,
    )
    with bar(len(job.members), quiet=quiet) as shown:
        merged = merge(job, out, plan, shown.stage)
    emit(out)
    if not quiet:
        say(f"{merged.ranks} ranks" if merged.ranks != 1 else "1 rank")
        for line in (*filter(None, [merged.left_out]), *merged.notes):
            say(line)
        for diagnostic in merged.diagnostics:
            say(f"  {diagnostic.code}: {diagnostic.count:,} ({diagnostic.message})")
        for sentence in merged.verdict:
            say(sentence)
        if not locations.protocol(out):
            say(f"open it: augment open {shlex.quote(out)}")
    for _, error in merged.failed:
        complain(str(error))
    return 1 if merged.failed else 0


def _inputs(names: tuple[str, ...], ranks: tuple[range, ...], evidence: Evidence) -> list[Input]:
    from augment.batch.inputs import choose_inputs, of_ranks

    made = choose_inputs(names, None, evidence)
    for _, error in made.refused:
        raise error
    if not made.inputs:
        raise UsageError("; ".join(why for _, why in made.passed_over))
    return of_ranks(made.inputs, ranks) if ranks else made.inputs
