"""How busy was each device, how far was the host ahead, and how much memory was allocated, from moment to moment?

The span from the first launch or piece of GPU work to the end of the last is cut into equal parts, at most as many as
nanoseconds; a row for each device and part. ``busy_ns`` is the time in which any work ran on the device. For the
queues of the device's streams ([`queue_length`](#queue_length)) and of its allocator's totals, a
part has the greatest value that held at any moment of it; memory before the first event is not known. A
[memory snapshot](#memory_snapshot) with times gives the totals where the trace has none. Alone it has rows without the
other figures, from its first action to its last.

The rows are a picture of the whole trace in little: the exact curves are drawn by `queue_length`, `memory_profile` and
`idle_time_breakdown`.

Options:
    part_count: how many parts, at most; never more than 10,000.

**What to do**: look for stretches in which a device is less busy than elsewhere. If its queue is empty there, the host
was late; if memory falls and rises there, the allocator returned memory to the device.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from augment import facts
from augment.arrays import NO_INDEX, NO_VALUE, Int64s, distinct
from augment.core import GPU_WORK, Category, Findings, OfDevice, Skipped, Trace, column

NAME = "activity_over_time"
NEEDS: tuple[tuple[Category, ...], ...] = ()  # GPU work, or a memory snapshot
MOST_PARTS = 10_000


class Row(OfDevice, frozen=True):
    """One part of the span, on one device."""

    part: Annotated[int, column("The number of the part, from 0.")]
    start_ns: Annotated[int, column("Its start, after the first event of the trace.", "ns")]
    dur_ns: Annotated[int, column("Its length.", "ns")]
    busy_ns: Annotated[int | None, column("Time in which any work ran on the device.", "ns")]
    launch_count: Annotated[int | None, column("Calls that launched work of the device and began in it.", "count")]
    queued_count: Annotated[int | None, column("Greatest queue length of any of its streams.", "count")]
    allocated_bytes: Annotated[int | None, column("Greatest sum of allocated memory.", "bytes")]
    reserved_bytes: Annotated[int | None, column("Greatest sum of memory that the allocator held.", "bytes")]


def analyze(trace: Trace, *, part_count: int = 120) -> Findings | Skipped:
    """Measure each part on each device."""
    work = facts.gpu.work(trace)
    rows: list[Row] = []
    if not len(work.ts):
        played = replays(trace)
        if not played:
            return Skipped.without(GPU_WORK)
        start = min(int(each.ts[0]) for each in played)
        edges = edges_of(start, max(int(each.ts[-1]) for each in played) - start, part_count)
        starts, dur = (edges[:-1] - edges[0]).tolist(), np.diff(edges).tolist()
        for each in played:
            allocated, reserved = (
                _greatest(each.ts, level[1:], edges, int(level[0])).tolist()
                for level in (each.allocated, each.reserved)
            )
            for part, (begin, length, *bytes_) in enumerate(zip(starts, dur, allocated, reserved, strict=True)):
                rows.append(Row(trace.rank, each.device, part, begin, length, None, None, None, *bytes_))
        return Findings(rows)
    launched = work.launch[work.launch != NO_INDEX]
    start = min(int(work.ts.min()), int(trace.events.ts[launched].min()) if len(launched) else int(work.ts.min()))
    span = int(work.end.max()) - start
    if span <= 0:
        return Skipped("all GPU work is at one moment")
    edges = edges_of(start, span, part_count)
    for coverage in facts.gpu.coverage(trace):
        device = coverage.device
        where = device.rank, device.device
        queues = [queue for queue in facts.gpu.queues(trace) if (queue.stream.rank, queue.stream.device) == where]
        queued = np.max([_greatest(each.ts, each.length, edges, 0) for each in queues], axis=0) if queues else None
        launched = work.launch[device.places]
        ts = trace.events.ts[distinct(launched[launched != NO_INDEX].astype(np.int64, copy=False))]  # which ascend
        columns = (
            edges[:-1] - trace.events.ts[0],
            np.diff(edges),
            coverage.time_within(
                edges[:-1], edges[1:], any_of=facts.gpu.COMPUTATION | facts.gpu.COMMUNICATION | facts.gpu.MEMORY
            ),
            np.diff(np.searchsorted(ts, edges)),
            queued,
            *_memory(trace, device, edges),
        )
        values = [[None] * (len(edges) - 1) if values is None else values.tolist() for values in columns]
        for part, (begin, dur, busy, launches, *optional) in enumerate(zip(*values, strict=True)):
            known = (None if value == NO_VALUE else value for value in optional)
            rows.append(Row(device.rank, device.device, part, begin, dur, busy, launches, *known))
    return Findings(rows)


def edges_of(start: int, span: int, part_count: int) -> Int64s:
    """Where parts begin, and the last ends."""
    count = max(min(part_count, span, MOST_PARTS), 1)
    return start + (np.arange(count + 1, dtype=np.int64) * span) // count


def replays(trace: Trace) -> list[facts.memory.MemoryReplay]:
    """What a memory snapshot of this recording says of devices, if it has times."""
    held = facts.memory.held_memory(trace)
    known = held.devices if isinstance(held, facts.memory.Held) and held.snapshot.has_times else ()
    return [each for each in known if len(each.rows)]


def _memory(trace: Trace, device: facts.gpu.Device, edges: Int64s) -> tuple[Int64s | None, Int64s | None]:
    devices = facts.memory.devices(trace)
    where = device.rank, device.device
    memory = next((memory for memory in devices if memory.on_stream and (memory.rank, memory.device) == where), None)
    if memory is None:
        played = next((each for each in replays(trace) if each.device == device.device), None)
        return (None, None) if played is None else (
            _greatest(played.ts, played.allocated[1:], edges, NO_VALUE),
            _greatest(played.ts, played.reserved[1:], edges, NO_VALUE),
        )  # fmt: skip
    reserved = memory.reserved
    return (
        _greatest(memory.ts, memory.allocated, edges, NO_VALUE),
        None if reserved is None else _greatest(memory.ts, reserved, edges, NO_VALUE),
    )


def _greatest(ts: Int64s, values: Int64s, edges: Int64s, before: int) -> Int64s:
    """The greatest value that a stepping series has in each part; ``before`` holds until its first change."""
    held = np.concatenate(([before], values, [before]))
    first = np.searchsorted(ts, edges[:-1], "right")  # the value that holds at the start of the part
    stop = np.maximum(np.searchsorted(ts, edges[1:], "left") + 1, first + 1)
    most: Int64s = np.maximum.reduceat(held, np.stack((first, stop), axis=1).ravel())[::2]
    return most
