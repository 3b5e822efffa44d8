"""DDP's buckets: when each was ready and reduced, and how long a step would take with other caps.

DDP fills a bucket with gradients in the order in which they become ready, and reduces it when its size reaches the cap
(``bucket_cap_mb``); the first may have a smaller cap, the last is what remains. So the cap is at most the size of the
buckets between, and greater than a bucket's size less its last gradient. Gradients and their sizes are those of
``AccumulateGrad`` (recorded with ``record_shapes``).

The prediction plays the buckets of another cap: a bucket is ready with its last gradient, as recorded; all-reduces
follow each other, and each takes ``alpha + bytes/beta``, from the group's own all-reduces. Without sizes of gradients
only recorded buckets can be joined: then caps below the recorded ones are unknown. That computation is slowed down by
communication beside it, and more with other buckets, is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Annotated

import numpy as np
from msgspec import Struct

from augment.arrays import NO_VALUE, Bools, Int64s, Places
from augment.core import Findings, Skipped, column
from augment.facts.names import ALL_REDUCE
from augment.job.collectives import Fit, Waits, fit
from augment.job.matching import Clock, Matched
from augment.job.parallel.dimensions import Dimensions
from augment.job.ranks import DATA_PARALLEL, Phase, RankSummary

MOST_GROUPS = 20  #: groups whose buckets are listed, those whose all-reduces took longest
MOST_BUCKETS = 500
MIB = 1 << 20


class Row(Struct, frozen=True):
    """One bucket of one group; means over the ranks and steps that have the usual buckets."""

    group: Annotated[str, column("The name of the process group; empty if the traces do not name it.")]
    bucket: Annotated[int, column("Which one of the step, from 0.")]
    step_count: Annotated[int, column("Steps with the usual buckets.", "count")]
    bytes: Annotated[int | None, column("Its size; null if unknown.", "bytes")]
    ready_ns: Annotated[float, column("From the start of the step until its gradients were ready.", "ns")]
    start_ns: Annotated[float, column("Until its all-reduce began.", "ns")]
    reduced_ns: Annotated[float, column("Until its all-reduce ended.", "ns")]
    delay_ns: Annotated[float, column("From ready to the beginning of the all-reduce.", "ns")]
    wait_ns: Annotated[float, column("The all-reduce waits for the last rank.", "ns")]
    transfer_ns: Annotated[float, column("It moves data.", "ns")]
    exposed_ns: Annotated[float, column("The part of the all-reduce in which the device computes nothing.", "ns")]
    tail_ns: Annotated[float, column("How long it ends after the gradients of the last bucket are ready.", "ns")]
    least_cap_bytes: Annotated[
        int | None, column("The cap that was recorded is greater than this; null if unknown.", "bytes")
    ]
    most_cap_bytes: Annotated[int | None, column("The cap is at most this; null if unknown.", "bytes")]
    largest_gradient_bytes: Annotated[int | None, column("The largest gradient; null if unknown.", "bytes")]


class Buckets(Struct, frozen=True):
    """The buckets of one group.

    ``instances`` are the numbers of collectives, by step and bucket. So are ``ready``, ``arrival`` (of the last rank)
    and ``end``, ns since the step's start. ``step_ns`` are the lengths of steps. ``grads`` are the sizes of gradients
    in order, ``grads_ready`` by step and gradient.
    """

    name: str
    step_count: int
    sizes: Int64s
    instances: Places
    ready: Int64s
    arrival: Int64s
    end: Int64s
    step_ns: Int64s
    grads: Int64s
    grads_ready: Int64s
    fit: Fit | None

    @property
    def tail(self) -> Int64s:
        """How long each step's last all-reduce ends after the last gradients are ready."""
        tail: Int64s = self.end.max(axis=1) - self.ready.max(axis=1)
        return tail

    @property
    def last_gradient(self) -> Int64s | None:
        """The last gradient of each bucket; None if sizes are unknown, or do not fit the buckets."""
        bounds = np.searchsorted(np.cumsum(self.grads), np.cumsum(self.sizes))
        if not len(self.grads) or (self.grads < 0).any() or bounds[-1] >= len(self.grads):
            return None
        whole = np.array_equal(np.cumsum(self.grads)[bounds], np.cumsum(self.sizes))
        return self.grads[bounds] if whole and bounds[-1] == len(self.grads) - 1 else None

    @property
    def cap(self) -> tuple[int | None, int | None]:
        """The interval of the recorded cap: greater than the first, at most the second."""
        last = self.last_gradient
        between = self.sizes[1:-1]
        least = None if last is None else int((self.sizes - last)[1:].max(initial=0)) or None
        return least, int(between.min()) if len(between) and (between > 0).all() else None


def buckets(
    dims: Dimensions, matched: Matched, parted: Waits, clocks: Sequence[Clock], summaries: Sequence[RankSummary]
) -> list[Buckets]:
    """The buckets of each group that averages gradients by all-reduces in backward, the longest first."""
    # the phase of the first part of each collective
    phase = np.full(len(matched.member), NO_VALUE, np.int64)
    for member, summary in enumerate(summaries):
        rows, known = matched.rows_of(member), summary.table_column("collectives", "phase")
        if known is not None:
            phase[rows] = known[matched.place[rows]]
    phase = phase[matched.first] if len(matched) else phase
    kinds = [number for number, kind in enumerate(matched.kinds) if kind == ALL_REDUCE]
    chosen = np.isin(matched.kind, kinds) & (phase == Phase.BACKWARD) & (matched.step >= 0)
    groups = [
        group for group in np.unique(matched.group[chosen]).tolist() if dims.of(group, ALL_REDUCE) in DATA_PARALLEL
    ]
    moving = {group: int(parted.moving_ns[chosen & (matched.group == group)].sum()) for group in groups}
    groups = sorted(groups, key=lambda group: -moving[group])[:MOST_GROUPS]
    if not groups:
        return []
    times = _Times(matched, clocks, summaries)
    buckets_ = (
        _of_group(group, np.flatnonzero(chosen & (matched.group == group)), matched, parted, times, summaries)
        for group in groups
    )
    return [each for each in buckets_ if each is not None]


def rows(buckets: Sequence[Buckets], matched: Matched, parted: Waits) -> Iterator[Row]:
    """The rows of each group, buckets in their order."""
    for of in buckets:
        least, most = of.cap
        last_ready = of.ready.max(axis=1)
        for number, size in enumerate(of.sizes.tolist()[:MOST_BUCKETS]):
            parts = np.concatenate([_parts(matched, instance) for instance in of.instances[:, number].tolist()])
            begin = of.arrival[:, number]
            yield Row(
                group=of.name,
                bucket=number,
                step_count=of.step_count,
                bytes=size if size >= 0 else None,
                ready_ns=float(of.ready[:, number].mean()),
                start_ns=float(begin.mean()),
                reduced_ns=float(of.end[:, number].mean()),
                delay_ns=float((begin - of.ready[:, number]).mean()),
                wait_ns=float(parted.wait_ns[parts].mean()),
                transfer_ns=float(parted.transfer_ns[parts].mean()),
                exposed_ns=float(matched.exposed_ns[parts].mean()),
                tail_ns=float((of.end[:, number] - last_ready).mean()),
                least_cap_bytes=least,
                most_cap_bytes=most,
                largest_gradient_bytes=int(of.grads.max()) if of.last_gradient is not None else None,
            )


def _of_group(
    group: int, instances: Places, matched: Matched, parted: Waits, times: _Times, summaries: Sequence[RankSummary]
) -> Buckets | None:
    """The buckets of one group; None without a usual sequence of at least two."""
    order = np.lexsort((matched.ts[matched.first[instances]], matched.step[instances]))
    instances = instances[order]
    by_step = {step: instances[matched.step[instances] == step] for step in np.unique(matched.step[instances]).tolist()}
    usual, _ = Counter(tuple(matched.bytes[of].tolist()) for of in by_step.values()).most_common(1)[0]
    kept = {step: of for step, of in by_step.items() if tuple(matched.bytes[of].tolist()) == usual}
    if len(usual) < 2:
        return None
    steps, table = np.array(list(kept), np.int64), np.array(list(kept.values()))
    members = np.unique(matched.member[np.isin(matched.instance, table)]).tolist()
    known = times.recorded(members, steps)
    if not known.any():
        return None
    steps, table = steps[known], table[known]
    base, length = times.spans(members, steps)
    columns = [values[table] - base[:, None] for values in times.latest]
    grads, ready = _gradients(summaries[members[0]], times, members[0], steps, base)
    return Buckets(
        name=matched.groups[group].name,
        step_count=len(steps),
        sizes=np.array(usual, np.int64),
        instances=table,
        ready=columns[0],
        arrival=columns[1],
        end=columns[2],
        step_ns=length,
        grads=grads,
        grads_ready=ready,
        fit=fit(matched.bytes[instances], parted.moving_ns[instances]),
    )


class _Times:
    """Times on one clock: the job's, if the clocks of all ranks are comparable, else each rank's own since the
    beginning of its step."""

    def __init__(self, matched: Matched, clocks: Sequence[Clock], summaries: Sequence[RankSummary]) -> None:
        self._matched, self._clocks = matched, clocks
        self.common = all(clock.comparable for clock in clocks)
        self.ready = matched.ts.copy()
        self._steps = [_StepsOf(summary) for summary in summaries]
        for member, summary in enumerate(summaries):
            rows, ready = matched.rows_of(member), summary.table_column("collectives", "ready")
            if ready is not None:
                known = ready[matched.place[rows]]
                self.ready[rows] = np.where(known == NO_VALUE, matched.ts[rows], known)

    def of(self, values: Int64s, member: int, step: Int64s) -> Int64s:
        """Times of a member in these steps."""
        if self.common:
            return self._clocks[member].to_common(values)
        return values - self._steps[member].spans(step)[0]

    @cached_property
    def latest(self) -> tuple[Int64s, Int64s, Int64s]:
        """When each collective was ready, began and ended, on the last of its ranks."""
        return self._last(self.ready), self._last(self._matched.ts), self._last(self._matched.end)

    def _last(self, values: Int64s) -> Int64s:
        """The latest of the parts' ``values`` of each collective."""
        times = values.copy()
        step = self._matched.step[self._matched.instance]
        for member in range(len(self._steps)):
            rows = self._matched.rows_of(member)
            times[rows] = self.of(values[rows], member, step[rows])
        latest: Int64s = np.maximum.reduceat(times, self._matched.first)
        return latest

    def spans(self, members: Sequence[int], steps: Int64s) -> tuple[Int64s, Int64s]:
        """The first start of each step on any of the members, and its length."""
        begin = np.full(len(steps), np.iinfo(np.int64).max)
        finish = np.full(len(steps), np.iinfo(np.int64).min)
        for member in members:
            spans = self._steps[member].spans(steps)
            begin = np.minimum(begin, self.of(spans[0], member, steps))
            finish = np.maximum(finish, self.of(spans[1], member, steps))
        return begin, finish - begin

    def recorded(self, members: Sequence[int], steps: Int64s) -> Bools:
        """Which steps all of the members recorded."""
        known = np.ones(len(steps), np.bool_)
        for member in members:
            known &= np.isin(steps, self._steps[member].number)
        return known


class _StepsOf:
    """The windows of a rank's steps, by number."""

    def __init__(self, summary: RankSummary) -> None:
        number = summary.step_column("number")
        order = np.argsort(number, kind="stable")
        self.number = number[order]
        self._start, self._end = (summary.step_column(name)[order] for name in ("start", "end"))

    def spans(self, steps: Int64s) -> tuple[Int64s, Int64s]:
        """The start and end of these steps; 0 for unknown ones."""
        if not len(self.number):
            return np.zeros_like(steps), np.zeros_like(steps)
        place = np.minimum(np.searchsorted(self.number, steps), len(self.number) - 1)
        known = self.number[place] == steps
        return np.where(known, self._start[place], 0), np.where(known, self._end[place], 0)


def _gradients(summary: RankSummary, times: _Times, member: int, steps: Int64s, base: Int64s) -> tuple[Int64s, Int64s]:
    """The sizes of a rank's gradients and when they were ready, by step and gradient; empty if steps differ."""
    none = np.empty(0, np.int64), np.empty((len(steps), 0), np.int64)
    columns = [summary.table_column("gradients", name) for name in ("bytes", "step", "ready")]
    if any(values is None for values in columns):
        return none
    size, step, ready = (values for values in columns if values is not None)
    places = [np.flatnonzero(step == number) for number in steps.tolist()]
    sizes = {tuple(size[of].tolist()) for of in places}
    if len(sizes) != 1 or not len(places[0]):
        return none
    table = [times.of(ready[of], member, step[of]) - start for of, start in zip(places, base, strict=True)]
    return size[places[0]], np.array(table)


def _parts(matched: Matched, instance: int) -> Places:
    stop = matched.first[instance + 1] if instance + 1 < len(matched) else len(matched.member)
    return np.arange(matched.first[instance], stop)


# How long a step would take with other caps of DDP's buckets: see :mod:`buckets`.


CAPS_MIB = (1, 5, 10, 25, 50, 100, 200, 400)


class CapsRow(Struct, frozen=True):
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
    rows: list[CapsRow] = []
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
        if of.fit.predicted_ns(int(of.sizes.sum())) is None:
            doubts.append("caps whose buckets would be over twice the largest all-reduce are left out")
        rows += sorted(_rows(of, of.fit), key=lambda row: row.change_ns)
    if not rows:
        return Skipped("; ".join(dict.fromkeys(doubts)) or "no gradients were averaged by all-reduces in backward")
    return Findings(rows, partial="; ".join(dict.fromkeys(doubts)) or None)


def _rows(of: Buckets, model: Fit) -> Iterator[CapsRow]:
    sizes, ready, known = of.sizes, of.ready, of.last_gradient is not None
    if known:  # a last gradient is copied into its bucket, which takes as long, in the median
        bounds = np.searchsorted(np.cumsum(of.grads), np.cumsum(of.sizes))
        sizes, ready = of.grads, of.grads_ready + int(np.median(of.ready - of.grads_ready[:, bounds]))
    # How long an all-reduce begins after it could, the median: with its bucket ready and the one before done
    before = np.concatenate((np.full((len(of.end), 1), np.iinfo(np.int64).min), of.end[:, :-1]), axis=1)
    pause = float(np.median(np.maximum(of.arrival - np.maximum(of.ready, before), 0)))
    index = np.searchsorted(np.cumsum(sizes), np.cumsum(of.sizes))
    recorded = _tails(of.sizes, ready[:, index], of.ready, model, pause)
    last = of.end[:, -1] - of.arrival[:, -1]
    usual = np.median(np.abs(of.end - of.arrival - (model.alpha_ns + of.sizes / model.beta_gbps)))
    misfit = max(usual, abs(np.median(last) - model.alpha_ns - of.sizes[-1] / model.beta_gbps))
    error = abs(float(recorded.mean()) - float(of.tail.mean())) + float(misfit)
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
        # What the fit of any size of all-reduce is wrong by, as a share of its time: for buckets of other sizes
        predicted = model.alpha_ns + of.sizes / model.beta_gbps
        relative_misfit = float(np.abs(np.median(of.end - of.arrival, axis=0) / predicted - 1).max())
        yield CapsRow(
            group=of.name,
            cap_bytes=cap,
            is_recorded=cap is not None and (least or 0) < cap <= (most or 0),
            bucket_count=len(joined),
            largest_bytes=int(joined.max()),
            tail_ns=float(tails.mean()),
            change_ns=float(change.mean()),
            uncertainty_ns=error + spread + relative_misfit * int(joined[-1]) / model.beta_gbps,
            change_ratio=float(change.mean()) / step if step else 0.0,
        )


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
