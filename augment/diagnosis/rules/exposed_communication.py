"""Does the device only communicate, and compute nothing meanwhile?

The prediction lets all communication kernels of the steps take no time: this is what hiding all of them behind
computation would save. The answer names the group and kind with most of the exposed time. A collective ends on all
ranks together, so part of its time may be waiting for a late rank. One trace cannot tell; of equal collectives the
fastest shows what the transfer itself takes at most. Where the traces of the other ranks are at hand, the prediction
and the advice are about the transfers alone, and `straggling_rank` is about the waits.

**What to do**: FSDP: prefetch earlier (``forward_prefetch``, ``set_modules_to_forward_prefetch``), fewer and larger
units. DDP: other bucket sizes (``bucket_cap_mb``), ``gradient_as_bucket_view=True``, BF16 compression. All: accumulate
gradients with ``no_sync()``; look at the job (`augment run` of the folder) for the rank that comes late. Inference:
overlap it with a second micro-batch, spread a layer over fewer devices, kernels made for small messages.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from augment.arrays.ordering import combinations, sums
from augment.arrays.statistics import median
from augment.arrays.types import Int64s, Places
from augment.derived.collectives.collectives import UNKNOWN, Collectives, collectives, exposed_within
from augment.derived.collectives.waits_of_job import transfer_ns, waits_of_job
from augment.derived.critical.savings import without_work
from augment.derived.gpu.gpu_work import gpu_work
from augment.diagnosis.judging import judged
from augment.diagnosis.measure import measure, saved_a_step, work_in_steps
from augment.diagnosis.rule import Answer, Fine, Found, NotApplicable, Spans
from augment.diagnosis.sharding import trains
from augment.diagnosis.wording import a_step, count, of_a_step, percent, shorter, size, time
from augment.trace import Trace

NAME = "exposed_communication"
SMALL_BYTES = 1 << 20  #: below this a collective takes as long as an empty one
_CHECK = "; first see whether a rank comes late (augment diagnose FOLDER with the traces of all ranks)"
SURELY_WAITING = 0.5  #: this share of the time beyond the fastest equal collective is called waiting


def check(trace: Trace) -> Answer:
    """Predict steps whose communication is hidden."""
    every = collectives(trace)
    inside = np.flatnonzero(work_in_steps(trace)[every.place]) if len(every) else np.empty(0, np.intp)
    if not len(inside):
        return NotApplicable("no communication kernel runs in the steps")
    place = every.place[inside]
    transfer, known = transfer_ns(trace), trace.job_waits is not None
    cut = without_work(trace, place, transfer[inside])
    saved = saved_a_step(trace, cut)
    exposed = int(every.exposed_ns[inside].sum()) // measure(trace).count
    moves = every.exposed_ns[inside] - _waits(trace, inside)
    label, worst, share = _worst(every, inside, moves)
    waits = exposed - int(moves.sum()) // measure(trace).count
    row = gpu_work(trace).row[every.place[worst]]
    bare = f"{time(exposed)} of communication {a_step(trace)} is not hidden by computation"
    parts = f"{time(exposed - waits)} of it transfers, {time(waits)} waiting for late ranks"
    alone = f"{bare}, {percent(share)} of it {label}; if it were, and no rank is late, {shorter(trace, saved)}"
    answer = judged(
        trace,
        saved,
        fine=Fine(f"{bare}{f' ({parts})' if known else ''}; hidden, it would save {of_a_step(trace, saved)}"),
        title=f"{bare}, {parts}; were transfers hidden, {shorter(trace, saved)}" if known else alone,
        advice=_advice(trace, label) + ("" if known else _CHECK),
        spans=Spans(every.ts[worst], every.end[worst], row),
        confidence="high",
        cut=cut,
        evidence=_causes(trace, every, worst),
    )
    return replace(answer, at_most=not known) if isinstance(answer, Found) else answer


def _worst(every: Collectives, inside: Places, ns: Int64s) -> tuple[str, Places, float]:
    """The kind and group with most exposed time, of ``ns`` in each collective: its label, its collectives, its share
    of the time."""
    (kinds, groups), which = combinations(every.kind.codes[inside], every.group[inside])
    exposed = sums(which, ns, len(kinds))
    most = int(np.argmax(exposed))
    group = every.groups[int(groups[most])]
    name = group.description if group.description not in ("", "undefined") else group.name
    size_of = f" of {group.size} ranks" if group.size != UNKNOWN else ""
    of_group = f" in group {name}{size_of}" if name else size_of
    label = f"{every.kind.values[int(kinds[most])]}{of_group}"
    return label, inside[which == most], float(exposed[most] / max(int(ns.sum()), 1))


def _waits(trace: Trace, chosen: Places) -> Int64s:
    """The exposed time of each of the ``chosen`` collectives that is waiting for late ranks, ns."""
    every, wait = collectives(trace), waits_of_job(trace).wait_ns[chosen]
    start = every.ts[chosen]
    return exposed_within(trace, every.place[chosen], start, start + wait)


def _causes(trace: Trace, every: Collectives, worst: Places) -> list[str]:
    """What the collectives' own figures say of the cause."""
    causes = []
    dur, sizes = every.dur[worst], every.bytes[worst]
    known = sizes != UNKNOWN
    if known.any():
        often = count(len(worst) / measure(trace).count, "collective")
        causes.append(f"{often} {a_step(trace)}, median {size(median(sizes[known]))}")
    if known.all() and len(worst) > 3 and trace.job_waits is None:
        excess = dur - _fastest(sizes, dur)
        if excess.sum() > SURELY_WAITING * dur.sum():
            share = percent(float(excess.sum() / max(int(dur.sum()), 1)))
            causes.append(
                f"{share} of their time is beyond the fastest of equal size: waiting for other ranks, or contention"
            )
    small = known & (sizes < SMALL_BYTES)
    if dur[small].sum() > 0.5 * dur.sum():
        causes.append(f"most of it in {int(small.sum())} collectives below 1 MB")
    return causes


def _fastest(sizes: Int64s, dur: Int64s) -> Int64s:
    """For each collective the least time of any of its size."""
    distinct, which = np.unique(sizes, return_inverse=True)
    least = np.full(len(distinct), np.iinfo(np.int64).max, np.int64)
    np.minimum.at(least, which, dur)
    fastest: Int64s = least[which]
    return fastest


def _advice(trace: Trace, label: str) -> str:
    """What to do about collectives of this kind; buckets and units are those of a run that trains."""
    if not trains(trace):
        return (
            "Overlap it with computation that does not need it (a second micro-batch), spread a layer over fewer "
            "devices, or use kernels made for small messages (one-shot or NVLS all-reduce)"
        )
    kind = label.split(" ", 1)[0].lower().replace("_", "")
    if "gather" in kind or "reducescatter" in kind:
        return (
            "Start it earlier, beside computation that does not need it (with FSDP: forward_prefetch, "
            "set_modules_to_forward_prefetch, fewer and larger units); in BF16"
        )
    if "allreduce" in kind:
        return (
            "DDP: other bucket sizes (bucket_cap_mb), gradient_as_bucket_view=True, BF16 compression, no_sync() while "
            "accumulating"
        )
    return "Overlap it with computation of other data"
