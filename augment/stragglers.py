"""Which ranks are late to the collectives, and what does that cost?

The engine is that of :mod:`augment.job`, without clocks. A collective ends on all its ranks at about the same time, but
begins on each rank when that rank arrives. So a kernel is longer the longer its rank waited for the others. For a
collective whose kernel took ``max`` ns on the first rank, ``min`` on the last and ``dur`` on this one, this rank

    came late by    max - dur
    waited for      dur - min
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from augment.arrays import NO_VALUE, Int64s, combinations, sums
from augment.core import AugmentedTrace, Trace, column
from augment.job.collectives import waits
from augment.job.matching import Clock, Matched, match
from augment.job.ranks import summary_of
from augment.job.verdict import tally


class Straggler(Struct, frozen=True):
    """One rank."""

    rank: Annotated[int, column("The rank.")]
    collective_count: Annotated[
        int, column("How many collectives it took part in that another rank took part in, too.", "count")
    ]
    last_count: Annotated[int, column("To how many of them it came last.", "count")]
    late_ns: Annotated[int, column("Sum of the times by which it came later than the first.", "ns")]
    waited_ns: Annotated[int, column("Sum of the times for which it waited for the last.", "ns")]
    lost_ns: Annotated[int, column("What all would have gained, had it not come last but with the last but one.", "ns")]
    score: Annotated[float, column("late_ns as a share of the time in collectives of whoever came first.", "ratio")]


def stragglers(traces: Mapping[int, Trace]) -> list[Straggler]:
    """Every rank of a job, ``traces`` by rank, the latest first."""
    ranks, matched = _matched(traces)
    late, longest = (sums(matched.member, each, len(ranks)) for each in _lateness(matched))
    parted = waits(matched, [Clock(rank, "") for rank in ranks])
    totals = tally(matched, parted, np.arange(len(matched)), np.arange(len(matched.instance)), len(ranks))
    score = late / np.maximum(longest, 1)
    columns = (totals.count, totals.last_count, late, totals.wait_ns, totals.lead_ns, score)
    rows = [Straggler(*row) for row in zip(ranks, *(each.tolist() for each in columns), strict=True)]
    return sorted(rows, key=lambda row: (-row.score, row.rank))


def potential_stragglers(
    traces: Mapping[int, Trace], chosen_steps: Collection[int] | None = None, count: int = 2
) -> list[int]:
    """The ``count`` ranks that are most often among the ``count`` latest of a step; of equals, the later ones.

    Args:
        traces: of a job, by rank.
        chosen_steps: the numbers of the steps to look at; None means all.
        count: how many to name.
    """
    ranks, matched = _matched(traces)
    (numbers,), which = combinations(matched.step)
    place = which[matched.instance] * len(ranks) + matched.member
    late = sums(place, _lateness(matched)[0], len(numbers) * len(ranks)).reshape(len(numbers), len(ranks))
    if chosen_steps is not None:
        late = late[np.isin(numbers, list(chosen_steps))]
    latest = np.argsort(-late, axis=1, kind="stable")[:, :count]
    flagged = np.bincount(latest.ravel(), minlength=len(ranks))
    order = np.lexsort((-late.sum(axis=0), -flagged))[:count]
    return [ranks[place] for place in order.tolist() if flagged[place]]


def _matched(traces: Mapping[int, Trace]) -> tuple[list[int], Matched]:
    """The ranks, ascending, and their collectives: only those of steps if there are steps, and no sends and
    receives.
    """
    ranks = sorted(traces)
    summaries = [replace(summary_of(AugmentedTrace(traces[rank], {}), most=None), rank=rank) for rank in ranks]
    matched = match(summaries)
    in_step = matched.step != NO_VALUE
    return ranks, matched.take(~matched.is_pair() & (in_step | ~in_step.any()))


def _lateness(matched: Matched) -> tuple[Int64s, Int64s]:
    """The delay of each part after the first one to begin, and the duration of the first, ns."""
    dur = matched.end - matched.ts
    longest = np.maximum.reduceat(dur, matched.first)[matched.instance] if len(matched) else dur
    return longest - dur, longest
