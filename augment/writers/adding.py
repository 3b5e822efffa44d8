"""Tracks added to an output that is finished, at the seam that its writer left."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from augment.errors import InputError
from augment.writers import Writer, writer_named
from augment.writers.files import replacing
from augment.writers.seams import WRITER, Addable, Described


def add_tracks(path: Path, target: Path, seam: Described, annotations: Sequence[Addable]) -> None:
    """Write the output at ``path`` to ``target``, with ``annotations`` at its seam instead of what was added there.

    Raises:
        InputError: the output is not what its writer left.
        OutputError: ``target`` cannot be written.
    """
    try:
        writer, own = _own(seam)
        with replacing(target) as new, open(path, "rb") as old:
            writer.with_tracks(old, new, own, annotations)
    except ValueError as error:
        raise InputError(str(path), f"has changed since it was written ({error}); convert it again") from error


def is_as_written(path: Path, seam: Described, sha256: str) -> bool:
    """Whether the output is the one that had this hash, but for what was added at its seam since."""
    try:
        writer, own = _own(seam)
        with open(path, "rb") as old, tempfile.TemporaryFile() as bare:
            writer.with_tracks(old, bare, own, ())
            bare.seek(0)
            digest = hashlib.sha256()
            while chunk := bare.read(1 << 18):
                digest.update(chunk)
    except (OSError, ValueError):
        return False
    return digest.hexdigest() == sha256


def _own(seam: Described) -> tuple[Writer, msgspec.Struct]:
    writer = writer_named(seam[WRITER])
    return writer, msgspec.convert(seam, writer.Seam, str_keys=True)
