"""Which ranks come late to the collectives, and what does that cost?

A collective ends on all its ranks at about one time, but begins on each when that rank comes to it: its kernel is the
longer, the longer the rank waited for the others. So no clocks have to be aligned: of a collective whose kernel took
``max`` ns on the rank that came first, ``min`` on the last and ``dur`` on this one, this rank

    came late by    max - dur
    waited for      dur - min

The kernels of one collective are found by their place: the n-th of a name on a stream in a step, on every rank (the
step in which it was launched; without steps the recording is one). Ranks of groups of their own, whose kernels have one
name and stream, are taken for one group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from augment.arrays.ordering import combinations, each, group_bounds, grouped
from augment.arrays.types import Int64s
from augment.derived.gpu.gpu_work import gpu_work, sort_key
from augment.derived.names.kernel_types import KernelType
from augment.derived.steps.steps import steps, steps_of_gpu_work
from augment.findings import column
from augment.trace import Trace

Floats = npt.NDArray[np.float64]
WHOLE = -1  #: the step of a recording without steps
_Key = tuple[int, int, tuple[int, int, str], str]  #: step, which device of the process, stream, name


@dataclass(frozen=True, slots=True)
class Straggler:
    """One rank."""

    rank: int = column("The rank.")
    collective_count: int = column("How many collectives it took part in that another rank took part in, too.", "count")
    last_count: int = column("To how many of them it came last.", "count")
    late_ns: int = column("Sum of the times by which it came later than the first.", "ns")
    waited_ns: int = column("Sum of the times for which it waited for the last.", "ns")
    lost_ns: int = column("What all would have gained, had it not come last but with the last but one.", "ns")
    score: float = column("late_ns as a share of the time in collectives of whoever came first.", "ratio")


@dataclass(frozen=True, slots=True)
class Lateness:
    """One kernel of every collective on each rank: arrays of ranks × collectives.

    ``dur`` int64 ns; ``step`` int64, the number of the step of each collective; ``present``: whether the rank has it.
    """

    ranks: tuple[int, ...]
    step: Int64s
    dur: npt.NDArray[np.int64]
    present: npt.NDArray[np.bool_]

    def late(self) -> npt.NDArray[np.int64]:
        """How much later than the first each rank came, ns; 0 where it took no part."""
        return np.where(self.present, self.dur.max(axis=0, initial=0) - self.dur, 0)


def stragglers(traces: Mapping[int, Trace]) -> list[Straggler]:
    """Every rank of a job, ``traces`` by rank, the latest first."""
    found = lateness(traces)
    late = found.late()
    longest = np.where(found.present, found.dur.max(axis=0, initial=0), 0).sum(axis=1)
    known = np.where(found.present, found.dur, np.iinfo(np.int64).max)
    two = np.sort(known, axis=0)[:2] if len(found.ranks) > 1 else np.zeros((2, len(found.step)), np.int64)
    last = known.argmin(axis=0) if len(found.step) else np.empty(0, np.intp)
    rows = []
    for place, rank in enumerate(found.ranks):
        own, is_last = found.present[place], last == place
        rows.append(
            Straggler(
                rank,
                int(own.sum()),
                int(np.count_nonzero(is_last)),
                int(late[place].sum()),
                int((found.dur[place] - two[0])[own].sum()),
                int((two[1] - two[0])[is_last].sum()),
                float(late[place].sum() / longest[place]) if longest[place] else 0.0,
            )
        )
    return sorted(rows, key=lambda row: (-row.score, row.rank))


def potential_stragglers(
    traces: Mapping[int, Trace], chosen_steps: Collection[int] | None = None, count: int = 2
) -> list[int]:
    """The ``count`` ranks that are most often among the ``count`` latest of a step; of equals, the later.

    Args:
        traces: of a job, by rank.
        chosen_steps: the numbers of the steps to look at; None means all.
        count: how many to name.
    """
    found = lateness(traces)
    late = found.late()
    flagged, total = np.zeros(len(found.ranks), np.int64), np.zeros(len(found.ranks), np.int64)
    (numbers,), which = combinations(found.step)
    for step, places in each(which, len(numbers)):
        if chosen_steps is None or int(numbers[step]) in chosen_steps:
            own = late[:, places].sum(axis=1)
            flagged[np.argsort(-own, kind="stable")[:count]] += 1
            total += own
    order = np.lexsort((-total, -flagged))[:count]
    return [found.ranks[place] for place in order.tolist() if flagged[place]]


def lateness(traces: Mapping[int, Trace]) -> Lateness:
    """The collectives that at least two ranks have."""
    ranks = tuple(sorted(traces))
    series = {rank: dict(_series(traces[rank])) for rank in ranks}
    step, dur, present = [], [], []
    for key in dict.fromkeys(key for own in series.values() for key in own):
        columns = [series[rank].get(key, np.empty(0, np.int64)) for rank in ranks]
        count = sorted(map(len, columns))[-2] if len(ranks) > 1 else 0  # that many have a second rank
        step.append(np.full(count, key[0], np.int64))
        dur.append(np.array([np.pad(one[:count], (0, count - len(one[:count]))) for one in columns], np.int64))
        present.append(np.array([np.arange(count) < len(one) for one in columns], np.bool_))
    nothing = np.zeros((len(ranks), 0))
    return Lateness(
        ranks,
        np.concatenate([np.empty(0, np.int64), *step]),
        np.concatenate([nothing.astype(np.int64), *dur], axis=1),
        np.concatenate([nothing.astype(np.bool_), *present], axis=1),
    )


def _series(trace: Trace) -> Iterator[tuple[_Key, Int64s]]:
    """The durations of the communication kernels of each step, stream and name, in the order of time."""
    work, found = gpu_work(trace), steps(trace)
    place = steps_of_gpu_work(trace) if len(found) else np.zeros(len(work), np.int64)
    number = np.append(found.number, WHOLE) if len(found) else np.array([WHOLE], np.int64)
    devices = {(one.rank, one.device): place for place, one in enumerate(work.devices)}
    for stream in work.streams:
        own = np.arange(stream.start, stream.stop)
        own = own[(work.type[own] == KernelType.COMMUNICATION) & (place[own] >= 0)]
        keys, code = combinations(place[own], trace.events.name[work.row[own]])
        bounds = group_bounds(code, len(keys[0])).tolist()
        own = own[grouped(code, len(keys[0]))]
        dur = np.maximum(work.end[own] - work.ts[own], 0)
        where = devices[stream.rank, stream.device], sort_key(stream.stream)
        for step, name, start, stop in zip(*(key.tolist() for key in keys), bounds, bounds[1:], strict=False):
            yield (int(number[step]), *where, trace.strings[name]), dur[start:stop]
