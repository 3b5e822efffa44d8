"""The registry of writers. To add one: a module beside this file, and two lines here.

The sidecar (``metrics.py``) is not among them: it is written whatever the formats of the trace.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from augment.errors import UsageError, expect_known, unabridged
from augment.findings import AugmentedTrace
from augment.trace import Diagnostic
from augment.writers import bundle, chrome, metrics, perfetto
from augment.writers.files import output_path
from augment.writers.seams import Addable, Described, Written, described


class Writer(Protocol):
    """What a module in this folder offers. Its docstring says what of the source it keeps."""

    NAME: str
    SUFFIX: str  #: what comes after the STEM of the input's name
    Seam: type[Any]  #: a msgspec.Struct: what it tells of the seam that it leaves in an output

    def write(self, augmented: AugmentedTrace, path: Path) -> list[Diagnostic]:
        """Write the trace to ``path``; what had to be changed or left out."""

    def write_seamed(self, augmented: AugmentedTrace, path: Path) -> Written:
        """The same, and how to add to the file."""

    def with_tracks(self, old: BinaryIO, new: BinaryIO, seam: Any, annotations: Sequence[Addable]) -> None:
        """Write the output that ``old`` is to ``new``, with ``annotations`` at its seam instead of what is there.

        Raises:
            OSError, ValueError: it is not what was written.
        """


WRITERS: tuple[Writer, ...] = (chrome, perfetto, bundle)
DEFAULT = perfetto.NAME  #: the format of outputs if none is asked for: the best view in the Perfetto UI


def writer_named(name: str) -> Writer:
    """The writer with this name, the beginning of it, or what its files end with (``pftrace``).

    Raises:
        UsageError: there is none.
    """
    for writer in WRITERS:
        if name == writer.NAME or (name and writer.SUFFIX.endswith((f".{name}", f".{name}.gz"))):
            return writer
    for writer in WRITERS:
        if unabridged(name, [writer.NAME for writer in WRITERS]) == writer.NAME:
            return writer
    expect_known(name, [writer.NAME for writer in WRITERS], "writer")
    raise UsageError(f"no writer is called {name!r}")


def write_all(augmented: AugmentedTrace, folder: Path, formats: Sequence[str] = ()) -> list[Path]:
    """Write the trace in each of ``formats``, by default :data:`DEFAULT`, and the sidecar into ``folder``.

    All are called by the STEM of the input. The sidecar comes last, for it also tells what the writers had to change.

    Returns:
        The files written, the sidecar last.
    """
    return [path for path, _ in write_seamed(augmented, folder, formats)]


def write_seamed(
    augmented: AugmentedTrace, folder: Path, formats: Sequence[str] | None, under: Collection[int] = ()
) -> list[tuple[Path, Described | None]]:
    """The same, with the seam of each file at which tracks may be added ``under`` these of the source, if any.

    Without ``formats``, the sidecar is written alone.
    """
    name = augmented.trace.source.name
    files: list[tuple[Path, Described | None]] = []
    diagnostics: list[Diagnostic] = []
    names = () if formats is None else formats or (DEFAULT,)
    for writer in map(writer_named, names):
        path = output_path(name, folder, writer.SUFFIX)
        written = writer.write_seamed(augmented, path)
        diagnostics += written.diagnostics
        files.append((path, described(writer.NAME, written.seam(under)) if under else None))
    files.append((output_path(name, folder, metrics.SUFFIX), None))
    metrics.write(augmented, files[-1][0], diagnostics)
    return files


__all__ = ["DEFAULT", "WRITERS", "Writer", "write_all", "write_seamed", "writer_named"]
