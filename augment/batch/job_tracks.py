"""Draws the results of a job into the outputs of its ranks, after the conversions and without reading a trace again.

An output is copied with the job's tracks at its seam (``augment/writers/seams.py``); they replace the tracks of an
earlier result. The ``drawn`` of a rank's result identifies the job results that its outputs show: if those are
current, nothing is done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from augment.batch import locations
from augment.batch.inputs import Input
from augment.batch.results import File, Result, result_of, sha256_of
from augment.errors import AugmentError

if TYPE_CHECKING:
    from augment.pipeline.request import Request
    from augment.writers.seams import Addable

NOT_KNOWN = "?"  #: ``drawn`` of outputs after a run was killed while drawing

Tracks = Callable[[], Sequence["Addable"]]


class Errand(Struct, frozen=True):
    """A rank whose outputs do not show its job yet: its result so far, the job's ``tracks``, and their ``drawn``."""

    input: Input
    before: Result
    tracks: Tracks
    drawn: str

    @property
    def size(self) -> int:
        """Bytes of outputs to copy; 0 if none has a seam."""
        return sum(file.size for file in self.before.files if file.seam)


def job_digest(hashes: Iterable[bytes], request: Request) -> str:
    """Identifies the results of a job: by the SHA-256 of each of its summaries, and what the user states of the job."""
    stated = repr((sorted(request.parallelism.items()), request.trust_clocks)).encode()
    return hashlib.sha256(b"".join(hashes) + stated).hexdigest()[:16]


def draw(item: Input, before: Result, tracks: Sequence[Addable], drawn: str) -> Result:
    """Draw into the outputs of ``item`` and return the result. An error is a result, too; only an interrupt raises.

    Outputs that already show these tracks, as where another rank of the job has changed, stay as they are.
    """

    def work() -> Result:
        files = tuple(_with_tracks(item, file, tracks, before.drawn) if file.seam else file for file in before.files)
        return replace(before, status="augmented", files=files, drawn=drawn)

    return result_of(item, work)


def _with_tracks(item: Input, file: File, tracks: Sequence[Addable], drawn: str) -> File:
    from augment.writers.seams import add_tracks, shows

    assert file.seam is not None
    folder = locations.parent(file.path)
    with locations.at_hand(file.path, folder, file.size) as (path, target):
        stays = bool(drawn) and shows(Path(path), file.seam, tracks)
        new = Path(path) if stays else target / locations.basename(file.path)
        if not stays:
            add_tracks(Path(path), new, file.seam, tracks)
        size, sha256 = new.stat().st_size, sha256_of(new) if item.root else ""
        if not stays:
            locations.deliver([new], folder)
    return replace(file, size=size, sha256=sha256)


def is_as_written(file: File) -> bool:
    """Whether an output still is as it was first written, apart from tracks drawn into it since."""
    from augment.writers.seams import is_as_written

    if file.seam is None:
        return False
    try:
        with locations.at_hand(file.path, locations.parent(file.path), file.size) as (path, _):
            return is_as_written(Path(path), file.seam, file.undrawn_sha256)
    except AugmentError:
        return False
