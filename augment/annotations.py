"""What may be drawn on the tracks of a trace: columnar, so that a counter of a million points is two arrays.

An annotation lies under a track of the source (``under``, an index into ``Trace.tracks``): the stream or thread that
it speaks of, or any stream of the device that it speaks of. Writers turn that into their format's way of nesting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from augment.trace import Int32s, Int64s


@dataclass(frozen=True, slots=True)
class Texts:
    """A column of strings: ``codes`` int32 index ``values``; -1 is no text (the arg is then left out)."""

    codes: Int32s
    values: Sequence[str]

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, order: npt.NDArray[np.intp]) -> Texts:
        """The rows in another order or fewer of them; the values are shared."""
        return Texts(self.codes[order], self.values)


ArgColumn = Int64s | Texts  #: one value a slice


@dataclass(frozen=True, slots=True)
class SliceTrack:
    """Slices on a track of their own: ``ts, dur`` int64 ns, ascending, not overlapping.

    ``args`` maps an arg's name to its column; an int64 value of -1 is no value, and the arg is then left out.
    """

    analysis: str
    name: str
    under: int
    ts: Int64s
    dur: Int64s
    names: Texts
    args: Mapping[str, ArgColumn] = field(default_factory=dict)
    description: str = ""


@dataclass(frozen=True, slots=True)
class CounterTrack:
    """A stepping counter: a value holds from its ``ts`` (int64 ns, strictly ascending) until the next point.

    ``values`` is int64 or finite float64; ``unit`` is as in ``GB/s``. Counters of an analysis that name the same
    ``scale`` are worth comparing: where a viewer can, they share a y axis.
    """

    analysis: str
    name: str
    under: int
    ts: Int64s
    values: Int64s | npt.NDArray[np.float64]
    unit: str
    description: str = ""
    scale: str = ""


@dataclass(frozen=True, slots=True)
class InstantTrack:
    """Moments: ``ts`` int64 ns, ascending."""

    analysis: str
    name: str
    under: int
    ts: Int64s
    names: Texts
    description: str = ""


@dataclass(frozen=True, slots=True)
class Flows:
    """Arrows from the slice on ``from_track`` at ``from_ts`` to the slice on ``to_track`` at ``to_ts``, one a row.

    Tracks are indexes into ``Trace.tracks``: these arrows link slices of the source.
    """

    analysis: str
    name: str
    from_track: Int32s
    from_ts: Int64s
    to_track: Int32s
    to_ts: Int64s


Annotation = SliceTrack | CounterTrack | InstantTrack | Flows
