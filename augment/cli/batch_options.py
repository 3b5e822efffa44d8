"""Options of ``augment run`` for many files: which of them to convert, where, and whether again."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from augment.cli.options import MOST_THREADS, Function, processors

if TYPE_CHECKING:
    from augment.batch.execution import Manner
    from augment.batch.inputs import InputPlan
    from augment.client import Client
    from augment.readers.attachments.evidence import Evidence

_SPAN = re.compile(r"(\d+)(?:-(\d+))?")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([MGT])(?:I?B)?")
_SHARD = re.compile(r"(\d+)/(\d+)")


@dataclass(frozen=True)
class Batch:
    """The values of the options."""

    jobs: int
    threads: int
    memory: int | None
    scheduler: str | None
    force: bool
    ranks: tuple[range, ...]
    shard: tuple[int, int] | None

    def plan(self, names: tuple[str, ...], out: str | None, evidence: Evidence) -> InputPlan:
        """The selected inputs; with absolute paths if other processes will read them.

        A folder that holds files of ``evidence`` does not offer them as inputs.
        """
        from augment.batch.inputs import plan
        from augment.batch.locations import protocol

        if self.scheduler:
            names = tuple(name if protocol(name) else os.path.abspath(name) for name in names)
            out = out if out is None or protocol(out) else os.path.abspath(out)
        made = plan(names, out, evidence)
        if self.ranks or self.shard:
            from augment.batch.selection import of_ranks, share

            made.inputs = of_ranks(made.inputs, self.ranks) if self.ranks else made.inputs
            made.inputs = share(made.inputs, *self.shard) if self.shard else made.inputs
        return made

    def threads_for_each(self, inputs: int) -> int:
        """The number of threads for each of the inputs; the processes of this machine share the CPUs."""
        if self.scheduler:
            return max(self.threads, 1)
        processes = max(min(self.jobs or processors(), inputs), 1)
        if self.threads:
            return max(self.threads // processes, 1)
        return max(min(processors() // processes, MOST_THREADS), 1)

    def memory_for_each(self, inputs: int) -> int | None:
        """The bytes of memory for each of the inputs; the processes of this machine share them.

        Raises:
            UsageError: that is too little.
        """
        if self.memory is None:
            return None
        from augment.batch.spilling import expect_possible

        each = self.memory if self.scheduler else self.memory // max(min(self.jobs or processors(), inputs), 1)
        expect_possible(each)
        return each

    def manner(self, client: Client | None) -> Manner:
        """How to convert the inputs; with a ``client``, through its server."""
        from augment.batch.execution import Manner

        shard = "-of-".join(map(str, self.shard)) if self.shard else ""
        return Manner(self.jobs or processors(), self.scheduler, self.force, shard, client)


def memory_option(text: str) -> Callable[[Function], Function]:
    """``--memory``, described by ``text``."""
    return click.option("--memory", callback=_memory, metavar="SIZE", help=text)


def batch_options(function: Function) -> Function:
    """``--jobs``, ``--threads``, ``--memory``, ``--scheduler``, ``--ranks``, ``--shard``, ``--force`` as ``batch``."""

    @functools.wraps(function)
    def command(*args: Any, **values: Any) -> Any:
        names = ("jobs", "threads", "memory", "scheduler", "force", "ranks", "shard")
        return function(*args, batch=Batch(**{name: values.pop(name) for name in names}), **values)

    for option in (
        click.option("--force", is_flag=True, help="Convert inputs again that the manifest lists as done."),
        click.option(
            "--shard",
            callback=_shard,
            metavar="K/N",
            help="Convert only share K of N (K counts from 0), for N processes with one output folder.",
        ),
        ranks_option,
        click.option(
            "--scheduler", metavar="tcp://…", help="Convert on the Dask cluster of this scheduler (extra [dask])."
        ),
        memory_option(
            "Most memory, such as 4G, shared by the processes of --jobs. A file that may need more is converted with "
            "its arrays on the disk of the output folder: slower, with the same results.  [default: no bound]"
        ),
        click.option(
            "--threads",
            type=click.IntRange(min=0),
            default=0,
            metavar="N",
            help="Total CPUs, shared by the processes of --jobs; 0, the default: all CPUs, but at most 4 per file.",
        ),
        click.option(
            "--jobs",
            type=click.IntRange(min=0),
            default=1,
            show_default=True,
            metavar="N",
            help="Files to convert at once, each in its own process, as far as memory allows; 0: one per CPU.",
        ),
    ):
        command = option(command)
    return command  # type: ignore[return-value]


def _memory(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip().upper())
    if not match:
        raise click.BadParameter(f"{text!r} is not a size, such as 4G or 800M")
    return int(float(match[1]) * (1 << {"M": 20, "G": 30, "T": 40}[match[2]]))


#: ``--memory`` of a command with one process
memory_of_one = memory_option(
    "Most memory, such as 4G. If the traces may need more, arrays lie on the disk of the output folder: slower, with "
    "the same results.  [default: no bound]"
)


def _ranks(_context: click.Context, _parameter: click.Parameter, text: str | None) -> tuple[range, ...]:
    if text is None:
        return ()
    spans = [_SPAN.fullmatch(part.strip()) for part in text.split(",")]
    ranks = tuple(range(int(span[1]), int(span[2] or span[1]) + 1) for span in spans if span)
    if len(ranks) < len(spans) or not all(ranks):
        raise click.BadParameter(f"{text!r} is not a list of ranks, such as 0,8,16-23")
    return ranks


#: ``--ranks``
ranks_option = click.option("--ranks", callback=_ranks, metavar="0,8,16-23", help="Only traces of these ranks.")


#: ``--trust-clocks``
trust_option = click.option(
    "--trust-clocks",
    is_flag=True,
    help="Trust the hosts' clocks (to about 1 ms), and so compare ranks that share no collective.",
)


def _shard(_context: click.Context, _parameter: click.Parameter, text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = _SHARD.fullmatch(text)
    if not match or int(match[1]) >= int(match[2]):
        raise click.BadParameter(f"{text!r} is not a share, such as 0/4, 1/4, 2/4 or 3/4")
    return int(match[1]), int(match[2])
