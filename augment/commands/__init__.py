"""The registry of commands. To add a command, add a module next to this file, and two lines here."""

from __future__ import annotations

import click

from augment import __version__
from augment.commands import check, cut, diagnose, diff, doctor, history, merge, query, report, run, serve, show
from augment.commands import list as listing
from augment.commands import open as opening

COMMANDS: tuple[click.Command, ...] = (
    run.command,
    diagnose.command,
    show.command,
    report.command,
    diff.command,
    check.command,
    history.command,
    merge.command,
    opening.command,
    cut.command,
    query.command,
    doctor.command,
    serve.command,
    listing.command,
)


class _InOrder(click.Group):
    """A group that lists its commands in order of registration, the most used first."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """The names of the commands."""
        return [*self.commands]


def group() -> click.Group:
    """The command ``augment`` with all its subcommands."""

    @click.group(cls=_InOrder, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
    @click.version_option(__version__, prog_name="augment")
    @click.pass_context
    def augment(context: click.Context) -> None:
        """Read PyTorch profiler traces, measure where GPU time went, and write augmented traces and metrics."""
        if context.invoked_subcommand is None:
            click.echo(context.get_help())

    for command in COMMANDS:
        augment.add_command(command)
    return augment
