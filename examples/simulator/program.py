"""A training step as a program: host points with costs, GPU operations, and the text that shows them.

``builder.py`` plays the step once a rank; every repetition of it only draws new durations (``timing.py``) and fills
the template.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Slot = tuple[str, int]
ID_KINDS = (
    "external",
    "event",
    "correlation",
    "sequence",
    "fwdbwd",
    "python",
    "step",
    "collective",
    "address",
    "tp",
    "pp",
    "ep",
)
PID, TIDS, DEVICE = "\1", ("\2", "\3"), "\4"  #: of a rank, in a step that many ranks play
EXTERNAL_ID = '"External id": %d,      '  #: what an operation lacks whose launch was not recorded


@dataclass(frozen=True, slots=True)
class GpuOp:
    """One operation on a stream: ``launch`` and ``launch_end`` are host points, ``waits`` indexes of earlier ops."""

    name: str
    category: str
    stream: int
    base_ns: float
    launch: int
    launch_end: int
    bytes: int = 0
    waits: tuple[int, ...] = ()
    collective: bool = False
    members: tuple[int, ...] = ()  #: the ranks of a collective; none: all
    meeting: tuple[object, ...] = ()  #: what a collective is known by on all of them
    buffered: bool = False  #: a message that is sent whether or not the other rank receives yet
    loads: bool = False  #: the call loads the kernel first, and queues it only at its end


@dataclass(frozen=True, slots=True)
class Sync:
    """The host waits, until point ``end``, for the first ``ops`` operations (those of ``stream`` alone, if set).

    With ``back`` it waits for an event after the last operation of the step so many before, for nothing of this one.
    """

    end: int
    ops: int
    stream: int | None
    back: int = 0


class HostSlice(NamedTuple):
    """A slice of a host thread: ``outlasts`` is the slice whose end it crosses, or -1."""

    category: str
    name: str
    tid: int | str
    outlasts: int


@dataclass(frozen=True, slots=True)
class Program:
    """A built step: see the columns' makers in :class:`~simulator.builder.StepBuilder`."""

    costs: npt.NDArray[np.float64]
    ops: tuple[GpuOp, ...]
    syncs: tuple[Sync, ...]
    stall_point: int
    texts: tuple[str, ...]
    take: Int64s
    take_ends: Int64s  #: where the values of each text end
    anchors: tuple[Slot, ...]  #: of each text the time that says when it is
    slices: tuple[HostSlice, ...]
    host_pairs: Int64s
    note_pairs: Int64s
    id_kinds: Int64s
    id_offsets: Int64s
    id_counts: Int64s
    cross_ns: int  #: by how much slices outlast those that they cross
    external_place: int  #: of the external id among the values of an operation, after its two times

    def played_by(self, pid: int, tids: tuple[int, int], device: int) -> Program:
        """The step as a rank plays it whose process, threads and device these are."""
        text = "\0".join(self.texts).replace(PID, str(pid)).replace(DEVICE, str(device))
        for known, tid in zip(TIDS, tids, strict=True):
            text = text.replace(known, str(tid))
        threads = dict(zip(TIDS, tids, strict=True))
        slices = tuple(slice_._replace(tid=threads[slice_.tid]) for slice_ in self.slices)
        return replace(self, texts=tuple(text.split("\0")), slices=slices)

    @property
    def event_count(self) -> int:
        """Of all that the step writes."""
        return len(self.texts)

    def slice_times(self, host: Int64s) -> tuple[Int64s, Int64s]:
        """Start and end of each host slice."""
        start, end = host[self.host_pairs[:, 0]], host[self.host_pairs[:, 1]]
        for place, slice_ in enumerate(self.slices):
            if slice_.outlasts >= 0:
                end[place] = end[slice_.outlasts] + self.cross_ns
        return start, end

    def _values(self, host: Int64s, start: Int64s, end: Int64s, bases: Int64s, first: Int64s, last: Int64s) -> Int64s:
        """What fills the templates; ``first`` and ``last`` are the notes' start and end."""
        dur = end - start
        host_start, host_end = self.slice_times(host)
        times = np.concatenate((host, start, host_end - host_start, dur, last - first, first))
        sizes = np.fromiter((op.bytes for op in self.ops), np.int64, len(self.ops))
        rate = sizes * 1_000_000_000 // np.maximum(dur, 1)
        values = np.concatenate(
            (
                times // 1000,
                times % 1000,
                rate // 1_000_000_000,
                rate % 1_000_000_000,
                bases[self.id_kinds] + self.id_offsets,
            )
        )
        return values[self.take]

    def render(self, host: Int64s, start: Int64s, end: Int64s, bases: Int64s) -> str:
        """The step's text, of these times (ns) and first ids."""
        first, last = start[self.note_pairs[:, 0]], end[self.note_pairs[:, 1]]
        return "".join(self.texts) % tuple(self._values(host, start, end, bases, first, last).tolist())

    def render_part(self, host: Int64s, start: Int64s, end: Int64s, bases: Int64s, kept: Kept) -> list[str]:
        """The texts of what was recorded."""
        values = self._values(host, start, end, bases, *kept.note_times).tolist()
        out, begin = [], 0
        for place, (text, until) in enumerate(zip(self.texts, self.take_ends.tolist(), strict=True)):
            if kept.texts[place]:
                numbers = values[begin:until]
                kind, index = self.anchors[place]
                if kind == "gpu_dur" and not kept.launched[index]:
                    text = text.replace(EXTERNAL_ID, "", 1)
                    del numbers[self.external_place]
                out.append(text % tuple(numbers))
            begin = until
        return out


@dataclass(frozen=True, slots=True)
class Kept:
    """What of a step was recorded."""

    texts: list[bool]
    ops: Bools
    launched: Bools  #: of each operation whether its launch was
    slices: Bools
    note_times: tuple[Int64s, Int64s]
