"""The registry of commands. To add one: a module beside this file, and two lines here."""

from __future__ import annotations

import click

from augment import __version__
from augment.commands import check, diff, doctor, merge, query, run, serve, show
from augment.commands import list as listing
from augment.commands import open as opening

COMMANDS: tuple[click.Command, ...] = (
    run.command,
    show.command,
    diff.command,
    check.command,
    merge.command,
    opening.command,
    query.command,
    doctor.command,
    serve.command,
    listing.command,
)


class _InOrder(click.Group):
    """Commands as they are registered, the first to be used first."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Their names."""
        return [*self.commands]


def group() -> click.Group:
    """``augment`` with all its commands."""

    @click.group(cls=_InOrder, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
    @click.version_option(__version__, prog_name="augment")
    @click.pass_context
    def augment(context: click.Context) -> None:
        """See where GPU time went: PyTorch profiler traces in, augmented traces and metrics out."""
        if context.invoked_subcommand is None:
            click.echo(context.get_help())

    for command in COMMANDS:
        augment.add_command(command)
    return augment
