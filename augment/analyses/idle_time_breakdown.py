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
gap and the owner less than half);
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

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from msgspec import Struct

from augment.arrays import NO_INDEX, combinations, distribution
from augment.core import GPU_WORK, Diagnostic, Ends, Findings, Flows, Identity, SliceTrack, Texts, Trace, column
from augment.facts.gpu.gpu_work import Stream, gpu_work
from augment.facts.waits.gap_causes import KERNEL_DELAY_NS, GapCategory, IdlePieces, device_idle, is_longer
from augment.facts.waits.stream_idle import CAUSES, OTHER_STREAM_BUSY, StreamIdle, stream_idle

NAME = "idle_time_breakdown"
NEEDS = (GPU_WORK,)

#: what is drawn below a cause: the arg, the cause, and the text made of it; the first that is known counts
_BELOW = (
    ("owner", GapCategory.HOST_WAIT, "{0}"),
    ("python_function", GapCategory.HOST_WAIT, "{0}"),
    ("os_call", GapCategory.HOST_WAIT, "{0}"),
    ("waited_for", OTHER_STREAM_BUSY, "stream {1}: {0}"),
    ("launch", GapCategory.OTHER, "launch {0}"),
    ("previous_kernel", GapCategory.OTHER, "after {0}"),
)
#: what counts instead if it takes most of a gap
_INSTEAD = {"owner": ("python_function_ns", "os_call_ns"), "python_function": ("os_call_ns",)}


class Row(Struct, frozen=True):
    """One category of gaps on one stream."""

    rank: Annotated[int | None, column("The rank of the process, if known.")]
    device: Annotated[Identity, column("The device.")]
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
    trace: Trace, *, consecutive_kernel_delay_ns: int = KERNEL_DELAY_NS, arrow_min_gap_ns: int = 100_000
) -> Findings:
    """Divide the gaps of each stream, and draw them with their evidence."""
    work = gpu_work(trace)
    of_devices = device_idle(trace, consecutive_kernel_delay_ns)
    of_streams = stream_idle(trace, of_devices, consecutive_kernel_delay_ns)
    rows = [row for stream, idle in zip(work.streams, of_streams, strict=True) for row in _rows(stream, idle)]
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


def _rows(stream: Stream, stream_gaps: StreamIdle) -> Iterator[Row]:
    """The row of each category."""
    dur = stream_gaps.gaps.end - stream_gaps.gaps.start
    idle = int(dur.sum())
    for category in GapCategory:
        is_category = stream_gaps.category == category
        own_idle = int(dur[is_category].sum())
        parts = stream_gaps.parts[:, is_category].sum(axis=1).tolist()
        yield Row(
            stream.rank,
            stream.device,
            stream.stream,
            category.name.lower(),
            own_idle,
            int(is_category.sum()),
            own_idle / idle if idle else None,
            parts[OTHER_STREAM_BUSY],
            *parts[:OTHER_STREAM_BUSY],
            *(distribution(dur[is_category]) or (None,) * 7),
        )


def _drawn(name: str, under: int, idle: IdlePieces, arrow_min_gap_ns: int) -> tuple[SliceTrack, Flows]:
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
                is_known &= ~is_longer(np.asarray(other_ns), arg_ns, idle.end - idle.start)
        chosen = np.flatnonzero(is_known)
        stream = idle.evidence["waited_for_stream"] if cause == OTHER_STREAM_BUSY else None
        streams = stream.codes[chosen] if isinstance(stream, Texts) else np.full(len(chosen), -1, np.int32)
        (text_code, number), which = combinations(column.codes[chosen], streams)
        codes[chosen] = len(values) + which
        for text, place in zip(text_code.tolist(), number.tolist(), strict=True):
            known = stream.values[place] if isinstance(stream, Texts) and place >= 0 else "?"
            values.append(template.format(column.values[text], known))
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
    linked = np.flatnonzero((dur >= arrow_min_gap_ns) & (idle.row != NO_INDEX))
    return track, Flows(NAME, "waits for", Ends(idle.row[linked]), Ends(linked, track))
