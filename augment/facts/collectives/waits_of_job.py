"""What a rank's collectives spent waiting for late ranks, as the traces of the other ranks tell it.

Only a timeline or a diagnosis of a whole job knows (:class:`~augment.core.job_waits.JobWaits`); without it, nothing is
said to be waiting.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from augment.arrays.columns import looked_up
from augment.arrays.intervals import Intervals, clip, subtract, union
from augment.arrays.types import NO_INDEX, Int64s
from augment.core.context import derived
from augment.core.job_waits import JobWaits
from augment.core.trace import Trace
from augment.facts.collectives.instances import collectives
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.gpu.type_coverage import COMMUNICATION, COMPUTATION, type_coverage


class Waits(Struct, frozen=True):
    """Of each of ``collectives``, what it waited for: equal-length columns."""

    wait_ns: Int64s  #: before its last rank arrived, 0 if unknown
    late: Int64s  #: the last rank, an index of ``JobWaits.ranks``, ``NO_INDEX`` if unknown


@derived(until="rules")
def waits_of_job(trace: Trace) -> Waits:
    """The wait of each collective."""
    every, of_job = collectives(trace), trace.context.attached(JobWaits)
    if of_job is None or not len(of_job.row):
        return Waits(np.zeros(len(every), np.int64), np.full(len(every), NO_INDEX, np.int64))
    where, known = looked_up(of_job.row, gpu_work(trace).row[every.place])
    wait = np.minimum(np.where(known, of_job.wait_ns[where], 0), np.maximum(every.dur, 0))
    return Waits(np.maximum(wait, 0), np.where(known, of_job.late[where], NO_INDEX))


def transfer_ns(trace: Trace) -> Int64s:
    """The duration of each collective without its wait, int64 ns; the whole duration where no wait is known."""
    transfer: Int64s = np.maximum(collectives(trace).dur, 0) - waits_of_job(trace).wait_ns
    return transfer


class Waiting(Struct, frozen=True):
    """Disjoint times in which a device does nothing but wait in a collective: int64 columns. ``late``: for which rank;
    ``row``: the collective's kernel in the event table."""

    start: Int64s
    end: Int64s
    late: Int64s
    row: Int64s

    def __len__(self) -> int:
        return len(self.start)


@derived
def waiting_of_job(trace: Trace) -> Waiting:
    """When devices only wait: they compute nothing, and no collective moves data on them."""
    every, waits, work = collectives(trace), waits_of_job(trace), gpu_work(trace)
    columns = [(np.empty(0, np.int64),) * 4]
    for coverage in type_coverage(trace):
        inside = (every.place >= coverage.device.start) & (every.place < coverage.device.stop)
        turn = every.ts + waits.wait_ns
        chosen = np.flatnonzero(inside & (waits.wait_ns > 0))
        alone = coverage.intervals_of(any_of=COMMUNICATION, none_of=COMPUTATION)
        alone = subtract(alone, union(turn[inside], np.maximum(every.end, turn)[inside]))
        which, _, parts = clip(Intervals(every.ts[chosen], turn[chosen]), alone)
        order = np.lexsort((parts.end, parts.start))
        end = parts.end[order]
        reached = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(end)[:-1]) if len(end) else end
        start = np.maximum(parts.start[order], reached)  # of several streams that wait, the first counts
        of, real = chosen[which[order]], end > start
        start, end, of = start[real], end[real], of[real]
        columns.append((start, end, waits.late[of], work.row[every.place[of]]))
    return Waiting(*(np.concatenate(column) for column in zip(*columns, strict=True)))
