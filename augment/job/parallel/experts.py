"""All-to-alls: how unevenly ranks receive, and which receive most.

All-to-alls carry tokens to experts, contexts or embeddings. The bytes are those of the args ``In msg nelems`` and ``Out
msg nelems``; kernels of DeepEP and others tell none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np
from msgspec import Struct

from augment.arrays.ordering import combinations, each, sums
from augment.arrays.types import Int64s, Places
from augment.core.findings import Findings, Skipped, column
from augment.facts.collectives.collective_kernels import UNKNOWN
from augment.facts.names.kernel_types import ALL_TO_ALL
from augment.job.collectives.waits import Waits
from augment.job.matching.matching import Matched
from augment.job.parallel.dimensions import Dimensions
from augment.job.ranks.summary import RankSummary

MOST_ROWS = 10_000


class Row(Struct, frozen=True):
    """The all-to-alls of one rank in one process group."""

    dimension: Annotated[str, column("The dimension, as in parallel_dimensions.")]
    group: Annotated[str, column("The name of the process group; empty if the traces do not name it.")]
    rank: Annotated[int | None, column("The rank.")]
    trace: Annotated[str, column("The name of its trace.")]
    count: Annotated[int, column("All-to-alls matched across ranks.", "count")]
    sent_bytes: Annotated[int | None, column("What the rank sends in them; null if one is unknown.", "bytes")]
    received_bytes: Annotated[int | None, column("What it receives; null if one is unknown.", "bytes")]
    received_ratio: Annotated[float | None, column("received_bytes by the mean of the group's ranks.", "ratio")]
    hot_count: Annotated[int, column("All-to-alls in which it receives more than any other rank.", "count")]
    imbalance_ratio: Annotated[
        float | None,
        column(
            "By how much the most that a rank receives exceeds the mean, the mean over the group's all-to-alls.",
            "ratio",
        ),
    ]
    time_ns: Annotated[int, column("Their durations: wait_ns + transfer_ns.", "ns")]
    wait_ns: Annotated[int, column("The part spent waiting for the last rank.", "ns")]
    transfer_ns: Annotated[int, column("The part spent moving data.", "ns")]
    exposed_ns: Annotated[int, column("The part of time_ns in which the rank's device computed nothing.", "ns")]


def experts(dims: Dimensions, matched: Matched, parted: Waits, summaries: Sequence[RankSummary]) -> Findings | Skipped:
    """The rows, those that receive most in relation to their group first."""
    rows = list(_rows(dims, matched, parted, summaries))
    if not rows:
        return Skipped("no all-to-all was found on two ranks")
    rows.sort(key=lambda row: (-(row.received_ratio or 0.0), -row.time_ns))
    return Findings(rows[:MOST_ROWS])


def _rows(dims: Dimensions, matched: Matched, parted: Waits, summaries: Sequence[RankSummary]) -> Iterator[Row]:
    wanted = np.isin(matched.kind, [code for code, kind in enumerate(matched.kinds) if kind == ALL_TO_ALL])
    parts = np.flatnonzero(wanted[matched.instance])
    received = _of_parts(matched, summaries, "received")
    sent = _of_parts(matched, summaries, None)
    hot, excess = _hot(matched, received)
    groups = matched.group[matched.instance[parts]]
    for group, rows_of_group in each(groups, len(matched.groups)):
        rows = parts[rows_of_group]
        instances = np.unique(matched.instance[rows])
        known = excess[instances][np.isfinite(excess[instances])]
        (members,), which = combinations(matched.member[rows])
        count = len(members)
        totals = [sums(which, values[rows], count) for values in (received, sent)]
        unknown = [np.bincount(which, values[rows] < 0, count) > 0 for values in (received, sent)]
        mean = float(totals[0].mean()) if not unknown[0].any() else 0.0
        times = [
            sums(which, values[rows], count) for values in (parted.wait_ns, parted.transfer_ns, matched.exposed_ns)
        ]
        hottest = np.bincount(which, hot[rows], count)
        often = np.bincount(which, minlength=count)
        for place, member in enumerate(members.tolist()):
            yield Row(
                dimension=dims.of(group, ALL_TO_ALL),
                group=matched.groups[group].name,
                rank=summaries[member].rank,
                trace=summaries[member].name,
                count=int(often[place]),
                sent_bytes=None if unknown[1][place] else int(totals[1][place]),
                received_bytes=None if unknown[0][place] else int(totals[0][place]),
                received_ratio=float(totals[0][place]) / mean if mean else None,
                hot_count=int(hottest[place]),
                imbalance_ratio=float(known.mean()) if len(known) else None,
                time_ns=int(times[0][place] + times[1][place]),
                wait_ns=int(times[0][place]),
                transfer_ns=int(times[1][place]),
                exposed_ns=int(times[2][place]),
            )


def _of_parts(matched: Matched, summaries: Sequence[RankSummary], name: str | None) -> Int64s:
    """A column of the ranks' tables, or the bytes that they send, for each part; -1 where unknown."""
    values = np.full(len(matched.member), UNKNOWN, np.int64)
    for member, summary in enumerate(summaries):
        rows: Places = matched.rows_of(member)
        of = summary.column("bytes") if name is None else summary.table_column("collectives", name)
        if of is not None:
            values[rows] = of[matched.place[rows]]
    return values


def _hot(matched: Matched, received: Int64s) -> tuple[Int64s, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """For each part, 1 if its rank alone receives most; for each collective, the most by the mean, less 1 (NaN where a
    size is unknown)."""
    if not len(matched):
        return received[:0], np.empty(0)
    least, most = (function.reduceat(received, matched.first) for function in (np.minimum, np.maximum))
    mean = np.add.reduceat(received, matched.first) / matched.members
    known = (least >= 0) & (mean > 0)
    excess = np.where(known, most / np.where(known, mean, 1) - 1, np.nan)
    top = (received == most[matched.instance]) & known[matched.instance]
    alone = np.add.reduceat(top.astype(np.int64), matched.first) == 1
    return (top & alone[matched.instance]).astype(np.int64), excess
