"""Launches that hand their work over late: within a call that takes long, as the first use of a kernel does."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from augment.arrays.types import Int64s
from augment.core.trace import Trace
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.waits.dependencies import UNEXPLAINED_NS, CallWaits
from augment.facts.waits.launch_latencies import LONGEST_NS, launch_latencies


def slow_launches(trace: Trace, launches: CallWaits, known: Int64s, inferred: CallWaits) -> CallWaits:
    """``launches``, with those that took long moved to the moment at which they handed over their work.

    An ordinary call hands its work over at once, so its start counts as the launch. But a call may hold the work back:
    it creates a context, loads a kernel, or waits for a lock. Then the work starts late although nothing else kept it,
    and the time until then is time of the call, without which the work would have started as much earlier. The moment
    is a launch latency before the work starts, but at most the return of the call.

    A call counts as such if it takes longer than the longest latency, and its work starts more than
    ``UNEXPLAINED_NS`` after all prerequisites that are known, and not because of another stream.

    Args:
        trace: the trace of the work.
        launches: what ``launches_of_work`` returned.
        known: int64 ns: when the last known prerequisite of each piece of work was fulfilled.
        inferred: what ``unexplained_starts`` returned.
    """
    work, events, edges = gpu_work(trace), trace.events, launches.dependencies
    explained = np.zeros(len(work), np.bool_)
    explained[inferred.dependencies.to_work] = True
    place, call = edges.to_work, edges.from_row
    slow = (events.dur[call] > LONGEST_NS) & (work.ts[place] - known[place] > UNEXPLAINED_NS) & ~explained[place]
    returned = events.ts[call] + events.dur[call]
    handed = np.minimum(returned, work.ts[place] - launch_latencies(trace)[place])
    moment = np.where(slow, np.maximum(edges.from_ts, handed), edges.from_ts)
    return replace(launches, dependencies=replace(edges, from_ts=moment))
