"""What each stream's idle time consists of: the whole device stands still, or another stream works."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from augment.annotations import ArgColumn, Texts
from augment.derived.dependencies import NO_PLACE
from augment.derived.device_waits import KNOWN_BY, device_waits
from augment.derived.gap_causes import GapCategory, IdlePieces, categories_of, names_of_work, spread
from augment.derived.gpu_work import gpu_work
from augment.derived.idle_gaps import IdleGaps, stream_gaps
from augment.derived.launches import NO_ROW
from augment.derived.ordering import each
from augment.intervals import Intervals, Places, expand, touched
from augment.trace import Bytes, Int64s, Trace

CAUSES = (*(one.name.lower() for one in GapCategory), "other_stream_busy")  #: what idle time of a stream is drawn as
OTHER_STREAM_BUSY = len(GapCategory)  #: a place in ``CAUSES``
SHARE = 32  #: a pause of the device is a piece of a stream's gap from this share of its length on


@dataclass(frozen=True, slots=True)
class StreamIdle:
    """The gaps of a stream; the ``category`` (uint8, a :class:`GapCategory`) of each; ``parts`` (int64 ns, a row for
    each of ``CAUSES``, a column for each gap), which add up to its length; and what is drawn."""

    gaps: IdleGaps
    category: Bytes
    parts: Int64s
    pieces: IdlePieces


def stream_idle(trace: Trace, devices: list[IdlePieces], consecutive_kernel_delay_ns: int) -> list[StreamIdle]:
    """The idle time of each stream, in ``gpu_work``'s order.

    Args:
        trace: whose streams.
        devices: the idle time of its devices, as ``device_idle`` gives it.
        consecutive_kernel_delay_ns: below this a gap between work launched in time is kernel_wait.
    """
    work, found = gpu_work(trace), []
    device_of = np.searchsorted([one.stop for one in work.devices], [one.start for one in work.streams], side="right")
    for stream, gaps, index in zip(work.streams, stream_gaps(trace), device_of.tolist(), strict=True):
        device, idle = work.devices[index], devices[index]
        category = categories_of(trace, gaps, consecutive_kernel_delay_ns)
        alone = (stream.start, stream.stop) == (device.start, device.stop)
        pieces = _alone(category, idle) if alone else _pieces(trace, gaps, category, idle)
        found.append(StreamIdle(gaps, category, _parts(gaps, idle), pieces))
    return found


def _alone(category: Bytes, idle: IdlePieces) -> IdlePieces:
    """The only stream of a device idles when the device does."""
    return replace(idle, evidence={**idle.evidence, "hta_category": _hta(category, idle.cause)})


def _hta(category: Bytes, cause: Bytes) -> Texts:
    """HTA's category of each piece, where it is another than the cause."""
    return Texts(np.where(cause == category, np.int32(-1), category.astype(np.int32)), CAUSES)


def _parts(gaps: IdleGaps, idle: IdlePieces) -> Int64s:
    """How long the device stands still in each gap, by cause, and for how long another stream works."""
    first, stop = touched(gaps.start, gaps.end, Intervals(idle.start, idle.end))
    size = idle.end - idle.start
    parts = np.zeros((len(CAUSES), len(gaps)), np.int64)
    for category in GapCategory:
        until = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.where(idle.cause == category, size, 0))))
        parts[category] = until[stop] - until[first]
    parts[OTHER_STREAM_BUSY] = gaps.end - gaps.start - parts.sum(axis=0)
    return parts


def _pieces(trace: Trace, gaps: IdleGaps, category: Bytes, idle: IdlePieces) -> IdlePieces:
    """The long pauses of the device within the gaps, and the rest of them, in which another stream is at work."""
    pause = _long_pauses(gaps, idle)
    busy_start = np.sort(np.concatenate((gaps.start, idle.end[pause])))
    busy_end = np.sort(np.concatenate((gaps.end, idle.start[pause])))
    real = busy_end > busy_start
    busy = Intervals(busy_start[real], busy_end[real])
    start, end = np.concatenate((idle.start[pause], busy.start)), np.concatenate((idle.end[pause], busy.end))
    cause = np.concatenate((idle.cause[pause], np.full(len(busy.start), OTHER_STREAM_BUSY, np.uint8)))
    gap = np.searchsorted(gaps.start, start, side="right") - 1
    told, row = _busy_evidence(trace, gaps, busy, gap[len(pause) :], idle)
    ends_gap = end[: len(pause)] == gaps.end[gap[: len(pause)]]  # else it is another stream's work that was waited for
    row = np.concatenate((np.where(ends_gap, idle.row[pause], NO_ROW), row))
    order = np.argsort(start, kind="stable")
    evidence = {
        name: _joined(idle.evidence.get(name), pause, told.get(name), len(busy.start), order)
        for name in {**idle.evidence, **told}
    }
    evidence["hta_category"] = _hta(category[gap], cause).take(order)
    return IdlePieces(start[order], end[order], cause[order], evidence, row[order])


def _long_pauses(gaps: IdleGaps, idle: IdlePieces) -> Places:
    """The places in ``idle`` of what takes at least a :data:`SHARE`-th of the gap that it lies in, ascending.

    So no gap has more than :data:`SHARE`; and only pauses of about the length asked for, or longer, are looked at.
    """
    size = idle.end - idle.start
    least = (gaps.end - gaps.start + SHARE - 1) // SHARE
    power = np.maximum(np.frexp(least.astype(np.float64))[1] - 2, 0)  # 2 ** power is at most ``least``
    long, found = np.arange(len(size)), [np.empty(0, np.intp)]
    for exponent, own in each(power, int(power.max(initial=0)) + 1):
        long = long[size[long] >= 1 << exponent]
        within = touched(gaps.start[own], gaps.end[own], Intervals(idle.start[long], idle.end[long]))
        whose, place = expand(*within)
        found.append(long[place][size[long[place]] >= least[own[whose]]])
    return np.sort(np.concatenate(found))


def _busy_evidence(
    trace: Trace, gaps: IdleGaps, busy: Intervals, gap: Places, idle: IdlePieces
) -> tuple[dict[str, ArgColumn], Int64s]:
    """Of the pieces in which another stream is at work: the evidence, and the row of the work waited for."""
    work, waits = gpu_work(trace), device_waits(trace)
    cause = waits.cause[gaps.next]
    waiting = np.flatnonzero(cause != NO_PLACE)
    piece = np.searchsorted(busy.start, np.minimum(work.end[cause[waiting]], gaps.end[waiting]), side="left") - 1
    held = gap[piece] == waiting
    piece, cause = piece[held], cause[waiting[held]]
    count = len(gap)
    place = spread(cause, piece, count)
    known = place >= 0
    first, stop = touched(busy.start, busy.end, Intervals(idle.start, idle.end))
    until = np.concatenate((np.zeros(1, np.int64), np.cumsum(idle.end - idle.start)))
    paused = until[stop] - until[first]
    streams = [str(one.stream) for one in work.streams]
    on_stream = np.searchsorted([one.stop for one in work.streams], place, side="right").astype(np.int32)
    evidence: dict[str, ArgColumn] = {
        "correlation": trace.events.correlation[work.row[gaps.next[gap]]],
        "previous_kernel": names_of_work(trace, gaps.previous[gap], np.ones(count, np.bool_)),
        "device_idle_ns": np.where(paused > 0, paused, -1),
        "waited_for": names_of_work(trace, place, known),
        "waited_for_stream": Texts(np.where(known, on_stream, np.int32(-1)), streams),
        "known_by": Texts(np.where(known, waits.known_by[gaps.next[gap]].astype(np.int32), np.int32(-1)), KNOWN_BY),
    }
    return evidence, np.where(known, work.row[place], NO_ROW)


def _joined(pauses: ArgColumn | None, chosen: Places, busy: ArgColumn | None, count: int, order: Places) -> ArgColumn:
    """A column of the ``chosen`` pauses and of ``count`` other pieces, in ``order``; -1 where one has no such column.

    Texts of both index the trace's strings.
    """
    for one in (pauses, busy):
        if isinstance(one, Texts):
            left = pauses.codes[chosen] if isinstance(pauses, Texts) else np.full(len(chosen), -1, np.int32)
            right = busy.codes if isinstance(busy, Texts) else np.full(count, -1, np.int32)
            return Texts(np.concatenate((left, right))[order], one.values)
    first = np.full(len(chosen), -1, np.int64) if pauses is None or isinstance(pauses, Texts) else pauses[chosen]
    last = np.full(count, -1, np.int64) if busy is None or isinstance(busy, Texts) else busy
    return np.concatenate((first, last))[order]
