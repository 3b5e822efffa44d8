"""How many operations are launched and not yet started on each stream, over time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from augment import intervals
from augment.derived.gpu_work import Stream, gpu_work
from augment.derived.launches import NO_ROW
from augment.trace import Int64s, Trace, derived


@dataclass(frozen=True, slots=True)
class QueueLength:
    """The queue of ``stream``: its ``length`` (int64) after every change; ``ts`` int64 ns, strictly ascending."""

    stream: Stream
    ts: Int64s
    length: Int64s


@derived
def queue_lengths(trace: Trace) -> tuple[QueueLength, ...]:
    """The queue of every stream with work whose launch is known.

    It grows by one at the start of a launching call, and shrinks by one at the start of what that launched; work that
    began before its launch, by the clocks, counts as launched when it began.
    """
    work = gpu_work(trace)
    linked = work.launch != NO_ROW
    found = []
    for stream in work.streams:
        chosen = linked[stream.places]
        if chosen.any():
            started = work.ts[stream.places][chosen]
            launched = trace.events.ts[work.launch[stream.places][chosen]]
            found.append(QueueLength(stream, *_series(np.minimum(launched, started), started)))
    return tuple(found)


def _series(launched: Int64s, started: Int64s) -> tuple[Int64s, Int64s]:
    ones = np.ones(len(started), np.int64)
    return intervals.steps(np.concatenate((launched, started)), np.concatenate((ones, -ones)))
