"""Sharded data parallelism, all-to-alls of experts, and the heat map of steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from augment.core.findings import AugmentedTrace
from augment.job.answer import Answer
from augment.job.collectives.waits import waits
from augment.job.matching.clocks import align
from augment.job.matching.matching import match
from augment.job.parallel import comparison
from augment.job.ranks.rank_tables import unit_names
from augment.job.ranks.summary import RankSummary, summary_of
from augment.readers import read
from job_summaries import summary_of as made
from simulator import JobOptions, simulate

EXAMPLES = Path(__file__).parents[2] / "examples" / "traces"
SHARED = Path(__file__).parents[3] / "shared" / "traces"


def answered(summaries: list[RankSummary]) -> Answer:
    matched = match(summaries)
    clocks, _ = align(matched, summaries)
    return Answer(summaries, clocks, matched, waits(matched, clocks), [])


def job(folder: Path, **options: Any) -> Answer:
    paths = [path for path, _ in simulate(JobOptions(**options), folder)]
    return answered([summary_of(AugmentedTrace(read(str(path)), {})) for path in paths])


def rows(answer: Answer, question: str) -> Any:
    outcome = answer.outcomes[question]
    return outcome.rows


def test_gathers_of_fast_computation_are_late(tmp_path: Path) -> None:
    """Each layer is gathered while the one before computes: too late if that takes a tenth of the time."""
    fast = rows(job(tmp_path / "fast", ranks=4, collectives="fsdp", steps=2, work=0.1), "sharding")
    slow = rows(job(tmp_path / "slow", ranks=4, collectives="fsdp", steps=2, work=3.0), "sharding")
    for table, most in ((fast, 1.0), (slow, 0.0)):
        gathers = [row for row in table if row.kind == "AllGather"]
        assert {(row.phase, row.unit) for row in gathers} == {
            (phase, f"#{layer}") for phase in ("forward", "backward") for layer in range(4)
        }
        middle = [row for row in gathers if row.unit in ("#2", "#3") and row.phase == "forward"]
        assert {row.late_count / (4 * row.count) for row in middle} == {most}
        assert all(row.count == 2 and row.wait_ns + row.transfer_ns == row.time_ns for row in gathers)
    assert [row.late_ns for row in fast] == sorted((row.late_ns for row in fast), reverse=True)
    last = next(row for row in slow if row.kind == "ReduceScatter" and row.late_count)
    assert last.unit == "#3"  # nothing is left to hide the last reduce-scatter behind


def test_what_gathers_were_waited_for_is_what_the_device_did_not_compute(tmp_path: Path) -> None:
    result = job(tmp_path, ranks=2, collectives="fsdp", steps=2, work=0.1)
    late = sum(row.late_ns for row in rows(result, "sharding"))
    idle = sum(row.exposed_communication_ns for row in rows(result, "step_heat"))
    assert 0.5 * idle < late <= idle  # the first gather of a step delays no computation that was under way


def test_units_are_the_modules_of_recorded_ranges() -> None:
    trace = read(str(EXAMPLES / "cpu_fsdp" / "rank0.pt.trace.json.gz"))
    assert set(unit_names(trace).values()) == {"", "0", "3", "5"}
    prefetched = {name for code, name in enumerate(trace.strings) if code in unit_names(trace) and " for " in name}
    assert prefetched >= {"FSDP::backward_prefetch for 3"}


def test_memory_and_volume_of_a_sharded_optimizer() -> None:
    paths = sorted((SHARED / "h100_8rank_modded_nanogpt").glob("rank*.json.gz"))
    if len(paths) != 8:
        pytest.skip("../shared/traces is not available")
    content = answered([summary_of(AugmentedTrace(read(str(path)), {})) for path in paths])
    (row,) = rows(content, "communication_by_dimension")
    assert row.memory_ratio == pytest.approx((4 + 12 / 8) / 16)
    assert {row.phase for row in rows(content, "sharding")} == {"backward", "optimizer"}


def received(counts: list[list[int]]) -> list[RankSummary]:
    """Ranks that receive these bytes in successive all-to-alls."""
    summaries = []
    for rank, part in enumerate(counts):
        parts = [("ep", "AllToAll", number, 1000 * number, 1000 * number + 500) for number in range(len(part))]
        summary = made(rank, parts, sizes={"ep": len(counts)}, bytes=[100] * len(part))
        summary.tables = {"collectives": {"received": np.array(part, np.int64).tobytes()}}
        summaries.append(summary)
    return summaries


def test_hot_ranks_receive_most() -> None:
    table = rows(answered(received([[100, 100, 100], [100, 100, 100], [250, 40, 220]])), "expert_parallel")
    assert [row.rank for row in table] == [2, 0, 1]
    assert (table[0].received_bytes, table[0].sent_bytes) == (510, 300)
    assert table[0].received_ratio == pytest.approx(510 / 370)
    assert [row.hot_count for row in table] == [2, 0, 0]  # in the second, two receive equally much
    mean = np.mean([250 / 150, 100 / 80, 220 / 140]) - 1
    assert all(row.imbalance_ratio == pytest.approx(mean) for row in table)


def test_unknown_sizes_are_not_guessed() -> None:
    (first, *_) = rows(answered(received([[100, -1], [100, 100]])), "expert_parallel")
    assert first.imbalance_ratio == 0.0
    assert {row.received_bytes for row in rows(answered(received([[-1], [-1]])), "expert_parallel")} == {None}


def test_kernels_of_expert_parallelism_show_their_dimension(tmp_path: Path) -> None:
    # a late rank makes the groups differ: of groups without names that always end together nobody can tell how many
    result = job(tmp_path, ranks=4, ep=2, steps=2, straggler=3, straggler_factor=1.6)
    table = {row.dimension: row for row in rows(result, "parallel_dimensions")}
    assert (table["ep"].group_size, table["ep"].group_count, table["ep"].confidence) == (2, 2, "medium")
    assert {row.dimension for row in rows(result, "expert_parallel")} == {"ep"}


def test_the_heat_of_a_stalled_host(tmp_path: Path) -> None:
    result = job(tmp_path, ranks=4, steps=4, host_stall_us=8000.0, host_stall_step=2, host_stall_rank=1)
    cells = {(row.step, row.rank): row for row in rows(result, "step_heat")}
    assert len(cells) == 16
    for row in cells.values():
        assert row.compute_ns + row.exposed_communication_ns + row.exposed_memory_ns + row.idle_ns == row.wall_ns
    assert max(cells.values(), key=lambda row: row.idle_ns) is cells[2, 1]
    assert all(cells[2, rank].wait_ns > 6_000_000 for rank in (0, 2, 3))
    assert cells[2, 1].wait_ns < 1_000_000


def test_the_heat_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "MOST_CELLS", 4)
    outcome = job(tmp_path, ranks=2, steps=5).outcomes["step_heat"]
    assert [(row.step, row.rank) for row in outcome.rows] == [(0, 0), (0, 1), (4, 0), (4, 1)]
    assert [(each.code, each.count) for each in outcome.diagnostics] == [("cells_beyond_limit", 6)]
