"""Outputs to which tracks can be added when they are finished: those of a job, known when all its ranks are.

A writer leaves a *seam* in an output, the place behind all that it added. Later the output is copied, with other tracks
at the seam instead of those that may be there already; with none it is byte for byte what it was at first. Of the trace
nothing is needed for that but what the writer tells of the seam, and next to nothing is compressed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any, NamedTuple

import msgspec

from augment.annotations import CounterTrack, SliceTrack
from augment.trace import Diagnostic

Addable = SliceTrack | CounterTrack
Described = Mapping[str, Any]  #: a seam as plain data that JSON can hold
WRITER = "writer"  #: the member that names the writer
SUFFIX = ".seams.summary"  #: of a file with the seams of a trace's outputs, a JSON list, for whoever shall add to them
_COPIED = 1 << 20


class Written(NamedTuple):
    """What had to be changed or left out; and what tells of the seam, for tracks to add under these."""

    diagnostics: list[Diagnostic]
    seam: Callable[[Iterable[int]], msgspec.Struct]


def described(writer: str, seam: msgspec.Struct) -> Described:
    """The seam that this writer left, as plain data."""
    return {WRITER: writer, **msgspec.to_builtins(seam, str_keys=True)}


def copy(source: IO[bytes], target: IO[bytes], count: int) -> None:
    """Copy the next ``count`` bytes.

    Raises:
        ValueError: there are fewer.
    """
    while count:
        data = source.read(min(count, _COPIED))
        if not data:
            raise ValueError("is shorter than it was written")
        target.write(data)
        count -= len(data)
