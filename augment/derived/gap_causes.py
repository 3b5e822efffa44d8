"""Why a stream or a device stands idle: the category of each gap, and the evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from augment.annotations import ArgColumn, Texts
from augment.derived.gpu_work import Device, Stream, gpu_work
from augment.derived.idle_gaps import IdleGaps, device_gaps, stream_gaps
from augment.derived.launches import NO_ROW
from augment.derived.occupancy import occupants
from augment.derived.sync_calls import longest_in, sync_calls, waited_for
from augment.intervals import Intervals
from augment.trace import Bools, Bytes, Category, Int64s, Trace

#: what may own a gap: an operator, or an annotation where it is in none (``enumerate(DataLoader)``); and a function
OWNERS: tuple[tuple[str, tuple[Category, ...]], ...] = (
    ("owner", (Category.CPU_OP, Category.USER_ANNOTATION)),
    ("python_function", (Category.PYTHON_FUNCTION,)),
)

KERNEL_DELAY_NS = 30_000  #: below this a gap between work launched in time is kernel_wait; as in HTA
Integer = TypeVar("Integer", bound=np.signedinteger)


class GapCategory(IntEnum):
    """HTA's categories of idle time."""

    HOST_WAIT = 0
    KERNEL_WAIT = 1
    OTHER = 2


@dataclass(frozen=True, slots=True)
class Cause:
    """Of the gaps of one stream or device, columns as long: the :class:`GapCategory` (uint8), the evidence, and the
    ``row`` (int64) of the slice that the device waited for, ``NO_ROW`` where none is known."""

    gaps: IdleGaps
    category: Bytes
    evidence: Mapping[str, ArgColumn]
    row: Int64s


def causes(trace: Trace, consecutive_kernel_delay_ns: int) -> tuple[list[Cause], list[Cause]]:
    """The causes of the gaps on each stream and on each device, in ``gpu_work``'s order."""
    work = gpu_work(trace)
    lanes: list[tuple[Stream | Device, IdleGaps]] = list(zip(work.streams, stream_gaps(trace), strict=True))
    lane_of = {(one.start, one.stop): index for index, one in enumerate(work.streams)}
    for device, gaps in zip(work.devices, device_gaps(trace), strict=True):
        if (device.start, device.stop) not in lane_of:  # else its only stream's gaps are its own
            lane_of[device.start, device.stop] = len(lanes)
            lanes.append((device, gaps))
    categories = [categories_of(trace, gaps, consecutive_kernel_delay_ns) for _, gaps in lanes]
    host = _host_evidence(trace, [gaps for _, gaps in lanes], categories)
    found = []
    for (one, gaps), category, (late, busy) in zip(lanes, categories, host, strict=True):
        synced, call = _sync_evidence(trace, one, gaps, category)
        evidence = _own_evidence(trace, one, gaps, category) | late | synced
        found.append(Cause(gaps, category, evidence, np.where(busy == NO_ROW, call, busy)))
    return found[: len(work.streams)], [found[lane_of[one.start, one.stop]] for one in work.devices]


def categories_of(trace: Trace, gaps: IdleGaps, consecutive_kernel_delay_ns: int = KERNEL_DELAY_NS) -> Bytes:
    """The :class:`GapCategory` of each gap, uint8, by the work that ends it."""
    launch = gpu_work(trace).launch[gaps.next]
    launched = launch != NO_ROW
    late = launched & (trace.events.ts[launch] > gaps.start)
    short = launched & (gaps.end - gaps.start < consecutive_kernel_delay_ns)
    category = np.full(len(gaps), GapCategory.OTHER, np.uint8)
    category[short] = GapCategory.KERNEL_WAIT
    category[late] = GapCategory.HOST_WAIT
    return category


def _own_evidence(trace: Trace, lane: Stream | Device, gaps: IdleGaps, category: Bytes) -> dict[str, ArgColumn]:
    """The launch that ended the gap; on a stream, what ran before, too: a device's gap is a gap of its streams."""
    work, events = gpu_work(trace), trace.events
    late = category == GapCategory.HOST_WAIT
    evidence: dict[str, ArgColumn] = {"correlation": events.correlation[work.row[gaps.next]]}
    if isinstance(lane, Stream):
        launch = work.launch[gaps.next]
        launched = events.ts[launch] + events.dur[launch]
        evidence["previous_kernel"] = _names(trace, work.row[gaps.previous], ~late)
        evidence["launch_delay_ns"] = np.where(late, np.maximum(gaps.end - launched, 0), -1)
    return evidence


def _names(trace: Trace, rows: Int64s, known: Bools) -> Texts:
    """The names of ``rows``, of those that are ``known``."""
    return Texts(np.where(known, trace.events.name[rows], np.int32(-1)), trace.strings)


def _host_evidence(
    trace: Trace, gaps: Sequence[IdleGaps], categories: Sequence[Bytes]
) -> list[tuple[dict[str, ArgColumn], Int64s]]:
    """What the launching thread did meanwhile, of each of the lanes: the evidence, and the slice that took longest,
    else the launch. One look at each thread for all lanes."""
    late = [category == GapCategory.HOST_WAIT for category in categories]
    if not any(one.any() for one in late):
        return [({}, np.full(len(one), NO_ROW, np.int64)) for one in gaps]
    start = np.concatenate([one.start[which] for one, which in zip(gaps, late, strict=True)])
    end = np.concatenate([one.end[which] for one, which in zip(gaps, late, strict=True)])
    following = np.concatenate([one.next[which] for one, which in zip(gaps, late, strict=True)])
    launch = gpu_work(trace).launch[following]
    thread = trace.events.track[launch]
    evidence: list[dict[str, ArgColumn]] = [{} for _ in gaps]
    busy = np.full(len(launch), NO_ROW, np.int64)
    bounds = np.cumsum([0, *(int(which.sum()) for which in late)]).tolist()
    for arg, owning in OWNERS:
        name, ns, row = occupants(trace, owning, start, end, thread)
        if not (name >= 0).any():
            continue
        busy = np.where(busy == NO_ROW, row, busy)
        for one, which, low, high in zip(evidence, late, bounds, bounds[1:], strict=False):
            one[arg] = Texts(_spread(name[low:high], which), trace.strings)
            one[f"{arg}_ns"] = _spread(ns[low:high], which)
    busy = np.where(busy == NO_ROW, launch, busy)
    spread = (_spread(busy[low:high], which) for which, low, high in zip(late, bounds, bounds[1:], strict=False))
    return list(zip(evidence, spread, strict=True))


def _sync_evidence(
    trace: Trace, lane: Stream | Device, gaps: IdleGaps, category: Bytes
) -> tuple[dict[str, ArgColumn], Int64s]:
    """What waited for a device during the gaps that the host did not cause: the evidence, and the call."""
    call = np.full(len(gaps), NO_ROW, np.int64)
    stream = lane.stream if isinstance(lane, Stream) else None
    candidates = sync_calls(trace).near(lane.device, stream)
    asked = category != GapCategory.HOST_WAIT
    if not len(candidates) or not asked.any():
        return {}, call
    call = _spread(longest_in(trace, candidates, Intervals(gaps.start[asked], gaps.end[asked])), asked)
    known = call != NO_ROW
    if not known.any():
        return {}, call
    rows, which = np.unique(call[known], return_inverse=True)
    waited = waited_for(trace, rows)
    texts = [waited.get(row, "") for row in rows.tolist()]
    codes = np.array([index if text else -1 for index, text in enumerate(texts)], np.int32)
    waiting: dict[str, ArgColumn] = {
        "sync_call": _names(trace, call, known),
        "waited_for": Texts(_spread(codes[which], known), texts),
    }
    return waiting, call


def _spread(values: npt.NDArray[Integer], which: Bools) -> npt.NDArray[Integer]:
    """``values`` at the places of ``which``, -1 elsewhere."""
    spread = np.full(len(which), -1, values.dtype)
    spread[which] = values
    return spread
