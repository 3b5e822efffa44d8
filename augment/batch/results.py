"""The result of an input: the files written, or the error."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from augment.batch.inputs import Input
from augment.errors import AugmentError, UnknownFormat

if TYPE_CHECKING:
    from augment.writers.seams import Described


class File(Struct, frozen=True):
    """A file that was written; hashes are set only for files that a manifest records.

    An output with a ``seam`` can get tracks later; ``undrawn_sha256`` is its hash without them.
    """

    path: str
    size: int
    sha256: str = ""
    seam: Described | None = None
    undrawn_sha256: str = ""


class Result(Struct, frozen=True):
    """The result of an input: the files written, the sidecar last, or the reason why there are none.

    ``done_before``: the manifest lists the input as done, and it was skipped. ``sha256``, ``rank`` and ``world_size``
    are those of the input; ``summaries`` are files for the job's stages. ``drawn`` identifies the job results drawn
    into the outputs; empty when none are. ``evidence_state`` changes with the files recorded with the trace; empty
    without such files. ``partial`` says why the trace is incomplete; empty if it is whole.
    """

    path: str
    status: Literal["augmented", "done_before", "passed_over", "failed"]
    files: tuple[File, ...] = ()
    message: str = ""  #: begins with the path
    exit_code: int = 0
    traceback: str = ""
    sha256: str = ""
    rank: int | None = None
    world_size: int | None = None
    summaries: tuple[File, ...] = ()
    drawn: str = ""
    evidence_state: str = ""
    partial: str = ""

    @property
    def outputs(self) -> tuple[str, ...]:
        """The paths of the files written, the sidecar last."""
        return tuple(file.path for file in self.files)


def result_of(item: Input, work: Callable[[], Result]) -> Result:
    """The result of ``work``, which writes the outputs of ``item``; an error becomes a result."""
    try:
        return work()
    except UnknownFormat as error:
        return failure(item.path, error) if item.named else Result(item.path, "passed_over", message=str(error))
    except Exception as error:  # a bad file never stops the batch
        return failure(item.path, error)


def failure(path: str, error: Exception) -> Result:
    """The result of an input that ended with ``error``."""
    lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    if isinstance(error, AugmentError):
        return Result(path, "failed", message=str(error), exit_code=error.exit_code, traceback=lines)
    if isinstance(error, OSError):
        what = f"{error.filename or path}: {(error.strerror or str(error)).lower()}"
    elif isinstance(error, MemoryError):
        what = f"{path}: not enough memory; try fewer --jobs"
    else:
        what = f"{path}: internal error, {type(error).__name__}: {error}; please report what --debug shows"
    return Result(path, "failed", message=what, exit_code=1, traceback=lines)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 18):
            digest.update(chunk)
    return digest.hexdigest()
