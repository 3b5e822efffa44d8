"""The registry of writers. To add one: a module beside this file, and two lines here.

The sidecar (``metrics.py``) is not among them, because it is always written, whatever the formats of the trace.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

from augment.core import AugmentedTrace, Diagnostic, output_files
from augment.errors import UsageError, expect_known, unabridged
from augment.writers import bundle, chrome, metrics, perfetto, seams


class Writer(Protocol):
    """The interface of a module in this folder, or of a class there that is a format. Its docstring says what it keeps
    of the source."""

    NAME: str
    SUFFIX: str  #: the ending after the STEM of the input's name

    def write_seamed(self, augmented: AugmentedTrace, path: Path, under: Collection[int] = ()) -> seams.Written:
        """Write the trace to ``path``. Returns what was changed or left out, and the seam at which tracks can be added
        ``under`` these of the source."""


WRITERS: tuple[Writer, ...] = (chrome, perfetto, bundle, perfetto.GpuSlices, perfetto.Flamegraph)
DEFAULT = perfetto.NAME  #: the default format of outputs: the best view in the Perfetto UI


def writer_named(name: str) -> Writer:
    """The writer with this name, with this beginning of its name, or with this ending of its files (``pftrace``).

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

    All files have the STEM of the input as name. The sidecar comes last, because it also reports what the writers
    changed.

    Returns:
        The files written, the sidecar last.
    """
    return [path for path, _ in write_seamed(augmented, folder, formats)]


def write_seamed(
    augmented: AugmentedTrace,
    folder: Path,
    formats: Sequence[str] | None,
    under: Collection[int] = (),
    name: str | None = None,
) -> list[tuple[Path, seams.Described | None]]:
    """As :func:`write_all`, and returns the seam of each file at which tracks may be added ``under`` these tracks of
    the source.

    Without ``formats``, the sidecar is written alone. The STEM is that of ``name``, by default of the source's.
    """
    name = name or augmented.trace.source.name
    files: list[tuple[Path, seams.Described | None]] = []
    diagnostics: list[Diagnostic] = []
    names = () if formats is None else formats or (DEFAULT,)
    for writer in map(writer_named, names):
        path = output_files.output_path(name, folder, writer.SUFFIX)
        written = writer.write_seamed(augmented, path, under)
        diagnostics += written.diagnostics
        files.append((path, written.seam.described if under else None))
    path = output_files.output_path(name, folder, output_files.METRICS_SUFFIX)
    seam = metrics.write(augmented, path, diagnostics)
    files.append((path, seam.described if under else None))
    return files


__all__ = ["DEFAULT", "WRITERS", "Writer", "write_all", "write_seamed", "writer_named"]
