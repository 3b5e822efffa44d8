"""The questions about parallel dimensions, and their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from augment.core import Findings, Outcome, Skipped
from augment.job.collectives import Waits
from augment.job.matching.clocks import Clock
from augment.job.matching.matching import Matched
from augment.job.parallel import buckets, comparison, dimensions, pipeline, sharding, volumes
from augment.job.parallel.comparison import rank_steps
from augment.job.ranks.dimension_names import UNKNOWN
from augment.job.ranks.summary import RankSummary

NO_BUCKETS = "no gradients were averaged by several all-reduces in backward"
#: the rows of each question
ROWS: dict[str, type[Any]] = {
    "parallel_dimensions": dimensions.Row,
    "rank_coordinates": dimensions.RankRow,
    "communication_by_dimension": volumes.Row,
    "dimension_groups": comparison.GroupRow,
    "dimension_links": comparison.LinkRow,
    "dimension_places": comparison.PlaceRow,
    "pipeline": pipeline.Row,
    "ddp_buckets": buckets.Row,
    "ddp_caps": buckets.CapsRow,
    "sharding": sharding.Row,
    "expert_parallel": volumes.ReceivedRow,
    "step_heat": comparison.Row,
}


def outcomes(
    summaries: Sequence[RankSummary],
    clocks: Sequence[Clock],
    matched: Matched,
    parted: Waits,
    dims: dimensions.Dimensions,
) -> Mapping[str, Outcome]:
    """The figures by question, in the order of :data:`ROWS`."""
    steps = rank_steps(summaries)
    cells = comparison.heat(steps, matched, parted, summaries)
    stages = pipeline.pipeline(summaries, clocks, matched, dims.pipelines)
    if not any(len(summary.column("ts")) for summary in summaries):
        return dict.fromkeys(ROWS, Skipped("no rank recorded collectives")) | {"pipeline": stages, "step_heat": cells}
    buckets_ = buckets.buckets(dims, matched, parted, clocks, summaries)
    averaged = list(buckets.rows(buckets_, matched, parted))
    groups, links = comparison.compared(dims, matched, parted, summaries)
    spots = comparison.places(dims, matched, parted, steps, summaries)
    unclear = "collectives whose dimension is unknown; --parallelism tp=4,pp=2,dp=2 states the sizes"
    doubt = unclear if any(use.dimension == UNKNOWN for use in dims.uses.values()) else None
    unmatched = Skipped("no collective was found on two ranks")
    return {
        "parallel_dimensions": Findings(dimensions.rows(dims), diagnostics=dims.diagnostics, partial=doubt),
        "rank_coordinates": Findings(list(dimensions.rank_rows(dims, summaries))),
        "communication_by_dimension": Findings(volumes.rows(dims, matched, parted, steps)),
        "dimension_groups": groups if groups.rows else unmatched,
        "dimension_links": Findings(links) if links else unmatched,
        "dimension_places": Findings(spots)
        if spots
        else Skipped("no dimension has coordinates, and no two nodes are known"),
        "pipeline": stages,
        "ddp_buckets": Findings(averaged) if averaged else Skipped(NO_BUCKETS),
        "ddp_caps": buckets.caps(buckets_),
        "sharding": sharding.sharding(dims, matched, parted, summaries),
        "expert_parallel": volumes.experts(dims, matched, parted, summaries),
        "step_heat": cells,
    }
