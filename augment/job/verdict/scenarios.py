"""What would be gained if something were otherwise: scenarios of a job, by replay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from augment.arrays.types import Bools, Int64s
from augment.job.parallel.stages import chains
from augment.job.path.replay import Replay, Scale, Shift
from augment.job.ranks.dimension_names import dimension_told
from augment.job.ranks.summary import RankSummary
from augment.job.verdict.excess import Excess
from augment.job.verdict.verdict_rows import WhatIfRow

MOST_RANKS = 8  #: with scenarios of their own: those whose excess is largest
LIKE_MEDIAN, NO_HOST = "the rank is like the median of its peers", "the rank's device never waits for its host"
FASTER, NO_TIME = "links twice as fast", "communication takes no time"
HIDDEN = "{} is hidden behind other work"
BALANCED = "pipeline stages are balanced"


def scenarios(replay: Replay, excess: Excess, summaries: Sequence[RankSummary]) -> list[WhatIfRow]:
    """The rows: unchanged, then those with the largest gain first."""
    unchanged, recorded = replay.time_ns(), max(replay.recorded_ns, 1)

    def row(name: str, time: int, rank: int | None = None, dimension: str = "") -> WhatIfRow:
        gain = unchanged - time
        return WhatIfRow(name, rank, dimension, time, gain, gain / max(unchanged, 1), (unchanged - recorded) / recorded)

    rows = [row(*scenario) for scenario in (*_of_ranks(replay, excess, summaries), *_of_dimensions(replay))]
    balanced = balanced_stages(replay, summaries)
    if balanced is not None:
        rows.append(row(BALANCED, replay.time_ns(shift=balanced), None, "pp"))
    return [row("unchanged", unchanged), *sorted(rows, key=lambda each: -each.gain_ns)]


def _of_ranks(
    replay: Replay, excess: Excess, summaries: Sequence[RankSummary]
) -> Iterator[tuple[str, int, int | None, str]]:
    """Scenario, time, rank and dimension for the ranks with the largest excess."""
    largest = np.argsort(-excess.total_ns, kind="stable")[:MOST_RANKS]
    for member in largest[excess.total_ns[largest] > 0].tolist():
        rank, chosen = summaries[member].rank, excess.stretches.member == member
        host = excess.stretches.parts.host
        waits: dict[tuple[str, ...], Int64s] = {("host",): host}
        for name, less, parts in ((LIKE_MEDIAN, excess.by_stretch, excess.by_parts), (NO_HOST, host, waits)):
            shift = Shift(excess.stretches, np.where(chosen, -less, 0), parts, summaries)
            yield name, replay.time_ns(shift=shift), rank, ""


def _of_dimensions(replay: Replay) -> Iterator[tuple[str, int, int | None, str]]:
    """The same for the links of each dimension, and for each of its kinds of collectives."""
    matched = replay.progress.matched
    names = [dimension_told(group.description) or group.description or group.name for group in matched.groups]
    for name in sorted({names[group] for group in np.unique(matched.group).tolist()}):
        inside = np.array([each == name for each in names], np.bool_)[matched.group]
        for label, factor in ((FASTER, 0.5), (NO_TIME, 0.0)):
            moving = np.where(inside, np.rint(replay.moving * factor), replay.moving).astype(np.int64)
            yield label, replay.time_ns(moving=moving), None, name
        for kind in np.unique(matched.kind[inside]).tolist():
            hidden: Bools = inside & (matched.kind == kind)
            yield HIDDEN.format(matched.kinds[kind]), replay.time_ns(hidden=hidden), None, name


def balanced_stages(replay: Replay, summaries: Sequence[RankSummary]) -> Scale | None:
    """The change by which the devices of all pipeline stages compute for equally long; None without known stages."""
    member_of = {summary.rank: member for member, summary in enumerate(summaries) if summary.rank is not None}
    rank_chains = chains(summaries)
    joined = set(replay.members.tolist())
    if not rank_chains or len({len(chain) for chain in rank_chains}) > 1:
        return None
    members = np.array([[member_of.get(rank, -1) for rank in chain] for chain in rank_chains])
    if not joined.issuperset(members.ravel().tolist()):
        return None
    compute = np.array([[_computed(summaries[member]) for member in chain] for chain in members.tolist()]).mean(axis=0)
    if not compute.all():
        return None
    factor = compute.mean() / compute
    return Scale(summaries, {int(member): float(factor[stage]) for (_, stage), member in np.ndenumerate(members)})


def _computed(summary: RankSummary) -> int:
    """For how long a device computed in the steps, ns."""
    return int(summary.states.parts(summary.step_column("start"), summary.step_column("end")).compute.sum())
