"""The parts of each stream's idle time: the whole device idles, or another stream works; and what it waited for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from augment.arrays import (
    NO_INDEX,
    NO_VALUE,
    Bytes,
    EventRows,
    Int32s,
    Int64s,
    Intervals,
    Places,
    each,
    expand,
    ordered,
    touched,
    where_in,
)
from augment.core import Texts, Trace, derived
from augment.core.annotations import ArgColumn
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.waits.dependencies import UNEXPLAINED_NS
from augment.facts.waits.gap_causes import (
    GapCategory,
    IdleGaps,
    IdlePieces,
    categories_of,
    launch_end,
    names_of_work,
    spread,
    stream_gaps,
)
from augment.facts.waits.sync_dependencies import waiting_streams

#: the names under which a stream's idle time is drawn
CAUSES = (*(category.name.lower() for category in GapCategory), "other_stream_busy")
OTHER_STREAM_BUSY = len(GapCategory)  #: a place in ``CAUSES``
SHARE = 32  #: a pause of the device is a piece of a stream's gap if it takes at least 1/SHARE of the gap


class StreamIdle(Struct, frozen=True):
    """The ``gaps`` of a stream; the ``category`` (uint8, a :class:`GapCategory`) of each; ``parts`` (int64 ns, a row
    for each of ``CAUSES``, a column for each gap), which add up to the gap's length; and the ``pieces`` to draw."""

    gaps: IdleGaps
    category: Bytes
    parts: Int64s
    pieces: IdlePieces


def stream_idle(trace: Trace, devices: list[IdlePieces], consecutive_kernel_delay_ns: int) -> list[StreamIdle]:
    """The idle time of each stream, in ``gpu_work``'s order.

    Args:
        trace: the trace of the streams.
        devices: the idle time of its devices, from ``device_idle``.
        consecutive_kernel_delay_ns: below this a gap between work launched in time is kernel_wait.
    """
    work, gaps = gpu_work(trace), stream_gaps(trace)
    stops, starts = [device.stop for device in work.devices], [stream.start for stream in work.streams]
    device_of = np.searchsorted(stops, starts, side="right")
    stream_idles: list[StreamIdle] = []
    for index, idle in enumerate(devices):
        device_gaps_ = [gaps[stream] for stream in np.flatnonzero(device_of == index).tolist()]
        size = idle.end - idle.start
        until = np.zeros((len(GapCategory), len(size) + 1), np.int64)
        for cause in GapCategory:
            np.cumsum(np.where(idle.cause == cause, size, 0), out=until[cause, 1:])
        device = _IdleDevice(idle, until)
        pauses = _long_pauses(device_gaps_, idle) if len(device_gaps_) > 1 else []
        for place, gaps_ in enumerate(device_gaps_):
            category = categories_of(trace, gaps_, consecutive_kernel_delay_ns)
            if pauses:
                pieces = _pieces(trace, gaps_, category, device, pauses[place])
            else:  # the only stream of the device
                pieces = replace(idle, evidence={**idle.evidence, "hta_category": _hta(category, idle.cause)})
            # the time in each gap in which the device idles, by cause, and in which another stream works
            paused = device.within(gaps_.start, gaps_.end)
            parts = np.vstack((paused, gaps_.end - gaps_.start - paused.sum(axis=0)))
            stream_idles.append(StreamIdle(gaps_, category, parts, pieces))
    return stream_idles


class _IdleDevice(Struct, frozen=True):
    """The pauses of a device. ``until`` (int64 ns, a row for each category): the time of each category before each
    pause; the last column is the total."""

    idle: IdlePieces
    until: Int64s

    def within(self, start: Int64s, end: Int64s) -> Int64s:
        """The time of the pauses in each ``[start, end)``, which cuts no pause, ns; a row for each category."""
        first, stop = touched(start, end, Intervals(self.idle.start, self.idle.end))
        return self.until[:, stop] - self.until[:, first]


def _hta(category: Bytes, cause: Bytes) -> Texts:
    """HTA's category of each piece where it differs from the cause."""
    return Texts(np.where(cause == category, np.int32(-1), category.astype(np.int32)), CAUSES)


def _pieces(trace: Trace, gaps: IdleGaps, category: Bytes, device: _IdleDevice, pause: Places) -> IdlePieces:
    """The pieces of the gaps: the device's long pauses within them, and the rest, in which another stream works."""
    idle = device.idle
    busy_start = np.sort(np.concatenate((gaps.start, idle.end[pause])), kind="stable")  # merges what ascends
    busy_end = np.sort(np.concatenate((gaps.end, idle.start[pause])), kind="stable")
    real = busy_end > busy_start
    busy = Intervals(busy_start[real], busy_end[real])
    start, end = np.concatenate((idle.start[pause], busy.start)), np.concatenate((idle.end[pause], busy.end))
    cause = np.concatenate((idle.cause[pause], np.full(len(busy.start), OTHER_STREAM_BUSY, np.uint8)))
    gap = where_in(gaps.start, start, side="right") - 1
    busy_evidence, row = _busy_evidence(trace, gaps, busy, gap[len(pause) :], device)
    ends_gap = end[: len(pause)] == gaps.end[gap[: len(pause)]]  # otherwise the arrow begins at another stream's work
    row = np.concatenate((np.where(ends_gap, idle.row[pause], NO_INDEX), row))
    order = np.argsort(start, kind="stable")
    evidence = {
        name: _joined(idle.evidence.get(name), pause, busy_evidence.get(name), len(busy.start), order)
        for name in {**idle.evidence, **busy_evidence}
    }
    evidence["hta_category"] = _hta(category[gap], cause).take(order)
    return IdlePieces(start[order], end[order], cause[order], evidence, row[order])


def _long_pauses(gaps: Sequence[IdleGaps], idle: IdlePieces) -> list[Places]:
    """For each stream of a device, the places in ``idle`` of the pauses that take at least 1/:data:`SHARE` of the gap
    around them, ascending.

    So no gap has more than :data:`SHARE` pieces. Only pauses of about the wanted length, or longer, are examined.
    """
    start, end = (np.concatenate([getattr(gap, side) for gap in gaps]) for side in ("start", "end"))
    stream = np.repeat(np.arange(len(gaps)), [len(gap) for gap in gaps])
    size = idle.end - idle.start
    least = (end - start + SHARE - 1) // SHARE
    power = np.maximum(np.frexp(least.astype(np.float64))[1] - 2, 0)  # 2 ** power is at most ``least``
    long = np.arange(len(size))
    parts = [(long[:0], stream[:0])]
    for exponent, index in each(power, int(power.max(initial=0)) + 1):
        long = long[size[long] >= 1 << exponent]
        whose, place = expand(*touched(start[index], end[index], Intervals(idle.start[long], idle.end[long])))
        fits = size[long[place]] >= least[index[whose]]
        parts.append((long[place[fits]], stream[index[whose[fits]]]))
    pause, of = (np.concatenate(column) for column in zip(*parts, strict=True))
    pauses = dict(each(of, len(gaps)))
    return [ordered(pause[pauses[index]]) if index in pauses else pause[:0] for index in range(len(gaps))]


def _busy_evidence(
    trace: Trace, gaps: IdleGaps, busy: Intervals, gap: Places, device: _IdleDevice
) -> tuple[dict[str, ArgColumn], EventRows]:
    """For the pieces in which another stream works: the evidence, and the row of the work waited for."""
    work, waits = gpu_work(trace), device_waits(trace)
    cause, count = waits.cause[gaps.next], len(gap)
    waiting = np.flatnonzero((cause != NO_INDEX) & np.isin(np.arange(len(gaps)), gap))
    piece = np.searchsorted(busy.start, np.minimum(work.end[cause[waiting]], gaps.end[waiting]), side="left") - 1
    held = gap[piece] == waiting
    place = spread(cause[waiting[held]], piece[held], count)
    known = place >= 0
    paused = device.within(busy.start, busy.end).sum(axis=0)
    on_stream, known_by = (column[gaps.next[gap]].astype(np.int32) for column in (waits.on_stream, waits.known_by))
    evidence: dict[str, ArgColumn] = {
        "correlation": trace.events.correlation[work.row[gaps.next[gap]]],
        "previous_kernel": names_of_work(trace, gaps.previous[gap], np.ones(count, np.bool_)),
        "device_idle_ns": np.where(paused > 0, paused, NO_VALUE),
        "waited_for": names_of_work(trace, place, known),
        "waited_for_stream": Texts(np.where(known, on_stream, np.int32(-1)), waits.streams),
        "known_by": Texts(np.where(known, known_by, np.int32(-1)), KNOWN_BY),
    }
    return evidence, np.where(known, work.row[place], NO_INDEX)


def _joined(pauses: ArgColumn | None, chosen: Places, busy: ArgColumn | None, count: int, order: Places) -> ArgColumn:
    """A column over the ``chosen`` pauses and ``count`` other pieces, in ``order``; -1 where a side has no such column.

    The texts of both sides index the trace's strings.
    """
    for column in (pauses, busy):
        if isinstance(column, Texts):
            left = pauses.codes[chosen] if isinstance(pauses, Texts) else np.full(len(chosen), -1, np.int32)
            right = busy.codes if isinstance(busy, Texts) else np.full(count, -1, np.int32)
            return Texts(np.concatenate((left, right))[order], column.values)
    first = np.full(len(chosen), -1, np.int64) if pauses is None or isinstance(pauses, Texts) else pauses[chosen]
    last = np.full(count, -1, np.int64) if busy is None or isinstance(busy, Texts) else busy
    return np.concatenate((first, last))[order]


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
    # which work ends a gap of its stream, and the earliest moment at which it could have started, ns
    ends_gap, ready = np.zeros(len(work), np.bool_), work.ts.copy()
    for gaps in stream_gaps(trace):
        ends_gap[gaps.next] = True
        returned = np.where(work.launch[gaps.next] == NO_INDEX, gaps.start, launch_end(trace, gaps.next))
        ready[gaps.next] = np.clip(returned, gaps.start, gaps.end)
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
    # whether it was the last launched on its stream until then
    following = np.minimum(match + 1, len(work) - 1)
    last = (following == match) | (stream[following] != stream[match])
    last |= (work.launch[following] != NO_INDEX) & (launch[work.launch[following]] > launched)
    sure = last | (~several & (BY_CHANCE * delay <= work.end[match] - work.ts[match]))
    sure &= ~unclear & (work.launch[match] != NO_INDEX) & (2 * delay <= work.ts[late] - ready)
    return np.where(sure, match, NO_INDEX)
