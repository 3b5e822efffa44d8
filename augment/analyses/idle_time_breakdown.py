"""Why does a stream stand idle between two pieces of its work?

A gap lies between the end of everything before it on the stream and the start of the next piece of GPU work. Each is
of one category, by the work that ends it:

- **host_wait**: the launch of that work *began* after the gap did: the device had run dry and waited for the host.
- **kernel_wait**: it was launched in time, and the gap is shorter than ``consecutive_kernel_delay_ns``: the
  device's own pace from one kernel to the next.
- **other**: it was launched in time and yet started late (it waited for an event, another stream, or memory), or its
  launch is not known.

``idle_ratio`` is the category's share of the idle time of the stream; the time before its first and after its last
work is not counted. The deviation is a sample's (over n - 1), percentiles are interpolated linearly.

The gaps are drawn on ``Idle stream N`` and, for the device as a whole (no stream works), on ``Idle``. A slice has the
``correlation`` of the work that ends it, and what is known of the cause:

- host_wait: ``launch_delay_ns`` (on a stream) from the end of the launch that came late to the work's start, and the
  ``owner``: the operator or annotation in which its thread spent most of the gap (innermost at each moment, summed by
  name; steps do not count), for ``owner_ns``; likewise the ``python_function``, if functions were recorded.
- kernel_wait and other: the ``previous_kernel`` (on a stream), and the ``sync_call`` that overlaps the gap most and
  what it ``waited_for``.

An arrow links each gap of at least ``arrow_min_gap_ns`` with what made the device wait: for host_wait the owner's slice
that took most of the gap, else the function's, else the launch; for the others the ``sync_call``, if there is one.

Options:
    consecutive_kernel_delay_ns: below this a gap between work launched in time is kernel_wait; 30,000 as in HTA.
    arrow_min_gap_ns: gaps shorter than this get no arrow: 100,000 leaves about one for a hundred events.

How HTA's ``get_idle_time_breakdown`` differs: it compares each kernel with the one before it alone, so that overlapping
kernels give negative gaps; it keys streams by number, mixing devices; kernels without a launch count as launched by
the first event of the file; kernels launched by one CUDA graph launch all but one lose their launch; times are rounded
to microseconds; nothing says who made the device wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from augment.annotations import Ends, Flows, SliceTrack, Texts
from augment.derived.gap_causes import KERNEL_DELAY_NS, Cause, GapCategory, causes
from augment.derived.gpu_work import Stream, gpu_work
from augment.derived.launches import NO_ROW
from augment.derived.statistics import distribution
from augment.findings import Findings, column
from augment.trace import GPU_WORK, Diagnostic, Identity, Trace

NAME = "idle_time_breakdown"
NEEDS = (GPU_WORK,)


@dataclass(frozen=True, slots=True)
class Row:
    """One category of gaps on one stream."""

    rank: int | None = column("The rank of the process, if known.")
    device: Identity = column("The device.")
    stream: Identity = column("The stream.")
    category: str = column("host_wait, kernel_wait or other.")
    idle_ns: int = column("Sum of the gaps of this category.", "ns")
    gap_count: int = column("How many gaps of this category there are.", "count")
    idle_ratio: float | None = column("Share of the stream's idle time.", "ratio")
    mean_ns: float | None = column("Mean length of the gaps.", "ns")
    std_ns: float | None = column("Standard deviation of their lengths, of a sample; 0 of one gap.", "ns")
    min_ns: int | None = column("Least length.", "ns")
    p25_ns: float | None = column("First quartile of the lengths.", "ns")
    p50_ns: float | None = column("Median length.", "ns")
    p75_ns: float | None = column("Third quartile of the lengths.", "ns")
    max_ns: int | None = column("Greatest length.", "ns")


ROW = Row


def analyze(
    trace: Trace, *, consecutive_kernel_delay_ns: int = KERNEL_DELAY_NS, arrow_min_gap_ns: int = 100_000
) -> Findings:
    """Divide the gaps of each stream, and draw them with their evidence."""
    work = gpu_work(trace)
    of_streams, of_devices = causes(trace, consecutive_kernel_delay_ns)
    rows = [row for one, cause in zip(work.streams, of_streams, strict=True) for row in _rows(one, cause)]
    drawn = [(f"Idle stream {one.stream}", one.track, cause)
             for one, cause in zip(work.streams, of_streams, strict=True)]  # fmt: skip
    drawn += [("Idle", one.track, cause) for one, cause in zip(work.devices, of_devices, strict=True)]
    annotations = [one for each in drawn if len(each[2].gaps) for one in _drawn(*each, arrow_min_gap_ns)]
    overlapping = sum(one.gaps.overlapping for one in of_streams)
    message = "pieces of GPU work begin before earlier ones on their stream have ended"
    found = [Diagnostic("overlapping_gpu_work", overlapping, message)] if overlapping else []
    return Findings(rows, annotations, found)


def _rows(stream: Stream, cause: Cause) -> Iterator[Row]:
    """The row of each category."""
    dur = cause.gaps.end - cause.gaps.start
    idle = int(dur.sum())
    for category in GapCategory:
        own = dur[cause.category == category]
        own_idle = int(own.sum())
        yield Row(
            stream.rank,
            stream.device,
            stream.stream,
            category.name.lower(),
            own_idle,
            len(own),
            own_idle / idle if idle else None,
            *(distribution(own) or (None,) * 7),
        )


def _drawn(name: str, under: int, cause: Cause, arrow_min_gap_ns: int) -> tuple[SliceTrack, Flows]:
    """The gaps, and the arrows of the long ones."""
    dur = cause.gaps.end - cause.gaps.start
    track = SliceTrack(
        analysis=NAME,
        name=name,
        under=under,
        ts=cause.gaps.start,
        dur=dur,
        names=Texts(cause.category.astype(np.int32), [category.name.lower() for category in GapCategory]),
        args=cause.evidence,
        description="no GPU work runs between two pieces of it",
    )
    linked = np.flatnonzero((dur >= arrow_min_gap_ns) & (cause.row != NO_ROW))
    return track, Flows(NAME, "waits for", Ends(linked, track), Ends(cause.row[linked]))
