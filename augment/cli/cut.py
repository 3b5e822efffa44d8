"""``augment cut``: a smaller trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from augment.cli.options import TRACE, client_of, debug, first_and_last, listed, period, ranks_option, server_option
from augment.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from augment.batch.cutting import CutChoice

    Outcome = tuple[list[Path], str]  #: the files written, and a message


@click.command("cut", short_help="Make a smaller trace: some steps, a period, some ranks, without some categories.")
@click.argument("file", metavar="INPUT", type=TRACE)
@click.option(
    "-o",
    "--output",
    "out",
    required=True,
    metavar="OUT",
    help="The new file: .json.gz, .json or .pftrace; of a folder, the new folder.",
)
@click.option(
    "--steps", metavar="N[-M]", callback=first_and_last, help="Keep these steps, with the GPU work that they launch."
)
@click.option(
    "--time",
    "period",
    metavar="A-B",
    callback=period,
    help="Keep this period, ms since the first event, with the GPU work that the host launches in it.",
)
@click.option(
    "--drop", multiple=True, metavar="CATEGORY,…", callback=listed, help="Leave out events of these categories."
)
@ranks_option
@click.option(
    "--part",
    "parted",
    is_flag=True,
    help="Write each rank of a file with several ranks, as other tools merge them, into the folder OUT.",
)
@click.option("--quiet", is_flag=True, help="Print only the path.")
@server_option
@debug
def command(
    file: str,
    out: str,
    steps: tuple[int, int] | None,
    period: tuple[float, float] | None,
    drop: tuple[str, ...],
    ranks: tuple[range, ...],
    parted: bool,
    quiet: bool,
    server: str | None,
) -> int:
    """Write a part of the trace INPUT to OUT, small enough for a browser.

    Slices are kept whole, and arrows if both their ends are kept. Metadata, such as names of threads, is always kept.
    If INPUT and OUT are Chrome JSON, the remaining events keep their bytes. OUT in Perfetto's format can be made from
    any input. OUT says that it was cut; diagnostics and the diagnosis repeat it. If INPUT is a folder, each trace in it
    is cut in the same way, into the folder OUT. --ranks also chooses ranks of a job's timeline. --part splits a file
    into which another tool merged several ranks, if it tells them by an arg rank or by process ids such as [TP3] 42.
    The paths are printed on stdout. With --server, INPUT may also be a job of it that has succeeded, such as jobs/3f0c:
    its trace is cut; or each of its traces, or those of --ranks, into the folder OUT.
    """
    from pathlib import Path

    from augment.batch.cutting import CutChoice, part
    from augment.cli.terminal import bar, emit, say

    choice = CutChoice(steps, period, drop)
    if not choice and not ranks and not parted:
        raise UsageError("nothing to cut: give --steps, --time, --ranks, --drop or --part")
    if parted and choice:
        raise UsageError("--part: cut the parts in a second run: augment cut OUT --steps …")
    if server and out.endswith(".json") and not parted:
        raise UsageError("a .json without .gz: not supported with --server")
    with client_of(server) as client, bar(1, quiet=quiet) as shown:
        if client:
            from augment.batch.remote import progress_of

            how = {"steps": steps, "period_ms": period, "drop": drop, "ranks": ranks, "part": parted}
            outs = client.cut(file, out, **how, progress=progress_of(shown.stage))  # type: ignore[arg-type]
            text = f"{file} was cut by {client.address}"
        elif parted:
            outs = part(file, Path(out), ranks, shown.stage)
            text = f"{len(outs)} ranks are in {out}"
        else:
            outs, text = _cut(file, Path(out), choice, ranks, shown.stage)
    for path in outs:
        emit(str(path))
    if not quiet:
        say(text)
    return 0


def _cut(name: str, out: Path, choice: CutChoice, ranks: tuple[range, ...], stage: Callable[[str], None]) -> Outcome:
    import os
    from pathlib import Path

    from augment.writers.perfetto.several import is_of_several

    if os.path.isdir(name):
        from augment.batch.cutting import cut_each
        from augment.batch.inputs import choose_inputs, no_trace, of_ranks

        made = choose_inputs([name], None)
        for _, error in made.refused:
            raise error
        if not made.inputs:
            raise no_trace(name)
        inputs = of_ranks(made.inputs, ranks) if ranks else made.inputs
        outs = cut_each(inputs, out, choice, stage)
        return outs, f"{len(outs)} of {len(made.inputs)} traces are in {out}"
    if os.path.isfile(name) and is_of_several(Path(name)):
        from augment.batch.cutting import cut_timeline

        if choice or not ranks:
            raise UsageError(
                f"{name}: is the timeline of a job: only --ranks can cut it; augment run --merge takes --steps"
            )
        names = cut_timeline(Path(name), out, ranks)
        return [out], f"{', '.join(names)}: in {out}"
    from augment.batch.cutting import cut_trace
    from augment.readers import read

    if ranks:
        raise UsageError(f"--ranks: {name} is the trace of one process; name a folder or the timeline of a job")
    stage(f"reading {name}")
    kept, all_events = cut_trace(read(name), out, choice)
    return [out], f"{kept:,} of {all_events:,} events are in {out}"
