"""How much work waits on each stream: does the host keep ahead of the device?

The queue of a stream holds what was launched and has not yet started. It grows by one when a call launches work onto
the stream (at the call's start) and shrinks by one when that work begins. An empty queue means that the device waits
for the host; so does one that holds only what a launch call in progress launches, which counts already. At a full queue
(:data:`FULL_QUEUE`) calls wait for room. Event records and the like take places, too, and are in no trace: it may be
full at a lower length. So ``room_wait_ns`` is the time of calls that began with 1023 waiting, or with 512 and more,
took 30 µs and more, and returned within 10 µs of the begin of work. Work that began before its launch, by the clocks,
counts as launched then. Work without a known launch is left out. The series is a counter track ``Queue Length …``.

All statistics are weighted by time, from the first change to the last. A stream whose queue changes at only one moment
has none. A percentile is the least length that the queue does not exceed for that share of the time.

**What to do**: a queue that is mostly empty means that the host is the bottleneck: see `idle_time_breakdown`. A full
queue makes launches wait, which does no harm.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from augment import facts
from augment.arrays import changing, time_weighted, total, union
from augment.core import GPU_WORK, LAUNCHES, CounterTrack, Findings, Identity, OfDevice, Skipped, Trace, column

NAME = "queue_length"
NEEDS = (GPU_WORK, LAUNCHES)
FULL_QUEUE = 1024  #: CUDA's limit of waiting launches per stream; the next call blocks


class Row(OfDevice, frozen=True):
    """One stream."""

    stream: Annotated[Identity, column("The stream.")]
    mean: Annotated[float | None, column("Mean queue length, weighted by time.", "count")]
    std: Annotated[float | None, column("Standard deviation of the queue length, weighted by time.", "count")]
    p25: Annotated[float | None, column("Queue length not exceeded for a quarter of the time.", "count")]
    p50: Annotated[float | None, column("Queue length not exceeded for half of the time.", "count")]
    p75: Annotated[float | None, column("Queue length not exceeded for three quarters of the time.", "count")]
    max: Annotated[int, column("Greatest queue length.", "count")]
    full_queue_ns: Annotated[int, column("Time at a queue length of 1024 or more.", "ns")]
    room_wait_ns: Annotated[int, column("Time in which calls that launch waited for room in the queue.", "ns")]


def analyze(trace: Trace) -> Findings | Skipped:
    """Compute the queue length of each stream over time."""
    queues = facts.gpu.queues(trace)
    if not queues:
        return Skipped("no GPU work whose correlation names a launch")
    waits, rows, tracks = facts.waits.full_queues(trace), [], []
    for queue in queues:
        held = np.diff(queue.ts)
        work = waits.dependencies.from_work  # that began, and so made room
        of_stream = (work >= queue.stream.start) & (work < queue.stream.stop)
        weighted = time_weighted(queue.length[:-1], held)
        rows.append(
            Row(
                rank=queue.stream.rank,
                device=queue.stream.device,
                stream=queue.stream.stream,
                mean=weighted and weighted.mean,
                std=weighted and weighted.std,
                p25=weighted and weighted.p25,
                p50=weighted and weighted.p50,
                p75=weighted and weighted.p75,
                max=int(queue.length.max()),
                full_queue_ns=int(held[queue.length[:-1] >= FULL_QUEUE].sum()),
                room_wait_ns=total(union(waits.start[of_stream], waits.end[of_stream])),
            )
        )
        # the points at which the length changes, plus the first and the last
        keep = changing(queue.length)
        tracks.append(
            CounterTrack(
                analysis=NAME,
                name=f"Queue Length stream {queue.stream.stream}",
                under=queue.stream.track,
                ts=queue.ts[keep],
                values=queue.length[keep],
                unit="operations",
                description="operations launched and not yet started, each kernel of a graph; from the call's start",
                scale="operations",
            )
        )
    return Findings(rows, tracks, facts.gpu.launch_diagnostics(trace))
