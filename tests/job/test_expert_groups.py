"""The groups of kernels that do not name theirs, as DeepEP's, also beside tensor parallelism: right, or not told."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from augment.core.findings import AugmentedTrace
from augment.core.trace import Trace
from augment.job.answer import Answer, answer
from augment.job.matching.matching import Matched, match
from augment.job.ranks.dimension_names import listed_group
from augment.job.ranks.summary import RankSummary, read_summary, summarize, summary_of
from augment.readers import read
from simulator import JobOptions, simulate

pytestmark = pytest.mark.slow

RECORDED = Path(__file__).parents[3] / "shared" / "traces"
SHAPES: tuple[dict[str, int], ...] = ({"tp": 2, "ep": 4}, {"tp": 4, "ep": 2}, {"tp": 2, "ep": 2}, {"ep": 8})


def job(folder: Path, **options: Any) -> list[Trace]:
    base: dict[str, Any] = {"ranks": 8, "layers": 1, "steps": 3, "jitter": 0.03}
    return [read(str(path)) for path, _ in simulate(JobOptions(**base | options), folder)]


def without_list(trace: Trace) -> Trace:
    trace.source.metadata["distributedInfo"].pop("pg_config")
    return trace


def concluded(traces: list[Trace]) -> Answer:
    return answer([summarize(AugmentedTrace(trace, {})) for trace in traces], [trace.source.label for trace in traces])


def expert_groups(matched: Matched) -> set[str]:
    """The ranks of the groups in which kernels of DeepEP are matched."""
    of = [kind == "AllToAll" for kind in matched.kinds]
    return {matched.groups[group].ranks for group in np.unique(matched.group[np.array(of)[matched.kind]]).tolist()}


def truth(ep: int, tp: int = 1, ranks: int = 8) -> set[str]:
    return {
        str([tp * (ep * k + e) + shard for e in range(ep)]) for shard in range(tp) for k in range(ranks // tp // ep)
    }


@pytest.mark.parametrize("shape", SHAPES)
def test_they_are_those_that_the_traces_list(tmp_path: Path, shape: dict[str, int]) -> None:
    result = concluded(job(tmp_path, end_spread_ns=3000.0, collective_args="no_group", **shape))
    assert expert_groups(result.matched) == truth(**shape)
    (note,) = [note for note in result.diagnostics if note.code == "group_listed"]
    assert note.count == 3 * 6 * len(truth(**shape))  # of each step dispatch, its notification, and combine, twice
    (use,) = [row for row in result.outcomes["parallel_dimensions"].rows if row.dimension == "ep"]  # type: ignore[union-attr]
    assert (use.confidence, use.group_size) == ("medium", shape["ep"])


@pytest.mark.parametrize("spread", [0.0, 500.0, 3000.0])
@pytest.mark.parametrize("shape", SHAPES[:3])
def test_without_a_list_siblings_are_not_taken_for_one_group(
    tmp_path: Path, shape: dict[str, int], spread: float
) -> None:
    """Tensor-parallel siblings end dispatch and combine together, in groups of their own."""
    traces = job(tmp_path, end_spread_ns=spread, **shape)
    result = concluded([without_list(trace) for trace in traces])
    known = expert_groups(result.matched)
    assert known in (truth(**shape), set())
    left_out = {note.code for note in result.diagnostics} & {"group_members_not_told", "collectives_apart"}
    assert bool(left_out) == (not known)


def test_where_much_is_not_matched_no_gain_is_told(tmp_path: Path) -> None:
    traces = job(tmp_path, end_spread_ns=3000.0, straggler=3, tp=2, ep=2)
    verdict = concluded([without_list(trace) for trace in traces]).verdict
    assert [(row.rank, row.gain_ns) for row in verdict.rows] == [(3, None)]
    assert "could not be matched" in verdict.text[-1]


def test_without_siblings_all_ranks_may_be_one_group(tmp_path: Path) -> None:
    traces = job(tmp_path, end_spread_ns=3000.0, ep=8)
    assert expert_groups(concluded([without_list(trace) for trace in traces]).matched) == truth(8)


def test_a_list_of_several_expert_groups_tells_nothing(tmp_path: Path) -> None:
    trace = job(tmp_path, tp=2, ep=2)[0]
    known = listed_group(trace)
    assert known.ranks == "[0, 2]"
    groups = trace.source.metadata["distributedInfo"]["pg_config"]
    (expert,) = [group for group in groups if group["pg_desc"].startswith("EXPERT")]
    groups.append(expert | {"pg_desc": "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP"})
    assert listed_group(trace) == known  # Megatron's other group, of the same ranks
    groups[-1]["ranks"] = [0, 1, 2, 3]
    assert listed_group(trace) is None
    groups[-1] |= {"pg_desc": "EXPERT_DATA_PARALLEL_GROUP"}
    assert listed_group(trace) == known
    for damaged in (None, "text", [None, {"ranks": "0, 1"}, {"ranks": [0, "1"], "pg_desc": "EXPERT_PARALLEL"}]):
        trace.source.metadata["distributedInfo"]["pg_config"] = damaged
        assert listed_group(trace) is None


def shifted(summary: RankSummary, ns: int) -> RankSummary:
    """The rank with another clock."""
    summary.columns |= {side: (summary.column(side) + ns).tobytes() for side in ("ts", "end")}
    return summary


def test_other_clocks_change_no_group(tmp_path: Path) -> None:
    """Metamorphic: groups are inferred from distances between ends, which no clock changes."""
    traces = [without_list(trace) for trace in job(tmp_path, tp=2, ep=2)]
    summaries = [summary_of(AugmentedTrace(trace, {})) for trace in traces]
    before = expert_groups(match(summaries))
    moved = [
        shifted(summary, int(ns)) for summary, ns in zip(summaries, range(-(10**9), 10**9, 250_000_000), strict=True)
    ]
    assert expert_groups(match(moved)) == before == truth(2, 2)


@pytest.mark.parametrize("kind", ["ReduceScatter", "AllGather"])
def test_recorded_collectives_without_their_names_are_the_same_or_left_out(kind: str) -> None:
    """By the recorded names and sequence numbers, which the inference does not see."""
    paths = sorted((RECORDED / "h100_8rank_modded_nanogpt").glob("rank*.json.gz"))
    if not paths:
        pytest.skip("../shared/traces is not available")
    summaries = [summary_of(AugmentedTrace(read(str(path)), {})) for path in paths]
    named = [np.array([bool(group[0]) for group in each.groups])[each.column("group")] for each in summaries]
    recorded = instances(match(summaries), named)
    for summary in summaries:
        bare = summary.column("kind") == summary.kinds.index(kind)
        group = np.where(bare, len(summary.groups), summary.column("group"))
        summary.groups = [*summary.groups, ["", "", "", "", -1, "recorded"]]
        summary.columns |= {"group": group.tobytes(), "seq": np.where(bare, -1, summary.column("seq")).tobytes()}
    made = instances(match(summaries), named)
    assert len(recorded) == 56
    assert made <= recorded
    assert len(made) >= 28  # those of the other kind


def instances(matched: Matched, named: list[Any]) -> set[tuple[tuple[int, int], ...]]:
    """Each collective that the traces name as the members in it, with its place on each."""
    parts = np.column_stack((matched.member, matched.place)).tolist()
    wholes = [tuple(map(tuple, parts[start:stop])) for start, stop in pairwise([*matched.first.tolist(), len(parts)])]
    return {whole for whole in wholes if any(named[member][place] for member, place in whole)}


def test_summaries_keep_the_listed_group(tmp_path: Path) -> None:
    summary = read_summary(summarize(AugmentedTrace(job(tmp_path, tp=2, ep=4)[3], {})), "")
    assert [group[2] for group in summary.groups if group[-1] == "listed"] == ["[1, 3, 5, 7]"]
