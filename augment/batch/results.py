"""What comes of an input: the files written, or the error that ended it."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from augment.batch.inputs import Input
from augment.errors import AugmentError, UnknownFormat

if TYPE_CHECKING:
    from augment.writers.seams import Described


@dataclass(frozen=True, slots=True)
class File:
    """A file that was written; hashes only of those that a manifest shall tell of.

    An output with a ``seam`` can be drawn in later; ``undrawn_sha256`` is of what it was before.
    """

    path: str
    size: int
    sha256: str = ""
    seam: Described | None = None
    undrawn_sha256: str = ""


@dataclass(frozen=True)
class Result:
    """What came of an input: the files written, the sidecar last, or why there are none.

    ``done_before`` says that a manifest told so, and nothing had to be done. ``sha256``, ``rank`` and ``world_size``
    are the input's; ``summaries`` are files for the job's stages. ``drawn`` is a name for what of the job is drawn in
    the outputs; empty: nothing. ``evidence_state`` changes with the files recorded with it; empty: there are none.
    ``partial`` is why the trace is not whole, if it is not.
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


def result_of(one: Input, work: Callable[[], Result]) -> Result:
    """What comes of ``work``, which writes the outputs of ``one``, whether it is well or not."""
    try:
        return work()
    except UnknownFormat as error:
        return failure(one.path, error) if one.named else Result(one.path, "passed_over", message=str(error))
    except Exception as error:  # one bad file never stops the rest
        return failure(one.path, error)


def failure(path: str, error: Exception) -> Result:
    """The result of an input that ``error`` ended."""
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
    """The hash of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 18):
            digest.update(chunk)
    return digest.hexdigest()
