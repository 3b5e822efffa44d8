"""What analyses draw on the tracks of a trace, in columns: a counter of a million points is two arrays.

An annotation belongs to a track of the source: ``under`` is an index into ``Trace.tracks``. That track is the stream or
thread that the annotation describes; for an annotation of a whole device it is any stream of the device. Writers map
``under`` to their format's way of nesting tracks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field
from msgspec.structs import replace

from augment.arrays.types import Int32s, Int64s
from augment.core.trace import Trace


class Texts(Struct, frozen=True):
    """A column of strings: ``codes`` are int32 indexes into ``values``; -1 means no text, and the arg is left out."""

    codes: Int32s
    values: Sequence[str]

    @classmethod
    def of(cls, texts: Iterable[str | None]) -> Texts:
        """The column of these texts. Each different one is kept once; for None there is none."""
        known: dict[str, int] = {}
        codes = [-1 if text is None else known.setdefault(text, len(known)) for text in texts]
        return cls(np.array(codes, np.int32), list(known))

    def __len__(self) -> int:
        return len(self.codes)

    def __repr__(self) -> str:
        return f"<Texts: {len(self):,} of {len(self.values):,} different>"

    def take(self, order: npt.NDArray[np.intp]) -> Texts:
        """The rows at the indexes in ``order``; ``values`` are shared."""
        return Texts(self.codes[order], self.values)


CUT_OFF = "End of GPU events"  #: the row of the mark where a recording lacks what came after

ArgColumn = Int64s | Texts  #: one value per slice


class SliceTrack(Struct, frozen=True):
    """Slices on a track of their own: ``ts, dur`` int64 ns, ascending.

    Slices may nest but not otherwise overlap; of two slices with equal start the longer comes first.
    ``args`` maps an arg's name to its column. An int64 value of ``NO_VALUE`` (-1) is left out.
    ``inner`` names a second slice within each, as long as the first and with its args: the class is above, the name
    below. Where it has no text, there is no second slice; nor within a slice of no duration.
    ``group`` names a track of the device that this one lies in, with all others of that group: the name then says
    which device it speaks of.
    ``of_process``: it lies beside the threads of its process, not below one. ``on_top``: in a file of a single trace it
    is the first row of its thread instead, above what may be deep stacks.
    ``colour``: slices of one number get one colour where the viewer supports it; names decide for -1, or without it.
    ``seamed``: writers put the track at the seam of their outputs, as the job of the rank may say otherwise.
    """

    analysis: str
    name: str
    under: int
    ts: Int64s
    dur: Int64s
    names: Texts
    args: Mapping[str, ArgColumn] = field(default_factory=dict)
    description: str = ""
    inner: Texts | None = None
    of_process: bool = False
    on_top: bool = False
    group: str = ""
    colour: Int64s | None = None
    seamed: bool = False

    def take(self, rows: npt.NDArray[np.intp]) -> SliceTrack:
        """The slices at the indexes in ``rows``, which ascend."""
        return replace(
            self,
            ts=self.ts[rows],
            dur=self.dur[rows],
            names=self.names.take(rows),
            args={
                name: values.take(rows) if isinstance(values, Texts) else values[rows]
                for name, values in self.args.items()
            },
            inner=None if self.inner is None else self.inner.take(rows),
            colour=None if self.colour is None else self.colour[rows],
        )

    def inner_rows(self) -> Int64s:
        """The rows that have a second slice within, ascending."""
        if self.inner is None:
            return np.zeros(0, np.int64)
        return np.flatnonzero((self.inner.codes >= 0) & (self.dur > 0))

    def __repr__(self) -> str:
        return f"<SliceTrack {self.name!r} of {self.analysis}: {len(self.ts):,} slices>"


class CounterTrack(Struct, frozen=True):
    """A stepping counter: a value holds from its ``ts`` (int64 ns, strictly ascending) until the next point.

    ``values`` are int64 or finite float64; ``unit`` is a text such as ``GB/s``. Counters of one analysis with the same
    ``scale`` share a y axis where the viewer supports it. ``group`` is that of :class:`SliceTrack`.
    """

    analysis: str
    name: str
    under: int
    ts: Int64s
    values: Int64s | npt.NDArray[np.float64]
    unit: str
    description: str = ""
    scale: str = ""
    group: str = ""

    def __repr__(self) -> str:
        return f"<CounterTrack {self.name!r} of {self.analysis}: {len(self.ts):,} points>"


class InstantTrack(Struct, frozen=True):
    """Instants: ``ts`` int64 ns, ascending."""

    analysis: str
    name: str
    under: int
    ts: Int64s
    names: Texts
    description: str = ""

    def __repr__(self) -> str:
        return f"<InstantTrack {self.name!r} of {self.analysis}: {len(self.ts):,} instants>"


class Ends(Struct, frozen=True):
    """The slices at one end of arrows: int64 rows of the added ``track``, or of ``Trace.events`` where that is None.

    Where no trace is at hand, ``ts`` and ``tracks`` are the starts of its slices, and indexes into ``Trace.tracks``.
    """

    rows: Int64s
    track: SliceTrack | None = None
    ts: Int64s | None = None
    tracks: Int64s | None = None

    def times(self, trace: Trace | None) -> Int64s:
        """The start of each slice, int64 ns."""
        if self.ts is not None:
            return self.ts
        assert trace is not None or self.track is not None
        return (self.track.ts if self.track is not None else trace.events.ts)[self.rows]  # type: ignore[union-attr]


class Flows(Struct, frozen=True):
    """Arrows from slices to equally many slices, pair by pair; each end is in the source or on an added track.

    An added track must come before the flows in the list of annotations. Perfetto cannot draw an arrow back in time:
    writers draw each arrow from the slice that begins first. ``ids`` number the arrows of a ``seamed`` track, int64 in
    [0, 2**46): the ends in the source keep them when the track is drawn again.
    """

    analysis: str
    name: str
    out: Ends
    into: Ends
    ids: Int64s | None = None

    def __len__(self) -> int:
        return len(self.out.rows)

    def __repr__(self) -> str:
        return f"<Flows {self.name!r} of {self.analysis}: {len(self):,} arrows>"


Annotation = SliceTrack | CounterTrack | InstantTrack | Flows

BYTE_UNITS = ((10**9, "GB"), (10**6, "MB"), (1, "bytes"))  #: units of counters, with their sizes in bytes


def byte_unit(greatest: int) -> tuple[int, str]:
    """The unit for counters of memory with this maximum, in bytes, that share a y axis: its size in bytes and its name.

    Viewers put a metric prefix before any unit: 15 GB would be shown as "15G bytes".
    """
    return next((unit for unit in BYTE_UNITS if greatest >= unit[0]), BYTE_UNITS[-1])


def in_unit(values: Int64s, unit: tuple[int, str]) -> Int64s | npt.NDArray[np.float64]:
    """``values``, int64 bytes, in the ``unit``; as they are where that is bytes."""
    return values if unit[0] == 1 else values / unit[0]


def row_count(annotation: Annotation) -> int:
    """The number of slices, points, instants or arrows of an annotation."""
    match annotation:
        case Flows():
            return len(annotation)
        case SliceTrack():
            return len(annotation.ts) + len(annotation.inner_rows())
        case _:
            return len(annotation.ts)
