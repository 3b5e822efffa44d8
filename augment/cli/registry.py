"""The registry of commands. To add one, add a module next to this file, and its name here."""

from __future__ import annotations

import os
import re
from importlib import import_module

import click

from augment.version import __version__

#: the commands as the help lists them, the most used first; each is a module in this folder with a ``command``
GROUPS = {
    "Look at a trace, or at a folder of ranks": ("diagnose", "open", "report", "show", "query", "doctor"),
    "Make files": ("run", "cut"),
    "Compare runs": ("diff", "check", "history"),
    "More": ("serve", "work", "list"),
}
_ELSEWHERE = {"work": ("serve", "work")}  #: commands in the module of another, and their names there
ALIASES = ("merge",)  #: earlier names, which the help leaves out
COMMANDS = tuple(name for names in GROUPS.values() for name in names)
_LIKE_A_PATH = re.compile(r"[/\\.*?]")
DEFAULT = "diagnose"  #: what is done with a file or folder that no command precedes


def command_named(name: str) -> click.Command:
    """The command of this name, one of :data:`COMMANDS`."""
    module, attribute = _ELSEWHERE.get(name, (name, "command"))
    command: click.Command = getattr(import_module(f"augment.cli.{module}"), attribute)
    return command


class _Commands(click.Group):
    """The commands in the order of the registry. Their modules are loaded when they are asked for."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """The names of the commands."""
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command of this name. For an unknown name, all are loaded: the error suggests one that is similar."""
        for each in [name] if name in (*COMMANDS, *ALIASES) else COMMANDS:
            if each not in self.commands:
                self.add_command(command_named(each))
        return super().get_command(ctx, name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the arguments name; for a path, that of :data:`DEFAULT`."""
        if args[0] not in (*COMMANDS, *ALIASES) and (os.path.exists(args[0]) or _LIKE_A_PATH.search(args[0])):
            args = [DEFAULT, *args]
        return super().resolve_command(ctx, args)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands below the headings of :data:`GROUPS`."""
        limit = formatter.width - 6 - max(map(len, COMMANDS))
        for heading, names in GROUPS.items():
            rows = [(name, command_named(name).get_short_help_str(limit)) for name in names]
            with formatter.section(heading):
                formatter.write_dl(rows, col_max=max(map(len, COMMANDS)) + 4)


def group() -> click.Group:
    """The command ``augment`` with all its subcommands."""

    @click.group(cls=_Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
    @click.version_option(__version__, prog_name="augment")
    @click.pass_context
    def augment(context: click.Context) -> None:
        """Read PyTorch profiler traces, measure where GPU time went, and write augmented traces and metrics.

        augment FILE, or FOLDER, is short for augment diagnose.
        """
        if context.invoked_subcommand is None:
            click.echo(context.get_help())

    return augment
