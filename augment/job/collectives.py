"""The job's collectives: figures by process group and kind, and by size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from msgspec import Struct

from augment.arrays import Bools, Int64s, Places, combinations, each
from augment.core import column
from augment.facts.names import ALL_REDUCE, bus_factor
from augment.job.matching import Matched
from augment.job.matching.clocks import Clock, common_times

MOST_SIZES = 100  #: per group and kind: the sizes that took most time


class Row(Struct, frozen=True):
    """One kind of collective of one process group."""

    group: Annotated[str, column("The name of the process group; empty if the traces do not name it.")]
    description: Annotated[str, column("The program's description of the group; empty if the traces have none.")]
    kind: Annotated[str, column("AllReduce, AllGather, ReduceScatter, AllToAll, Broadcast, SendRecv or another.")]
    group_size: Annotated[
        int, column("The number of ranks in the group, else of ranks found; 2 for SendRecv.", "count")
    ]
    ranks_seen: Annotated[int, column("The most ranks on which one collective was matched.", "count")]
    count: Annotated[int, column("Collectives matched across ranks.", "count")]
    by_arrival_count: Annotated[int, column("Collectives split by clocks; the others are split by durations.", "count")]
    bytes: Annotated[
        int | None, column("Their sizes in total, as nccl-tests counts them; null if one is unknown.", "bytes")
    ]
    time_ns: Annotated[int, column("Their durations, summed over ranks.", "ns")]
    wait_ns: Annotated[int, column("The part of time_ns spent waiting for the last rank.", "ns")]
    transfer_ns: Annotated[int, column("The rest of time_ns.", "ns")]
    exposed_ns: Annotated[int, column("The part of time_ns in which the rank's device computed nothing.", "ns")]
    moving_ns: Annotated[int, column("Time from the last arrival to the end, summed over collectives.", "ns")]
    algorithm_gbps: Annotated[float | None, column("Bytes by moving_ns, for collectives of known size.", "GB/s")]
    bus_gbps: Annotated[
        float | None,
        column("Bandwidth on a rank's link: algorithm_gbps times nccl-tests' factor for the kind.", "GB/s"),
    ]
    link_gbps: Annotated[
        float | None, column("Bandwidth of a link: the option link_gbps of the analysis collectives.", "GB/s")
    ]
    efficiency_ratio: Annotated[float | None, column("bus_gbps by link_gbps.", "ratio")]
    alpha_ns: Annotated[float | None, column("alpha of the fit alpha + bytes/beta: the latency of a collective.", "ns")]
    beta_gbps: Annotated[float | None, column("beta of the fit: the algorithm bandwidth of large collectives.", "GB/s")]
    r2: Annotated[float | None, column("The share of the variance of relative durations that the fit explains.")]
    fit_count: Annotated[int | None, column("Collectives used for the fit.", "count")]
    fit_least_bytes: Annotated[int | None, column("The smallest fitted size.", "bytes")]
    fit_most_bytes: Annotated[
        int | None, column("The largest fitted size; the fit is valid up to twice that.", "bytes")
    ]


class SizeRow(Struct, frozen=True):
    """Collectives of one size, kind and process group."""

    group: Annotated[str, column("The name of the process group.")]
    kind: Annotated[str, column("The kind of collective.")]
    size_bytes: Annotated[int, column("The size, as nccl-tests counts it.", "bytes")]
    count: Annotated[int, column("The number of collectives.", "count")]
    median_ns: Annotated[float, column("The median time from the last arrival to the end.", "ns")]
    bus_gbps: Annotated[float | None, column("The bus bandwidth at the median.", "GB/s")]
    fitted_ns: Annotated[float | None, column("The duration by the fit, as of a ring.", "ns")]
    tree_ns: Annotated[float | None, column("The duration of an all-reduce on trees with the same hops.", "ns")]


def figures(matched: Matched, parted: Waits, link_gbps: float) -> tuple[list[Row], list[SizeRow]]:
    """The rows by group and kind, and the rows by size."""
    rows: list[Row] = []
    sizes: list[SizeRow] = []
    (groups, _), group_of = combinations(matched.group, matched.kind)
    parts_of = dict(each(group_of[matched.instance], len(groups)))
    for number, chosen in each(group_of, len(groups)):
        parts = parts_of.get(number, chosen[:0])
        bandwidth = fit(matched.bytes[chosen], parted.moving_ns[chosen])
        row = _row(matched, parted, chosen, parts, bandwidth, link_gbps)
        rows.append(row)
        size, moving = matched.bytes[chosen], parted.moving_ns[chosen]
        distinct, which = np.unique(size[size > 0], return_inverse=True)
        times = moving[size > 0]
        total = np.bincount(which, times, len(distinct))
        for place in np.sort(np.argsort(-total, kind="stable")[:MOST_SIZES]).tolist():
            size_bytes, durations = int(distinct[place]), times[which == place]
            median = float(np.median(durations))
            sizes.append(
                SizeRow(
                    group=row.group,
                    kind=row.kind,
                    size_bytes=size_bytes,
                    count=len(durations),
                    median_ns=median,
                    bus_gbps=_scaled(size_bytes / median if median else None, row.kind, row.group_size),
                    fitted_ns=bandwidth.predicted_ns(size_bytes) if bandwidth else None,
                    tree_ns=bandwidth.tree_ns(row.kind, row.group_size, size_bytes) if bandwidth else None,
                )
            )
    return rows, sizes


def _row(
    matched: Matched, parted: Waits, chosen: Places, parts: Places, bandwidth: Fit | None, link_gbps: float
) -> Row:
    of, kind = matched.groups[matched.group[chosen[0]]], matched.kinds[matched.kind[chosen[0]]]
    size, moving = matched.bytes[chosen], parted.moving_ns[chosen]
    ranks = int(matched.size()[chosen].max())
    sized = (size >= 0) & (moving > 0)
    algorithm = float(size[sized].sum() / moving[sized].sum()) if size[sized].any() else None
    bus = _scaled(algorithm, kind, ranks)
    return Row(
        group=of.name,
        description=of.description,
        kind=kind,
        group_size=ranks,
        ranks_seen=int(matched.members[chosen].max()),
        count=len(chosen),
        by_arrival_count=int(np.count_nonzero(parted.by_arrival[chosen])),
        bytes=int(size.sum()) if (size >= 0).all() else None,
        time_ns=int((matched.end[parts] - matched.ts[parts]).sum()),
        wait_ns=int(parted.wait_ns[parts].sum()),
        transfer_ns=int(parted.transfer_ns[parts].sum()),
        exposed_ns=int(matched.exposed_ns[parts].sum()),
        moving_ns=int(moving.sum()),
        algorithm_gbps=algorithm,
        bus_gbps=bus,
        link_gbps=link_gbps or None,
        efficiency_ratio=bus / link_gbps if bus is not None and link_gbps else None,
        alpha_ns=bandwidth.alpha_ns if bandwidth else None,
        beta_gbps=bandwidth.beta_gbps if bandwidth else None,
        r2=bandwidth.r2 if bandwidth else None,
        fit_count=bandwidth.count if bandwidth else None,
        fit_least_bytes=bandwidth.least if bandwidth else None,
        fit_most_bytes=bandwidth.most if bandwidth else None,
    )


def _scaled(algorithm: float | None, kind: str, ranks: int) -> float | None:
    factor = bus_factor(kind, ranks)
    return None if algorithm is None or factor is None else algorithm * factor


# A model of the duration of collectives by size, Hockney's ``alpha + bytes / beta``; predictions for rings and trees.
#
# The least-squares fit uses the median duration of each distinct size, weighted by the number of collectives, with
# errors relative to the duration; alpha is not negative. It needs three sizes, the largest at least four times the
# smallest, and predicts nothing beyond twice the largest.
#
# A ring of n ranks does an all-reduce in ``2(n-1)`` hops, other collectives in ``n-1``. So the latency of a hop is
# alpha divided by the hops, and the bandwidth is beta times nccl-tests' factor. With the same hops a double tree would
# take ``2·log2(n)·hop + 2·bytes/bandwidth`` (textbook).


FEWEST_SIZES = 3
LEAST_RANGE = 4
BEYOND = 2  #: the fit is valid up to this multiple of the largest size


class Fit(Struct, frozen=True):
    """``alpha_ns`` and ``beta_gbps`` of ``count`` collectives of ``least`` to ``most`` bytes.

    ``r2`` is that of the relative durations.
    """

    alpha_ns: float
    beta_gbps: float
    r2: float
    count: int
    least: int
    most: int

    def predicted_ns(self, size: int) -> float | None:
        """The predicted duration of a collective of ``size`` bytes; None far beyond the fitted sizes."""
        return self.alpha_ns + size / self.beta_gbps if size <= BEYOND * self.most else None

    def tree_ns(self, kind: str, ranks: int, size: int) -> float | None:
        """The predicted duration of an all-reduce on trees with the same hops; None for other kinds."""
        if kind != ALL_REDUCE or ranks < 2:
            return None
        hop = self.alpha_ns / (2 * (ranks - 1))
        return 2 * math.log2(ranks) * hop + 2 * size / (self.beta_gbps * (bus_factor(kind, ranks) or 1))


def fit(size: Int64s, time_ns: Int64s) -> Fit | None:
    """Fit durations to sizes in bytes; None for too few or too similar sizes, or if larger ones do not take longer."""
    known = (size > 0) & (time_ns > 0)
    size, time_ns = size[known], time_ns[known]
    distinct, which, counts = np.unique(size, return_inverse=True, return_counts=True)
    if len(distinct) < FEWEST_SIZES or int(distinct[-1]) < LEAST_RANGE * int(distinct[0]):
        return None
    times = np.array([np.median(time_ns[rows]) for _, rows in each(which, len(distinct))])
    x, weight = distinct.astype(np.float64), counts / times**2
    # the weighted least-squares fit of ``times = alpha + slope·x`` with ``alpha`` not negative
    total = weight.sum()
    x0, y0 = (weight * x).sum() / total, (weight * times).sum() / total
    slope = float((weight * (x - x0) * (times - y0)).sum() / (weight * (x - x0) ** 2).sum())
    alpha = float(y0 - slope * x0)
    if alpha < 0:
        alpha, slope = 0.0, float((weight * x * times).sum() / (weight * x * x).sum())
    if slope <= 0:
        return None
    left = float((weight * (times - alpha - slope * x) ** 2).sum())
    level = float((weight * times).sum() / weight.sum())
    whole = float((weight * (times - level) ** 2).sum())
    return Fit(alpha, 1 / slope, 1 - left / whole if whole else 0.0, len(size), int(distinct[0]), int(distinct[-1]))


class Waits(Struct, frozen=True):
    """Columns parallel to those of :class:`Matched`, int64 ns.

    For each part: ``wait_ns`` and ``transfer_ns``, which sum to its duration. For each collective: ``moving_ns``, from
    the last arrival to the end; ``late``, the row of the part that arrived last; ``lead_ns``, by how much it arrived
    after the one before it; ``by_arrival``, whether clocks decided and not durations.
    """

    wait_ns: Int64s
    transfer_ns: Int64s
    moving_ns: Int64s
    late: Int64s
    lead_ns: Int64s
    by_arrival: Bools


def waits(matched: Matched, clocks: Sequence[Clock]) -> Waits:
    """Split the time of every collective."""
    if not len(matched):
        none = np.empty(0, np.int64)
        return Waits(none, none, none, none, none, np.empty(0, np.bool_))
    first, instance = matched.first, matched.instance
    start, end, margin = common_times(matched, clocks)
    dur = matched.end - matched.ts
    arrival, done = np.maximum.reduceat(start, first), np.maximum.reduceat(end, first)
    wrong = np.maximum.reduceat(margin, first)
    comparable = np.array([clock.comparable for clock in clocks], np.bool_)[matched.member]
    causal = end + margin >= arrival[instance]
    known, together = (np.logical_and.reduceat(flags, first) for flags in (comparable, causal))
    buffered = matched.is_pair() & known & ~together
    by_arrival = known & together & (wrong < done - arrival)
    shortest = np.minimum.reduceat(dur, first)
    waited = np.where(by_arrival[instance], np.clip(arrival[instance] - start, 0, dur), dur - shortest[instance])
    lateness = np.where((by_arrival | buffered)[instance], start, -dur)
    # The row of each collective's last part to arrive, and its delay after the one before it
    order = np.lexsort((-matched.member, lateness, matched.instance))
    last = np.append(matched.first[1:], len(order)) - 1  # the order changes only within each collective
    late, lead = order[last], lateness[order[last]] - lateness[order[last - 1]]
    moving = np.where(by_arrival, done - arrival, shortest)
    waited, lead = np.where(buffered[instance], 0, waited), np.where(buffered, 0, lead)
    return Waits(waited, dur - waited, moving, late, lead, by_arrival | buffered)


def apart(matched: Matched, clocks: Sequence[Clock]) -> Bools:
    """Collectives without named group that cannot be one: by the clocks, a rank ends before another begins, or only an
    impossible drift would let a rank take part."""
    if not len(matched):
        return np.empty(0, np.bool_)
    start, end, margin = common_times(matched, clocks)
    comparable = np.array([clock.comparable for clock in clocks], np.bool_)[matched.member]
    arrival = np.maximum.reduceat(start, matched.first)[matched.instance]
    broken = np.logical_or.reduceat(end + margin < arrival, matched.first)
    mismatched = np.array([clock.mismatched for clock in clocks], np.bool_)[matched.member]
    some, every = np.logical_or.reduceat(mismatched, matched.first), np.logical_and.reduceat(mismatched, matched.first)
    separate = broken & matched.is_synchronous() & np.logical_and.reduceat(comparable, matched.first)
    wrong: Bools = matched.is_unnamed() & (separate | (some & ~every))
    return wrong
