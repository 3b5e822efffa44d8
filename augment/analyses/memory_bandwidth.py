"""How fast do copies and memsets move data?

For each device and kind of copy (``Memcpy HtoD``, ``Memcpy DtoH``, ``Memcpy DtoD``, ``Memset``, …; other names are
``Memcpy Unknown``): how many there were, their bytes, the time in which at least one ran (``busy_ns``), and the
bandwidth. A copy's bandwidth is its bytes over its duration, in GB/s (1e9 bytes per second); where copies of a kind
overlap on a device their bandwidths add. The series is a counter track, ``Memcpy HtoD bandwidth`` and the like, that
falls to 0 when nothing runs.

The statistics are of that series, weighted by time, over the time in which it is above 0. Copies whose bytes are
unknown or 0, that take no time, or that would be faster than any memory (a broken clock) have no bandwidth: they are
counted and left out, and a kind that has none but those has no statistics.

How HTA's ``get_memory_bw_summary`` differs: it describes the *points* of the series, not the time, adds up the copies
of several devices, takes a duration of 1 us where rounding left none, and adds and subtracts floats, so that the
counter never returns to 0 exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from augment import intervals
from augment.annotations import CounterTrack
from augment.derived.gpu_work import Device, GpuWork, gpu_work
from augment.derived.kernel_types import KernelType, copy_kind
from augment.derived.statistics import time_weighted
from augment.findings import Findings, Skipped, column
from augment.intervals import Places
from augment.trace import GPU_WORK, Diagnostic, Identity, Int64s, Trace

NAME = "memory_bandwidth"
NEEDS = (GPU_WORK,)
FASTEST = 10**15  #: bytes per second; no memory comes near, and sums of a thousand such still fit int64


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of copy on one device."""

    rank: int | None = column("The rank of the process, if known.")
    device: Identity = column("The device.")
    kind: str = column("The kind of copy.")
    count: int = column("How many copies of the kind there were.", "count")
    bytes: int = column("Sum of their bytes, as far as known.", "bytes")
    busy_ns: int = column("Time in which at least one of them ran.", "ns")
    mean_gbps: float | None = column("Mean bandwidth while copying, weighted by time.", "GB/s")
    p25_gbps: float | None = column("Bandwidth not exceeded for a quarter of the time spent copying.", "GB/s")
    p50_gbps: float | None = column("Bandwidth not exceeded for half of the time spent copying.", "GB/s")
    p75_gbps: float | None = column("Bandwidth not exceeded for three quarters of the time spent copying.", "GB/s")
    max_gbps: float | None = column("Greatest bandwidth.", "GB/s")


ROW = Row


def analyze(trace: Trace) -> Findings | Skipped:
    """Follow the bandwidth of each kind of copy on each device."""
    work = gpu_work(trace)
    rows: list[Row] = []
    tracks: list[CounterTrack] = []
    unknown = 0
    for device in work.devices:
        places = work.by_time[device.places]
        copies = places[work.type[places] == KernelType.MEMORY]
        for kind, chosen in _kinds(trace, work, copies):
            size = _sizes(trace, work.row[chosen])
            ts, rate, without = _series(work.ts[chosen], work.end[chosen], size)
            unknown += without
            rows.append(_row(device, kind, work, chosen, int(size.sum()), ts, rate))
            if len(ts):
                tracks.append(_track(device, kind, ts, rate))
    if not rows:
        return Skipped("no copy and no memset")
    message = "copies without bytes or a duration, or faster than any memory, have no bandwidth"
    return Findings(rows, tracks, [Diagnostic("copy_without_bandwidth", unknown, message)] if unknown else [])


def _kinds(trace: Trace, work: GpuWork, copies: Places) -> list[tuple[str, Places]]:
    """The kinds of ``copies``, ascending, and which are of each; every name is asked once."""
    names, which = np.unique(trace.events.name[work.row[copies]], return_inverse=True)
    kind_of_name = [copy_kind(trace.strings[name]) for name in names.tolist()]
    kinds = sorted(set(kind_of_name))
    code = np.array([kinds.index(kind) for kind in kind_of_name], np.intp)[which]
    return [(kind, copies[code == index]) for index, kind in enumerate(kinds)]


def _sizes(trace: Trace, rows: Int64s) -> Int64s:
    """The bytes of each of ``rows``, 0 where unknown."""
    order = np.argsort(rows, kind="stable")  # ascending rows are found faster
    size = np.empty(len(rows), np.int64)
    size[order] = trace.events.bytes.at(rows[order], 0)
    return np.maximum(size, 0)


def _series(start: Int64s, end: Int64s, size: Int64s) -> tuple[Int64s, Int64s, int]:
    """The bandwidth after every change, in whole bytes per second, so that it falls to 0 exactly; how many lack one."""
    rate = size / np.maximum(end - start, 1) * 1e9
    known = (size > 0) & (end > start) & (rate < FASTEST)
    change = np.rint(rate[known]).astype(np.int64)
    ts, value = intervals.steps(np.concatenate((start[known], end[known])), np.concatenate((change, -change)))
    return ts, value, len(known) - int(known.sum())


def _row(device: Device, kind: str, work: GpuWork, chosen: Places, size: int, ts: Int64s, rate: Int64s) -> Row:
    copying = rate[:-1] > 0
    gbps: npt.NDArray[np.float64] = rate[:-1][copying] / 1e9
    weighted = time_weighted(gbps, np.diff(ts)[copying])
    return Row(
        rank=device.rank,
        device=device.device,
        kind=kind,
        count=len(chosen),
        bytes=size,
        busy_ns=intervals.total(intervals.union(work.ts[chosen], work.end[chosen])),
        mean_gbps=weighted and weighted.mean,
        p25_gbps=weighted and weighted.p25,
        p50_gbps=weighted and weighted.p50,
        p75_gbps=weighted and weighted.p75,
        max_gbps=float(gbps.max()) if weighted else None,
    )


def _track(device: Device, kind: str, ts: Int64s, rate: Int64s) -> CounterTrack:
    return CounterTrack(
        analysis=NAME,
        name=f"{kind} bandwidth",
        under=device.track,
        ts=ts,
        values=rate / 1e9,
        unit="GB/s",
        description="sum over the copies of this kind that run",
        scale="host link" if "HtoD" in kind or "DtoH" in kind else "device memory",
    )
