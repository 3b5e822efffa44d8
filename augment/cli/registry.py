"""The registry of commands. To add one, add a module next to this file, and its name here."""

from __future__ import annotations

from importlib import import_module

import click

from augment.version import __version__

#: modules in this folder, each with a ``command`` of its own name; the most used first
COMMANDS = (
    "run",
    "diagnose",
    "show",
    "report",
    "diff",
    "check",
    "history",
    "merge",
    "open",
    "cut",
    "query",
    "doctor",
    "serve",
    "list",
)


def command_named(name: str) -> click.Command:
    """The command of this name, one of :data:`COMMANDS`."""
    command: click.Command = import_module(f"augment.cli.{name}").command
    return command


class _Commands(click.Group):
    """The commands in the order of the registry. Their modules are loaded when they are asked for."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """The names of the commands."""
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command of this name. For an unknown name, all are loaded: the error suggests one that is similar."""
        for each in [name] if name in COMMANDS else COMMANDS:
            if each not in self.commands:
                self.add_command(command_named(each))
        return super().get_command(ctx, name)


def group() -> click.Group:
    """The command ``augment`` with all its subcommands."""

    @click.group(cls=_Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
    @click.version_option(__version__, prog_name="augment")
    @click.pass_context
    def augment(context: click.Context) -> None:
        """Read PyTorch profiler traces, measure where GPU time went, and write augmented traces and metrics."""
        if context.invoked_subcommand is None:
            click.echo(context.get_help())

    return augment
