"""The order of pipeline stages, from who sends to whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from augment.facts.collectives.collective_kernels import UNKNOWN
from augment.facts.names.kernel_types import RECV, SEND
from augment.job.ranks.summary import RankSummary


def chains(summaries: Sequence[RankSummary]) -> list[list[int]]:
    """The pipelines of ranks whose sends and receives name the other rank, each in the order of stages.

    Ranks that send to each other form chains. A chain begins at the end whose first operation is a send: all other
    stages receive first. Rings and branches are left out.
    """
    neighbours: dict[int, set[int]] = defaultdict(set)
    sends_first: dict[int, bool] = {}
    for summary in summaries:
        if summary.rank is None:
            continue
        codes = [code for code, kind in enumerate(summary.kinds) if kind in (SEND, RECV)]
        kind, peer = summary.column("kind"), summary.column("peer")
        rows = np.flatnonzero(np.isin(kind, codes) & (peer != UNKNOWN) & (peer != summary.rank))
        if not len(rows):
            continue
        in_steps = rows[summary.column("step")[rows] >= 0]
        rows = in_steps if len(in_steps) else rows
        launched = summary.table_column("collectives", "launched")
        ts = summary.column("ts")
        known = ts if launched is None else np.where(launched == UNKNOWN, ts, launched)
        first = rows[np.argmin(known[rows])]  # the device may begin a receive before an earlier send
        sends_first[summary.rank] = summary.kinds[int(kind[first])] == SEND
        for other in np.unique(peer[rows]).tolist():
            neighbours[summary.rank].add(other)
            neighbours[other].add(summary.rank)
    return _walked(neighbours, sends_first)


def _walked(neighbours: Mapping[int, set[int]], sends_first: Mapping[int, bool]) -> list[list[int]]:
    """The chains, from their first ranks."""
    out = []
    for start in sorted(neighbours):
        if len(neighbours[start]) != 1 or not sends_first.get(start):
            continue
        chain = [start]
        while following := neighbours[chain[-1]] - set(chain[-2:]):
            if len(following) > 1 or len(chain) > len(neighbours):
                break
            chain.append(following.pop())
        straight = not following and not sends_first.get(chain[-1])
        if straight and len(set(chain)) == len(chain):
            out.append(chain)
    return out
