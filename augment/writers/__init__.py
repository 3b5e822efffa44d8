"""The registry of writers. To add one: a module beside this file, and two lines here.

The sidecar (``metrics.py``) is not among them: it is written whatever the formats of the trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from augment.errors import UsageError
from augment.findings import AugmentedTrace
from augment.trace import Diagnostic
from augment.writers import bundle, chrome, metrics, perfetto
from augment.writers.files import output_path


class Writer(Protocol):
    """What a module in this folder offers. Its docstring says what of the source it keeps."""

    NAME: str
    SUFFIX: str  #: what comes after the STEM of the input's name

    def write(self, augmented: AugmentedTrace, path: Path) -> list[Diagnostic]:
        """Write the trace to ``path``; what had to be changed or left out."""


WRITERS: tuple[Writer, ...] = (chrome, perfetto, bundle)


def writer_named(name: str) -> Writer:
    """The writer with this name.

    Raises:
        UsageError: there is none.
    """
    for writer in WRITERS:
        if name == writer.NAME:
            return writer
    raise UsageError(f"no writer is called {name!r}; there are: {', '.join(w.NAME for w in WRITERS)}")


def write_all(augmented: AugmentedTrace, folder: Path, formats: Sequence[str] = (chrome.NAME,)) -> list[Path]:
    """Write the trace in each of ``formats`` and the sidecar into ``folder``, under the input's STEM.

    The sidecar comes last, for it also tells what the writers had to change.

    Returns:
        The files written, the sidecar last.
    """
    name = augmented.trace.source.name
    written: list[Path] = []
    diagnostics: list[Diagnostic] = []
    for writer in [writer_named(format_name) for format_name in formats]:
        written.append(output_path(name, folder, writer.SUFFIX))
        diagnostics += writer.write(augmented, written[-1])
    written.append(output_path(name, folder, metrics.SUFFIX))
    metrics.write(augmented, written[-1], diagnostics)
    return written


__all__ = ["WRITERS", "Writer", "write_all", "writer_named"]
