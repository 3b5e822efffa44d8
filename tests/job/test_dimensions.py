"""Parallel dimensions of simulated jobs, whose layout is known, and of recorded ones."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from answered_jobs import answer_to, job_at, rows, simulated_job, summaries_at
from augment import AugmentedTrace, Trace, UsageError, read
from augment.job.answer import Answer, answer
from augment.job.matching import Matched, match
from augment.job.ranks import RankSummary, dimension_told, read_summary, summarize, summary_of
from augment.job.ranks.dimension_names import listed_group, stated
from simulator import JobOptions, simulate
from simulator.parallel import place_of

pytestmark = pytest.mark.slow

SHARED = Path(__file__).parents[3] / "shared" / "traces"


def summaries_of(folder: Path, **options: Any) -> list[RankSummary]:
    return summaries_at(simulated_job(folder, **options))


def undescribed(summaries: list[RankSummary]) -> list[RankSummary]:
    for summary in summaries:
        summary.groups = [[name, "undefined", *rest] for name, _, *rest in summary.groups]
    return summaries


def by_dimension(answer: Answer, question: str) -> dict[str, Any]:
    return {row.dimension: row for row in rows(answer, question)}


@pytest.mark.parametrize(("description", "dimension"), [
    ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
    ("DATA_PARALLEL_GROUP", "dp"),
    ("DATA_PARALLEL_GROUP_WITH_CP", "dp_cp"),
    ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
    ("CONTEXT_PARALLEL_GROUP", "cp"),
    ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
    ("EXPERT_DATA_PARALLEL_GROUP", "expert_dp"),
    ("EXPERT_TENSOR_PARALLEL_GROUP", "expert_tp"),
    ("TENSOR_AND_DATA_PARALLEL_GROUP", "mixed"),
    ("MODEL_PARALLEL_GROUP", "mixed"),
    ("EMBEDDING_GROUP", "embedding"),
    ("mesh_tp", "tp"),
    ("mesh_dp_shard", "dp_shard"),
    ("mesh_dp_replicate", "dp_replicate"),
    ("mesh_fsdp", "dp_shard"),
    ("tp:0", "tp"),
    ("default_pg", None),
    ("undefined", None),
    ("", None),
])  # fmt: skip
def test_what_programs_call_their_groups(description: str, dimension: str | None) -> None:
    assert dimension_told(description) == dimension


@pytest.mark.parametrize("described", [True, False])
@pytest.mark.parametrize(("tp", "pp", "dp"), [(2, 2, 2), (1, 2, 2), (2, 1, 2), (2, 4, 1)])
def test_dimensions_and_coordinates_of_products(tmp_path: Path, tp: int, pp: int, dp: int, described: bool) -> None:
    options = JobOptions(ranks=tp * pp * dp, tp=tp, pp=pp, steps=1, layers=4, microbatches=2)
    summaries = summaries_of(
        tmp_path, **{name: getattr(options, name) for name in ("ranks", "tp", "pp", "steps", "layers", "microbatches")}
    )
    result = answer_to(summaries if described else undescribed(summaries))
    table = by_dimension(result, "parallel_dimensions")
    assert {name for name in table if table[name].group_size and table[name].group_size > 1} == {
        name for name, size in (("tp", tp), ("pp", pp), ("dp", dp)) if size > 1
    }
    for name, size, stride in (("tp", tp, 1), ("dp", dp, tp), ("pp", pp, tp * dp)):
        if size > 1:
            assert (table[name].group_size, table[name].stride) == (size, stride)
            assert table[name].group_count == options.ranks // size
            assert table[name].confidence == ("high" if described and size < options.ranks else "medium")
    for row in rows(result, "rank_coordinates"):
        place = place_of(options, row.rank)
        assert row.pp == (place.stage if pp > 1 else None)
        assert row.tp == (row.rank % tp if tp > 1 else None)
        assert row.dp in ([row.rank // tp % dp] if dp > 1 else [None, 0])


def test_a_pipeline_within_the_default_group(tmp_path: Path) -> None:
    summaries = undescribed(summaries_of(tmp_path, ranks=4, pp=4, steps=1, layers=4, microbatches=2))
    for summary in summaries:
        summary.groups = [["0", "default_pg", "[0, 1, 2, 3]", "", 4, "recorded"] for _ in summary.groups]
    assert [row.pp for row in rows(answer_to(summaries), "rank_coordinates")] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("collectives", "style", "ratio"), [("ddp", "all-reduce", 1.0), ("fsdp", "fully sharded", 1.5)]
)
def test_the_volume_is_that_of_theory(tmp_path: Path, collectives: str, style: str, ratio: float) -> None:
    result = answer_to(summaries_of(tmp_path, ranks=4, steps=2, collectives=collectives))
    (row,) = rows(result, "communication_by_dimension")
    assert row.style == style
    assert row.volume_ratio == pytest.approx(ratio) == row.theory_ratio
    assert row.wait_ns + row.transfer_ns + row.unmatched_ns == row.time_ns
    assert 0 < row.exposed_ns <= row.time_ns


def test_what_dimensions_communicate_adds_up(tmp_path: Path) -> None:
    summaries = summaries_of(tmp_path, ranks=8, tp=2, pp=2, steps=2, layers=4, microbatches=2)
    result = answer_to(summaries)
    inside = [summary.column("step") >= 0 for summary in summaries]
    for name in ("time_ns", "exposed_ns"):
        whole = {
            "time_ns": [summary.column("end") - summary.column("ts") for summary in summaries],
            "exposed_ns": [summary.column("exposed_ns") for summary in summaries],
        }[name]
        total = sum(int(values[mask].sum()) for values, mask in zip(whole, inside, strict=True))
        assert sum(getattr(row, name) for row in rows(result, "communication_by_dimension")) == total
    for row in rows(result, "dimension_places"):
        parts = row.compute_ns + row.exposed_communication_ns + row.exposed_memory_ns + row.idle_ns
        assert parts == pytest.approx(row.wall_ns)


def test_a_slow_stage_computes_longer_than_the_others(tmp_path: Path) -> None:
    result = answer_to(summaries_of(tmp_path, ranks=4, pp=4, steps=2, layers=4, microbatches=2, straggler=2))
    worst = max(
        (row for row in rows(result, "dimension_places") if row.dimension == "pp"), key=lambda row: row.compute_ratio
    )
    assert worst.place == "2"
    assert worst.compute_ratio > 1.2


@pytest.mark.parametrize("described", [True, False])
def test_stated_sizes_win(tmp_path: Path, described: bool) -> None:
    summaries = summaries_of(tmp_path, ranks=8, tp=2, pp=2, steps=1, layers=4)
    result = answer_to(summaries if described else undescribed(summaries), {"tp": 2, "pp": 2, "dp": 2})
    table = by_dimension(result, "parallel_dimensions")
    assert {row.confidence for row in table.values()} == {"user"}
    assert {name: row.stride for name, row in table.items()} == {"tp": 1, "dp": 2, "pp": 4}
    assert [(row.tp, row.dp, row.pp) for row in rows(result, "rank_coordinates")] == [
        (rank % 2, rank // 2 % 2, rank // 4) for rank in range(8)
    ]


def test_the_order_of_stated_sizes_is_that_of_the_groups(tmp_path: Path) -> None:
    """Stages that vary faster than data parallelism, as ``mesh=("dp", "pp", "tp")`` makes them."""
    summaries = summaries_of(tmp_path, ranks=8, tp=2, pp=2, steps=1, layers=4)
    swapped = {0: 0, 1: 1, 2: 4, 3: 5, 4: 2, 5: 3, 6: 6, 7: 7}
    for summary in summaries:
        assert summary.rank is not None
        summary.rank = swapped[summary.rank]
        summary.groups = [
            [name, "undefined", str(sorted(swapped[int(rank)] for rank in str(ranks)[1:-1].split(", "))), *rest]
            for name, _, ranks, *rest in summary.groups
        ]
    table = by_dimension(answer_to(summaries, {"tp": 2, "pp": 2, "dp": 2}), "parallel_dimensions")
    strides = {name: row.stride for name, row in table.items()}
    assert strides["tp"] == 1
    assert sorted(strides.values()) == [1, 2, 4]


def test_stated_sizes_that_cannot_be_are_not_used(tmp_path: Path) -> None:
    outcome = answer_to(summaries_of(tmp_path, ranks=4, steps=1), {"tp": 2}).outcomes["parallel_dimensions"]
    assert [each.code for each in outcome.diagnostics] == ["parallelism_contradicted"]
    assert outcome.rows[0].confidence == "medium"


@pytest.mark.parametrize("text", ["tp", "tp=x", "xp=2", "tp=0", "tp=2,tp=2", "ep=4,dp=6"])
def test_what_cannot_be_stated(text: str) -> None:
    with pytest.raises(UsageError, match="--parallelism"):
        stated(text)


def test_experts_part_the_data_parallel_ranks(tmp_path: Path) -> None:
    result = answer_to(summaries_of(tmp_path, ranks=4, steps=1, ep=2), {"dp": 4, "ep": 2})
    assert [(row.dp, row.ep) for row in rows(result, "rank_coordinates")] == [(0, 0), (1, 1), (2, 0), (3, 1)]


def test_without_phases_nothing_is_guessed(tmp_path: Path) -> None:
    summaries = undescribed(summaries_of(tmp_path, ranks=2, steps=1))
    for summary in summaries:
        summary.tables = {}
    (row,) = rows(answer_to(summaries), "parallel_dimensions")
    assert (row.dimension, row.confidence) == ("unknown", "none")
    assert "not recorded" in row.evidence


def test_dimensions_do_not_depend_on_the_order_of_ranks(tmp_path: Path) -> None:
    summaries = summaries_of(tmp_path, ranks=8, tp=2, pp=2, steps=1, layers=4)
    before = by_dimension(answer_to(summaries), "communication_by_dimension")
    after = by_dimension(answer_to(summaries[::-1]), "communication_by_dimension")
    assert before == {name: replace(row) for name, row in after.items()}


def test_a_sharded_optimizer_of_eight_gpus() -> None:
    """Eight ranks of modded-nanogpt: gradients are reduce-scattered, parameters gathered after the optimizer."""
    content = answer_to(summaries_at(job_at(SHARED / "h100_8rank_modded_nanogpt", "rank*.json.gz")))
    (row,) = rows(content, "communication_by_dimension")
    assert (row.dimension, row.style, row.group_size) == ("dp", "sharded optimizer", 8)
    assert row.volume_ratio == pytest.approx(1.0)
    assert row.theory_ratio == 1.0


# The groups of kernels that do not name theirs, as DeepEP's, also beside tensor parallelism: right, or not
# told.
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
    result = concluded([without_list(trace) for trace in job(tmp_path, end_spread_ns=spread, **shape)])
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
    summaries = summaries_at(job_at(RECORDED / "h100_8rank_modded_nanogpt", "rank*.json.gz"))
    named = [np.array([bool(group[0]) for group in each.groups])[each.column("group")] for each in summaries]
    recorded = instances(match(summaries), named)
    for summary in summaries:
        bare = summary.column("kind") == summary.kinds.index(kind)
        group = np.where(bare, len(summary.groups), summary.column("group"))
        summary.groups = [*summary.groups, ["", "", "", "", -1, "recorded"]]
        summary.columns |= {"group": group.tobytes(), "seq": np.where(bare, -1, summary.column("seq")).tobytes()}
    made = instances(match(summaries), named)
    assert len(recorded) == 84  # with those from before the recording, which are of the only group
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
