"""``augment cut``: a smaller trace."""

from __future__ import annotations

import re

import click

from augment.commands.options import debug, first_and_last, listed
from augment.errors import UsageError


def _period(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[float, float] | None:
    """The numbers in ``120-180``, ms."""
    if value is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*-\s*(\d+(?:\.\d+)?)\s*", value)
    if not match or float(match[1]) >= float(match[2]):
        raise UsageError(f"--time {value}: must be a begin and an end in ms, such as 120-180.5")
    return float(match[1]), float(match[2])


@click.command("cut", short_help="Make a smaller trace: some steps, a period, without some categories.")
@click.argument("file", metavar="INPUT")
@click.option("-o", "--output", "out", required=True, metavar="OUT", help="The new file: .json.gz, .json or .pftrace.")
@click.option(
    "--steps", metavar="N[-M]", callback=first_and_last, help="Keep these steps, with the GPU work that they launch."
)
@click.option(
    "--time",
    "period",
    metavar="A-B",
    callback=_period,
    help="Keep what lasts within this period, ms since the first event.",
)
@click.option(
    "--drop", multiple=True, metavar="CATEGORY,…", callback=listed, help="Leave out events of these categories."
)
@click.option("--quiet", is_flag=True, help="Print only the path.")
@debug
def command(
    file: str,
    out: str,
    steps: tuple[int, int] | None,
    period: tuple[float, float] | None,
    drop: tuple[str, ...],
    quiet: bool,
) -> int:
    """Write a part of the trace INPUT to OUT, small enough for a browser.

    Slices are kept whole, arrows if both their ends are kept, and everything that is no event, such as names of
    threads. Chrome JSON keeps its own bytes: only events are taken out. OUT in Perfetto's format can be made of any
    input. The path is printed on stdout.
    """
    from pathlib import Path

    import numpy as np

    from augment.commands.terminal import bar, emit, say
    from augment.derived.steps import cutting
    from augment.readers import read
    from augment.writers.cut import write_cut

    if steps is None and period is None and not drop:
        raise UsageError("nothing to cut: give --steps, --time or --drop")
    with bar(1, quiet=quiet) as shown:
        shown.stage(f"reading {file}")
        trace = read(file)
        keep = np.ones(len(trace.events), np.bool_)
        if steps is not None:
            keep &= cutting.of_steps(trace, *steps)
        if period is not None:
            first = int(trace.events.ts[0]) if len(trace.events) else 0
            keep &= cutting.of_time(trace, *(first + round(1e6 * ms) for ms in period))
        if drop:
            keep &= cutting.without(trace, drop)
        keep = cutting.whole(trace, keep)
        if not keep.any():
            raise UsageError(f"{file}: no event would be left")
        shown.stage("writing")
        write_cut(trace, keep, Path(out))
    emit(out)
    if not quiet:
        say(f"{np.count_nonzero(keep):,} of {len(keep):,} events are in {out}; causes of waits need the whole trace")
    return 0
