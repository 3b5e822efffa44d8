"""How long a launch takes at least: from its call to its work on a stream that is idle."""

from __future__ import annotations

import numpy as np

from augment.arrays.types import Int64s
from augment.derived.gpu.gpu_work import gpu_work
from augment.derived.gpu.launches import NO_ROW
from augment.derived.waits.dependencies import launched_at
from augment.trace import Trace, derived

LONGEST_NS = 30_000  #: no launch takes longer by itself; what starts later found its stream at work, or waited
_LAUNCHES = 256  #: of so many launches, one found its stream idle, unless the host is ahead of the device


@derived
def launch_latencies(trace: Trace) -> Int64s:
    """The latency of the launch of each piece of GPU work, int64 ns, at most :data:`LONGEST_NS`; also of unknown ones.

    It is the least time from a launch to its work among the 256 launches that begin with its own: the fastest of these
    found its stream idle. Where the host is ahead of the device none did, and each took longer than the bound. Only
    launches nearby count, because clocks drift. Only later ones do: what was recorded before a launch does not change
    what is said of it.
    """
    work = gpu_work(trace)
    launched = np.flatnonzero(work.launch != NO_ROW)
    at = launched_at(trace)[launched]
    order = np.argsort(at, kind="stable")
    lag = (work.ts[launched] - at)[order]
    lag[lag <= 0] = LONGEST_NS  # by the clocks the work came first: that tells nothing
    least = np.minimum(lag, LONGEST_NS, out=lag)
    reach = 1
    while reach < _LAUNCHES:
        np.minimum(least[:-reach], least[reach:], out=least[:-reach])
        reach *= 2
    least[-_LAUNCHES:] = least[-_LAUNCHES:][:1]
    found = np.full(len(work), LONGEST_NS, np.int64)
    found[launched[order]] = least
    return found
