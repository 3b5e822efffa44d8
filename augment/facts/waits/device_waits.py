"""For work that was launched in time but started late: the work of another stream that it waited for, if known."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from augment.arrays.types import NO_INDEX, Bools, Bytes, Int32s, Int64s, Places
from augment.core.context import derived
from augment.core.trace import Trace
from augment.facts.gpu.gpu_work import GpuWork, gpu_work
from augment.facts.waits.dependencies import UNEXPLAINED_NS
from augment.facts.waits.gap_causes import launch_end
from augment.facts.waits.idle_gaps import stream_gaps
from augment.facts.waits.sync_dependencies import waiting_streams

CLOCK_NS = 2_000  #: clock error: work may appear to end so much after the start of what waited for it
BY_CHANCE = 10  #: a delay this many times shorter than the work before it is not a coincidence
_CANDIDATES = 16  #: the number of ends before a start that are examined

RECORDED, INFERRED = 0, 1
KNOWN_BY = ("recorded event", "ended just before")  #: the evidence, as shown


class DeviceWaits(Struct, frozen=True):
    """For each piece of GPU work: the ``cause``, which is the place in ``gpu_work`` of what it waited for, or
    ``NO_INDEX``; the cause's stream (int32, a place in ``streams``, the names of all); and the evidence (uint8, a
    place in :data:`KNOWN_BY`)."""

    cause: Places
    on_stream: Int32s
    known_by: Bytes
    streams: tuple[str, ...]


@derived(until="idle time")
def device_waits(trace: Trace) -> DeviceWaits:
    """What work waited for after it could have started, that is, once its stream was idle and its launch had returned.

    A recorded event names it. Without an event it is inferred, if work of exactly one other stream fits. That work
    ended just before the start, after most of the wait, and was launched no later (nothing can wait for an event of
    later work). Because work ends all the time, one of two further conditions must hold: it was the last launch on its
    stream until then, which is where an event is usually recorded; or no other work fits, and it ran far longer than
    the delay after it.
    """
    work = gpu_work(trace)
    cause, known_by = np.full(len(work), NO_INDEX, np.intp), np.full(len(work), INFERRED, np.uint8)
    ends_gap, ready = _ready(trace)
    edges = waiting_streams(trace).dependencies
    held = ends_gap[edges.to_work] & (work.end[edges.from_work] > ready[edges.to_work])
    before, after = edges.from_work[held], edges.to_work[held]
    order = np.argsort(work.end[before], kind="stable")
    cause[after[order]] = before[order]  # of several assignments, the last one to end stays
    known_by[after] = RECORDED
    late = ends_gap & (work.launch != NO_INDEX) & (cause == NO_INDEX) & (work.ts - ready > UNEXPLAINED_NS)
    sizes = [stream.stop - stream.start for stream in work.streams]
    stream = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    for device in work.devices:
        places = device.start + np.flatnonzero(late[device.places])
        if len(places) and stream[device.start] != stream[device.stop - 1]:
            cause[places] = _inferred(trace, device.places, places, ready[places], stream)
    return DeviceWaits(cause, stream[cause], known_by, tuple(str(stream.stream) for stream in work.streams))


def _ready(trace: Trace) -> tuple[Bools, Int64s]:
    """Which work ends a gap of its stream, and the earliest moment at which it could have started, ns."""
    work = gpu_work(trace)
    ends_gap, ready = np.zeros(len(work), np.bool_), work.ts.copy()
    for gaps in stream_gaps(trace):
        ends_gap[gaps.next] = True
        returned = np.where(work.launch[gaps.next] == NO_INDEX, gaps.start, launch_end(trace, gaps.next))
        ready[gaps.next] = np.clip(returned, gaps.start, gaps.end)
    return ends_gap, ready


def _inferred(trace: Trace, device: slice, late: Places, ready: Int64s, stream: Int32s) -> Places:
    """What the ``late`` work of a device waited for since it was ``ready``; ``NO_INDEX`` where this is unclear."""
    work, launch = gpu_work(trace), trace.events.ts
    by_end = device.start + np.argsort(work.end[device], kind="stable")
    at = np.searchsorted(work.end[by_end], work.ts[late] + CLOCK_NS, side="right") - 1
    since = np.maximum(ready, work.ts[late] - UNEXPLAINED_NS)
    launched = launch[work.launch[late]]
    match, several, unclear = (
        np.full(len(late), NO_INDEX, np.intp),
        np.zeros_like(late, bool),
        np.zeros_like(late, bool),
    )
    for _ in range(_CANDIDATES):
        other = by_end[np.maximum(at, 0)]
        near = (at >= 0) & (work.end[other] > since)
        if not near.any():
            break
        fits = near & (stream[other] != stream[late]) & (work.ts[other] < work.ts[late])
        fits &= (work.launch[other] == NO_INDEX) | (launch[work.launch[other]] <= launched)
        several |= fits & (match != NO_INDEX)
        unclear |= several & fits & (stream[other] != stream[match])
        match = np.where(fits & (match == NO_INDEX), other, match)
        at -= 1
    else:
        unclear |= near  # too many ends to examine
    delay = work.ts[late] - work.end[match]
    last = _last_launched(work, launch, match, launched, stream)
    sure = last | (~several & (BY_CHANCE * delay <= work.end[match] - work.ts[match]))
    sure &= ~unclear & (work.launch[match] != NO_INDEX) & (2 * delay <= work.ts[late] - ready)
    return np.where(sure, match, NO_INDEX)


def _last_launched(work: GpuWork, launch: Int64s, places: Places, before: Int64s, stream: Int32s) -> Bools:
    """Whether each piece of work was the last launched on its stream until ``before``."""
    following = np.minimum(places + 1, len(work) - 1)
    last = (following == places) | (stream[following] != stream[places])
    later = (work.launch[following] != NO_INDEX) & (launch[work.launch[following]] > before)
    is_last: Bools = last | later
    return is_last
