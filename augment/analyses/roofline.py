"""How near does each operator come to what its device can do?

A row for each operator with the same shapes and types on a device, the most lost time first. Operations and bytes come
from the recorded shapes (``record_shapes=True``): of matrix products, convolutions and attention both, of others the
bytes, each operand read once and each result written once. A multiply-add is two operations. Only the innermost
operator with a formula counts, and an operator without one has no row: it is unknown, not zero. Formulas for operators
of your own, and peaks of devices, are given in [tables](tables.md).

``cat`` and optimizers over lists of tensors (``_foreach_…``, ``_fused_adamw_``): PyTorch records the shapes of at most
30 tensors and no types, which the kernels' names tell. Where shapes or type are missing, the bytes are unknown
(diagnostic ``lists_without_bytes``, if it is 1 % of the computing kernels' time).

Kernels of a CUDA graph have no operators. Those of the graph's capture count, if the capture is in the trace or given
beside it (``--graph-capture FILE``): the n-th captured launch is the n-th kernel of the graph. Where names of kernels
were captured (ROCm), all must be equal; else number and kinds of work must fit. Kernels on several streams do not run
in the order of the capture. They are joined by ``graph node id`` (Kineto from 2026 on, CUDA) or, if names were
captured, where all operators behind a name are alike. What does not fit is not covered (diagnostic
``graph_not_joined``).

Operations equal those of TraceLens (``benchmarks/tracelens.py``) on the recorded runs that were compared, except where
its models differ: it adds one operation for each element of the result where ``addmm`` or ``baddbmm`` adds an operand,
takes half of all pairs of a causal mask (here those that see each other: n (n + 1) / 2), and counts gradients that the
``output_mask`` of a convolution's backward leaves out. It has no model of ``flash_attn_3``.

Recordings of JAX have no operators, so that there are no rows here; XLA's own figures (``model_flops``,
``raw_bytes_accessed``) remain args of the events. Our formulas agree with them for the HLO instructions of a recorded
TPU: operations and bytes of products, bytes of gathers, copies, broadcasts and collectives. XLA counts fewer bytes for
up to a tenth of the fused loops, which read an operand only in part.

``roof_ns`` is the time that the operator would have taken at its device's peak: the greater of operations by the dense
rate of their type of number, and bytes by the rate of memory. FP32 products on matrix units are held against TF32 where
the device has it; where names of kernels do not tell whether they ran there, they have no roof, unless the peaks have
no such rate. ``roof_ratio`` is that time by the time in which its kernels ran. What is served from caches can be
faster than the rate of memory allows, so that it can be above 1; ``lost_ns`` is 0 then. Where even twice the cache does
not explain it, the bytes are not believed: there is no roof (diagnostic ``bytes_not_moved``).

``bound`` is what the operator would be limited by: ``compute`` or ``memory``, by the greater part of the roof;
``latency``, if it takes less than 10 µs and twice its roof or more; ``unknown`` without a roof. ``confidence`` is
``high`` of products whose operations are known; ``bounded``, where they are at least ``flops`` and at most
``most_flops``: sequences of unknown lengths in one tensor, whose ``bound`` may have to be ``unknown``;
``modelled_bytes`` of all others; ``unknown`` without a roof.

A device whose peak is not known has neither roof nor ``bound``. The rates are drawn as counters, ``Achieved TFLOP/s``
and ``Modelled GB/s``, unless the maximum is below 0.1 % of the device's peak (of FP16); bytes that are
not believed are left out. Each operator with a roof is a slice on ``Roofline``: above what it is bound by, which gives
the colour, below its name and share of the roof.

**What to do**: begin with the shapes of greatest ``lost_ns``. Bound by memory: fuse with neighbours. Bound by
computation, yet far below the roof: align sizes to 64, enlarge the batch, tune (``mode="max-autotune"``). Bound by
latency: launch fewer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated

import numpy as np

from augment import facts
from augment.arrays import Int64s, Places, WorkIndex, combinations, each, intervals, is_among, numbered
from augment.core import (
    GPU_WORK,
    Annotation,
    ArgColumn,
    Category,
    CounterTrack,
    Diagnostic,
    Findings,
    Identity,
    OfDevice,
    Skipped,
    SliceTrack,
    Texts,
    Trace,
    column,
)
from augment.core.text import recording_words
from augment.facts.names import KernelType
from augment.facts.operators.counted_operators import list_kernels
from augment.facts.operators.operator_calls import Work
from augment.facts.operators.peaks import Bound, Floats, device_peaks, roofs, why_unknown

NAME = "roofline"
NEEDS = (GPU_WORK, (Category.CPU_OP,))
ABOVE = 1.02  #: of the dense peak: more is told
_BOUNDS = [f"{bound.name.lower()}-bound" if bound else "bound unknown" for bound in Bound]  #: names, and so colours
LEAST_UNKNOWN = 0.01  #: of the computing kernels' time: operators over lists of less are not told
LEAST = 0.001  #: of the peak: a counter whose maximum is less is not drawn


class Row(OfDevice, frozen=True):
    """One operator with the same shapes and types on one device."""

    operator: Annotated[str, column("The operator.")]
    shapes: Annotated[str, column("The shapes of its arguments.")]
    number: Annotated[
        str | None, column("The type of number whose rate holds; null of what is no product, or where unknown.")
    ]
    count: Annotated[int, column("How many of its calls launched computation.", "count")]
    time_ns: Annotated[int, column("Time in which its kernels ran, of all calls.", "ns")]
    flops: Annotated[int | None, column("Floating-point operations of all calls.", "FLOP")]
    most_flops: Annotated[int | None, column("At most, where they can only be bounded.", "FLOP")]
    size_bytes: Annotated[int | None, column("Bytes of all calls.", "bytes")]
    achieved_tflops: Annotated[float | None, column("Operations by time.", "TFLOP/s")]
    modelled_gbps: Annotated[float | None, column("Bytes by time.", "GB/s")]
    intensity: Annotated[float | None, column("Operations by bytes.", "FLOP/B")]
    bound: Annotated[str, column("compute, memory, latency or unknown.")]
    roof_ns: Annotated[int | None, column("The time that all calls would have taken at the peak.", "ns")]
    roof_ratio: Annotated[float | None, column("That time by the time taken.", "ratio")]
    lost_ns: Annotated[int | None, column("The time taken beyond it.", "ns")]
    confidence: Annotated[str, column("high, bounded, modelled_bytes or unknown.")]


def analyze(trace: Trace) -> Findings | Skipped:
    """Hold each operator against its roof."""
    operators = facts.operators.work(trace)
    if not operators.recorded:
        return Skipped(f"no operator has shapes; record with {recording_words(trace.source.metadata).shapes}")
    if not len(operators):
        return Skipped("no operator with a formula launched computation")
    rows = []
    on_roof = roofs(trace)
    codes: dict[tuple[str, str, tuple[str, ...], int], int] = {}
    calls = [(call.operator, str(call.dims), tuple(call.types), call.element_bytes) for call in operators.calls]
    alike = np.array([codes.setdefault(call, len(codes)) for call in calls], np.int64)
    texts = [(operator, shapes) for operator, shapes, *_ in codes]
    devices = facts.gpu.work(trace).devices
    width = len(on_roof.numbers) + 1
    attends = np.array([work.attends for work in operators.works], np.bool_)[operators.kind]
    shortened = on_roof.beyond & attends  # layers that attend to a window have rows of their own
    code = ((alike[operators.kind] * 2 + shortened) * width + on_roof.number + 1) * len(devices) + on_roof.device
    for value, places in each(code, 2 * len(codes) * width * len(devices)):
        rest, device = divmod(value, len(devices))
        both, number = divmod(rest, width)
        which = both // 2
        is_number = on_roof.numbers[number - 1] or None if number else None
        rows.append(_row(trace, places, *texts[which], is_number, devices[device].rank, devices[device].device))
    rows.sort(
        key=lambda row: (
            facts.gpu.sort_key(row.rank), facts.gpu.sort_key(row.device), -(row.lost_ns or 0), -row.time_ns,
            row.operator, row.shapes, row.number or "",
        )
    )  # fmt: skip
    return Findings(rows, list(_annotations(trace)), list(_diagnostics(trace)))


def _row(
    trace: Trace, places: Places, operator: str, shapes: str, number: str | None, rank: int | None, device: Identity
) -> Row:
    operators, on_roof = facts.operators.work(trace), roofs(trace)
    ns = int(on_roof.ns[places].sum())
    kinds = [(operators.works[kind], count) for kind, count in Counter(operators.kind[places].tolist()).items()]
    is_known = not (np.isnan(on_roof.flops[places]) & np.isnan(on_roof.bytes[places])).all()
    kinds = kinds if is_known else [(Work(), len(places))]
    flops = sum((each.flops or 0) * count for each, count in kinds) if kinds[0][0].is_product else None
    most = sum((each.most_flops or 0) * count for each, count in kinds) if flops is not None else None
    unknown = any(each.bytes is None for each, _ in kinds)
    bytes_ = None if unknown else sum((each.bytes or 0) * count for each, count in kinds)
    roof = None if np.isnan(on_roof.roof_ns[places]).any() else on_roof.roof_ns[places]
    # the bound in which most of the time was spent
    longest = int(np.bincount(on_roof.bound[places], on_roof.ns[places] + 1).argmax())
    bound = Bound.UNKNOWN if roof is None else Bound(longest)
    bounded = most if most != flops else None
    sure = "bounded" if bounded is not None else "modelled_bytes" if flops is None else "high"
    return Row(
        rank=rank,
        device=device,
        operator=operator,
        shapes=shapes,
        number=number,
        count=len(places),
        time_ns=ns,
        flops=flops,
        most_flops=bounded,
        size_bytes=bytes_,
        achieved_tflops=flops / ns / 1e3 if ns and flops is not None else None,
        modelled_gbps=bytes_ / ns if ns and bytes_ is not None else None,
        intensity=flops / bytes_ if bytes_ and flops is not None else None,
        bound=bound.name.lower(),
        roof_ns=None if roof is None else round(float(roof.sum())),
        roof_ratio=None if roof is None or not ns else float(roof.sum()) / ns,
        lost_ns=None if roof is None else round(float(np.maximum(on_roof.ns[places] - roof, 0).sum())),
        confidence="unknown" if roof is None else sure,
    )


def _diagnostics(trace: Trace) -> Iterator[Diagnostic]:
    on_roof = roofs(trace)
    for device, peak in device_peaks(trace).items():
        if peak is None:
            yield Diagnostic("no_peak", 1, f"there is no roof, as {why_unknown(trace, device)}")
    if reasons := facts.operators.graphs(trace).reasons:
        why = "; ".join(dict.fromkeys(reasons))
        yield Diagnostic(
            "graph_not_joined", len(reasons), f"launches of graphs whose kernels do not all have operators: {why}"
        )
    work, lists = facts.gpu.work(trace), list_kernels(trace)
    unknown = ~is_among(lists.row, facts.operators.work(trace).row)
    ns = int(lists.ns[unknown].sum())
    if ns and ns >= LEAST_UNKNOWN * (work.end - work.ts)[work.type == KernelType.COMPUTATION].sum():
        why = "no shapes are recorded of more than 30 tensors, and types only in names of PyTorch's kernels"
        message = f"operators over lists of tensors, {ns / 1e6:,.2f} ms of kernels, whose bytes are not known: {why}"
        yield Diagnostic("lists_without_bytes", int(unknown.sum()), message)
    if on_roof.beyond.any():
        why = "a formula counts more bytes than the kernels move; they have no roof"
        yield Diagnostic("bytes_not_moved", int(on_roof.beyond.sum()), f"operators beyond the rate of memory: {why}")
    above = int((on_roof.compute_ns > ABOVE * on_roof.ns).sum())
    if above:
        why = "the clock is above the boost clock, the device is another, or a formula is wrong"
        yield Diagnostic("above_peak", above, f"operators are faster than their device's dense peak: {why}")


def _annotations(trace: Trace) -> Iterator[Annotation]:
    operators, on_roof, work = facts.operators.work(trace), roofs(trace), facts.gpu.work(trace)
    moved = np.where(on_roof.beyond, np.nan, on_roof.bytes)
    work_places = np.flatnonzero(operators.owner >= 0)
    owner = operators.owner[work_places]
    for device in work.devices:
        inside = (work_places >= device.start) & (work_places < device.stop)
        peak = device_peaks(trace)[device.device]
        fastest = peak.tflops.get("fp16", 0.0) if peak else 0.0
        memory = (peak.memory_gbps if peak else None) or 0.0
        flops = ("Achieved TFLOP/s", "TFLOP/s", on_roof.flops, 1e6, fastest)
        for name, unit, amount, scale, most in (flops, ("Modelled GB/s", "GB/s", moved, 1e3, memory)):
            rate = amount / np.maximum(on_roof.kernel_ns, 1) * 1e3  # whole, so that the counter falls to 0 exactly
            wanted = np.flatnonzero(inside & ~np.isnan(rate[owner]) & (work.end[work_places] > work.ts[work_places]))
            if len(wanted):
                change = np.rint(rate[owner[wanted]]).astype(np.int64)
                places = work_places[wanted]
                ts, value = intervals.steps(
                    np.concatenate((work.ts[places], work.end[places])), np.concatenate((change, -change))
                )
                if value.max(initial=0) >= LEAST * most * scale:
                    yield CounterTrack(NAME, name, device.track, ts, value / scale, unit, "of operators with a formula")
                del change, places, ts, value  # frees memory for what follows
            del rate, wanted
        del inside
    del moved, work_places, owner
    # A slice for each operator with a roof, from its first kernel to its last on the stream of its longest
    owned = np.flatnonzero(operators.owner >= 0)
    stream_of = work.stream_of(np.arange(len(work), dtype=WorkIndex))
    owned = owned[stream_of[owned] == stream_of[on_roof.kernel[operators.owner[owned]]]]
    start = np.full(len(operators), np.iinfo(np.int64).max)
    end = np.full(len(operators), np.iinfo(np.int64).min)
    np.minimum.at(start, operators.owner[owned], work.ts[owned])
    np.maximum.at(end, operators.owner[owned], work.end[owned])
    del owned
    drawn = np.flatnonzero(~np.isnan(on_roof.roof_ns) & (on_roof.ns > 0))
    drawn = drawn[np.argsort(start[drawn], kind="stable")]
    for stream, places in each(stream_of[on_roof.kernel[drawn]], len(work.streams)):
        chosen = drawn[places]
        reached = np.maximum.accumulate(end[chosen])
        apart = np.ones(len(chosen), np.bool_)
        apart[1:] = start[chosen[1:]] >= reached[:-1]  # what crosses another cannot be drawn beside it
        chosen = chosen[apart]
        yield _track(trace, work.streams[stream].track, chosen, start[chosen], end[chosen])


def _track(trace: Trace, under: int, chosen: Places, start: Int64s, end: Int64s) -> SliceTrack:
    operators, on_roof = facts.operators.work(trace), roofs(trace)
    shares = np.rint(100 * on_roof.roof_ns[chosen] / on_roof.ns[chosen]).astype(np.int64)
    kinds, kind = numbered(operators.kind[chosen])  # texts are made once for each distinct call, not for each slice
    calls = [operators.calls[kind] for kind in kinds.tolist()]
    pairs, pair = combinations(kind, shares)
    names = [call.operator.removeprefix("aten::") for call in calls]
    texts = [f"{names[key]} {share} % of roof" for key, share in zip(*(key.tolist() for key in pairs), strict=True)]
    lost = np.maximum(on_roof.ns[chosen] - np.rint(on_roof.roof_ns[chosen]).astype(np.int64), 0)
    args: dict[str, ArgColumn] = {
        "bound": Texts(on_roof.bound[chosen].astype(np.int32), [bound.name.lower() for bound in Bound]),
        "shapes": Texts.of(str(call.dims) for call in calls).take(kind),
        "flops": _whole(on_roof.flops[chosen]),
        "bytes": _whole(on_roof.bytes[chosen]),
        "roof_ns": np.rint(on_roof.roof_ns[chosen]).astype(np.int64),
        "lost_ns": lost,
    }
    bounds = Texts(on_roof.bound[chosen].astype(np.int32), _BOUNDS)
    about = "operators held against their roof: what limits each, and how near it comes"
    return SliceTrack(
        NAME, "Roofline", under, start, end - start, bounds, args, about, inner=Texts.of(texts).take(pair)
    )


def _whole(values: Floats) -> Int64s:
    return np.where(np.isnan(values), -1, values).astype(np.int64)
