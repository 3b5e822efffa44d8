"""Adds tracks to a finished output, at the seam that its writer left."""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, cast

import msgspec

from augment.errors import InputError, UsageError
from augment.writers import Writer, metrics, writer_named
from augment.writers.files import replacing
from augment.writers.seams import WRITER, Addable, Described


def add_tracks(path: Path, target: Path, seam: Described, annotations: Sequence[Addable]) -> None:
    """Write the output at ``path`` to ``target``, with ``annotations`` at its seam in place of those added there
    before.

    Raises:
        InputError: the output is not the one that its writer left.
        OutputError: ``target`` cannot be written.
    """
    try:
        writer, writer_seam = _own(seam)
        with replacing(target) as new, open(path, "rb") as old:
            writer.with_tracks(old, new, writer_seam, annotations)
    except ValueError as error:
        raise InputError(str(path), f"has changed since it was written ({error}); convert it again") from error


class _Differs(Exception):
    """What is written is not what the file contains."""


class _Comparison(io.RawIOBase):
    """Compares what is written with a file that exists."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, data: Any) -> int:
        """Read as many bytes.

        Raises:
            _Differs: they are others.
        """
        view = memoryview(data).cast("B")
        if self._file.read(len(view)) != view:
            raise _Differs
        return len(view)

    def tell(self) -> int:
        """How many bytes were written."""
        return self._file.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to another place: headers of zip files are written last."""
        return self._file.seek(offset, whence)


def shows(path: Path, seam: Described, annotations: Sequence[Addable]) -> bool:
    """Whether the output already has these annotations, and no others, at its seam."""
    try:
        writer, writer_seam = _own(seam)
        with open(path, "rb") as old, open(path, "rb") as same:
            writer.with_tracks(old, cast("BinaryIO", _Comparison(same)), writer_seam, annotations)
            return not same.read(1)
    except (OSError, ValueError, _Differs):
        return False


def is_as_written(path: Path, seam: Described, sha256: str) -> bool:
    """Whether the output is the one that had this hash, apart from what was added at its seam since."""
    import tempfile

    try:
        writer, writer_seam = _own(seam)
        with open(path, "rb") as old, tempfile.TemporaryFile() as bare:
            writer.with_tracks(old, bare, writer_seam, ())
            bare.seek(0)
            digest = hashlib.sha256()
            while chunk := bare.read(1 << 18):
                digest.update(chunk)
    except (OSError, ValueError):
        return False
    return digest.hexdigest() == sha256


def of_files(content: bytes, paths: Iterable[Path]) -> list[Described | None]:
    """The seams of these files from the content of a file of seams; None for a file without one.

    A seam in the form of another version is ignored, because another program may have written it.
    """
    known: dict[str, Described] = {}
    with contextlib.suppress(ValueError):
        for seam in msgspec.json.decode(content, type=list[dict[str, Any]]):
            with contextlib.suppress(KeyError, UsageError, ValueError):
                known[_own(seam)[0].SUFFIX] = seam
    return [next((known[suffix] for suffix in known if path.name.endswith(suffix)), None) for path in paths]


def _own(seam: Described) -> tuple[Writer | ModuleType, msgspec.Struct]:
    writer = metrics if seam[WRITER] == metrics.NAME else writer_named(seam[WRITER])
    return writer, msgspec.convert(seam, writer.Seam, str_keys=True)
