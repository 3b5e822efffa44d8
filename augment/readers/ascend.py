"""Derives what Ascend's trace_view omits: the categories of device events, the streams that ran the collectives, and
the threads that called the runtime.

Events of devices have no category. A process is a device and its threads are streams, but collectives lie in a separate
process. So do the calls of the runtime: a thread lies in two processes under one tid.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from augment.arrays.types import Bools, Bytes, Int32s
from augment.core.trace import Category, Identity
from augment.readers.dialects import (
    ASCEND_CALL,
    ASCEND_CALLS,
    ASCEND_COLLECTIVES,
    ASCEND_COLLECTIVES_THREAD,
    ASCEND_DEVICE,
    ASCEND_PROGRAM,
    ASCEND_SYNC,
    ASCEND_TRANSFER,
)
from augment.readers.raw import Place, RawEvents, TrackNames


def categorise(raw: RawEvents, category: Bytes) -> None:
    """Set the ``category`` of rows without one: events that an Ascend device executed, and calls of Ascend's
    runtime.
    """
    without = np.array([not string for string in raw.strings], np.bool_)
    called = np.array([string.startswith(ASCEND_CALL) for string in raw.strings], np.bool_)
    if called.any():
        category[without[raw.category] & called[raw.name]] = Category.CUDA_RUNTIME
    names = raw.names
    if ASCEND_DEVICE not in names.processes.values():
        return
    on_device = np.array([_on_device(place, names) for place in raw.places], np.bool_)
    executed = on_device[raw.place] & without[raw.category]
    category[executed] = Category.KERNEL
    syncs = np.array([ASCEND_SYNC.fullmatch(string) is not None for string in raw.strings], np.bool_)
    category[executed & syncs[raw.name]] = Category.CUDA_SYNC
    if any(place_of_collectives(place, names) for place in raw.places):
        rows = np.flatnonzero(executed)
        inside = of_collectives(raw.place[rows], raw.name[rows], raw.strings, len(raw.places))
        category[rows[inside]] = Category.CUDA_SYNC


def of_collectives(place: Int32s, name: Int32s, strings: Sequence[str], count: int) -> Bools:
    """Which tasks collectives consist of, where those are recorded as a whole, too: all tasks of streams that only wait
    for others and transfer. ``place`` below ``count`` and ``name``, into ``strings``, are of each task."""
    syncs, transfers = (
        np.array([pattern.fullmatch(string) is not None for string in strings], np.bool_)[name]
        for pattern in (ASCEND_SYNC, ASCEND_TRANSFER)
    )
    others, waits, moves = (np.bincount(place, chosen, count) for chosen in (~(syncs | transfers), syncs, transfers))
    inside: Bools = ((others == 0) & (waits > 0) & (moves > 0))[place]
    return inside


def place_of_collectives(place: Place, names: TrackNames) -> tuple[Identity, Identity] | None:
    """The device and stream of the collectives at ``place``; None if there are no collectives there, or the device is
    ambiguous.
    """
    pid, tid, *_ = place
    thread = names.threads.get((pid, tid), "")
    if names.processes.get(pid) not in ASCEND_COLLECTIVES or not thread.endswith(ASCEND_COLLECTIVES_THREAD):
        return None
    devices = [pid for pid, name in names.processes.items() if name == ASCEND_DEVICE]
    return (devices[0], thread) if len(devices) == 1 else None


def programs_of_threads(raw: RawEvents) -> dict[tuple[Identity, Identity], Identity]:
    """The pid of the program by (pid, tid) of each thread that called the runtime from there."""
    names = raw.names
    programs: dict[Identity, list[Identity]] = {}
    calling = []
    for pid, tid in dict.fromkeys((place[0], place[1]) for place in raw.places):
        if names.processes.get(pid) == ASCEND_PROGRAM:
            programs.setdefault(tid, []).append(pid)
        elif names.processes.get(pid) == ASCEND_CALLS:
            calling.append((pid, tid))
    return {(pid, tid): programs[tid][0] for pid, tid in calling if len(programs.get(tid, ())) == 1}


def _on_device(place: Place, names: TrackNames) -> bool:
    return names.processes.get(place[0]) == ASCEND_DEVICE or place_of_collectives(place, names) is not None
