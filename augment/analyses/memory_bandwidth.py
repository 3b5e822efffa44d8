"""How fast do copies and memsets move data?

There is a row for each device and kind of copy (``Memcpy HtoD``, ``Memcpy DtoH``, ``Memcpy DtoD``, ``Memset``, …; other
names are ``Memcpy Unknown``): the number of copies, their bytes, the time in which at least one ran (``busy_ns``), and
the bandwidth. A copy's bandwidth is its bytes over its duration, in GB/s (1e9 bytes per second). Where copies of a kind
overlap on a device, their bandwidths add up. The series is a counter track, such as ``Memcpy HtoD bandwidth``, that
falls to 0 when no such copy runs.

The statistics describe that series, weighted by time, over the time in which it is above 0. A copy has no bandwidth if
its bytes are unknown or 0, if it takes no time, or if it would be faster than any memory (a broken clock). Such copies
are counted and left out; a kind that has no others has no statistics.

**What to do**: copies between host and device below 10 GB/s usually come from pageable memory: ``pin_memory=True``.
Many small copies: join them.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import numpy.typing as npt

from augment import facts
from augment.arrays import intervals, time_weighted
from augment.core import GPU_WORK, CounterTrack, Diagnostic, Findings, OfDevice, Skipped, Trace, column

NAME = "memory_bandwidth"
NEEDS = (GPU_WORK,)


class Row(OfDevice, frozen=True):
    """One kind of copy on one device."""

    kind: Annotated[str, column("The kind of copy.")]
    count: Annotated[int, column("Number of copies of the kind.", "count")]
    bytes: Annotated[int, column("Sum of their bytes, where known.", "bytes")]
    busy_ns: Annotated[int, column("Time in which at least one of them ran.", "ns")]
    mean_gbps: Annotated[float | None, column("Mean bandwidth while copying, weighted by time.", "GB/s")]
    p25_gbps: Annotated[float | None, column("Bandwidth not exceeded for a quarter of the time spent copying.", "GB/s")]
    p50_gbps: Annotated[float | None, column("Bandwidth not exceeded for half of the time spent copying.", "GB/s")]
    p75_gbps: Annotated[
        float | None, column("Bandwidth not exceeded for three quarters of the time spent copying.", "GB/s")
    ]
    max_gbps: Annotated[float | None, column("Greatest bandwidth.", "GB/s")]


def analyze(trace: Trace) -> Findings | Skipped:
    """Compute the bandwidth of each kind of copy on each device over time."""
    rates = facts.gpu.rates(trace)
    if not rates:
        return Skipped("no copy and no memset")
    rows, work = [], facts.gpu.work(trace)
    for rate in rates:
        copying = rate.rate[:-1] > 0
        gbps: npt.NDArray[np.float64] = rate.rate[:-1][copying] / 1e9
        weighted = time_weighted(gbps, np.diff(rate.ts)[copying])
        rows.append(
            Row(
                rank=rate.device.rank,
                device=rate.device.device,
                kind=rate.kind,
                count=len(rate.places),
                bytes=rate.bytes,
                busy_ns=intervals.total(intervals.union(work.ts[rate.places], work.end[rate.places])),
                mean_gbps=weighted and weighted.mean,
                p25_gbps=weighted and weighted.p25,
                p50_gbps=weighted and weighted.p50,
                p75_gbps=weighted and weighted.p75,
                max_gbps=float(gbps.max()) if weighted else None,
            )
        )
    tracks = [
        CounterTrack(
            analysis=NAME,
            name=f"{rate.kind} bandwidth",
            under=rate.device.track,
            ts=rate.ts,
            values=rate.rate / 1e9,
            unit="GB/s",
            description="sum over the running copies of this kind",
            scale="host link" if "HtoD" in rate.kind or "DtoH" in rate.kind else "device memory",
        )
        for rate in rates
        if len(rate.ts)
    ]
    unknown = sum(rate.without for rate in rates)
    message = "copies without bytes or a duration, or faster than any memory (no bandwidth)"
    return Findings(rows, tracks, [Diagnostic("copy_without_bandwidth", unknown, message)] if unknown else [])
