"""The launch latency: the least time from a call to the start of its work, as on an idle stream."""

from __future__ import annotations

import numpy as np

from augment.arrays.types import NO_INDEX, Int64s
from augment.core.context import derived
from augment.core.trace import Trace
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.waits.dependencies import launched_at

LONGEST_NS = 30_000  #: the longest possible latency; work that starts later waited for something else
_LAUNCHES = 256  #: among so many launches, at least one finds its stream idle, unless the host is ahead of the device


@derived(until="critical path")
def launch_latencies(trace: Trace) -> Int64s:
    """The latency of the launch of each piece of GPU work, int64 ns, at most :data:`LONGEST_NS`, also if it is unknown.

    It is the least time from a launch to its work among the 256 launches that begin with its own. The fastest of these
    found its stream idle. If the host is ahead of the device, none did, and each took longer than the bound. Only
    launches nearby count, because clocks drift. Only later launches count, so that what was recorded before a launch
    does not change its latency.
    """
    work = gpu_work(trace)
    launched = np.flatnonzero(work.launch != NO_INDEX)
    at = launched_at(trace)[launched]
    order = np.argsort(at, kind="stable")
    lag = (work.ts[launched] - at)[order]
    lag[lag <= 0] = LONGEST_NS  # by the clocks the work came first: no information
    least = np.minimum(lag, LONGEST_NS, out=lag)
    reach = 1
    while reach < _LAUNCHES:
        np.minimum(least[:-reach], least[reach:], out=least[:-reach])
        reach *= 2
    least[-_LAUNCHES:] = least[-_LAUNCHES:][:1]
    latencies = np.full(len(work), LONGEST_NS, np.int64)
    latencies[launched[order]] = least
    return latencies
