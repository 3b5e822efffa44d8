"""How long a step would take with other caps of DDP's buckets: see :mod:`buckets`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np
from msgspec import Struct

from augment.arrays.types import Int64s
from augment.core.findings import Findings, Skipped, column
from augment.job.collectives.bandwidth_fit import Fit
from augment.job.parallel.buckets import MIB, Buckets

CAPS_MIB = (1, 5, 10, 25, 50, 100, 200, 400)


class Row(Struct, frozen=True):
    """One cap for one group."""

    group: Annotated[str, column("The name of the process group; empty if the traces do not name it.")]
    cap_bytes: Annotated[int | None, column("The cap of buckets; null for one bucket of all gradients.", "bytes")]
    is_recorded: Annotated[bool, column("Whether the job may have been recorded with this cap.")]
    bucket_count: Annotated[int, column("Buckets of a step.", "count")]
    largest_bytes: Annotated[int, column("The largest bucket.", "bytes")]
    tail_ns: Annotated[
        float, column("How long the last all-reduce would end after the last gradient is ready, the mean.", "ns")
    ]
    change_ns: Annotated[
        float, column("By how much a step would be longer (negative: shorter) than with the recorded cap.", "ns")
    ]
    uncertainty_ns: Annotated[float, column("The uncertainty of tail_ns and change_ns.", "ns")]
    change_ratio: Annotated[float, column("change_ns by the length of a step.", "ratio")]


def caps(buckets: Sequence[Buckets]) -> Findings | Skipped:
    """The rows of each group, the shortest step first."""
    rows: list[Row] = []
    doubts: list[str] = []
    for of in buckets:
        if of.fit is None:
            unsized = "sizes of all-reduces were not recorded"
            similar = "all-reduces of a group have too few or too similar sizes for a prediction"
            doubts.append(unsized if (of.sizes < 0).any() else similar)
            continue
        last = of.last_gradient
        if last is None:
            doubts.append("sizes of gradients were not recorded (record_shapes): smaller caps are unknown")
        elif (most := of.cap[1]) is not None and of.grads.max() >= most:
            doubts.append(
                f"the largest gradient, {of.grads.max() / MIB:.1f} MiB, fills a bucket alone with any smaller cap"
            )
        if _beyond(of, of.fit):
            doubts.append("caps whose buckets would be over twice the largest all-reduce are left out")
        rows += sorted(_rows(of, of.fit), key=lambda row: row.change_ns)
    if not rows:
        return Skipped("; ".join(dict.fromkeys(doubts)) or "no gradients were averaged by all-reduces in backward")
    return Findings(rows, partial="; ".join(dict.fromkeys(doubts)) or None)


def _rows(of: Buckets, model: Fit) -> Iterator[Row]:
    known = of.last_gradient is not None
    sizes, ready = (of.grads, of.grads_ready + _copying(of)) if known else (of.sizes, of.ready)
    pause = _pause(of)
    index = np.searchsorted(np.cumsum(sizes), np.cumsum(of.sizes))
    recorded = _tails(of.sizes, ready[:, index], of.ready, model, pause)
    error = abs(float(recorded.mean()) - float(of.tail.mean())) + _misfit(of, model)
    least, most = of.cap
    for cap in (*(size * MIB for size in CAPS_MIB), None):
        if not known and cap is not None and cap < of.sizes.max():
            continue
        bounds = _filled(sizes, cap)
        joined = np.add.reduceat(sizes, np.append(0, bounds[:-1] + 1))
        if model.predicted_ns(int(joined.max())) is None:
            continue
        tails = _tails(joined, ready[:, bounds], of.ready, model, pause)
        change = tails - recorded
        spread = 2 * float(change.std(ddof=1)) / len(change) ** 0.5 if len(change) > 1 else 0.0
        step = float(of.step_ns.mean())
        yield Row(
            group=of.name,
            cap_bytes=cap,
            is_recorded=cap is not None and (least or 0) < cap <= (most or 0),
            bucket_count=len(joined),
            largest_bytes=int(joined.max()),
            tail_ns=float(tails.mean()),
            change_ns=float(change.mean()),
            uncertainty_ns=error + spread + _relative_misfit(of, model) * int(joined[-1]) / model.beta_gbps,
            change_ratio=float(change.mean()) / step if step else 0.0,
        )


def _beyond(of: Buckets, model: Fit) -> bool:
    return model.predicted_ns(int(of.sizes.sum())) is None


def _filled(sizes: Int64s, cap: int | None) -> Int64s:
    """The last gradient of each bucket, if buckets are closed by the gradient that reaches the cap."""
    bounds, open_bytes = [], 0
    for place, size in enumerate(sizes.tolist()):
        open_bytes += size
        if cap is not None and open_bytes >= cap:
            bounds.append(place)
            open_bytes = 0
    if not bounds or bounds[-1] != len(sizes) - 1:
        bounds.append(len(sizes) - 1)
    return np.array(bounds, np.int64)


def _tails(sizes: Int64s, ready: Int64s, recorded: Int64s, model: Fit, pause: float) -> Int64s:
    """When the last of these all-reduces would end in each step, after the last gradients were ready."""
    free = np.full(len(ready), -np.inf)
    for place, size in enumerate(sizes.tolist()):
        free = np.maximum(ready[:, place], free) + pause + model.alpha_ns + size / model.beta_gbps
    tails: Int64s = np.rint(free - recorded.max(axis=1)).astype(np.int64)
    return tails


def _copying(of: Buckets) -> int:
    """The time from a bucket's last gradient to the bucket, the median: gradients are copied into it."""
    bounds = np.searchsorted(np.cumsum(of.grads), np.cumsum(of.sizes))
    return int(np.median(of.ready - of.grads_ready[:, bounds]))


def _pause(of: Buckets) -> float:
    """How long an all-reduce begins after it could, the median: with its bucket ready and the one before done."""
    before = np.concatenate((np.full((len(of.end), 1), np.iinfo(np.int64).min), of.end[:, :-1]), axis=1)
    return float(np.median(np.maximum(of.arrival - np.maximum(of.ready, before), 0)))


def _relative_misfit(of: Buckets, model: Fit) -> float:
    """What the fit of any size of all-reduce is wrong by, as a share of its time: for buckets of other sizes."""
    predicted = model.alpha_ns + of.sizes / model.beta_gbps
    return float(np.abs(np.median(of.end - of.arrival, axis=0) / predicted - 1).max())


def _misfit(of: Buckets, model: Fit) -> float:
    """What the fit of the last all-reduces is wrong by, typically."""
    last = of.end[:, -1] - of.arrival[:, -1]
    usual = np.median(np.abs(of.end - of.arrival - (model.alpha_ns + of.sizes / model.beta_gbps)))
    return float(max(usual, abs(np.median(last) - model.alpha_ns - of.sizes[-1] / model.beta_gbps)))
