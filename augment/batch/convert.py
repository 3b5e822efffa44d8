"""One file: read, augment, write; whatever comes of it is a result."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from augment.batch.inputs import Input
from augment.errors import AugmentError, OutputError, UnknownFormat

Told = Callable[[str], None]  #: told, in a sentence, of what takes long


@dataclass(frozen=True)
class Settings:
    """What to make of every input."""

    formats: tuple[str, ...] = ("chrome",)
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    steps: tuple[int, int] | None = None


@dataclass(frozen=True)
class Result:
    """What came of an input: the files written, the sidecar last, or why there are none."""

    path: str
    status: Literal["augmented", "passed_over", "failed"]
    outputs: tuple[str, ...] = ()
    message: str = ""  #: begins with the path
    exit_code: int = 0
    traceback: str = ""


def convert(one: Input, settings: Settings, announce: Told, stage: Told = lambda _: None) -> Result:
    """Convert ``one``. Never raises but for an interrupt: an error is a result, too.

    Args:
        announce: told of what takes unexpectedly long.
        stage: told what is being done.
    """
    try:
        return Result(one.path, "augmented", tuple(map(str, _convert(one, settings, announce, stage))))
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


def _convert(one: Input, settings: Settings, announce: Told, stage: Told) -> list[Path]:
    _expect_writable(one.folder)
    from augment.pipeline import augment
    from augment.readers import read
    from augment.writers import write_all

    stage("reading")
    trace = read(one.path, announce=announce)
    augmented = augment(
        trace,
        only=settings.only,
        skip=settings.skip,
        options=settings.options,
        steps=settings.steps,
        progress=lambda name, _done, _of: stage(name),
    )
    stage("writing")
    return write_all(augmented, Path(one.folder), settings.formats)


def _expect_writable(folder: str) -> None:
    """Find out before the work, not after it, that there is no place for its outcome."""
    there = Path(folder)
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise OutputError(f"{folder}: {there} is a file; choose another -o")
    if not os.access(there, os.W_OK | os.X_OK):
        raise OutputError(f"{folder}: {there} may not be written to; choose a folder with -o")
