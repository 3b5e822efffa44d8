"""Abbreviated names on the command line: prefixes of names, and names of file types."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import click

from augment.errors import unabridged


def complete_analysis(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the last of a comma-separated list of names of analyses (``--only steps,…``)."""
    from augment.analyses import ANALYSES

    return _completed(incomplete, [analysis.NAME for analysis in ANALYSES])


def complete_format(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the last of a comma-separated list of names of writers."""
    from augment.writers import WRITERS

    return _completed(incomplete, [writer.NAME for writer in WRITERS])


def _completed(incomplete: str, known: list[str]) -> list[str]:
    listed, comma, begun = incomplete.rpartition(",")
    return [f"{listed}{comma}{name}" for name in known if name.startswith(begun)]


def analyses_of(names: Iterable[str], known: Collection[str] | None = None) -> tuple[str, ...]:
    """Replace each unique prefix of an analysis's name by the name, and report that on stderr. Other names stay
    unchanged, so that their use raises the error."""
    from augment.cli.terminal import complain

    names = tuple(names)
    if not names:
        return ()
    if known is None:
        from augment.analyses import ANALYSES

        known = [analysis.NAME for analysis in ANALYSES]
    full = tuple(unabridged(name, known) for name in names)
    for name, whole in zip(names, full, strict=True):
        if name != whole:
            complain(f"{name}: taken as {whole}")
    return tuple(dict.fromkeys(full))


def formats_of(names: Iterable[str]) -> tuple[str, ...]:
    """The names of writers, each once.

    Raises:
        UsageError: a name matches no writer.
    """
    names = tuple(names)
    if not names:
        return ()
    from augment.writers import writer_named

    return tuple(dict.fromkeys(writer_named(name).NAME for name in names))
