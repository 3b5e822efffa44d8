"""Which collectives ran, how many bytes did they move, how fast, and how much of their time was exposed?

Every communication kernel is a collective of a process group. There is a row for each device, group and kind::

    algorithm_gbps = bytes / time_ns                      over the collectives whose bytes are known
    bus_gbps       = algorithm_gbps · factor              2(n-1)/n for an all-reduce of n ranks, (n-1)/n for all-gather,
                                                          reduce-scatter and all-to-all, 1 for broadcast, reduce, send

``bytes`` and the factors follow nccl-tests (1 GB = 1e9 bytes). The bytes of an all-reduce are its buffer, those of a
reduce-scatter its whole input, those of an all-gather its whole output. Group, bytes and element type come from the
args of the kernels, or of the operators that launched them if shapes were recorded. Without these args, group and bytes
are unknown, and the kind comes from the host's annotation or operator, else from the kernel's name (NCCL once called
all of them ``SendRecv``).

The trace of one rank does not distinguish moving data from waiting for a late rank. The bandwidth here covers both, so
it is a lower bound of what the links carried. The figures of a whole job (``job.metrics.json``) separate the two. The
bus bandwidth of each group is drawn on a track ``Bus bandwidth LABEL``, where LABEL is the group's description, or its
name if it has none.

**What to do**: a low bus bandwidth with large messages: look at the link and at NCCL's choice (``NCCL_DEBUG=INFO``);
with small messages: join them. Long collectives of equal size wait for a late rank: compare the ranks of the
[job](jobs.md).

Options:
    link_gbps: what a rank's link can carry in one direction, GB/s, for comparison with ``bus_gbps``; 0: not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np

from augment import facts
from augment.arrays import Places, combinations, each, intervals
from augment.core import GPU_WORK, CounterTrack, Findings, OfDevice, Skipped, Trace, column

NAME = "collectives"
NEEDS = (GPU_WORK,)


class Row(OfDevice, frozen=True):
    """One kind of collective of one process group on one device."""

    group: Annotated[str, column("The name of the process group; empty if not recorded.")]
    description: Annotated[str, column("The description that the program gave to the group; empty if not recorded.")]
    kind: Annotated[str, column("AllReduce, AllGather, ReduceScatter, AllToAll, Broadcast, Send or another kind.")]
    group_size: Annotated[int | None, column("Number of ranks in the group, if recorded.", "count")]
    count: Annotated[int, column("Number of collectives.", "count")]
    bytes: Annotated[
        int | None, column("Bytes that they moved, as nccl-tests counts; none unless all are recorded.", "bytes")
    ]
    time_ns: Annotated[int, column("Sum of their durations, which include waiting for other ranks.", "ns")]
    exposed_ns: Annotated[int, column("The part of time_ns in which the device computed nothing.", "ns")]
    mean_ns: Annotated[float, column("Their mean duration.", "ns")]
    max_ns: Annotated[int, column("The longest duration.", "ns")]
    algorithm_gbps: Annotated[
        float | None, column("Bytes per time, over the collectives whose bytes are known.", "GB/s")
    ]
    bus_gbps: Annotated[float | None, column("Bus bandwidth: algorithm_gbps times the factor of the kind.", "GB/s")]
    link_gbps: Annotated[float | None, column("What a rank's link can carry: the option link_gbps.", "GB/s")]
    efficiency_ratio: Annotated[float | None, column("bus_gbps divided by link_gbps.", "ratio")]


def analyze(trace: Trace, *, link_gbps: float = 0.0) -> Findings | Skipped:
    """Add up and draw the collectives of each device."""
    if not len(facts.collectives.kernels(trace)):
        return Skipped("no communication kernel")
    rows: list[Row] = []
    tracks: list[CounterTrack] = []
    known = facts.collectives.kernels(trace)
    for device in facts.gpu.work(trace).devices:
        rows += _rows(known, device, link_gbps)
        about = "bytes times nccl-tests' factor, divided by the duration of each collective, waits included"
        # the bus bandwidth of each group while its collectives run, for groups where it is known
        usable = _of(known, device)
        factor = known.bus_factor
        usable = usable[(known.bytes[usable] > 0) & (known.end[usable] > known.ts[usable]) & ~np.isnan(factor[usable])]
        for group, index in each(known.group[usable], len(known.groups)):
            places = usable[index]
            dur = known.end[places] - known.ts[places]
            rate = np.rint(known.bytes[places] * factor[places] * 1e9 / dur).astype(np.int64)
            ends = np.concatenate((known.ts[places], known.end[places]))
            ts, value = intervals.steps(ends, np.concatenate((rate, -rate)))  # integers: sums return to 0 exactly
            tracks.append(
                CounterTrack(
                    analysis=NAME,
                    name=f"Bus bandwidth {known.groups[group].description or known.groups[group].name}",
                    under=device.track,
                    ts=ts,
                    values=value / 1e9,
                    unit="GB/s",
                    description=about,
                    scale="bus bandwidth",
                )
            )
    return Findings(rows, tracks, facts.source.args(trace).diagnostics(facts.collectives.ARGS))


def _of(known: facts.collectives.Collectives, device: facts.gpu.Device) -> Places:
    return np.flatnonzero((known.place >= device.start) & (known.place < device.stop))


def _rows(known: facts.collectives.Collectives, device: facts.gpu.Device, link_gbps: float) -> Iterator[Row]:
    indexes = _of(known, device)
    (groups, kinds), which = combinations(known.group[indexes], known.kind.codes[indexes])
    for number, places in each(which, len(groups)):
        chosen, kind, of = indexes[places], known.kind.values[int(kinds[number])], known.groups[int(groups[number])]
        dur, size = known.end[chosen] - known.ts[chosen], known.bytes[chosen]
        time_ns = int(dur.sum())
        sized = (size >= 0) & (dur > 0)
        algorithm = float(size[sized].sum() / dur[sized].sum()) if size[sized].any() else None
        factor = facts.names.bus_factor(kind, of.size)
        bus = None if algorithm is None or factor is None else algorithm * factor
        yield Row(
            rank=device.rank,
            device=device.device,
            group=of.name,
            description=of.description,
            kind=kind,
            group_size=of.size if of.size >= 0 else None,
            count=len(chosen),
            bytes=int(size.sum()) if (size >= 0).all() else None,
            time_ns=time_ns,
            exposed_ns=int(known.exposed_ns[chosen].sum()),
            mean_ns=time_ns / len(chosen),
            max_ns=int(dur.max()),
            algorithm_gbps=algorithm,
            bus_gbps=bus,
            link_gbps=link_gbps or None,
            efficiency_ratio=bus / link_gbps if bus is not None and link_gbps else None,
        )
