"""Why a device idles: the cause of each gap in which no stream works, with the evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from augment.arrays.types import NO_INDEX, Bools, Bytes, Int64s, Places
from augment.core.annotations import ArgColumn, Texts
from augment.core.context import derived
from augment.core.trace import Category, Trace
from augment.facts.gpu.before_recording import before_recording
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.host.occupancy import occupants
from augment.facts.waits.idle_gaps import IdleGaps, device_gaps

#: the args that name the owner of a gap, and the categories of slices that can own it
OWNERS: tuple[tuple[str, tuple[Category, ...]], ...] = (
    ("owner", (Category.CPU_OP, Category.USER_ANNOTATION)),
    ("python_function", (Category.PYTHON_FUNCTION,)),
)

LAUNCH = ("not recorded", "before the recording")  #: what is known of a launch that is not in the trace

KERNEL_DELAY_NS = 30_000  #: below this a gap between work launched in time is kernel_wait; as in HTA
Integer = TypeVar("Integer", bound=np.signedinteger)


class GapCategory(IntEnum):
    """HTA's categories of idle time."""

    HOST_WAIT = 0
    KERNEL_WAIT = 1
    OTHER = 2


class IdlePieces(Struct, frozen=True):
    """Idle time in drawable pieces: equal-length columns, disjoint and ascending. ``start`` and ``end``: int64 ns.
    ``cause``: uint8, a place in ``CAUSES`` of ``stream_idle``. ``evidence``: the args. ``row``: int64, the slice that
    was waited for, ``NO_INDEX`` where unknown."""

    start: Int64s
    end: Int64s
    cause: Bytes
    evidence: Mapping[str, ArgColumn]
    row: Int64s

    def __len__(self) -> int:
        """The number of pieces."""
        return len(self.start)


def device_idle(trace: Trace, consecutive_kernel_delay_ns: int) -> list[IdlePieces]:
    """The gaps of each device with their causes, in the order of ``device_gaps``."""
    gaps_of = device_gaps(trace)
    causes = list(causes_of_gaps(trace))
    if consecutive_kernel_delay_ns != KERNEL_DELAY_NS:
        causes = [device_categories(trace, gaps, consecutive_kernel_delay_ns) for gaps in gaps_of]
    host = _host_evidence(trace, gaps_of, causes)
    return [
        IdlePieces(gaps.start, gaps.end, cause, _work_evidence(trace, gaps, cause) | doing, row)
        for gaps, cause, (doing, row) in zip(gaps_of, causes, host, strict=True)
    ]


def categories_of(trace: Trace, gaps: IdleGaps, consecutive_kernel_delay_ns: int = KERNEL_DELAY_NS) -> Bytes:
    """The :class:`GapCategory` of each gap by HTA's rule, uint8. The work that ends the gap decides it."""
    launch = gpu_work(trace).launch[gaps.next]
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
    in_call = (gpu_work(trace).launch[gaps.next] != NO_INDEX) & (
        2 * (np.minimum(returned, gaps.end) - gaps.start) > gaps.end - gaps.start
    )
    late = category == GapCategory.OTHER
    category[delayed & (category == GapCategory.HOST_WAIT)] = GapCategory.OTHER
    category[late & in_call] = GapCategory.HOST_WAIT
    return category


@derived(until="summary")
def causes_of_gaps(trace: Trace) -> tuple[Bytes, ...]:
    """The :func:`device_categories` of the gaps of each device, in the order of ``device_gaps``."""
    return tuple(device_categories(trace, gaps) for gaps in device_gaps(trace))


def launch_end(trace: Trace, places: Places) -> Int64s:
    """When the call returned that launched each piece of GPU work, int64 ns; any time if the launch is unknown."""
    launch = gpu_work(trace).launch[places]
    return trace.events.ts[launch] + trace.events.dur[launch]


def names_of_work(trace: Trace, places: Places, known: Bools) -> Texts:
    """The names of the GPU work at ``places``; none where not ``known``."""
    return Texts(np.where(known, trace.events.name[gpu_work(trace).row[places]], np.int32(-1)), trace.strings)


def spread(values: npt.NDArray[Integer], which: Bools | Places, count: int) -> npt.NDArray[Integer]:
    """An array of ``count`` entries: ``values`` at the places ``which``, -1 elsewhere."""
    result = np.full(count, -1, values.dtype)
    result[which] = values
    return result


def _launched_within(trace: Trace, gaps: IdleGaps) -> Bools:
    """Whether the launch of the work that ends each gap began after the gap did."""
    launch = gpu_work(trace).launch[gaps.next]
    within: Bools = (launch != NO_INDEX) & (trace.events.ts[launch] > gaps.start)
    return within


def _work_evidence(trace: Trace, gaps: IdleGaps, cause: Bytes) -> dict[str, ArgColumn]:
    """The evidence from GPU work: the work that ends each gap, and the work that ran before."""
    work, events = gpu_work(trace), trace.events
    delay = np.maximum(gaps.end - launch_end(trace, gaps.next), 0)
    unknown = np.where(before_recording(trace)[gaps.next], np.int32(1), np.int32(0))
    known = (cause != GapCategory.OTHER) | (work.launch[gaps.next] != NO_INDEX)
    return {
        "correlation": events.correlation[work.row[gaps.next]],
        "previous_kernel": names_of_work(trace, gaps.previous, cause != GapCategory.HOST_WAIT),
        "launch": Texts(np.where(known, np.int32(-1), unknown), LAUNCH),
        "launch_delay_ns": np.where(_launched_within(trace, gaps), delay, -1),
    }


def _host_evidence(
    trace: Trace, gaps: Sequence[IdleGaps], causes: Sequence[Bytes]
) -> list[tuple[dict[str, ArgColumn], Int64s]]:
    """For each device: the evidence from what the launching thread did until it had launched, and the row of the slice
    that took longest, else of the launch. Each thread is examined once for all devices."""
    late = [cause == GapCategory.HOST_WAIT for cause in causes]
    if not any(which.any() for which in late):
        return [({}, np.full(len(which), NO_INDEX, np.int64)) for which in late]
    start = np.concatenate([of_device.start[which] for of_device, which in zip(gaps, late, strict=True)])
    end = np.concatenate([of_device.end[which] for of_device, which in zip(gaps, late, strict=True)])
    following = np.concatenate([of_device.next[which] for of_device, which in zip(gaps, late, strict=True)])
    launch = gpu_work(trace).launch[following]
    end = np.minimum(end, launch_end(trace, following))  # what the host did later delayed nothing
    thread = trace.events.track[launch]
    evidence: list[dict[str, ArgColumn]] = [{} for _ in gaps]
    busy = np.full(len(launch), NO_INDEX, np.int64)
    bounds = np.cumsum([0, *(int(which.sum()) for which in late)]).tolist()
    for arg, owning in OWNERS:
        name, ns, row, _ = occupants(trace, owning, start, end, thread)
        if not (name >= 0).any():
            continue
        busy = np.where(busy == NO_INDEX, row, busy)
        for args, which, low, high in zip(evidence, late, bounds, bounds[1:], strict=False):
            args[arg] = Texts(spread(name[low:high], which, len(which)), trace.strings)
            args[f"{arg}_ns"] = spread(ns[low:high], which, len(which))
    busy = np.where(busy == NO_INDEX, launch, busy)
    rows = (
        spread(busy[low:high], which, len(which)) for which, low, high in zip(late, bounds, bounds[1:], strict=False)
    )
    return list(zip(evidence, rows, strict=True))
