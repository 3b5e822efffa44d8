"""The queue length of each stream over time: operations launched and not yet started."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from augment.arrays import intervals
from augment.arrays.types import NO_INDEX, Int64s
from augment.core.context import derived
from augment.core.trace import Trace
from augment.facts.gpu.gpu_work import Stream, gpu_work


class QueueLength(Struct, frozen=True):
    """The length of the queue of a stream after every change."""

    stream: Stream  #: whose queue it is
    ts: Int64s  #: ns; strictly ascending
    length: Int64s  #: launched pieces of work that have not begun


@derived(until="breakdowns")
def queue_lengths(trace: Trace) -> tuple[QueueLength, ...]:
    """The queue of every stream with work whose launch is known.

    The length grows by one at the start of a launching call and shrinks by one at the start of its work. Work that
    began before its launch, by the clocks, counts as launched when it began.
    """
    linked = gpu_work(trace).launch != NO_INDEX
    lengths = []
    for stream in gpu_work(trace).streams:
        if linked[stream.places].any():
            _, ts = _changes(trace, stream)
            ones = np.ones(len(ts) // 2, np.int64)
            lengths.append(QueueLength(stream, *intervals.steps(ts, np.concatenate((ones, -ones)))))
    return tuple(lengths)


def rows_of_changes(trace: Trace, length: QueueLength) -> Int64s:
    """The row of the event (call or work) of each change of a queue; of several at one moment, that of the last."""
    row, ts = _changes(trace, length.stream)
    order = np.argsort(ts, kind="stable")
    rows: Int64s = row[order[np.searchsorted(ts[order], length.ts, "right") - 1]]
    return rows


def _changes(trace: Trace, stream: Stream) -> tuple[Int64s, Int64s]:
    """The rows of launching calls, then of their work on ``stream``, and when each changes the queue."""
    work = gpu_work(trace)
    chosen = work.launch[stream.places] != NO_INDEX
    launch, row = work.launch[stream.places][chosen], work.row[stream.places][chosen]
    started = work.ts[stream.places][chosen]
    launched = np.minimum(trace.events.ts[launch], started)
    return np.concatenate((launch, row)), np.concatenate((launched, started))
