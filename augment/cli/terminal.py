"""stdout for data, stderr for everything else, and a progress bar on a terminal."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from augment.core.text import printable


def prepare_output() -> None:
    """Allow any file name in the output, whatever its bytes."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure:
            utf8 = stream.encoding.lower().replace("-", "") == "utf8"
            reconfigure(errors="surrogateescape" if utf8 else "backslashreplace")


def emit(text: str, *, exact: bool = False) -> None:
    """Print data. Names of a stranger's file may hold what a terminal obeys: it is escaped, as JSON would, unless
    ``exact``. If the reader has closed the pipe, output is discarded and the work goes on."""
    try:
        sys.stdout.write((text if exact else printable(text, several_lines=True)) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _discard(sys.stdout)


_WHOLE = re.compile(r"`[^`]+`|augment [a-z]+ .*|\d (?=%|[nµm]?s\b|[kMGT]i?B\b)")  #: commands, to be copied, and figures


def wrapped(text: str) -> str:
    """The lines of a text no wider than the terminal, each indented as it begins. Unchanged if stdout is none."""
    if not sys.stdout.isatty():
        return text
    import shutil
    import textwrap

    made = []
    wrapper = textwrap.TextWrapper(shutil.get_terminal_size().columns, break_long_words=False, break_on_hyphens=False)
    for line in text.splitlines():
        wrapper.subsequent_indent = " " * (len(line) - len(line.lstrip(" !✓–→")))
        made += wrapper.wrap(_WHOLE.sub(lambda whole: whole[0].replace(" ", "\0"), line)) or [""]
    return "\n".join(made).replace("\0", " ")


def say(line: str) -> None:
    """Print one line for people."""
    try:
        sys.stderr.write(printable(line) + "\n")
        sys.stderr.flush()
    except BrokenPipeError:
        _discard(sys.stderr)


def complain(problem: str) -> None:
    """Print an error in one line."""
    say(f"augment: {problem}")


def finish_output(code: int) -> int:
    """Flush the output; returns the exit code unchanged."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard(sys.stdout)
    return code


def _discard(stream: TextIO) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class Bar:
    """Shows the progress of the work; this one only lines for people, unless it is quiet."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet

    def stage(self, text: str) -> None:
        """Show the current activity."""

    def expect(self, size: int) -> None:
        """Announce inputs of ``size`` bytes in total."""

    def done(self, size: int) -> None:
        """Count a finished input of ``size`` bytes."""

    def say(self, line: str) -> None:
        """Print one line for people, above the bar."""
        if not self._quiet:
            say(line)


class _RichBar(Bar):
    def __init__(self, progress: Any, total: int) -> None:
        self._progress, self._count, self._of = progress, 0, total
        self._task = progress.add_task("", total=None, count=f"0/{total}")

    def stage(self, text: str) -> None:
        """Set the text next to the bar."""
        self._progress.update(self._task, description=printable(text))

    def expect(self, size: int) -> None:
        """Set the length of the bar."""
        self._progress.update(self._task, total=size or None)

    def done(self, size: int) -> None:
        """Advance the bar."""
        self._count += 1
        self._progress.update(self._task, advance=size, count=f"{self._count}/{self._of}")

    def say(self, line: str) -> None:
        """Print above the bar."""
        self._progress.console.print(printable(line), markup=False, highlight=False, soft_wrap=True)


@contextmanager
def bar(total: int, *, quiet: bool) -> Iterator[Bar]:
    """A bar for ``total`` inputs on stderr if that is a terminal; rich is loaded only for this."""
    if quiet or not sys.stderr.isatty():
        yield Bar(quiet)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.table import Column

    # some files take minutes: the remaining time is estimated from the bytes of finished inputs
    many = (BarColumn(), TextColumn("{task.fields[count]}"), TimeRemainingColumn()) if total > 1 else ()
    remaining = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    text = TextColumn("{task.description}", markup=False, table_column=remaining)
    columns = (SpinnerColumn(), *many, TimeElapsedColumn(), text)
    console = Console(stderr=True, color_system=None if os.environ.get("NO_COLOR") else "auto")
    with Progress(
        *columns, console=console, transient=True, refresh_per_second=5, expand=True, speed_estimate_period=86_400
    ) as progress:
        yield _RichBar(progress, total)
