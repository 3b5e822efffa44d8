"""What the job's collectives did: of each process group and kind, and of each size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from augment.arrays.ordering import combinations, each
from augment.arrays.types import Places
from augment.derived.names.collective_kinds import bus_factor
from augment.findings import column
from augment.job.bandwidth_fit import Fit, fit
from augment.job.matching import Matched
from augment.job.waits import Waits

MOST_SIZES = 100  #: of a group and kind: those that took most time


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of collective of one process group."""

    group: str = column("The name of the process group; empty if the traces do not tell.")
    description: str = column("What the program calls the group; empty if the traces do not tell.")
    kind: str = column("AllReduce, AllGather, ReduceScatter, AllToAll, Broadcast, SendRecv or another.")
    group_size: int = column("How many ranks the group has; as many as were found if not told; 2 of SendRecv.", "count")
    ranks_seen: int = column("The most ranks that one was matched on.", "count")
    count: int = column("Collectives matched across ranks.", "count")
    by_arrival_count: int = column("Those whose waiting the clocks tell; of the others the durations do.", "count")
    bytes: int | None = column("What they moved, as nccl-tests counts it, if told of each.", "bytes")
    time_ns: int = column("Their durations, of all ranks together.", "ns")
    wait_ns: int = column("The part of it that was waiting for the last rank.", "ns")
    transfer_ns: int = column("The rest.", "ns")
    exposed_ns: int = column("The part of time_ns in which the rank's device computed nothing.", "ns")
    moving_ns: int = column("From the last arrival to the end, of all collectives together.", "ns")
    algorithm_gbps: float | None = column("Bytes by moving_ns, of those whose bytes are known.", "GB/s")
    bus_gbps: float | None = column("What a rank's link carried for it: by nccl-tests' factor of the kind.", "GB/s")
    link_gbps: float | None = column("What a link can carry: the option link_gbps of the analysis collectives.", "GB/s")
    efficiency_ratio: float | None = column("bus_gbps by link_gbps.", "ratio")
    alpha_ns: float | None = column("Of the fit alpha + bytes/beta: what the smallest would take.", "ns")
    beta_gbps: float | None = column("Of the fit: the algorithm bandwidth of the largest.", "GB/s")
    r2: float | None = column("How much of the relative differences in time the fit explains; 1 is all.")
    fit_count: int | None = column("The collectives that were fitted.", "count")
    fit_least_bytes: int | None = column("The least size fitted.", "bytes")
    fit_most_bytes: int | None = column("The largest size fitted; nothing is predicted beyond twice that.", "bytes")


@dataclass(frozen=True, slots=True)
class SizeRow:
    """Collectives of one size, of one kind and process group."""

    group: str = column("The name of the process group.")
    kind: str = column("The kind of collective.")
    size_bytes: int = column("The size, as nccl-tests counts it.", "bytes")
    count: int = column("How many there were.", "count")
    median_ns: float = column("The median time of moving the data.", "ns")
    bus_gbps: float | None = column("The bus bandwidth at the median.", "GB/s")
    fitted_ns: float | None = column("What the fit tells: that is what a ring of its hops takes.", "ns")
    tree_ns: float | None = column("What trees with the same hops would take, of an all-reduce.", "ns")


def figures(matched: Matched, parted: Waits, link_gbps: float) -> tuple[list[Row], list[SizeRow]]:
    """The rows of each group and kind, and those of their sizes."""
    rows: list[Row] = []
    sizes: list[SizeRow] = []
    (groups, _), which = combinations(matched.group, matched.kind)
    parts_of = dict(each(which[matched.instance], len(groups)))
    for number, chosen in each(which, len(groups)):
        parts = parts_of.get(number, chosen[:0])
        found = fit(matched.bytes[chosen], parted.moving_ns[chosen])
        rows.append(_row(matched, parted, chosen, parts, found, link_gbps))
        sizes += _sizes(matched, parted, chosen, rows[-1], found)
    return rows, sizes


def _row(matched: Matched, parted: Waits, chosen: Places, parts: Places, found: Fit | None, link_gbps: float) -> Row:
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
        alpha_ns=found.alpha_ns if found else None,
        beta_gbps=found.beta_gbps if found else None,
        r2=found.r2 if found else None,
        fit_count=found.count if found else None,
        fit_least_bytes=found.least if found else None,
        fit_most_bytes=found.most if found else None,
    )


def _sizes(matched: Matched, parted: Waits, chosen: Places, row: Row, found: Fit | None) -> Iterator[SizeRow]:
    size, moving = matched.bytes[chosen], parted.moving_ns[chosen]
    distinct, which = np.unique(size[size > 0], return_inverse=True)
    times = moving[size > 0]
    total = np.bincount(which, times, len(distinct))
    for number in np.sort(np.argsort(-total, kind="stable")[:MOST_SIZES]).tolist():
        one, own = int(distinct[number]), times[which == number]
        median = float(np.median(own))
        yield SizeRow(
            group=row.group,
            kind=row.kind,
            size_bytes=one,
            count=len(own),
            median_ns=median,
            bus_gbps=_scaled(one / median if median else None, row.kind, row.group_size),
            fitted_ns=found.predicted_ns(one) if found else None,
            tree_ns=found.tree_ns(row.kind, row.group_size, one) if found else None,
        )


def _scaled(algorithm: float | None, kind: str, ranks: int) -> float | None:
    factor = bus_factor(kind, ranks)
    return None if algorithm is None or factor is None else algorithm * factor
