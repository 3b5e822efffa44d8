"""What filled the memory, by line of code, and what never came back?

The input is a CUDA memory snapshot, given with the trace (``augment run --memory-snapshot FILE``,
``augment.with_memory_snapshot``) or alone. Without it the analysis is skipped. For each device it looks at the moment
of each out of memory, at the peak of what was allocated, and at the end. Rows ``by`` level say how much was
``allocated`` (as ``torch.cuda.max_memory_allocated()`` counts: requests rounded up to 512 bytes, and of what is still
there at the end the whole block), ``active`` (also what waits for other streams), ``reserved`` (by PyTorch), and
what was there ``before the recording``: a snapshot is a ring buffer, whose beginning is lost, so that a peak is that
of what it kept. In an out of memory, ``requested`` and ``device free`` follow, and ``fits``: the largest request that
would still have found room.

The other rows say who held the allocated bytes then, by ``line`` (the innermost of the user's own code), ``module``
(the innermost ``forward``), ``operator`` (only with C++ frames), ``compiled`` region and ``category``; and what each
``pool`` had free in how large pieces, because memory never moves between pools. ``scattered_ratio`` is
1 − largest ÷ free; ``wasted_bytes`` is what lies unused within blocks, known at the end. The ten largest of each are
listed; those of a line add up to what was allocated, with one row for the others.

Steps are the snapshot's ``ProfilerStep`` annotations, else the trace's, else the calls of the optimizer. ``step_bytes``
is what each complete step left behind that is still held, the median of the last five. Rows ``never freed`` are lines
that left memory in every step but the first and the last two. Without steps nothing is said of either.

Categories are by frames and by how long memory was held. PyTorch records none: ``confidence`` says how sure that is.
Threads of autograd have no Python frames, so what they allocate is a gradient with low confidence. ``theory_bytes``
stands beside them: gradients take what the parameters take, Adam's states twice that in one precision, and six times in
mixed precision with a master copy. It is counted from the parameters, else from the gradients; sharding (ZeRO, FSDP)
divides what is sharded by the number of ranks.

The snapshot has Unix times, as the trace has. If they do not overlap, the analysis is skipped, with both periods. A
snapshot without times (PyTorch before 2.4) can only be judged alone.

HTA has no equivalent.

**What to do**: the first lines at the peak are those to checkpoint, to shard or to free; of what was never freed, look
for a list that keeps tensors (``losses.append(loss)`` instead of ``loss.item()``). Scattered memory:
``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np

from augment.arrays import Int64s, changing
from augment.core import (
    Annotation,
    Category,
    CounterTrack,
    Diagnostic,
    Findings,
    InstantTrack,
    OfRank,
    Skipped,
    SliceTrack,
    Texts,
    Trace,
    Verdict,
    byte_unit,
    column,
    in_unit,
    text,
)
from augment.diagnosis.rules.out_of_memory import snapshot_sentences
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.memory.held import Held, Holder, MemoryReplay, Moment, held_memory

NAME = "memory_snapshot"
NEEDS: tuple[tuple[Category, ...], ...] = ()  # it needs the file given with the trace, no slices
MOST = 10  #: rows of a kind
_HOLDERS = 5  #: tracks of a device


class Row(OfRank, frozen=True):
    """Who or what held how much of a device's memory at one moment."""

    device: Annotated[int, column("The device.")]
    moment: Annotated[str, column("When: oom (out of memory), peak or end.")]
    by: Annotated[
        str, column("What the row is about: level, line, module, operator, compiled, category, pool, never freed.")
    ]
    name: Annotated[str, column("Which one of these.")]
    bytes: Annotated[int, column("Held by it; of a pool, what PyTorch reserved.", "bytes")]
    allocated_ratio: Annotated[float | None, column("Share of what was allocated then.", "ratio")]
    count: Annotated[int | None, column("Number of allocations.", "count")]
    step_bytes: Annotated[int | None, column("Left behind by each complete step before, the median.", "bytes")]
    free_bytes: Annotated[int | None, column("In a pool: reserved but not used.", "bytes")]
    largest_bytes: Annotated[int | None, column("In a pool: the largest piece of that.", "bytes")]
    scattered_ratio: Annotated[float | None, column("In a pool: 1 − largest ÷ free.", "ratio")]
    wasted_bytes: Annotated[int | None, column("In a pool: unused within blocks.", "bytes")]
    confidence: Annotated[
        str | None, column("How sure a category, or that it is never freed, is: high, medium or low.")
    ]
    theory_bytes: Annotated[
        int | None, column("Bytes that gradients, parameters and Adam's states in one precision need.", "bytes")
    ]
    at_ns: Annotated[
        int | None, column("The moment, after the first event of the trace, or action of the snapshot.", "ns")
    ]


def analyze(trace: Trace) -> Findings | Skipped:
    """Replay the snapshot, and draw it."""
    held = held_memory(trace)
    if held is None:
        return Skipped("no memory snapshot is given beside the trace; name one with --memory-snapshot")
    if isinstance(held, str):
        return Skipped(held)
    verdict = None if len(trace.events) else Verdict(snapshot_sentences(trace))
    rows = [row for moment in held.moments for row in _rows(trace, held, moment)]
    has_history = any(len(played.rows) for played in held.devices)
    lacking = None if has_history else "no history was recorded: only the end is known"
    diagnostics, clocks = [], held.clocks
    if clocks.offset_ns is not None:
        away = f"{clocks.offset_ns / 1000:,.0f} µs (spread {(clocks.spread_ns or 0) / 1000:,.0f} µs)"
        message = "annotations of the memory snapshot that the trace has as well: its clock is"
        diagnostics.append(
            Diagnostic("memory_snapshot_clock", clocks.pairs, f"{message} {away} ahead; no time is moved")
        )
    # whether the snapshot is of other devices than the trace, as where the files of two ranks are swapped
    traced = {str(each.device) for each in gpu_work(trace).devices}
    here = {str(played.device) for played in held.devices}
    if traced and here and not traced & here:
        of = f"GPU {', '.join(sorted(here))}, and the trace of GPU {', '.join(sorted(traced))}"
        message = f"devices of the memory snapshot that the trace lacks: it is of {of}; is it another rank's?"
        diagnostics.append(Diagnostic("memory_snapshot_device", len(here), message))
    drawn = held.devices if held.snapshot.has_times else []
    unit = byte_unit(max((int(played.reserved.max()) for played in drawn), default=0))
    annotations = [each for played in drawn if len(played.rows) for each in _tracks(trace, held, played, unit)]
    return Findings(rows, annotations, diagnostics, lacking, verdict)


def _rows(trace: Trace, held: Held, moment: Moment) -> Iterator[Row]:
    origin = int(trace.events.ts[0]) if len(trace.events) else int(held.snapshot.action_ts.min(initial=1 << 62))

    def row(by: str, name: str, count_bytes: int, **more: object) -> Row:
        values = dict.fromkeys(Row.__struct_fields__) | {
            "rank": trace.rank, "device": moment.device, "moment": moment.what, "by": by, "name": name,
            "bytes": count_bytes, "at_ns": None if moment.at_ns is None else moment.at_ns - origin,
        }  # fmt: skip
        return Row(**(values | more))  # type: ignore[arg-type]

    levels = {"allocated": moment.allocated, "active": moment.active, "reserved": moment.reserved}
    played = next(each for each in held.devices if each.device == moment.device)
    if moment.what == "oom":
        levels |= {"requested": moment.requested, "device free": moment.device_free, "fits": moment.largest}
    if moment.what == "peak":
        levels |= {"before the recording": int(played.allocated[0])}
    for name, value in levels.items():
        if value >= 0:
            yield row("level", name, value)
    for by, holders in moment.holders.items():
        # what the categories take that follow from the parameters, or from the gradients: with Adam in one precision
        bytes_of = {each.name: each.bytes for each in holders} if by == "category" else {}
        known = next((name for name in ("parameters", "gradients") if bytes_of.get(name)), "")
        factors = {"parameters": 1, "gradients": 1, "optimizer": 2} if known else {}
        theory = {name: factor * bytes_of[known] for name, factor in factors.items() if name != known}
        largest = list(holders[:MOST])
        if rest := holders[MOST:]:
            others = f"{len(rest):,} others"
            largest.append(Holder(others, sum(each.bytes for each in rest), sum(each.count for each in rest)))
        for holder in largest:
            ratio = holder.bytes / moment.allocated if moment.allocated else None
            more = {"step_bytes": holder.step_bytes, "confidence": holder.confidence}
            more["theory_bytes"] = theory.get(holder.name)
            yield row(by, holder.name, holder.bytes, allocated_ratio=ratio, count=holder.count, **more)
    for pool in moment.pools:
        wasted = None if pool.wasted < 0 else pool.wasted
        more = {"free_bytes": pool.free, "largest_bytes": pool.largest, "wasted_bytes": wasted}
        yield row("pool", pool.label, pool.reserved, scattered_ratio=pool.scattered, **more)
    if moment.what == "end":
        for leak in held.never_freed[moment.device][:MOST]:
            more = {"step_bytes": leak.step_bytes, "confidence": leak.confidence}
            yield row("never freed", leak.name, leak.bytes, count=leak.count, **more)


def _tracks(trace: Trace, held: Held, played: MemoryReplay, unit: tuple[int, str]) -> Iterator[Annotation]:
    """Counters of what was allocated and reserved, the moments, and when the largest holders held anything."""
    streams = [each.track for each in gpu_work(trace).devices if each.device == played.device]
    under, label = streams[0] if streams else 0, f"GPU {played.device}"
    last = np.append(played.ts[1:] != played.ts[:-1], True)
    for name, values in (("allocated", played.allocated[1:]), ("reserved", played.reserved[1:])):
        ts, level = played.ts[last], values[last]
        keep = changing(level)
        yield CounterTrack(
            analysis=NAME,
            name=f"{label} snapshot {name}",
            under=under,
            ts=ts[keep],
            values=in_unit(level[keep], unit),
            unit=unit[1],
            description="what the allocator gave out, and what PyTorch took of the device",
            scale=f"memory snapshot {label}",
        )
    moments = sorted(
        (m for m in held.moments if m.device == played.device and m.what != "end"), key=lambda m: m.at_ns or 0
    )
    texts = [
        f"Peak: {text.size(moment.allocated)} allocated, {text.size(moment.reserved)} reserved"
        if moment.what == "peak"
        else f"Out of memory: {text.size(moment.requested)} requested, {text.size(moment.allocated)} allocated"
        for moment in moments
    ]
    yield InstantTrack(
        analysis=NAME,
        name=f"{label} snapshot moments",
        under=under,
        ts=np.array([moment.at_ns for moment in moments], np.int64),
        names=Texts(np.arange(len(texts), dtype=np.int32), texts),
        description="the peak of what was allocated, and every out of memory",
    )
    # for each of the lines that held most at the peak, the times in which it held anything
    stacks = held.snapshot.stacks
    peak = next(m for m in held.moments if m.device == played.device and m.what == "peak")
    line = (
        np.where(played.stack >= 0, stacks.line[np.maximum(played.stack, 0)], -1) if len(stacks.line) else played.stack
    )
    known = {name: at for at, name in enumerate(stacks.labels)}
    chosen = [holder for holder in peak.holders["line"] if holder.name in known][:_HOLDERS]
    for number, holder in enumerate(chosen, 1):
        spans = np.flatnonzero((line == known[holder.name]) & (played.end >= 0))
        begun = played.ts[np.maximum(played.start[spans], 0)]
        ended = played.ts[np.minimum(played.end[spans], len(played.ts) - 1)]
        ts, dur, most = _together(begun, ended, played.size[spans])
        yield SliceTrack(
            analysis=NAME,
            name=f"{label} snapshot holder {number}",
            under=under,
            ts=ts,
            dur=dur,
            names=Texts(np.zeros(len(ts), np.int32), [holder.name]),
            args={"most_bytes": most},
            description="when this line of code held memory; the lines that held most at the peak",
        )


def _together(begun: Int64s, ended: Int64s, sizes: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """The times with any of these, and the most bytes within each."""
    ts = np.concatenate([begun, ended])
    change = np.concatenate([sizes, -sizes])
    order = np.lexsort((change < 0, ts))  # what begins when another ends continues it
    level = np.cumsum(change[order])
    stops = np.flatnonzero(level == 0)
    starts = np.append(0, stops[:-1] + 1)
    most = np.maximum.reduceat(level, starts) if len(level) else np.empty(0, np.int64)
    begin, end = ts[order][starts], ts[order][stops]
    return begin, end - begin, most
