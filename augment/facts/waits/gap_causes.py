"""The gaps in which a device or a stream idles, why a device does, with the evidence; the state of each device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from augment.arrays import NO_INDEX, NO_VALUE, Bools, Bytes, EventRow, EventRows, Int64s, Places, WorkIndex, WorkIndexes
from augment.core import ArgColumn, Category, Texts, Trace, derived
from augment.facts import gpu, host

#: the args that name the owner of a gap, and the categories of slices that can own it
OWNERS: tuple[tuple[str, tuple[Category, ...]], ...] = (
    ("owner", (Category.CPU_OP, Category.USER_ANNOTATION)),
    ("python_function", (Category.PYTHON_FUNCTION,)),
    ("os_call", (Category.OS_RUNTIME,)),
)

LAUNCH = ("not recorded", "before the recording")  #: what is known of a launch that is not in the trace

KERNEL_DELAY_NS = 30_000  #: below this a gap between work launched in time is kernel_wait; as in HTA
Integer = TypeVar("Integer", bound=np.signedinteger)


class IdleGaps(Struct, frozen=True):
    """Idle time between work: equal-length columns, ascending."""

    start: Int64s  #: ns
    end: Int64s  #: ns
    previous: WorkIndexes  #: whose end began the gap
    next: WorkIndexes  #: whose start ended it
    overlapping: int  #: how many pieces of work begin before all earlier ones have ended

    def __len__(self) -> int:
        """The number of gaps."""
        return len(self.start)


@derived(until="idle time")
def stream_gaps(trace: Trace) -> tuple[IdleGaps, ...]:
    """The idle gaps of each stream.

    In the order of ``gpu_work(trace).streams``.
    """
    work = gpu.work(trace)
    return tuple(
        _gaps(work.ts[stream.places], work.end[stream.places], np.arange(stream.start, stream.stop, dtype=WorkIndex))
        for stream in work.streams
    )


@derived(until="summary")
def device_gaps(trace: Trace) -> tuple[IdleGaps, ...]:
    """The idle gaps of each device.

    In none of them works a stream of the device. They are disjoint, in the order of ``gpu_work(trace).devices``.
    """
    work = gpu.work(trace)
    orders = [work.by_time[device.places] for device in work.devices]
    return tuple(_gaps(work.ts[order], work.end[order], order) for order in orders)


def _gaps(ts: Int64s, end: Int64s, places: WorkIndexes) -> IdleGaps:
    """The gaps between pieces of work in ascending ``ts``. Work without duration ends a gap, too."""
    end = np.maximum(end, ts)  # a negative duration counts as 0
    reach = np.maximum.accumulate(end)
    after = np.flatnonzero(ts[1:] > reach[:-1])
    last_to_end = np.maximum.accumulate(np.where(end == reach, np.arange(len(end)), 0))
    overlapping = int((ts[1:] < reach[:-1]).sum())
    return IdleGaps(reach[after], ts[after + 1], places[last_to_end[after]], places[after + 1], overlapping)


class GapCategory(IntEnum):
    """HTA's categories of idle time."""

    HOST_WAIT = 0
    KERNEL_WAIT = 1
    OTHER = 2


class IdlePieces(Struct, frozen=True):
    """Idle time in drawable pieces: equal-length columns, disjoint and ascending. ``start`` and ``end``: int64 ns.
    ``cause``: uint8, a place in ``CAUSES`` of the analysis. ``evidence``: the args. ``row``: int64, the slice that was
    waited for, ``NO_INDEX`` where unknown."""

    start: Int64s
    end: Int64s
    cause: Bytes
    evidence: Mapping[str, ArgColumn]
    row: EventRows

    def __len__(self) -> int:
        """The number of pieces."""
        return len(self.start)


def device_idle(trace: Trace, consecutive_kernel_delay_ns: int) -> list[IdlePieces]:
    """The gaps of each device with their causes, in the order of ``device_gaps``."""
    gaps_of = device_gaps(trace)
    causes = list(causes_of_gaps(trace))
    if consecutive_kernel_delay_ns != KERNEL_DELAY_NS:
        causes = [device_categories(trace, gaps, consecutive_kernel_delay_ns) for gaps in gaps_of]
    work, pieces = gpu.work(trace), []
    for gaps, cause, (doing, row) in zip(gaps_of, causes, _host_evidence(trace, gaps_of, causes), strict=True):
        delay = np.maximum(gaps.end - launch_end(trace, gaps.next), 0)
        unknown = np.where(gpu.before_recording(trace)[gaps.next], np.int32(1), np.int32(0))
        known = (cause != GapCategory.OTHER) | (work.launch[gaps.next] != NO_INDEX)
        evidence: dict[str, ArgColumn] = {  # the work that ends each gap, and the work that ran before
            "correlation": trace.events.correlation[work.row[gaps.next]],
            "previous_kernel": names_of_work(trace, gaps.previous, cause != GapCategory.HOST_WAIT),
            "launch": Texts(np.where(known, np.int32(-1), unknown), LAUNCH),
            "launch_delay_ns": np.where(_launched_within(trace, gaps), delay, NO_VALUE),
        }
        pieces.append(IdlePieces(gaps.start, gaps.end, cause, evidence | doing, row))
    return pieces


def categories_of(trace: Trace, gaps: IdleGaps, consecutive_kernel_delay_ns: int = KERNEL_DELAY_NS) -> Bytes:
    """The :class:`GapCategory` of each gap by HTA's rule, uint8. The work that ends the gap decides it."""
    launch = gpu.work(trace).launch[gaps.next]
    launched = launch != NO_INDEX
    short = launched & (gaps.end - gaps.start < consecutive_kernel_delay_ns)
    category = np.full(len(gaps), GapCategory.OTHER, np.uint8)
    category[short] = GapCategory.KERNEL_WAIT
    category[_launched_within(trace, gaps)] = GapCategory.HOST_WAIT
    return category


def device_categories(trace: Trace, gaps: IdleGaps, consecutive_kernel_delay_ns: int = KERNEL_DELAY_NS) -> Bytes:
    """The cause of each gap of a device, a :class:`GapCategory`, uint8. It is the gap's category, with two exceptions.

    Work which started long after its launch returned, for more than half of the gap, did not wait for the host. And
    while nothing runs on the device, work that came late waited for the host if the call that launches it had begun
    before the gap, but was still running for more than half of it: the call was loading the kernel, or waiting itself.
    """
    category = categories_of(trace, gaps, consecutive_kernel_delay_ns)
    returned = launch_end(trace, gaps.next)
    delay = gaps.end - returned
    delayed = (delay >= consecutive_kernel_delay_ns) & (2 * delay > gaps.end - gaps.start)
    in_call = (gpu.work(trace).launch[gaps.next] != NO_INDEX) & (
        2 * (np.minimum(returned, gaps.end) - gaps.start) > gaps.end - gaps.start
    )
    late = category == GapCategory.OTHER
    category[delayed & (category == GapCategory.HOST_WAIT)] = GapCategory.OTHER
    category[late & in_call] = GapCategory.HOST_WAIT
    return category


@derived(until="summary")
def causes_of_gaps(trace: Trace) -> tuple[Bytes, ...]:
    """The cause of each of the gaps of ``waits.gaps``, a ``GapCategory``.

    In the order of ``device_gaps``.
    """
    return tuple(device_categories(trace, gaps) for gaps in device_gaps(trace))


def launch_end(trace: Trace, places: WorkIndexes) -> Int64s:
    """When the call returned that launched each piece of GPU work, int64 ns; any time if the launch is unknown."""
    launch = gpu.work(trace).launch[places]
    return trace.events.ts[launch] + trace.events.dur[launch]


def names_of_work(trace: Trace, places: WorkIndexes, known: Bools) -> Texts:
    """The names of the GPU work at ``places``; none where not ``known``."""
    return Texts(np.where(known, trace.events.name[gpu.work(trace).row[places]], np.int32(-1)), trace.strings)


def spread(values: npt.NDArray[Integer], which: Bools | Places, count: int) -> npt.NDArray[Integer]:
    """An array of ``count`` entries: ``values`` at the places ``which``, -1 elsewhere."""
    result = np.full(count, -1, values.dtype)
    result[which] = values
    return result


def _launched_within(trace: Trace, gaps: IdleGaps) -> Bools:
    """Whether the launch of the work that ends each gap began after the gap did."""
    launch = gpu.work(trace).launch[gaps.next]
    within: Bools = (launch != NO_INDEX) & (trace.events.ts[launch] > gaps.start)
    return within


def _host_evidence(
    trace: Trace, gaps: Sequence[IdleGaps], causes: Sequence[Bytes]
) -> list[tuple[dict[str, ArgColumn], EventRows]]:
    """For each device: the evidence from what the launching thread did until it had launched, and the row of the slice
    that took longest, else of the launch. Each thread is examined once for all devices."""
    late = [cause == GapCategory.HOST_WAIT for cause in causes]
    if not any(which.any() for which in late):
        return [({}, np.full(len(which), NO_INDEX, EventRow)) for which in late]
    start = np.concatenate([of_device.start[which] for of_device, which in zip(gaps, late, strict=True)])
    end = np.concatenate([of_device.end[which] for of_device, which in zip(gaps, late, strict=True)])
    following = np.concatenate([of_device.next[which] for of_device, which in zip(gaps, late, strict=True)])
    launch = gpu.work(trace).launch[following]
    end = np.minimum(end, launch_end(trace, following))  # what the host did later delayed nothing
    thread = trace.events.track[launch]
    evidence: list[dict[str, ArgColumn]] = [{} for _ in gaps]
    busy, longest = np.full(len(launch), NO_INDEX, EventRow), np.zeros(len(launch), np.int64)
    bounds = np.cumsum([0, *(int(which.sum()) for which in late)]).tolist()
    for arg, owning in OWNERS:
        name, ns, row, _ = host.occupants(trace, owning, start, end, thread)
        if not (name >= 0).any():
            continue
        covers = (row != NO_INDEX) & ((busy == NO_INDEX) | is_longer(ns, longest, end - start))
        busy, longest = np.where(covers, row, busy), np.where(covers, ns, longest)
        for args, which, low, high in zip(evidence, late, bounds, bounds[1:], strict=False):
            args[arg] = Texts(spread(name[low:high], which, len(which)), trace.strings)
            args[f"{arg}_ns"] = spread(ns[low:high], which, len(which))
    busy = np.where(busy == NO_INDEX, launch, busy)
    rows = (
        spread(busy[low:high], which, len(which)) for which, low, high in zip(late, bounds, bounds[1:], strict=False)
    )
    return list(zip(evidence, rows, strict=True))


def is_longer(ns: Int64s, owner_ns: Int64s, whole_ns: Int64s) -> Bools:
    """Whether a function covers most of a gap and its owner less than half: the gap is the function's, not that of the
    operator that ends it."""
    longer: Bools = (2 * ns > whole_ns) & (2 * owner_ns < whole_ns)
    return longer


COMPUTE, EXPOSED_COMMUNICATION, EXPOSED_COPY = range(3)
_IDLE = 3  #: the first of the idle states; there is one for each cause

#: the names of the states, as drawn: those of the critical path and of idle time, so that one thing has one colour
STATES = ("compute", "communication", "copy", *(category.name.lower() for category in GapCategory))


class DeviceStates(Struct, frozen=True):
    """The states of a device from its first to its last work, without interruption; equal-length columns."""

    device: gpu.Device  #: whose states they are
    start: Int64s  #: ns; ascending
    end: Int64s  #: ns; each piece ends where the next begins
    state: Bytes  #: an index of :data:`STATES`; neighbours differ

    def __len__(self) -> int:
        return len(self.start)


@derived(until="breakdowns")
def device_states(trace: Trace) -> tuple[DeviceStates, ...]:
    """Whether each device computes, communicates, copies, or why it is idle, at each moment.

    In the order of ``gpu_work(trace).devices``.
    """
    states = []
    for coverage, gaps, causes in zip(gpu.coverage(trace), device_gaps(trace), causes_of_gaps(trace), strict=True):
        busy = np.flatnonzero(coverage.mask)
        running = coverage.mask[busy]
        state = np.full(len(busy), EXPOSED_COPY, np.uint8)
        state[running & gpu.COMMUNICATION != 0] = EXPOSED_COMMUNICATION
        state[running & gpu.COMPUTATION != 0] = COMPUTE
        start = np.concatenate((coverage.ts[busy], gaps.start))  # where a gap begins: work without duration divides it
        order = np.argsort(start, kind="stable")
        start, state = start[order], np.concatenate((state, (_IDLE + causes).astype(np.uint8)))[order]
        first = np.append(True, state[1:] != state[:-1])[: len(start)] & (start < coverage.last_ns)
        start, state = start[first], state[first]
        end = np.append(start[1:], coverage.last_ns)[: len(start)]
        states.append(DeviceStates(coverage.device, start, end, state))
    return tuple(states)
