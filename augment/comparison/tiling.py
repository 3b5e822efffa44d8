"""Whose time is it? Each step's window divided without rest among what ran, or what was waited for.

At each moment of a window a device has one owner: the computation kernel that has run longest; if none computes, the
collective; if there is none either, the copy; and if nothing runs, the cause of that. Of a recording without GPU work
it is the innermost call of the main thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from augment.arrays.intervals import Intervals, clip
from augment.arrays.types import Bytes, Int32s, Int64s, Places
from augment.comparison.alignment import main_thread
from augment.comparison.calls import CALLS, NONE, Side
from augment.comparison.names import NO_PATH, Names
from augment.derived.gpu.before_recording import before_recording
from augment.derived.gpu.gpu_work import gpu_work
from augment.derived.gpu.launches import NO_ROW
from augment.derived.gpu.type_coverage import COMMUNICATION, COMPUTATION, MEMORY, type_coverage
from augment.derived.host.occupancy import innermost, occupants
from augment.derived.steps.step_idle import step_idle
from augment.derived.waits.gap_causes import GapCategory

BEFORE = "launched before the recording"  #: the name of such work as an owner: no call is known of it


class Kind(IntEnum):
    """What a device's time goes to; of a recording of the host alone, :attr:`HOST`."""

    COMPUTATION = 0
    EXPOSED_COMMUNICATION = 1
    EXPOSED_MEMORY = 2
    HOST_WAIT = 3
    KERNEL_WAIT = 4
    OTHER = 5
    HOST = 6


#: of each kind of work, what it is exposed to: it owns a moment only if none of these runs
_HIDDEN_BY = {
    Kind.COMPUTATION: 0,
    Kind.EXPOSED_COMMUNICATION: COMPUTATION,
    Kind.EXPOSED_MEMORY: COMPUTATION | COMMUNICATION,
}
_MASK = {Kind.COMPUTATION: COMPUTATION, Kind.EXPOSED_COMMUNICATION: COMMUNICATION, Kind.EXPOSED_MEMORY: MEMORY}
_IDLE = {
    GapCategory.HOST_WAIT: Kind.HOST_WAIT,
    GapCategory.KERNEL_WAIT: Kind.KERNEL_WAIT,
    GapCategory.OTHER: Kind.OTHER,
}


@dataclass(frozen=True, slots=True)
class Tiles:
    """Equal-length columns: ``ns`` int64 of the step at the place ``step`` belong to ``kind`` (uint8, a
    :class:`Kind`), ``path`` (int32, of the call that launched the work, or that the host is in) and ``name`` (int32, of
    the work, or of what the host does meanwhile; -1 for nothing known). Their sum is the length of the windows."""

    kind: Bytes
    path: Int32s
    name: Int32s
    step: Places
    ns: Int64s


def tiles_of(side: Side, names: Names, device: int | None) -> Tiles:
    """Divide the windows of ``side``, on the device at that place, or among the host's calls."""
    if device is None:
        return _joined([_host(side)])
    return _joined([*_work(side, names, device), _idle(side, names, device)])


_Piece = tuple[Bytes, Int32s, Int32s, Places, Int64s]


def _joined(pieces: list[_Piece]) -> Tiles:
    return Tiles(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))


def _work(side: Side, names: Names, device: int) -> Iterator[_Piece]:
    found, coverage = gpu_work(side.trace), type_coverage(side.trace)[device]
    name = side.work.name.copy()
    name[before_recording(side.trace)] = names.number(BEFORE)
    windows = Intervals(side.steps.start, side.steps.end)
    own = found.by_time[found.devices[device].places]
    for kind, mask in _MASK.items():
        places = own[1 << found.type[own].astype(np.int64) == mask]
        if not len(places):
            continue
        end = np.maximum.accumulate(found.end[places])
        start = np.maximum(found.ts[places], np.concatenate((found.ts[places[:1]], end[:-1])))
        real = end > start  # else it runs, but not longest
        places = places[real]
        which, step, part = clip(Intervals(start[real], end[real]), windows)
        lost = coverage.time_within(part.start, part.end, any_of=_HIDDEN_BY[kind])
        call = side.work.call[places[which]]
        path = np.append(side.calls.path, np.int32(NO_PATH))[call]  # a call of NONE is the last
        ns = part.end - part.start - lost
        yield np.full(len(ns), kind, np.uint8), path, name[places[which]], step, ns


def _idle(side: Side, names: Names, device: int) -> _Piece:
    trace = side.trace
    idle = step_idle(trace, device, side.steps)
    kind = np.array([_IDLE[one] for one in GapCategory], np.uint8)[idle.category]
    main = main_thread(side)
    thread = np.where(idle.launch != NO_ROW, trace.events.track[idle.launch], np.int32(main))
    waits = np.flatnonzero((kind == Kind.HOST_WAIT) & (thread != NONE))
    name = np.full(len(kind), NONE, np.int32)
    doing = occupants(trace, CALLS, idle.start[waits], idle.end[waits], thread[waits]).name
    known = doing >= 0
    name[waits[known]] = names.of(doing[known], trace.strings)
    return kind, np.full(len(kind), NO_PATH, np.int32), name, idle.step, idle.end - idle.start


def _host(side: Side) -> _Piece:
    calls, events = side.calls, side.trace.events
    own = np.flatnonzero(calls.thread == main_thread(side))
    line = innermost(own, events.ts[calls.row[own]], events.ts[calls.row[own]] + calls.cpu_ns[own])
    which, step, part = clip(Intervals(line.start, line.end), Intervals(side.steps.start, side.steps.end))
    ns = part.end - part.start
    rest = side.steps.end - side.steps.start
    np.subtract.at(rest, step, ns)
    call = line.row[which]
    outside = np.full(len(rest), NO_PATH, np.int32)
    return (
        np.full(len(ns) + len(rest), Kind.HOST, np.uint8),
        np.concatenate((calls.path[call], outside)),
        np.full(len(ns) + len(rest), NONE, np.int32),
        np.concatenate((step, np.arange(len(rest)))),
        np.concatenate((ns, rest)),
    )
