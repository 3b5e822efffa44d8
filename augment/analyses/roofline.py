"""How near does each operator come to what its device can do?

A row for each operator with the same shapes and types on a device, the most lost time first. Operations and bytes come
from the recorded shapes (``record_shapes=True``): of matrix products, convolutions and attention both, of others the
bytes, each operand read once and each result written once. A multiply-add is two operations. Only the innermost
operator with a formula counts, and an operator without one has no row: it is unknown, not zero. Formulas for operators
of your own, and peaks of devices, are given in [tables](tables.md).

Kernels of a CUDA graph have no operators. Those of the graph's capture count, if the capture is in the trace or given
beside it (``--graph-capture FILE``): the n-th captured launch is the n-th kernel of the graph. Where names of kernels
were captured (ROCm), all must be equal; else number, stream and kinds of work must fit. What does not fit is not
covered (diagnostic ``graph_not_joined``).

Operations equal those of TraceLens (``benchmarks/tracelens.py``) on the recorded runs that were compared, except where
its models differ: it adds one operation for each element of the result where ``addmm`` or ``baddbmm`` adds an operand,
takes half of all pairs of a causal mask (here those that see each other: n (n + 1) / 2), and counts gradients that the
``output_mask`` of a convolution's backward leaves out. It has no model of ``flash_attn_3``.

``roof_ns`` is the time that the operator would have taken at its device's peak: the greater of operations by the dense
rate of their type of number, and bytes by the rate of memory. FP32 products on matrix units are held against TF32 where
the device has it. ``roof_ratio`` is that time by the time in which its kernels ran. What is served from caches can be
faster than the rate of memory allows, so that it can be above 1; ``lost_ns`` is 0 then. Where even twice the cache does
not explain it, the bytes are not believed: there is no roof (diagnostic ``bytes_not_moved``).

``bound`` is what the operator would be limited by: ``compute`` or ``memory``, by the greater part of the roof;
``latency``, if it takes less than 10 µs and twice its roof or more; ``unknown`` without a roof. ``confidence`` is
``high`` of products whose operations are known; ``bounded``, where they are at least ``flops`` and at most
``most_flops``: sequences of unknown lengths in one tensor, whose ``bound`` may have to be ``unknown``;
``modelled_bytes`` of all others; ``unknown`` without a roof.

A device whose peak is not known has neither roof nor ``bound``. The rates are drawn as counters, ``Achieved TFLOP/s``
and ``Modelled GB/s``, unless the maximum is below 0.1 % of the device's peak (of FP16), and each operator
with a roof as a slice on ``Roofline``.

**What to do**: begin with the shapes of greatest ``lost_ns``. Bound by memory: fuse with neighbours. Bound by
computation, yet far below the roof: align sizes to 64, enlarge the batch, tune (``mode="max-autotune"``). Bound by
latency: launch fewer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from augment.annotations import Annotation, ArgColumn, CounterTrack, SliceTrack, Texts
from augment.arrays import intervals
from augment.arrays.ordering import combinations, each, numbered
from augment.arrays.types import Bytes, Int64s, Places
from augment.derived.gpu.gpu_work import gpu_work, sort_key
from augment.derived.operators.graph_capture import graph_work
from augment.derived.operators.operator_work import operator_work
from augment.derived.operators.peaks import device_peaks, why_unknown
from augment.derived.operators.roofs import Bound, Floats, roofs
from augment.findings import Findings, Skipped, column
from augment.trace import GPU_WORK, Category, Diagnostic, Identity, Trace

NAME = "roofline"
NEEDS = (GPU_WORK, (Category.CPU_OP,))
ABOVE = 1.02  #: of the dense peak: more is told
LEAST = 0.001  #: of the peak: a counter whose maximum is less is not drawn


@dataclass(frozen=True, slots=True)
class Row:
    """One operator with the same shapes and types on one device."""

    rank: int | None = column("The rank of the process, if known.")
    device: Identity = column("The device.")
    operator: str = column("The operator.")
    shapes: str = column("The shapes of its arguments.")
    number: str | None = column("The type of number whose rate holds; null of what is no product, or where unknown.")
    count: int = column("How many of its calls launched computation.", "count")
    time_ns: int = column("Time in which its kernels ran, of all calls.", "ns")
    flops: int | None = column("Floating-point operations of all calls.", "FLOP")
    most_flops: int | None = column("At most, where they can only be bounded.", "FLOP")
    size_bytes: int | None = column("Bytes of all calls.", "bytes")
    achieved_tflops: float | None = column("Operations by time.", "TFLOP/s")
    modelled_gbps: float | None = column("Bytes by time.", "GB/s")
    intensity: float | None = column("Operations by bytes.", "FLOP/B")
    bound: str = column("compute, memory, latency or unknown.")
    roof_ns: int | None = column("The time that all calls would have taken at the peak.", "ns")
    roof_ratio: float | None = column("That time by the time taken.", "ratio")
    lost_ns: int | None = column("The time taken beyond it.", "ns")
    confidence: str = column("high, bounded, modelled_bytes or unknown.")


ROW = Row


def analyze(trace: Trace) -> Findings | Skipped:
    """Hold each operator against its roof."""
    found = operator_work(trace)
    if not found.recorded:
        return Skipped("no operator has shapes; record with record_shapes=True")
    if not len(found):
        return Skipped("no operator with a formula launched computation")
    rows = sorted(_rows(trace), key=lambda row: (sort_key(row.rank), sort_key(row.device), -(row.lost_ns or 0),
                                                 -row.time_ns, row.operator, row.shapes, row.number or ""))  # fmt: skip
    return Findings(rows, list(_annotations(trace)), list(_diagnostics(trace)))


def _rows(trace: Trace) -> Iterator[Row]:
    found, own = operator_work(trace), roofs(trace)
    codes: dict[tuple[str, str, tuple[str, ...]], int] = {}
    alike = np.array([codes.setdefault((one.operator, str(one.dims), tuple(one.types)), len(codes))
                      for one in found.calls], np.int64)  # fmt: skip
    told = [(operator, shapes) for operator, shapes, _ in codes]
    devices = gpu_work(trace).devices
    width = len(own.numbers) + 1
    code = (alike[found.kind] * width + own.number + 1) * len(devices) + own.device
    for value, places in each(code, len(codes) * width * len(devices)):
        rest, device = divmod(value, len(devices))
        which, number = divmod(rest, width)
        is_number = own.numbers[number - 1] or None if number else None
        yield _row(trace, places, *told[which], is_number, devices[device].rank, devices[device].device)


def _row(
    trace: Trace, places: Places, operator: str, shapes: str, number: str | None, rank: int | None, device: Identity
) -> Row:
    found, own = operator_work(trace), roofs(trace)
    ns = int(own.ns[places].sum())
    kinds = [(found.works[kind], count) for kind, count in Counter(found.kind[places].tolist()).items()]
    flops = sum((one.flops or 0) * count for one, count in kinds) if kinds[0][0].is_product else None
    most = sum((one.most_flops or 0) * count for one, count in kinds) if flops is not None else None
    size = None if any(one.bytes is None for one, _ in kinds) else sum((one.bytes or 0) * count for one, count in kinds)
    roof = None if np.isnan(own.roof_ns[places]).any() else own.roof_ns[places]
    bound = Bound.UNKNOWN if roof is None else _most(own.bound[places], own.ns[places])
    bounded = most if most != flops else None
    sure = "bounded" if bounded is not None else "modelled_bytes" if flops is None else "high"
    return Row(
        rank, device, operator, shapes, number, len(places), ns, flops, bounded, size,
        achieved_tflops=flops / ns / 1e3 if ns and flops is not None else None,
        modelled_gbps=size / ns if ns and size is not None else None,
        intensity=flops / size if size and flops is not None else None,
        bound=bound.name.lower(),
        roof_ns=None if roof is None else round(float(roof.sum())),
        roof_ratio=None if roof is None or not ns else float(roof.sum()) / ns,
        lost_ns=None if roof is None else round(float(np.maximum(own.ns[places] - roof, 0).sum())),
        confidence="unknown" if roof is None else sure,
    )  # fmt: skip


def _most(bound: Bytes, ns: Int64s) -> Bound:
    """The bound in which most of the time was spent."""
    return Bound(int(np.bincount(bound, ns + 1).argmax()))


def _diagnostics(trace: Trace) -> Iterator[Diagnostic]:
    own = roofs(trace)
    for device, peak in device_peaks(trace).items():
        if peak is None:
            yield Diagnostic("no_peak", 1, f"{why_unknown(trace, device)}; so there is no roof")
    if reasons := graph_work(trace).reasons:
        why = "; ".join(dict.fromkeys(reasons))
        yield Diagnostic("graph_not_joined", len(reasons), f"launches of graphs whose operators are not known: {why}")
    if own.beyond.any():
        why = "a formula counts more bytes than the kernels move; they have no roof"
        yield Diagnostic("bytes_not_moved", int(own.beyond.sum()), f"operators beyond the rate of memory: {why}")
    above = int((own.compute_ns > ABOVE * own.ns).sum())
    if above:
        why = "the clock is above the boost clock, the device is another, or a formula is wrong"
        yield Diagnostic("above_peak", above, f"operators are faster than their device's dense peak: {why}")


def _annotations(trace: Trace) -> Iterator[Annotation]:
    found, own, work = operator_work(trace), roofs(trace), gpu_work(trace)
    mine = np.flatnonzero(found.owner >= 0)
    owner = found.owner[mine]
    for device in work.devices:
        inside = (mine >= device.start) & (mine < device.stop)
        peak = device_peaks(trace)[device.device]
        fastest = peak.tflops.get("fp16", 0.0) if peak else 0.0
        memory = (peak.memory_gbps if peak else None) or 0.0
        for name, unit, amount, scale, most in (("Achieved TFLOP/s", "TFLOP/s", own.flops, 1e6, fastest),
                                                ("Modelled GB/s", "GB/s", own.bytes, 1e3, memory)):  # fmt: skip
            rate = amount / np.maximum(own.kernel_ns, 1) * 1e3  # whole, so that the counter falls to 0 exactly
            wanted = np.flatnonzero(inside & ~np.isnan(rate[owner]) & (work.end[mine] > work.ts[mine]))
            if len(wanted):
                change = np.rint(rate[owner[wanted]]).astype(np.int64)
                places = mine[wanted]
                ts, value = intervals.steps(
                    np.concatenate((work.ts[places], work.end[places])), np.concatenate((change, -change))
                )
                if value.max(initial=0) >= LEAST * most * scale:
                    yield CounterTrack(NAME, name, device.track, ts, value / scale, unit, "of operators with a formula")
    yield from _slices(trace)


def _slices(trace: Trace) -> Iterator[SliceTrack]:
    """A slice for each operator with a roof, from its first kernel to its last on the stream of its longest."""
    found, own, work = operator_work(trace), roofs(trace), gpu_work(trace)
    mine = np.flatnonzero(found.owner >= 0)
    stream_of = np.searchsorted([one.start for one in work.streams], np.arange(len(work)), side="right") - 1
    mine = mine[stream_of[mine] == stream_of[own.kernel[found.owner[mine]]]]
    start = np.full(len(found), np.iinfo(np.int64).max)
    end = np.full(len(found), np.iinfo(np.int64).min)
    np.minimum.at(start, found.owner[mine], work.ts[mine])
    np.maximum.at(end, found.owner[mine], work.end[mine])
    drawn = np.flatnonzero(~np.isnan(own.roof_ns) & (own.ns > 0))
    drawn = drawn[np.argsort(start[drawn], kind="stable")]
    for stream, places in each(stream_of[own.kernel[drawn]], len(work.streams)):
        chosen = drawn[places]
        reached = np.maximum.accumulate(end[chosen])
        apart = np.ones(len(chosen), np.bool_)
        apart[1:] = start[chosen[1:]] >= reached[:-1]  # what crosses another cannot be drawn beside it
        chosen = chosen[apart]
        yield _track(trace, work.streams[stream].track, chosen, start[chosen], end[chosen])


def _track(trace: Trace, under: int, chosen: Places, start: Int64s, end: Int64s) -> SliceTrack:
    found, own = operator_work(trace), roofs(trace)
    shares = np.rint(100 * own.roof_ns[chosen] / own.ns[chosen]).astype(np.int64)
    kinds, kind = numbered(found.kind[chosen])  # texts are made once for each distinct call, not for each slice
    calls = [found.calls[one] for one in kinds.tolist()]
    pairs, pair = combinations(kind, shares)
    operators = [one.operator.removeprefix("aten::") for one in calls]
    told = [f"{operators[one]} {share} % of roof" for one, share in zip(*(key.tolist() for key in pairs), strict=True)]
    lost = np.maximum(own.ns[chosen] - np.rint(own.roof_ns[chosen]).astype(np.int64), 0)
    args: dict[str, ArgColumn] = {
        "bound": Texts(own.bound[chosen].astype(np.int32), [one.name.lower() for one in Bound]),
        "shapes": _texts([str(one.dims) for one in calls], kind),
        "flops": _whole(own.flops[chosen]),
        "bytes": _whole(own.bytes[chosen]),
        "roof_ns": np.rint(own.roof_ns[chosen]).astype(np.int64),
        "lost_ns": lost,
    }
    return SliceTrack(
        NAME, "Roofline", under, start, end - start, _texts(told, pair), args, "operators held against their roof"
    )


def _whole(values: Floats) -> Int64s:
    return np.where(np.isnan(values), -1, values).astype(np.int64)


def _texts(values: list[str], which: Int64s) -> Texts:
    """The text of each of ``which``; of equal ones one is kept."""
    numbers: dict[str, int] = {}
    codes = np.array([numbers.setdefault(one, len(numbers)) for one in values], np.int32)
    return Texts(codes[which], list(numbers))
