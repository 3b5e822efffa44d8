"""Divides each step's window completely among its owners: what ran, or what was waited for.

At each moment of a window a device has exactly one owner: the computation kernel that has run longest; without
computation the collective; without that the copy; and if nothing runs, the cause of the idle time. In a recording
without GPU work the owner is the innermost call of the main thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

import numpy as np
from msgspec import Struct

from augment.arrays.intervals import Intervals, clip
from augment.arrays.types import NO_INDEX, Bytes, Int32s, Int64s, Places
from augment.compare.alignment import main_thread
from augment.compare.calls import CALLS, Side
from augment.compare.names import Names
from augment.facts.gpu.device_activity import COMMUNICATION, COMPUTATION, MEMORY, type_coverage
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.gpu.launched_work import before_recording
from augment.facts.host.occupancy import innermost, occupants
from augment.facts.steps.step_idle import step_idle
from augment.facts.waits.gap_causes import GapCategory

BEFORE = "launched before the recording"  #: owner name of such work: its call is unknown


class TileKind(IntEnum):
    """The class of a device's time; in a recording of the host only, :attr:`HOST`."""

    COMPUTATION = 0
    EXPOSED_COMMUNICATION = 1
    EXPOSED_MEMORY = 2
    HOST_WAIT = 3
    KERNEL_WAIT = 4
    OTHER = 5
    HOST = 6


#: for each type of work, the types that hide it: it owns a moment only if none of these runs
_HIDDEN_BY = {
    TileKind.COMPUTATION: 0,
    TileKind.EXPOSED_COMMUNICATION: COMPUTATION,
    TileKind.EXPOSED_MEMORY: COMPUTATION | COMMUNICATION,
}
_MASK = {
    TileKind.COMPUTATION: COMPUTATION,
    TileKind.EXPOSED_COMMUNICATION: COMMUNICATION,
    TileKind.EXPOSED_MEMORY: MEMORY,
}
_IDLE = {
    GapCategory.HOST_WAIT: TileKind.HOST_WAIT,
    GapCategory.KERNEL_WAIT: TileKind.KERNEL_WAIT,
    GapCategory.OTHER: TileKind.OTHER,
}


class Tiles(Struct, frozen=True):
    """Equal-length columns: ``ns`` (int64) of the step with index ``step`` belong to ``kind`` (uint8, a
    :class:`TileKind`), ``path`` (int32, of the call that launched the work, or that the host is in), ``name`` (int32,
    of the work, or of the host's activity meanwhile; -1 for none) and ``family`` (int32, of the work; -1 for none).
    Their sum is the length of the windows."""

    kind: Bytes
    path: Int32s
    name: Int32s
    family: Int32s
    step: Places
    ns: Int64s


def tiles_of(side: Side, names: Names, device: int | None) -> Tiles:
    """Divide the windows of ``side`` on the device with that index, or among the host's calls."""
    if device is None:
        return _joined([_host(side)])
    return _joined([*_work(side, names, device), _idle(side, names, device)])


_Piece = tuple[Bytes, Int32s, Int32s, Int32s, Places, Int64s]


def _joined(pieces: list[_Piece]) -> Tiles:
    return Tiles(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))


def _work(side: Side, names: Names, device: int) -> Iterator[_Piece]:
    work, coverage = gpu_work(side.trace), type_coverage(side.trace)[device]
    name = side.work.name.copy()
    name[before_recording(side.trace)] = names.number(BEFORE)
    windows = Intervals(side.steps.start, side.steps.end)
    in_time = work.by_time[work.devices[device].places]
    for kind, mask in _MASK.items():
        places = in_time[1 << work.type[in_time].astype(np.int64) == mask]
        if not len(places):
            continue
        end = np.maximum.accumulate(work.end[places])
        start = np.maximum(work.ts[places], np.concatenate((work.ts[places[:1]], end[:-1])))
        real = end > start  # else it runs, but not as the longest
        places = places[real]
        which, step, part = clip(Intervals(start[real], end[real]), windows)
        lost = coverage.time_within(part.start, part.end, any_of=_HIDDEN_BY[kind])
        ns = part.end - part.start - lost
        owner = places[which]
        yield np.full(len(ns), kind, np.uint8), side.work.path[owner], name[owner], side.work.family[owner], step, ns


def _idle(side: Side, names: Names, device: int) -> _Piece:
    trace = side.trace
    idle = step_idle(trace, device, side.steps)
    kind = np.array([_IDLE[category] for category in GapCategory], np.uint8)[idle.category]
    main = main_thread(side)
    thread = np.where(idle.launch != NO_INDEX, trace.events.track[idle.launch], np.int32(main))
    waits = np.flatnonzero((kind == TileKind.HOST_WAIT) & (thread != NO_INDEX))
    name = np.full(len(kind), NO_INDEX, np.int32)
    doing = occupants(trace, CALLS, idle.start[waits], idle.end[waits], thread[waits]).name
    known = doing >= 0
    name[waits[known]] = names.of(doing[known], trace.strings)
    nothing = np.full(len(kind), NO_INDEX, np.int32)
    return kind, nothing, name, nothing, idle.step, idle.end - idle.start


def _host(side: Side) -> _Piece:
    calls, events = side.calls, side.trace.events
    on_thread = np.flatnonzero(calls.thread == main_thread(side))
    line = innermost(
        on_thread, events.ts[calls.row[on_thread]], events.ts[calls.row[on_thread]] + calls.cpu_ns[on_thread]
    )
    which, step, part = clip(Intervals(line.start, line.end), Intervals(side.steps.start, side.steps.end))
    ns = part.end - part.start
    uncovered = side.steps.end - side.steps.start
    np.subtract.at(uncovered, step, ns)
    call = line.row[which]
    outside = np.full(len(uncovered), NO_INDEX, np.int32)
    return (
        np.full(len(ns) + len(uncovered), TileKind.HOST, np.uint8),
        np.concatenate((calls.path[call], outside)),
        np.full(len(ns) + len(uncovered), NO_INDEX, np.int32),
        np.full(len(ns) + len(uncovered), NO_INDEX, np.int32),
        np.concatenate((step, np.arange(len(uncovered)))),
        np.concatenate((ns, uncovered)),
    )
