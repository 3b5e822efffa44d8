"""Parallel dimensions of simulated jobs, whose layout is known, and of recorded ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from augment.core.findings import AugmentedTrace
from augment.errors import UsageError
from augment.job.answer import Answer
from augment.job.collectives.waits import waits
from augment.job.matching.clocks import align
from augment.job.matching.matching import match
from augment.job.ranks.dimension_names import dimension_told, stated
from augment.job.ranks.summary import RankSummary, summary_of
from augment.readers import read
from simulator import JobOptions, simulate
from simulator.parallel import place_of

pytestmark = pytest.mark.slow

SHARED = Path(__file__).parents[3] / "shared" / "traces"


def summaries_of(folder: Path, **options: Any) -> list[RankSummary]:
    return [summary_of(AugmentedTrace(read(str(path)), {})) for path, _ in simulate(JobOptions(**options), folder)]


def answered(summaries: list[RankSummary], parallelism: dict[str, int] | None = None) -> Answer:
    matched = match(summaries)
    clocks, _ = align(matched, summaries)
    return Answer(summaries, clocks, matched, waits(matched, clocks), [], parallelism or {})


def undescribed(summaries: list[RankSummary]) -> list[RankSummary]:
    for summary in summaries:
        summary.groups = [[name, "undefined", *rest] for name, _, *rest in summary.groups]
    return summaries


def rows(answer: Answer, question: str) -> Any:
    outcome = answer.outcomes[question]
    return outcome.rows


def by_dimension(answer: Answer, question: str) -> dict[str, Any]:
    return {row.dimension: row for row in rows(answer, question)}


@pytest.mark.parametrize(
    ("description", "dimension"),
    [
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
    ],
)
def test_what_programs_call_their_groups(description: str, dimension: str | None) -> None:
    assert dimension_told(description) == dimension


@pytest.mark.parametrize("described", [True, False])
@pytest.mark.parametrize(("tp", "pp", "dp"), [(2, 2, 2), (1, 2, 2), (2, 1, 2), (2, 4, 1)])
def test_dimensions_and_coordinates_of_products(tmp_path: Path, tp: int, pp: int, dp: int, described: bool) -> None:
    options = JobOptions(ranks=tp * pp * dp, tp=tp, pp=pp, steps=1, layers=4, microbatches=2)
    summaries = summaries_of(
        tmp_path, **{name: getattr(options, name) for name in ("ranks", "tp", "pp", "steps", "layers", "microbatches")}
    )
    result = answered(summaries if described else undescribed(summaries))
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
    assert [row.pp for row in rows(answered(summaries), "rank_coordinates")] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("collectives", "style", "ratio"), [("ddp", "all-reduce", 1.0), ("fsdp", "fully sharded", 1.5)]
)
def test_the_volume_is_that_of_theory(tmp_path: Path, collectives: str, style: str, ratio: float) -> None:
    result = answered(summaries_of(tmp_path, ranks=4, steps=2, collectives=collectives))
    (row,) = rows(result, "communication_by_dimension")
    assert row.style == style
    assert row.volume_ratio == pytest.approx(ratio) == row.theory_ratio
    assert row.wait_ns + row.transfer_ns + row.unmatched_ns == row.time_ns
    assert 0 < row.exposed_ns <= row.time_ns


def test_what_dimensions_communicate_adds_up(tmp_path: Path) -> None:
    summaries = summaries_of(tmp_path, ranks=8, tp=2, pp=2, steps=2, layers=4, microbatches=2)
    result = answered(summaries)
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
    result = answered(summaries_of(tmp_path, ranks=4, pp=4, steps=2, layers=4, microbatches=2, straggler=2))
    worst = max(
        (row for row in rows(result, "dimension_places") if row.dimension == "pp"), key=lambda row: row.compute_ratio
    )
    assert worst.place == "2"
    assert worst.compute_ratio > 1.2


@pytest.mark.parametrize("described", [True, False])
def test_stated_sizes_win(tmp_path: Path, described: bool) -> None:
    summaries = summaries_of(tmp_path, ranks=8, tp=2, pp=2, steps=1, layers=4)
    result = answered(summaries if described else undescribed(summaries), {"tp": 2, "pp": 2, "dp": 2})
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
    table = by_dimension(answered(summaries, {"tp": 2, "pp": 2, "dp": 2}), "parallel_dimensions")
    strides = {name: row.stride for name, row in table.items()}
    assert strides["tp"] == 1
    assert sorted(strides.values()) == [1, 2, 4]


def test_stated_sizes_that_cannot_be_are_not_used(tmp_path: Path) -> None:
    result = answered(summaries_of(tmp_path, ranks=4, steps=1), {"tp": 2})
    outcome = result.outcomes["parallel_dimensions"]
    assert [each.code for each in outcome.diagnostics] == ["parallelism_contradicted"]
    assert outcome.rows[0].confidence == "medium"


@pytest.mark.parametrize("text", ["tp", "tp=x", "xp=2", "tp=0", "tp=2,tp=2", "ep=4,dp=6"])
def test_what_cannot_be_stated(text: str) -> None:
    with pytest.raises(UsageError, match="--parallelism"):
        stated(text)


def test_experts_part_the_data_parallel_ranks(tmp_path: Path) -> None:
    summaries = summaries_of(tmp_path, ranks=4, steps=1, ep=2)
    result = answered(summaries, {"dp": 4, "ep": 2})
    assert [(row.dp, row.ep) for row in rows(result, "rank_coordinates")] == [(0, 0), (1, 1), (2, 0), (3, 1)]


def test_without_phases_nothing_is_guessed(tmp_path: Path) -> None:
    summaries = undescribed(summaries_of(tmp_path, ranks=2, steps=1))
    for summary in summaries:
        summary.tables = {}
    (row,) = rows(answered(summaries), "parallel_dimensions")
    assert (row.dimension, row.confidence) == ("unknown", "none")
    assert "not recorded" in row.evidence


def test_dimensions_do_not_depend_on_the_order_of_ranks(tmp_path: Path) -> None:
    summaries = summaries_of(tmp_path, ranks=8, tp=2, pp=2, steps=1, layers=4)
    before = by_dimension(answered(summaries), "communication_by_dimension")
    after = by_dimension(answered(summaries[::-1]), "communication_by_dimension")
    assert before == {name: replace(row) for name, row in after.items()}


def test_a_sharded_optimizer_of_eight_gpus() -> None:
    """Eight ranks of modded-nanogpt: gradients are reduce-scattered, parameters gathered after the optimizer."""
    paths = sorted((SHARED / "h100_8rank_modded_nanogpt").glob("rank*.json.gz"))
    if len(paths) != 8:
        pytest.skip("../shared/traces is not available")
    content = answered([summary_of(AugmentedTrace(read(str(path)), {})) for path in paths])
    (row,) = rows(content, "communication_by_dimension")
    assert (row.dimension, row.style, row.group_size) == ("dp", "sharded optimizer", 8)
    assert row.volume_ratio == pytest.approx(1.0)
    assert row.theory_ratio == 1.0
