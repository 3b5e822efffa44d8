"""Which launches are outliers?

The rows are the calls that `launch_statistics` counts, by name. For each device and ``kind`` the worst come first:

- ``short_kernel``: the call took longer than the work; the worst is the one that lost most time.
- ``runtime_outlier``: the call took longer than ``runtime_cutoff_ns``.
- ``launch_delay_outlier``: the work began more than ``launch_delay_cutoff_ns`` after the end of the call.

A row is a call. If the call launched several pieces of work (a CUDA graph), ``name`` and ``launch_delay_ns`` are those
of the first to begin, and ``gpu_ns`` is the sum over all, so a graph is short only if all of it is. A call may be of
several kinds.

Each row is drawn, named after its ``kind``. A track ``Launch outliers`` under the thread has a slice over each call
that took long. A track ``Launch outliers stream N`` has a slice over each piece of work that began late.

**What to do**: look at the operator around each outlier, and at what the device did: delays after a launch are waits
on the device, long calls are waits on the host.

Options:
    runtime_cutoff_ns: a longer call is a runtime outlier.
    launch_delay_cutoff_ns: a longer wait is a launch-delay outlier.
    include_memory_events: whether copies and memsets count.
    most_count: the greatest number of rows per kind and device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from augment import facts
from augment.arrays import NO_INDEX, Int32s, Int64s, distinct, each, run_starts
from augment.core import GPU_WORK, LAUNCHES, Category, Findings, Identity, Skipped, SliceTrack, Texts, Trace, column

NAME = "launch_outliers"
NEEDS = (GPU_WORK, LAUNCHES)


class Row(Struct, frozen=True):
    """One call."""

    rank: Annotated[int | None, column("The rank of the process, if known.")]
    device: Annotated[Identity, column("The device.")]
    stream: Annotated[Identity, column("The stream of the first work.")]
    kind: Annotated[str, column("One of short_kernel, runtime_outlier and launch_delay_outlier.")]
    name: Annotated[str, column("The kernel, copy or memset; of several, the first to begin.")]
    launch_name: Annotated[str, column("The call that launched it.")]
    operator: Annotated[
        str | None, column("The innermost operator that encloses the call, or that put it on a queue, if any.")
    ]
    correlation: Annotated[int, column("The correlation that the call and its work share in the trace.")]
    ts_ns: Annotated[int, column("Start of the call, from the start of the trace.", "ns")]
    cpu_ns: Annotated[int, column("Duration of the call.", "ns")]
    gpu_ns: Annotated[int, column("Duration of the work; of several pieces, the sum.", "ns")]
    launch_delay_ns: Annotated[int, column("From the end of the call to the start of the work.", "ns")]


KINDS = ("short_kernel", "runtime_outlier", "launch_delay_outlier")
LATE = 2


def analyze(
    trace: Trace,
    *,
    runtime_cutoff_ns: int = 50_000,
    launch_delay_cutoff_ns: int = 100_000,
    include_memory_events: bool = True,
    most_count: int = 100,
) -> Findings | Skipped:
    """List and draw the worst launches of each kind."""
    work, delays = facts.gpu.work(trace), facts.gpu.delays(trace)
    if not len(delays):
        return Skipped("no GPU work whose correlation names a launch")
    if not include_memory_events:
        delays = delays.take(trace.events.category[work.row[delays.place]] == Category.KERNEL)
    parts: list[facts.gpu.LaunchDelays] = []
    kinds: list[int] = []
    for device in work.devices:
        # one row per call: its first piece of work, with the sum of ``gpu_ns``
        calls = delays.take(slice(*np.searchsorted(delays.place, (device.start, device.stop))))
        if len(distinct(calls.row)) < len(calls):  # graphs; this check is cheaper than sorting
            order = np.argsort(work.ts[calls.place], kind="stable")
            calls = calls.take(order[np.argsort(calls.row[order], kind="stable")])
            first = run_starts(calls.row)
            calls = replace(calls.take(first), gpu_ns=np.add.reduceat(calls.gpu_ns, first))
        over = (calls.cpu_ns - calls.gpu_ns, calls.cpu_ns - runtime_cutoff_ns, calls.delay_ns - launch_delay_cutoff_ns)
        for kind, ns in enumerate(over):
            # those with the most beyond it, greatest first
            above = np.flatnonzero(ns > 0)
            if len(above) > most_count > 0:  # sorts only the candidates
                above = above[ns[above] >= np.partition(ns[above], -most_count)[-most_count]]
            worst = calls.take(above[np.argsort(-ns[above], kind="stable")][:most_count])
            parts.append(worst)
            kinds += [kind] * len(worst)
    columns = ([getattr(part, name) for part in parts] for name in facts.gpu.LaunchDelays.__struct_fields__)
    calls, kind_of = facts.gpu.LaunchDelays(*map(np.concatenate, columns)), np.array(kinds, np.int32)
    # slices over calls that took long (under their threads) and over work that began late (under its streams)
    events, tracks = trace.events, []
    on_host = np.flatnonzero(kind_of != LATE)
    thread = events.track[calls.row[on_host]]
    for track, member in each(thread, len(trace.tracks)):
        rows = on_host[member]
        drawn = calls.take(rows)
        tracks.append(_track(trace, "Launch outliers", track, events.ts[drawn.row], drawn.cpu_ns, drawn, kind_of[rows]))
    late = np.flatnonzero(kind_of == LATE)
    for index, member in each(work.stream_of(calls.place[late]), len(work.streams)):
        stream, rows = work.streams[index], late[member]
        drawn = calls.take(rows)
        ts, dur = work.ts[drawn.place], work.end[drawn.place] - work.ts[drawn.place]
        name = f"Launch outliers stream {stream.stream}"
        tracks.append(_track(trace, name, stream.track, ts, dur, drawn, kind_of[rows]))
    return Findings(list(_rows(trace, calls, kinds)), tracks)


def _rows(trace: Trace, calls: facts.gpu.LaunchDelays, kinds: list[int]) -> Iterator[Row]:
    work, events = facts.gpu.work(trace), trace.events
    operator = facts.host.operators_around(trace, calls.row)
    rows = zip(
        (work.streams[index] for index in work.stream_of(calls.place).tolist()),
        (KINDS[kind] for kind in kinds),
        trace.names_of(work.row[calls.place]),
        trace.names_of(calls.row),
        (trace.strings[events.name[row]] if row != NO_INDEX else None for row in operator.tolist()),
        events.correlation[calls.row].tolist(),
        (events.ts[calls.row] - events.ts[:1]).tolist(),
        calls.cpu_ns.tolist(),
        calls.gpu_ns.tolist(),
        calls.delay_ns.tolist(),
        strict=True,
    )
    for stream, kind, *rest in rows:
        yield Row(stream.rank, stream.device, stream.stream, kind, *rest)


def _track(
    trace: Trace, name: str, under: int, ts: Int64s, dur: Int64s, drawn: facts.gpu.LaunchDelays, kind: Int32s
) -> SliceTrack:
    """Slices named after their kind. Where slices overlap, each ends at the start of the next."""
    order = np.lexsort((-kind, -dur, ts))  # of a call of both kinds, the short kernel lies within the outlier
    ts, dur, drawn = ts[order], dur[order], drawn.take(order)
    room = np.append(ts, np.iinfo(np.int64).max)[np.searchsorted(ts, ts, side="right")] - ts
    row, events = facts.gpu.work(trace).row[drawn.place], trace.events
    return SliceTrack(
        analysis=NAME,
        name=name,
        under=under,
        ts=ts,
        dur=np.clip(dur, 0, room),
        names=Texts(kind[order], KINDS),
        args={
            "kernel": Texts(events.name[row], trace.strings),
            "launch": Texts(events.name[drawn.row], trace.strings),
            "correlation": events.correlation[drawn.row],
            "cpu_ns": drawn.cpu_ns,
            "gpu_ns": drawn.gpu_ns,
            "launch_delay_ns": drawn.delay_ns,
        },
        description="launch outliers: calls that took long, work that began late",
    )
