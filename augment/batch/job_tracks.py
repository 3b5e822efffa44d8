"""What a job's ranks waited for, drawn into their outputs: afterwards, and without reading a trace again.

An output is copied with the job's tracks at its seam (``augment/writers/seams.py``); those of an earlier answer give
way. What a rank's outputs show is told by the ``drawn`` of its result: when the job is the same, nothing is done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from augment.batch import locations
from augment.batch.inputs import Input
from augment.batch.results import File, Result, result_of, sha256_of
from augment.errors import AugmentError

if TYPE_CHECKING:
    from augment.writers.seams import Addable

NOT_KNOWN = "?"  #: what is ``drawn`` in outputs after a run was killed while drawing

Tracks = Callable[[], Sequence["Addable"]]


@dataclass(frozen=True)
class Errand:
    """A rank whose outputs do not show its job yet: what came of it before, the job's ``tracks``, what to call them."""

    input: Input
    before: Result
    tracks: Tracks
    drawn: str

    @property
    def size(self) -> int:
        """The bytes of the outputs to copy; 0: none has a seam."""
        return sum(file.size for file in self.before.files if file.seam)


def told_of(summaries: Iterable[bytes]) -> str:
    """A name for what is drawn of a job with these summaries."""
    digest = hashlib.sha256()
    for content in summaries:
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()[:16]


def draw(one: Input, before: Result, tracks: Sequence[Addable], drawn: str) -> Result:
    """Draw into the outputs of ``one``. Never raises but for an interrupt: an error is a result, too."""

    def work() -> Result:
        files = tuple(_with_tracks(one, file, tracks) if file.seam else file for file in before.files)
        return replace(before, status="augmented", files=files, drawn=drawn)

    return result_of(one, work)


def _with_tracks(one: Input, file: File, tracks: Sequence[Addable]) -> File:
    from augment.writers.adding import add_tracks

    assert file.seam is not None
    folder = locations.parent(file.path)
    with locations.at_hand(file.path, folder, file.size) as (path, target):
        new = target / locations.basename(file.path)
        add_tracks(Path(path), new, file.seam, tracks)
        size, sha256 = new.stat().st_size, sha256_of(new) if one.root else ""
        locations.deliver([new], folder)
    return replace(file, size=size, sha256=sha256)


def is_as_written(file: File) -> bool:
    """Whether an output is there as it was written at first, but for what was drawn in it since."""
    from augment.writers.adding import is_as_written

    if file.seam is None:
        return False
    try:
        with locations.at_hand(file.path, locations.parent(file.path), file.size) as (path, _):
            return is_as_written(Path(path), file.seam, file.undrawn_sha256)
    except AugmentError:
        return False
