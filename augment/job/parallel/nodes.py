"""The node of each rank: its host, if recorded, else counted from the devices that its node lists."""

from __future__ import annotations

from collections.abc import Sequence

from augment.facts.collectives.collective_kernels import UNKNOWN
from augment.job.ranks.summary import RankSummary

RECORDED, COUNTED = "recorded", "counted from device numbers"


def nodes(summaries: Sequence[RankSummary]) -> tuple[list[str], str]:
    """The name of each rank's node (empty: unknown), and how it is known (empty: it is not).

    Without recorded hosts, rank r on device d of a node of L devices is on node (r - d) / L. That must hold on all
    ranks, and L must exceed 1: a process that is shown one device alone says nothing of its node.
    """
    if all(summary.host for summary in summaries):
        return [summary.host for summary in summaries], RECORDED
    numbers: list[int] = []
    for summary in summaries:
        index, count = (_first(summary, name) for name in ("index", "count"))
        if summary.rank is None or count < 2 or not 0 <= index < count or (summary.rank - index) % count:
            return [""] * len(summaries), ""
        numbers.append((summary.rank - index) // count)
    return [f"node {number}" for number in numbers], COUNTED


def _first(summary: RankSummary, name: str) -> int:
    column = summary.table_column("device", name)
    return UNKNOWN if column is None or not len(column) else int(column[0])
