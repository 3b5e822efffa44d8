"""One file: read, augment, write; whatever comes of it is a result."""

from __future__ import annotations

import hashlib
import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from augment.batch import places
from augment.batch.inputs import Input
from augment.errors import AugmentError, UnknownFormat
from augment.request import Request

if TYPE_CHECKING:
    from augment.batch.stages import Stage
    from augment.readers.limits import Limits
    from augment.trace import Trace
    from augment.writers.seams import Described

Told = Callable[[str], None]  #: told, in a sentence, of what takes long


@dataclass(frozen=True)
class Settings:
    """What to make of every input: what the user asks for, what is left for whole jobs, what is too large."""

    request: Request = Request()
    stages: tuple[Stage, ...] = ()
    limits: Limits | None = None


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


def convert(one: Input, settings: Settings, announce: Told, stage: Told = lambda _: None) -> Result:
    """Convert ``one``. Never raises but for an interrupt: an error is a result, too.

    Args:
        announce: told of what takes unexpectedly long.
        stage: told what is being done.
    """
    return result_of(one, lambda: convert_or_raise(one, settings, announce, stage))


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


def convert_or_raise(one: Input, settings: Settings, announce: Told, stage: Told) -> Result:
    """Convert ``one``. Raises what ends it."""
    places.expect_writable(one.folder)
    from augment.pipeline import augment
    from augment.readers import read
    from augment.readers.limits import UNLIMITED
    from augment.writers import write_seamed

    stage("reading")
    with places.at_hand(one.path, one.folder, one.size) as (path, folder):
        trace = read(path, limits=settings.limits or UNLIMITED)
        evidence = settings.request.evidence
        evidence_state = evidence.state(trace.rank)
        trace = evidence.added_to(trace)
        augmented = augment(trace, settings.request, progress=lambda name, _done, _of: stage(name))
        for why in evidence.unused(augmented):
            announce(why)
        stage("writing")
        summaries = [_summarize(each, augmented, folder) for each in settings.stages]
        under = {track for each in settings.stages if each.under for track in each.under(augmented)}
        written = dict(write_seamed(augmented, folder, settings.request.formats, sorted(under)))
        files = delivered([*summaries, *written], one, [None] * len(summaries) + [*written.values()])
    count = len(summaries)
    rank, world_size = trace.rank, _world_size(trace)
    return Result(
        one.path, "augmented", files[count:], sha256=trace.source.sha256, rank=rank, world_size=world_size,
        summaries=files[:count], evidence_state=evidence_state,
        partial=trace.partial or "",
    )  # fmt: skip


def _summarize(stage: Stage, augmented: Any, folder: Path) -> Path:
    from augment.writers.files import output_path, replacing

    path = output_path(augmented.trace.source.name, folder, stage.suffix)
    with replacing(path) as file:
        file.write(stage.summarize(augmented))
    return path


def delivered(written: Sequence[Path], one: Input, seams: Sequence[Described | None] = ()) -> tuple[File, ...]:
    """The outputs of ``one``, brought to where they belong if that is a URL."""
    sizes = [os.path.getsize(path) for path in written]
    digests = [sha256_of(path) if one.root else "" for path in written]
    seams = seams or [None] * len(written)
    undrawn = [digest if seam else "" for digest, seam in zip(digests, seams, strict=True)]
    return tuple(map(File, places.deliver(written, one.folder), sizes, digests, seams, undrawn))


def sha256_of(path: Path) -> str:
    """The hash of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 18):
            digest.update(chunk)
    return digest.hexdigest()


def _world_size(trace: Trace) -> int | None:
    from augment.readers.assembly import distributed

    return distributed(trace.source.metadata, "world_size")
