"""What devices do over time: the types of kernels that run, the rate of copies, the length of queues, how much each
kernel fills.

All figures about busy time come from :func:`type_coverage`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from augment.arrays import NO_INDEX, Bools, EventRows, Int64s, Intervals, Masks, Places, WorkIndexes, intervals
from augment.core import Trace, derived
from augment.facts.gpu.gpu_work import Device, Stream, gpu_work
from augment.facts.names import KernelType, copy_kind
from augment.facts.source.event_args import arg_columns

COMPUTATION, COMMUNICATION, MEMORY = (1 << kernel_type for kernel_type in KernelType)


class TypeCoverage(Struct, frozen=True):
    """The types of kernels that run on a device at each moment."""

    device: Device  #: which
    ts: Int64s  #: ns; strictly ascending
    mask: Masks  #: the types that run from ``ts[i]`` until ``ts[i + 1]``: bits ``1 << KernelType``; the last is 0
    time_ns: tuple[int, ...]  #: of each mask, the time in which exactly its types run
    first_ns: int  #: the first start of the device's work
    last_ns: int  #: the last end of the device's work

    @property
    def span_ns(self) -> int:
        """From the first start to the last end."""
        return self.last_ns - self.first_ns

    def time_of(self, *, any_of: int, none_of: int = 0) -> int:
        """The time, ns, in which a type in ``any_of`` runs and no type in ``none_of``."""
        return sum(ns for mask, ns in enumerate(self.time_ns) if mask & any_of and not mask & none_of)

    def time_within(self, start: Int64s, end: Int64s, *, any_of: int, none_of: int = 0) -> Int64s:
        """The part of :meth:`time_of` within each ``[start, end)``, int64 ns."""
        return intervals.held_between(self.ts, self._wanted(any_of, none_of), start, end)

    def intervals_of(self, *, any_of: int, none_of: int = 0) -> Intervals:
        """When a type in ``any_of`` runs and no type in ``none_of``, disjoint."""
        return intervals.where(self.ts, self._wanted(any_of, none_of))

    def _wanted(self, any_of: int, none_of: int) -> Bools:
        """For each of ``mask``, whether it has a type in ``any_of`` and none in ``none_of``."""
        table = np.array([mask & any_of != 0 and mask & none_of == 0 for mask in range(len(self.time_ns))])
        return table.take(self.mask)  # half the time of an index


@derived(until="summary")
def type_coverage(trace: Trace) -> tuple[TypeCoverage, ...]:
    """Which types of work run on each device at each moment.

    In the order of ``gpu_work(trace).devices``.
    """
    work = gpu_work(trace)
    coverages = []
    for device in work.devices:
        places = work.by_time[device.places]
        kernel_type, start, end = work.type[places], work.ts[places], work.end[places]
        chosen = [kernel_type == each for each in KernelType]
        ts, mask = intervals.coverage([intervals.union(start[of_type], end[of_type]) for of_type in chosen])
        lasts, running = np.diff(ts), mask[:-1]
        time_ns = tuple(int(lasts[running == each].sum()) for each in range(1 << len(KernelType)))
        coverages.append(TypeCoverage(device, ts, mask, time_ns, int(start[0]), max(int(start[0]), int(end.max()))))
    return tuple(coverages)


def communication_at(trace: Trace, device: Device, at: Int64s) -> WorkIndexes:
    """For each moment of ``at``, a communication kernel that runs then: of those that have begun, the last to end."""
    work = gpu_work(trace)
    places = work.by_time[device.places]
    places = places[work.type[places] == KernelType.COMMUNICATION]
    end = work.end[places]
    is_last = end == np.maximum.accumulate(end)
    last_to_end = np.maximum.accumulate(np.where(is_last, np.arange(len(places)), 0))
    begun = np.searchsorted(work.ts[places], at, side="right") - 1
    running: WorkIndexes = places[last_to_end[begun]]
    return running


FASTEST = 10**15  #: bytes per second: above any memory, and the sum of a thousand such rates fits int64


class CopyRate(Struct, frozen=True):
    """The copies of one kind on one device, and their rate after every change; rates of overlapping copies add up."""

    device: Device  #: which
    kind: str  #: such as ``Memcpy HtoD (Pinned -> Device)``
    places: WorkIndexes  #: the copies
    bytes: int  #: in all
    ts: Int64s  #: ns; strictly ascending
    rate: Int64s  #: whole bytes per second, so that it returns to exactly 0
    without: int  #: copies without a rate: bytes unknown or 0, no time, or faster than :data:`FASTEST`


@derived(until="breakdowns")
def copy_rates(trace: Trace) -> tuple[CopyRate, ...]:
    """The bytes per second of copies, by kind."""
    work = gpu_work(trace)
    rates = []
    for device in work.devices:
        places = work.by_time[device.places]
        copies = places[work.type[places] == KernelType.MEMORY]
        names, which = np.unique(trace.events.name[work.row[copies]], return_inverse=True)
        kind_of_name = [copy_kind(trace.strings[name]) for name in names.tolist()]  # every name is matched once
        kinds = sorted(set(kind_of_name))
        code = np.array([kinds.index(kind) for kind in kind_of_name], np.intp)[which]
        for number, kind in enumerate(kinds):
            chosen = copies[code == number]
            order = np.argsort(work.row[chosen], kind="stable")  # look-ups of ascending rows are faster
            size = np.empty(len(chosen), np.int64)
            size[order] = np.maximum(trace.events.bytes.at(work.row[chosen][order], 0), 0)
            start, end = work.ts[chosen], work.end[chosen]
            rate = size / np.maximum(end - start, 1) * 1e9
            known = (size > 0) & (end > start) & (rate < FASTEST)
            change = np.rint(rate[known]).astype(np.int64)
            changes = np.concatenate((start[known], end[known])), np.concatenate((change, -change))
            without = len(known) - int(known.sum())
            rates.append(CopyRate(device, kind, chosen, int(size.sum()), *intervals.steps(*changes), without))
    return tuple(rates)


class QueueLength(Struct, frozen=True):
    """The length of the queue of a stream after every change."""

    stream: Stream  #: whose queue it is
    ts: Int64s  #: ns; strictly ascending
    length: Int64s  #: launched pieces of work that have not begun


@derived(until="breakdowns")
def queue_lengths(trace: Trace) -> tuple[QueueLength, ...]:
    """How much launched work waits on each stream.

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


def rows_of_changes(trace: Trace, length: QueueLength) -> EventRows:
    """The row of the event (call or work) of each change of a queue; of several at one moment, that of the last."""
    row, ts = _changes(trace, length.stream)
    order = np.argsort(ts, kind="stable")
    return row[order[np.searchsorted(ts[order], length.ts, "right") - 1]]


def _changes(trace: Trace, stream: Stream) -> tuple[EventRows, Int64s]:
    """The rows of launching calls, then of their work on ``stream``, and when each changes the queue."""
    work = gpu_work(trace)
    chosen = work.launch[stream.places] != NO_INDEX
    launch, row = work.launch[stream.places][chosen], work.row[stream.places][chosen]
    started = work.ts[stream.places][chosen]
    launched = np.minimum(trace.events.ts[launch], started)
    return np.concatenate((launch, row)), np.concatenate((launched, started))


OCCUPANCY, BLOCKS = "est. achieved occupancy %", "blocks per SM"  #: args of kernels
SMALL = 0.5  #: a grid that fills less of the SMs is small


class Occupancy(Struct, frozen=True):
    """Equal-length columns, an entry for each piece of GPU work; NaN where the trace does not say it, as of copies.

    ``achieved`` is the share of the warps that the device can hold, 0 to 1: Kineto's estimate, which the launch
    (registers, shared memory, size of blocks and of the grid) allows at most. It is NaN for 0, which Kineto also writes
    where it cannot compute it, as of kernels with more shared memory than its formula knows. ``filled`` is the share of
    the SMs that have a block of the grid: 1 from as many blocks as SMs on.
    """

    achieved: npt.NDArray[np.float64]  #: share of the warps that the device can hold, by Kineto's estimate
    filled: npt.NDArray[np.float64]  #: share of the SMs that have a block of the grid

    @property
    def is_known(self) -> bool:
        """Whether any kernel has such figures."""
        return bool((~np.isnan(self.filled) | ~np.isnan(self.achieved)).any())


@derived(until="breakdowns")
def occupancy(trace: Trace) -> Occupancy:
    """How much of the device each piece of work fills, by its launch; NaN where the trace does not say it."""
    work, args = gpu_work(trace), arg_columns(trace)
    achieved = args.ints(OCCUPANCY).at(work.row, -1) / 100.0
    achieved[(achieved <= 0) | (achieved > 1)] = np.nan
    rows, texts = args.texts(BLOCKS)
    blocks = np.array([_number(text) for text in texts.values], np.float64)
    filled = np.full(len(work), np.nan)
    if len(rows):
        place = np.minimum(np.searchsorted(rows, work.row), len(rows) - 1)
        there = rows[place] == work.row
        filled[there] = np.minimum(blocks[texts.codes[place[there]]], 1.0)
    return Occupancy(achieved, filled)


def weighed(values: npt.NDArray[np.float64], dur: Int64s, code: Places | Int64s, count: int) -> list[float | None]:
    """The mean of the ``values`` of each code below ``count``, weighted by ``dur``; None where none is known."""
    there = ~np.isnan(values)
    weight = np.bincount(code[there], dur[there], count)
    total = np.bincount(code[there], dur[there] * values[there], count)
    return [float(part / whole) if whole else None for part, whole in zip(total, weight, strict=True)]


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return np.nan
    return number if number >= 0 else np.nan


@derived(until="breakdowns")
def small_grids(trace: Trace) -> Bools:
    """Which pieces of work are kernels, but no collectives, whose grid fills less than half of the SMs.

    Collectives use few SMs on purpose.
    """
    small: Bools = (occupancy(trace).filled < SMALL) & (gpu_work(trace).type == KernelType.COMPUTATION)
    return small
