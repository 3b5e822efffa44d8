"""What may be drawn on the tracks of a trace: columnar, so that a counter of a million points is two arrays.

An annotation lies under a track of the source (``under``, an index into ``Trace.tracks``): the stream or thread that
it speaks of, or any stream of the device that it speaks of. Writers turn that into their format's way of nesting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from augment.arrays.types import Int32s, Int64s
from augment.trace import Trace


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
    """Slices on a track of their own: ``ts, dur`` int64 ns, ascending.

    Slices do not overlap, but one may lie within another; of two that begin at once the longer comes first.
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
class Ends:
    """The slices at one end of arrows, one a row: int64 rows of the added ``track``, else of ``Trace.events``."""

    rows: Int64s
    track: SliceTrack | None = None

    def times(self, trace: Trace) -> Int64s:
        """When each slice begins, int64 ns."""
        return (trace.events.ts if self.track is None else self.track.ts)[self.rows]


@dataclass(frozen=True, slots=True)
class Flows:
    """Arrows from slices to as many others, pair by pair; each end is of the source or of an added track.

    An added track must stand before the flows among the annotations. Perfetto knows no arrow back in time: writers draw
    each from the slice that begins first.
    """

    analysis: str
    name: str
    out: Ends
    into: Ends

    def __len__(self) -> int:
        return len(self.out.rows)


Annotation = SliceTrack | CounterTrack | InstantTrack | Flows


def row_count(annotation: Annotation) -> int:
    """How many slices, points, moments or arrows an annotation has."""
    return len(annotation) if isinstance(annotation, Flows) else len(annotation.ts)
