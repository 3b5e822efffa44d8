"""Seams let tracks be added to finished outputs: those of a job are known only when all its ranks are converted.

A writer leaves a *seam* in an output, the place after everything that stays, and there writes the tracks that the job
may tell otherwise (``seamed``). Later the output is copied, with other tracks at the seam in place of these. With the
tracks of the beginning, the copy equals the first output byte for byte. This requires nothing of the trace except the
writer's description of the seam, and almost nothing is compressed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple, Union, cast

import msgspec

from augment.core import Annotation, CounterTrack, Diagnostic, Flows, InstantTrack, SliceTrack
from augment.core.output_files import replacing
from augment.errors import InputError

Addable = SliceTrack | CounterTrack | Flows
Described = Mapping[str, Any]  #: a seam as plain data that fits JSON
SUFFIX = ".seams.summary"  #: of a file with the seams of a trace's outputs, a JSON list, for later additions


class Seam(msgspec.Struct, frozen=True, tag_field="writer"):
    """The seam in an output, ``at`` a byte of it. Each writer has its own, with what it takes to add tracks there."""

    SUFFIX: ClassVar[str]  #: of the writer's files

    at: int

    def with_tracks(self, old: BinaryIO, new: BinaryIO, annotations: Sequence[Addable]) -> None:
        """Copy the output in ``old`` to ``new``, with ``annotations`` here in place of those added before.

        Raises:
            OSError, ValueError: the file is not the output that was written.
        """
        raise NotImplementedError

    @property
    def described(self) -> Described:
        """The seam as plain data."""
        return cast("Described", msgspec.to_builtins(self, str_keys=True))


class Written(NamedTuple):
    """Diagnostics of what was changed or left out, and the seam for tracks under those that were named."""

    diagnostics: list[Diagnostic]
    seam: Seam


def at_seam(annotations: Iterable[Annotation]) -> tuple[list[Annotation], list[Addable]]:
    """The annotations that stay, and those at the seam: tracks that are ``seamed``, and arrows from them."""
    stay: list[Annotation] = []
    later: list[Addable] = []
    for each in annotations:
        track = each.out.track if isinstance(each, Flows) else each
        if isinstance(track, SliceTrack) and track.seamed:
            assert not isinstance(each, InstantTrack)
            later.append(each)
        else:
            stay.append(each)
    return stay, later


def homes_of(annotations: Iterable[Addable]) -> set[int]:
    """The tracks of the source under which these lie, or to whose slices their arrows lead."""
    homes: set[int] = set()
    for each in annotations:
        if isinstance(each, Flows):
            homes.update(*(end.tracks.tolist() for end in (each.out, each.into) if end.tracks is not None))
        else:
            homes.add(each.under)
    return homes


def add_tracks(path: Path, target: Path, seam: Described, annotations: Sequence[Addable]) -> None:
    """Write the output at ``path`` to ``target``, with ``annotations`` at its seam in place of those added there
    before.

    Raises:
        InputError: the output is not the one that its writer left.
        OutputError: ``target`` cannot be written.
    """
    try:
        with replacing(target) as new, open(path, "rb") as old:
            _seam(seam).with_tracks(old, new, annotations)
    except ValueError as error:
        raise InputError(str(path), f"has changed since it was written ({error}); convert it again") from error


def shows(path: Path, seam: Described, annotations: Sequence[Addable]) -> bool:
    """Whether the output already has these annotations, and no others, at its seam."""
    try:
        with open(path, "rb") as old, open(path, "rb") as same:
            _seam(seam).with_tracks(old, cast("BinaryIO", _Comparison(same)), annotations)
            return not same.read(1)
    except (OSError, ValueError, _Differs):
        return False


def is_as_written(path: Path, seam: Described, sha256: str, first: Sequence[Addable] = ()) -> bool:
    """Whether the output is the one that had this hash, apart from what was added at its seam since, in place of the
    ``first`` annotations there."""
    import tempfile

    try:
        with open(path, "rb") as old, tempfile.TemporaryFile() as bare:
            _seam(seam).with_tracks(old, bare, first)
            bare.seek(0)
            digest = hashlib.sha256()
            while chunk := bare.read(1 << 18):
                digest.update(chunk)
    except (OSError, ValueError):
        return False
    return digest.hexdigest() == sha256


def seams_of_files(content: bytes, paths: Iterable[Path]) -> list[Described | None]:
    """The seams of these files from the content of a file of seams; None for a file without one.

    A seam in the form of another version is ignored, because another program may have written it.
    """
    known: dict[str, Described] = {}
    with contextlib.suppress(ValueError):
        for seam in msgspec.json.decode(content, type=list[dict[str, Any]]):
            with contextlib.suppress(ValueError):
                known[_seam(seam).SUFFIX] = seam
    return [next((known[suffix] for suffix in known if path.name.endswith(suffix)), None) for path in paths]


def _seam(described: Described) -> Seam:
    """The seam in this plain data.

    Raises:
        ValueError: it has another form.
    """
    of_writers = [kind for writer in Seam.__subclasses__() for kind in (writer, *writer.__subclasses__())]
    kinds: Any = Union[tuple(of_writers)]  # noqa: UP007 - they are loaded with the package
    seam: Seam = msgspec.convert(described, kinds, str_keys=True)
    return seam


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
