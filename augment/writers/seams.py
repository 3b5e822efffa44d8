"""Seams let tracks be added to finished outputs: those of a job are known only when all its ranks are converted.

A writer leaves a *seam* in an output, the place after everything that it added. Later the output is copied, with other
tracks at the seam in place of any that are there. Without tracks, the copy equals the first output byte for byte. This
requires nothing of the trace except the writer's description of the seam, and almost nothing is compressed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any, NamedTuple

import msgspec

from augment.core.annotations import CounterTrack, SliceTrack
from augment.core.trace import Diagnostic

Addable = SliceTrack | CounterTrack
Described = Mapping[str, Any]  #: a seam as plain data that fits JSON
WRITER = "writer"  #: the member with the name of the writer
SUFFIX = ".seams.summary"  #: of a file with the seams of a trace's outputs, a JSON list, for later additions
_COPIED = 1 << 20


class Written(NamedTuple):
    """Diagnostics of what was changed or left out, and the description of the seam for tracks under these."""

    diagnostics: list[Diagnostic]
    seam: Callable[[Iterable[int]], msgspec.Struct]


def described(writer: str, seam: msgspec.Struct) -> Described:
    """The seam of this writer as plain data."""
    return {WRITER: writer, **msgspec.to_builtins(seam, str_keys=True)}


def copy(source: IO[bytes], target: IO[bytes], count: int) -> None:
    """Copy the next ``count`` bytes.

    Raises:
        ValueError: the source has fewer bytes.
    """
    while count:
        data = source.read(min(count, _COPIED))
        if not data:
            raise ValueError("is shorter than it was written")
        target.write(data)
        count -= len(data)
