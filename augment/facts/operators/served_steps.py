"""What each step of an inference engine did on a device: time, gaps, graphs, operations, bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from augment.arrays import NO_INDEX, Int64s, sums
from augment.core import Trace, derived
from augment.facts import gpu, names
from augment.facts.operators.operator_work import operator_work
from augment.facts.operators.peaks import device_peaks, roofs
from augment.facts.steps import StepWindows, batches, is_served, recorded_windows, step_figures, step_of_work
from augment.facts.steps.engine_steps import UNKNOWN, Batch, engine_steps

Floats = npt.NDArray[np.float64]
NO_SHAPES = "no operator of these steps has shapes: record_shapes=True; for kernels of graphs --graph-capture FILE"
NO_PEAK = "memory bandwidth is not known: --peak memory_gbps=…"


class ServedSteps(Struct, frozen=True):
    """The steps of an engine on one device: equal-length columns."""

    device: int  #: an index of ``gpu_work(trace).devices``
    windows: StepWindows  #: when each runs
    batches: tuple[Batch, ...]  #: of each, what its name says
    wall_ns: Int64s  #: of the window: to the next step, but for pauses
    busy_ns: Int64s  #: of the window, with work
    first: Int64s  #: the index in ``gpu_work`` of the step's first work, -1 where it has none
    accepted: Int64s  #: tokens that running sequences keep of the step, -1 where unknown
    gap_ns: Int64s  #: from the last work of the step to the first of the next, -1 where no step follows at once
    graph_ratio: Floats  #: share of the time of its work that graphs launched; NaN without work of a known launch
    flops: Floats  #: of products with a formula
    bytes: Floats  #: that operators with a formula have to move
    attention_flops: Floats  #: of them, of attention over the cache; NaN where unknown
    attention_bytes: Floats  #: of them, read by attention from the cache; NaN where unknown
    covered_ratio: Floats  #: share of the busy time whose bytes are known
    memory_gbps: float | None  #: memory bandwidth, if known
    lacking: str  #: why there are no bytes, empty if there are some

    def __len__(self) -> int:
        return len(self.wall_ns)

    @property
    def mbu_ratio(self) -> Floats:
        """The known bytes by what the memory could move in the step; NaN where unknown."""
        if self.memory_gbps is None or self.lacking:
            return np.full(len(self), np.nan)
        return self.bytes / np.maximum(self.wall_ns, 1) / self.memory_gbps


def kept_tokens(batches: Sequence[Batch], windows: StepWindows) -> Int64s:
    """The tokens that running sequences keep of each step: all where no drafts are verified; else what the cache of the
    next step has more, if that verifies for as many sequences and nothing else is in either batch; -1 unknown."""
    kept = np.full(len(batches), UNKNOWN, np.int64)
    for place, batch in enumerate(batches):
        if batch.phase not in ("decode", "mixed") or batch.decode_tokens < 0:
            continue
        if batch.decode_tokens == batch.decode_requests:
            kept[place] = batch.decode_tokens
            continue
        after = batches[place + 1] if place + 1 < len(batches) else None
        if after is None or windows.finish[place] != windows.begin[place + 1] or UNKNOWN in (
            batch.decode_context, after.decode_context, after.decode_tokens
        ):  # fmt: skip
            continue
        grown = after.decode_context - after.decode_tokens - (batch.decode_context - batch.decode_tokens)
        alike = batch.phase == after.phase == "decode" and batch.decode_requests == after.decode_requests
        if alike and batch.decode_requests <= grown <= batch.decode_tokens:
            kept[place] = grown
    return kept


@derived(until="operations")
def served_steps(trace: Trace) -> tuple[ServedSteps, ...]:
    """The steps of an engine on each device; empty without an engine or work."""
    work, windows = gpu.work(trace), recorded_windows(trace)
    if (
        not is_served(trace)
        or engine_steps(trace).is_region
        or not len(work)
        or not len(windows)
        or (windows.number < 0).any()
    ):
        return ()
    of_step = tuple(batches(trace)[number] for number in windows.number.tolist())
    count, step = len(windows), step_of_work(trace, windows)
    launched = work.launch != NO_INDEX
    by_graph = launched & names.matching(trace, names.GRAPH_LAUNCH)[trace.events.name[np.maximum(work.launch, 0)]]
    operators, on_roof, peaks = operator_work(trace), roofs(trace), device_peaks(trace)
    operator_step = windows.of_host(trace.events.ts[operators.row])
    attends = np.array([work.attends for work in operators.works], np.bool_)[operators.kind]
    served = []
    for place, (device, figures) in enumerate(zip(work.devices, step_figures(trace, windows), strict=True)):
        inside = np.arange(device.start, device.stop)
        inside = inside[step[inside] >= 0]
        first, last = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
        backwards = inside[np.argsort(work.ts[inside], kind="stable")[::-1]]
        first[step[backwards]] = backwards  # of several assignments, the last one stays
        np.maximum.at(last, step[inside], work.end[inside])
        gap = np.full(count, -1, np.int64)
        follows = (windows.finish[:-1] == windows.begin[1:]) & (last[:-1] >= 0) & (last[1:] >= 0)
        gap[:-1][follows] = np.maximum(work.ts[first[1:]] - last[:-1], 0)[follows]
        dur = work.end[inside] - work.ts[inside]
        known = launched[inside]
        whole = sums(step[inside][known], dur[known], count)
        graphs = sums(step[inside][by_graph[inside]], dur[by_graph[inside]], count)
        there = (on_roof.device == place) & (operator_step >= 0)

        def total(values: Floats, there: npt.NDArray[np.bool_] = there) -> Floats:
            chosen = there & ~np.isnan(values) & ~on_roof.beyond
            added = np.zeros(count)
            np.add.at(added, operator_step[chosen], values[chosen])
            return added

        moved = there & ~np.isnan(on_roof.bytes)
        seen = total(np.where(np.isnan(on_roof.bytes), np.nan, on_roof.ns.astype(np.float64)))
        busy = figures.of_device["busy_ns"]
        peak = peaks[device.device]
        rate = None if peak is None else peak.memory_gbps
        attending = there & attends & ~on_roof.beyond & ~np.isnan(on_roof.bytes)
        has = np.bincount(operator_step[attending], minlength=count) > 0
        served.append(
            ServedSteps(
                device=place,
                windows=windows,
                batches=of_step,
                wall_ns=figures.wall_ns,
                busy_ns=busy,
                first=first,
                accepted=kept_tokens(of_step, windows),
                gap_ns=gap,
                graph_ratio=np.divide(graphs, whole, out=np.full(count, np.nan), where=whole > 0),
                flops=total(on_roof.flops),
                bytes=total(on_roof.bytes),
                attention_flops=np.where(has, total(on_roof.flops, attending), np.nan),
                attention_bytes=np.where(has, total(on_roof.bytes, attending), np.nan),
                covered_ratio=np.divide(seen, busy, out=np.zeros(count), where=busy > 0),
                memory_gbps=rate,
                lacking=NO_SHAPES if not moved.any() else NO_PEAK if rate is None else "",
            )
        )
    return tuple(served)
