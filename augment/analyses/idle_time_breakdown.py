"""Why does a stream idle between two pieces of its work?

A gap lies between the end of everything before it on the stream and the start of the next piece of GPU work. The work
that ends the gap decides its category:

- **host_wait**: the launch of that work *began* after the gap did: the device had run out of work and waited for the
  host.
- **kernel_wait**: the work was launched in time, and the gap is shorter than ``consecutive_kernel_delay_ns``: the
  normal delay between consecutive kernels.
- **other**: the work was launched in time and yet started late (it waited for an event, another stream, or memory), or
  its launch is not known.

``idle_ratio`` is the category's share of the idle time of the stream. Time before its first and after its last work
does not count. The deviation is that of a sample (over n - 1); percentiles are interpolated linearly.

A stream that idles while another stream of its device works need not be a problem. Four columns therefore split
``idle_ns`` by what the device does meanwhile, and add up to it. ``other_stream_busy_ns`` is time while another stream
works. ``device_host_wait_ns``, ``device_kernel_wait_ns`` and ``device_other_ns`` are time while no stream works, by the
cause of that gap of the device. The cause is the category of the device's gap, with two exceptions: if the work that
ends it started ``consecutive_kernel_delay_ns`` or more after its launch returned, and this delay is more than half of
the gap, the cause is ``other``, not ``host_wait``. And if the call that launched this work began before the gap, but
ran on for more than half of it, the cause is ``host_wait``, not ``other``: the call took long (it loaded the kernel,
say), and the device had nothing to do.

The track ``Idle`` shows the gaps of the device, named after their cause. A track ``Idle stream N`` shows the gaps of a
stream in pieces. A gap of the device that takes at least 1/32 of the stream's gap is a piece, the same as on ``Idle``:
so ``host_wait`` means that the whole device waits for the host. The rest is ``other_stream_busy``. Its
``device_idle_ns`` is the sum of the shorter gaps of the device within it. Below a slice, as long as it, stands what
was waited for: the owner for host_wait (the function, or the call of the operating system, if it takes most of the
gap and the owner less than half; ``several, longest`` where none takes half);
``stream 4: KERNEL`` for other_stream_busy; for other ``launch not recorded``, or ``after`` the work before.
Nothing stands there where it is unknown. The args of a slice:

- ``launch`` (other): ``not recorded``, or ``before the recording``, if the launch of the work is not in the trace.
- ``correlation``: that of the work that ends the device's gap; for ``other_stream_busy``, the stream's gap.
- ``hta_category``: the category of the stream's gap, where the slice has another name.
- ``launch_delay_ns``: from the end of the launch to the work's start, if the launch began within the device's gap.
- ``owner``, ``owner_ns`` (host_wait): the operator or annotation in which the launching thread spent most of the time
  from the start of the gap to the end of the launch (innermost at each moment, summed by name; steps do not count).
  ``python_function`` and ``python_function_ns`` are the same for Python functions, ``os_call`` and ``os_call_ns`` for
  calls of the operating system (``poll``, ``read``), if recorded.
- ``previous_kernel`` (all but host_wait): the work that ran last before the device's gap; for ``other_stream_busy``,
  before the stream's gap.
- ``waited_for``, ``waited_for_stream``, ``known_by`` (other_stream_busy): the work of another stream that the work at
  the end of the gap waited for. They are on the slice in which the awaited work ended. Without these args the awaited
  work is unknown.

A call of the host never explains why work started late that was already in the queue. ``known_by`` names the evidence:

- ``recorded event``: a ``Stream Wait Event`` names it. If there are several, the last to be fulfilled. The
  event was fulfilled after the gap began and after the launch of the waiting work returned.
- ``ended just before``: inferred, for work that starts more than 30 µs after the gap began and its launch returned. It
  waited for the last work of another stream of the device to end before it started (or up to 2 µs later, by the
  clocks). That work must have been launched no later, and must have ended at most 30 µs before the start and in the
  second half of the wait. Work of a third stream must not fit as well; work of unknown launch can fit, but is never
  named. Because work ends all the time, one of two further conditions must hold: it is the last that was launched on
  its stream until the launch of the waiting work; or no other work fits, and it ran at least ten times as long as the
  delay from its end to the start.

An arrow leads to each slice of at least ``arrow_min_gap_ns`` from what was waited for. For host_wait it begins at the
owner's slice that took most of the time; without an owner, at the function's slice; otherwise at the launch. On ``Idle
stream N`` this arrow is drawn only if the stream's own work ends the gap. For ``other_stream_busy`` it begins at the
work ``waited_for``.

**What to do**: ``host_wait``: make launching cheaper (CUDA graphs, ``torch.compile``) or remove what holds the host
up: data loading, ``.item()``, garbage collection; the owner of the longest gaps names it. ``kernel_wait``: fewer,
larger kernels. ``other``: look at the event or stream that was waited for.

Options:
    consecutive_kernel_delay_ns: a shorter gap between work launched in time is kernel_wait; 30,000 as in HTA.
    arrow_min_gap_ns: slices shorter than this get no arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from augment import arrays
from augment.core import (
    GPU_WORK,
    ArgColumn,
    Diagnostic,
    Ends,
    Findings,
    Flows,
    Identity,
    OfDevice,
    SliceTrack,
    Texts,
    Trace,
    column,
    derived,
)
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.waits import gap_causes
from augment.facts.waits.dependencies import UNEXPLAINED_NS
from augment.facts.waits.sync_dependencies import waiting_streams

#: the names under which a stream's idle time is drawn
CAUSES = (*(category.name.lower() for category in gap_causes.GapCategory), "other_stream_busy")
OTHER_STREAM_BUSY = len(gap_causes.GapCategory)  #: a place in ``CAUSES``
SHARE = 32  #: a pause of the device is a piece of a stream's gap if it takes at least 1/SHARE of the gap


class StreamIdle(Struct, frozen=True):
    """The ``gaps`` of a stream; the ``category`` (uint8, a :class:`GapCategory`) of each; ``parts`` (int64 ns, a row
    for each of ``CAUSES``, a column for each gap), which add up to the gap's length; and the ``pieces`` to draw."""

    gaps: gap_causes.IdleGaps
    category: arrays.Bytes
    parts: arrays.Int64s
    pieces: gap_causes.IdlePieces


def stream_idle(
    trace: Trace, devices: list[gap_causes.IdlePieces], consecutive_kernel_delay_ns: int
) -> list[StreamIdle]:
    """The idle time of each stream, in ``gpu_work``'s order.

    Args:
        trace: the trace of the streams.
        devices: the idle time of its devices, from ``device_idle``.
        consecutive_kernel_delay_ns: below this a gap between work launched in time is kernel_wait.
    """
    work, gaps = gpu_work(trace), gap_causes.stream_gaps(trace)
    stops, starts = [device.stop for device in work.devices], [stream.start for stream in work.streams]
    device_of = np.searchsorted(stops, starts, side="right")
    stream_idles: list[StreamIdle] = []
    for index, idle in enumerate(devices):
        device_gaps_ = [gaps[stream] for stream in np.flatnonzero(device_of == index).tolist()]
        size = idle.end - idle.start
        until = np.zeros((len(gap_causes.GapCategory), len(size) + 1), np.int64)
        for cause in gap_causes.GapCategory:
            np.cumsum(np.where(idle.cause == cause, size, 0), out=until[cause, 1:])
        device = _IdleDevice(idle, until)
        pauses = _long_pauses(device_gaps_, idle) if len(device_gaps_) > 1 else []
        for place, gaps_ in enumerate(device_gaps_):
            category = gap_causes.categories_of(trace, gaps_, consecutive_kernel_delay_ns)
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

    idle: gap_causes.IdlePieces
    until: arrays.Int64s

    def within(self, start: arrays.Int64s, end: arrays.Int64s) -> arrays.Int64s:
        """The time of the pauses in each ``[start, end)``, which cuts no pause, ns; a row for each category."""
        first, stop = arrays.touched(start, end, arrays.Intervals(self.idle.start, self.idle.end))
        return self.until[:, stop] - self.until[:, first]


def _hta(category: arrays.Bytes, cause: arrays.Bytes) -> Texts:
    """HTA's category of each piece where it differs from the cause."""
    return Texts(np.where(cause == category, np.int32(-1), category.astype(np.int32)), CAUSES)


def _pieces(
    trace: Trace, gaps: gap_causes.IdleGaps, category: arrays.Bytes, device: _IdleDevice, pause: arrays.Places
) -> gap_causes.IdlePieces:
    """The pieces of the gaps: the device's long pauses within them, and the rest, in which another stream works."""
    idle = device.idle
    busy_start = np.sort(np.concatenate((gaps.start, idle.end[pause])), kind="stable")  # merges what ascends
    busy_end = np.sort(np.concatenate((gaps.end, idle.start[pause])), kind="stable")
    real = busy_end > busy_start
    busy = arrays.Intervals(busy_start[real], busy_end[real])
    start, end = np.concatenate((idle.start[pause], busy.start)), np.concatenate((idle.end[pause], busy.end))
    cause = np.concatenate((idle.cause[pause], np.full(len(busy.start), OTHER_STREAM_BUSY, np.uint8)))
    gap = arrays.where_in(gaps.start, start, side="right") - 1
    busy_evidence, row = _busy_evidence(trace, gaps, busy, gap[len(pause) :], device)
    ends_gap = end[: len(pause)] == gaps.end[gap[: len(pause)]]  # otherwise the arrow begins at another stream's work
    row = np.concatenate((np.where(ends_gap, idle.row[pause], arrays.NO_INDEX), row))
    order = np.argsort(start, kind="stable")
    evidence = {
        name: _joined(idle.evidence.get(name), pause, busy_evidence.get(name), len(busy.start), order)
        for name in {**idle.evidence, **busy_evidence}
    }
    evidence["hta_category"] = _hta(category[gap], cause).take(order)
    return gap_causes.IdlePieces(start[order], end[order], cause[order], evidence, row[order])


def _long_pauses(gaps: Sequence[gap_causes.IdleGaps], idle: gap_causes.IdlePieces) -> list[arrays.Places]:
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
    for exponent, index in arrays.each(power, int(power.max(initial=0)) + 1):
        long = long[size[long] >= 1 << exponent]
        whose, place = arrays.expand(
            *arrays.touched(start[index], end[index], arrays.Intervals(idle.start[long], idle.end[long]))
        )
        fits = size[long[place]] >= least[index[whose]]
        parts.append((long[place[fits]], stream[index[whose[fits]]]))
    pause, of = (np.concatenate(column) for column in zip(*parts, strict=True))
    pauses = dict(arrays.each(of, len(gaps)))
    return [arrays.ordered(pause[pauses[index]]) if index in pauses else pause[:0] for index in range(len(gaps))]


def _busy_evidence(
    trace: Trace, gaps: gap_causes.IdleGaps, busy: arrays.Intervals, gap: arrays.Places, device: _IdleDevice
) -> tuple[dict[str, ArgColumn], arrays.EventRows]:
    """For the pieces in which another stream works: the evidence, and the row of the work waited for."""
    work, waits = gpu_work(trace), device_waits(trace)
    cause, count = waits.cause[gaps.next], len(gap)
    waiting = np.flatnonzero((cause != arrays.NO_INDEX) & np.isin(np.arange(len(gaps)), gap))
    piece = np.searchsorted(busy.start, np.minimum(work.end[cause[waiting]], gaps.end[waiting]), side="left") - 1
    held = gap[piece] == waiting
    place = gap_causes.spread(cause[waiting[held]], piece[held], count)
    known = place >= 0
    paused = device.within(busy.start, busy.end).sum(axis=0)
    on_stream, known_by = (column[gaps.next[gap]].astype(np.int32) for column in (waits.on_stream, waits.known_by))
    evidence: dict[str, ArgColumn] = {
        "correlation": trace.events.correlation[work.row[gaps.next[gap]]],
        "previous_kernel": gap_causes.names_of_work(trace, gaps.previous[gap], np.ones(count, np.bool_)),
        "device_idle_ns": np.where(paused > 0, paused, arrays.NO_VALUE),
        "waited_for": gap_causes.names_of_work(trace, place, known),
        "waited_for_stream": Texts(np.where(known, on_stream, np.int32(-1)), waits.streams),
        "known_by": Texts(np.where(known, known_by, np.int32(-1)), KNOWN_BY),
    }
    return evidence, np.where(known, work.row[place], arrays.NO_INDEX)


def _joined(
    pauses: ArgColumn | None, chosen: arrays.Places, busy: ArgColumn | None, count: int, order: arrays.Places
) -> ArgColumn:
    """A column over the ``chosen`` pauses and ``count`` other pieces, in ``order``; -1 where a side has no such column.

    The texts of both sides index the trace's strings.
    """
    for side in (pauses, busy):
        if isinstance(side, Texts):
            left = pauses.codes[chosen] if isinstance(pauses, Texts) else np.full(len(chosen), -1, np.int32)
            right = busy.codes if isinstance(busy, Texts) else np.full(count, -1, np.int32)
            return Texts(np.concatenate((left, right))[order], side.values)
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

    cause: arrays.Places
    on_stream: arrays.Int32s
    known_by: arrays.Bytes
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
    cause, known_by = np.full(len(work), arrays.NO_INDEX, np.intp), np.full(len(work), INFERRED, np.uint8)
    # which work ends a gap of its stream, and the earliest moment at which it could have started, ns
    ends_gap, ready = np.zeros(len(work), np.bool_), work.ts.copy()
    for gaps in gap_causes.stream_gaps(trace):
        ends_gap[gaps.next] = True
        returned = np.where(
            work.launch[gaps.next] == arrays.NO_INDEX, gaps.start, gap_causes.launch_end(trace, gaps.next)
        )
        ready[gaps.next] = np.clip(returned, gaps.start, gaps.end)
    edges = waiting_streams(trace).dependencies
    held = ends_gap[edges.to_work] & (work.end[edges.from_work] > ready[edges.to_work])
    before, after = edges.from_work[held], edges.to_work[held]
    order = np.argsort(work.end[before], kind="stable")
    cause[after[order]] = before[order]  # of several assignments, the last one to end stays
    known_by[after] = RECORDED
    late = ends_gap & (work.launch != arrays.NO_INDEX) & (cause == arrays.NO_INDEX) & (work.ts - ready > UNEXPLAINED_NS)
    sizes = [stream.stop - stream.start for stream in work.streams]
    stream = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    for device in work.devices:
        places = device.start + np.flatnonzero(late[device.places])
        if len(places) and stream[device.start] != stream[device.stop - 1]:
            cause[places] = _inferred(trace, device.places, places, ready[places], stream)
    return DeviceWaits(cause, stream[cause], known_by, tuple(str(stream.stream) for stream in work.streams))


def _inferred(
    trace: Trace, device: slice, late: arrays.Places, ready: arrays.Int64s, stream: arrays.Int32s
) -> arrays.Places:
    """What the ``late`` work of a device waited for since it was ``ready``; ``NO_INDEX`` where this is unclear."""
    work, launch = gpu_work(trace), trace.events.ts
    by_end = device.start + np.argsort(work.end[device], kind="stable")
    at = np.searchsorted(work.end[by_end], work.ts[late] + CLOCK_NS, side="right") - 1
    since = np.maximum(ready, work.ts[late] - UNEXPLAINED_NS)
    launched = launch[work.launch[late]]
    match, several, unclear = (
        np.full(len(late), arrays.NO_INDEX, np.intp),
        np.zeros_like(late, bool),
        np.zeros_like(late, bool),
    )
    for _ in range(_CANDIDATES):
        other = by_end[np.maximum(at, 0)]
        near = (at >= 0) & (work.end[other] > since)
        if not near.any():
            break
        fits = near & (stream[other] != stream[late]) & (work.ts[other] < work.ts[late])
        fits &= (work.launch[other] == arrays.NO_INDEX) | (launch[work.launch[other]] <= launched)
        several |= fits & (match != arrays.NO_INDEX)
        unclear |= several & fits & (stream[other] != stream[match])
        match = np.where(fits & (match == arrays.NO_INDEX), other, match)
        at -= 1
    else:
        unclear |= near  # too many ends to examine
    delay = work.ts[late] - work.end[match]
    # whether it was the last launched on its stream until then
    following = np.minimum(match + 1, len(work) - 1)
    last = (following == match) | (stream[following] != stream[match])
    last |= (work.launch[following] != arrays.NO_INDEX) & (launch[work.launch[following]] > launched)
    sure = last | (~several & (BY_CHANCE * delay <= work.end[match] - work.ts[match]))
    sure &= ~unclear & (work.launch[match] != arrays.NO_INDEX) & (2 * delay <= work.ts[late] - ready)
    return np.where(sure, match, arrays.NO_INDEX)


NAME = "idle_time_breakdown"
NEEDS = (GPU_WORK,)

#: what is drawn below a cause: the arg, the cause, and the text made of it; the first that is known counts
_BELOW = (
    ("owner", gap_causes.GapCategory.HOST_WAIT, "{0}"),
    ("python_function", gap_causes.GapCategory.HOST_WAIT, "{0}"),
    ("os_call", gap_causes.GapCategory.HOST_WAIT, "{0}"),
    ("waited_for", OTHER_STREAM_BUSY, "stream {1}: {0}"),
    ("launch", gap_causes.GapCategory.OTHER, "launch {0}"),
    ("previous_kernel", gap_causes.GapCategory.OTHER, "after {0}"),
)
#: what counts instead if it takes most of a gap
_INSTEAD = {"owner": ("python_function_ns", "os_call_ns"), "python_function": ("os_call_ns",)}


class Row(OfDevice, frozen=True):
    """One category of gaps on one stream."""

    stream: Annotated[Identity, column("The stream.")]
    category: Annotated[str, column("One of host_wait, kernel_wait and other.")]
    idle_ns: Annotated[int, column("Sum of the gaps of this category.", "ns")]
    gap_count: Annotated[int, column("Number of gaps of this category.", "count")]
    idle_ratio: Annotated[float | None, column("Share of the stream's idle time.", "ratio")]
    other_stream_busy_ns: Annotated[
        int, column("The part of ``idle_ns`` while another stream of the device works.", "ns")
    ]
    device_host_wait_ns: Annotated[
        int, column("The part of ``idle_ns`` while the whole device waits for the host.", "ns")
    ]
    device_kernel_wait_ns: Annotated[
        int, column("The part of ``idle_ns`` in the device's short gaps (kernel_wait).", "ns")
    ]
    device_other_ns: Annotated[
        int, column("The part of ``idle_ns`` while the whole device idles for another cause.", "ns")
    ]
    mean_ns: Annotated[float | None, column("Mean length of the gaps.", "ns")]
    std_ns: Annotated[float | None, column("Sample standard deviation of their lengths; 0 for one gap.", "ns")]
    min_ns: Annotated[int | None, column("Least length.", "ns")]
    p25_ns: Annotated[float | None, column("First quartile of the lengths.", "ns")]
    p50_ns: Annotated[float | None, column("Median length.", "ns")]
    p75_ns: Annotated[float | None, column("Third quartile of the lengths.", "ns")]
    max_ns: Annotated[int | None, column("Greatest length.", "ns")]


def analyze(
    trace: Trace, *, consecutive_kernel_delay_ns: int = gap_causes.KERNEL_DELAY_NS, arrow_min_gap_ns: int = 100_000
) -> Findings:
    """Divide the gaps of each stream, and draw them with their evidence."""
    work = gpu_work(trace)
    of_devices = gap_causes.device_idle(trace, consecutive_kernel_delay_ns)
    of_streams = stream_idle(trace, of_devices, consecutive_kernel_delay_ns)
    rows = []
    for stream, idle in zip(work.streams, of_streams, strict=True):
        dur = idle.gaps.end - idle.gaps.start
        idle_ns = int(dur.sum())
        for category in gap_causes.GapCategory:
            chosen = idle.category == category
            ns = int(dur[chosen].sum())
            parts = idle.parts[:, chosen].sum(axis=1).tolist()
            rows.append(
                Row(
                    stream.rank,
                    stream.device,
                    stream.stream,
                    category.name.lower(),
                    ns,
                    int(chosen.sum()),
                    ns / idle_ns if idle_ns else None,
                    parts[OTHER_STREAM_BUSY],
                    *parts[:OTHER_STREAM_BUSY],
                    *(arrays.distribution(dur[chosen]) or (None,) * 7),
                )
            )
    drawn = [
        (f"Idle stream {stream.stream}", stream.track, idle.pieces)
        for stream, idle in zip(work.streams, of_streams, strict=True)
    ]
    drawn += [("Idle", device.track, idle) for device, idle in zip(work.devices, of_devices, strict=True)]
    annotations = [track for each in drawn if len(each[2]) for track in _drawn(*each, arrow_min_gap_ns)]
    overlapping = sum(idle.gaps.overlapping for idle in of_streams)
    message = "pieces of GPU work begin before earlier work on their stream has ended"
    diagnostics = [Diagnostic("overlapping_gpu_work", overlapping, message)] if overlapping else []
    return Findings(rows, annotations, diagnostics)


def _drawn(name: str, under: int, idle: gap_causes.IdlePieces, arrow_min_gap_ns: int) -> tuple[SliceTrack, Flows]:
    """The idle time as a track, with arrows to the long pieces from what they waited for."""
    dur = idle.end - idle.start
    # the text below each cause: what the device waited for, as far as it is known
    codes = np.full(len(idle), -1, np.int32)
    values: list[str] = []
    for arg, cause, template in _BELOW:
        column = idle.evidence.get(arg)
        if not isinstance(column, Texts):
            continue
        is_known = (idle.cause == cause) & (column.codes >= 0) & (codes < 0)
        for other in _INSTEAD.get(arg, ()):
            other_ns = idle.evidence.get(other)
            if other_ns is not None:
                arg_ns = np.asarray(idle.evidence[f"{arg}_ns"])
                is_known &= ~gap_causes.is_longer(np.asarray(other_ns), arg_ns, idle.end - idle.start)
        chosen = np.flatnonzero(is_known)
        stream = idle.evidence["waited_for_stream"] if cause == OTHER_STREAM_BUSY else None
        streams = stream.codes[chosen] if isinstance(stream, Texts) else np.full(len(chosen), -1, np.int32)
        taken = idle.evidence.get(f"{arg}_ns")
        partly = np.zeros(len(idle), np.bool_) if taken is None else 2 * np.asarray(taken) < dur
        (text_code, number, several), which = arrays.combinations(column.codes[chosen], streams, partly[chosen])
        codes[chosen] = len(values) + which
        for text, place, is_several in zip(text_code.tolist(), number.tolist(), several.tolist(), strict=True):
            known = stream.values[place] if isinstance(stream, Texts) and place >= 0 else "?"
            below = template.format(column.values[text], known)
            values.append(f"several, longest {below}" if is_several else below)
    inner = Texts(codes, values)
    track = SliceTrack(
        analysis=NAME,
        name=name,
        under=under,
        ts=idle.start,
        dur=dur,
        names=Texts(idle.cause.astype(np.int32), CAUSES),
        args=idle.evidence,
        description="time between two pieces of GPU work in which none runs",
        inner=inner,
    )
    linked = np.flatnonzero((dur >= arrow_min_gap_ns) & (idle.row != arrays.NO_INDEX))
    return track, Flows(NAME, "waits for", Ends(idle.row[linked]), Ends(linked, track))
