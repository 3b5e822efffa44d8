"""DDP's buckets: as simulated, and predictions for other caps beside simulations with these caps."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from answered_jobs import answer_to, rows, summaries_at
from augment import AugmentedTrace, Skipped, read
from augment.job.ranks import RankSummary, summary_of
from metamorphic import real_trace
from simulator import JobOptions, simulate

pytestmark = pytest.mark.slow

MIB = 1 << 20
HIDDEN = 2048
LAYER = [4 * HIDDEN**2, 4 * HIDDEN**2, HIDDEN, HIDDEN**2, 3 * HIDDEN**2, HIDDEN]  #: in the order of backward


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @lru_cache
    def made(cap: float, work: float = 1.0, jitter: float = 0.0, **options: Any) -> tuple[RankSummary, ...]:
        folder = tmp_path_factory.mktemp("job")
        chosen: dict[str, Any] = {"ranks": 4, "layers": 4, "steps": 3} | options
        paths = simulate(JobOptions(**chosen, bucket_mib=cap, work=work, jitter=jitter), folder)
        return tuple(summaries_at([path for path, _ in paths]))

    return made


def step_ns(summaries: Any) -> float:
    return float(np.mean([summary.step_column("end") - summary.step_column("start") for summary in summaries]))


def filled(cap: float, layers: int = 4) -> list[int]:
    """The buckets that DDP makes."""
    sizes, size = [], 0
    for elements in LAYER * layers:
        size += 2 * elements
        if size >= cap * MIB:
            sizes.append(size)
            size = 0
    return sizes + ([size] if size else [])


@pytest.mark.parametrize("cap", [1.0, 10.0, 50.0])
def test_buckets_and_their_cap(job: Any, cap: float) -> None:
    table = rows(answer_to(job(cap)), "ddp_buckets")
    assert [row.bytes for row in table] == filled(cap)
    assert [row.bucket for row in table] == list(range(len(table)))
    assert table[0].least_cap_bytes < cap * MIB <= table[0].most_cap_bytes
    assert table[0].largest_gradient_bytes == 2 * 4 * HIDDEN**2
    for row in table:
        assert row.ready_ns < row.start_ns < row.reduced_ns
        assert row.delay_ns == pytest.approx(row.start_ns - row.ready_ns)
        assert row.reduced_ns - row.start_ns == pytest.approx(row.transfer_ns, rel=0.01)
    assert [row.tail_ns for row in table] == sorted(row.tail_ns for row in table)
    assert table[-1].tail_ns > 0


@pytest.mark.parametrize(("recorded", "work"), [(1.0, 1.0), (25.0, 1.0), (10.0, 0.3), (50.0, 0.3)])
def test_predictions_for_other_caps_are_right(job: Any, recorded: float, work: float) -> None:
    """The same job is simulated with each cap that is predicted."""
    before = job(recorded, work)
    table = [row for row in rows(answer_to(before), "ddp_caps") if row.cap_bytes]
    assert table == sorted(table, key=lambda row: row.change_ns)
    assert len(table) >= 4
    for row in table:
        after = job(row.cap_bytes / MIB, work)
        assert row.bucket_count == len(filled(row.cap_bytes / MIB))
        assert row.largest_bytes == max(filled(row.cap_bytes / MIB))
        true = step_ns(after) - step_ns(before)
        assert abs(row.change_ns - true) <= row.uncertainty_ns + 0.003 * step_ns(before), row
        if row.is_recorded:
            assert row.change_ns == 0


def test_larger_caps_lengthen_the_tail_of_a_slow_network(job: Any) -> None:
    table = {row.cap_bytes: row for row in rows(answer_to(job(10.0, 0.3, gpu="A100")), "ddp_caps")}
    assert table[50 * MIB].tail_ns > table[10 * MIB].tail_ns
    assert table[50 * MIB].change_ns > table[50 * MIB].uncertainty_ns


def test_the_uncertainty_is_stated_for_unsteady_jobs(job: Any) -> None:
    steady = {row.cap_bytes: row.uncertainty_ns for row in rows(answer_to(job(10.0)), "ddp_caps")}
    unsteady = {row.cap_bytes: row.uncertainty_ns for row in rows(answer_to(job(10.0, jitter=0.3)), "ddp_caps")}
    assert all(unsteady[cap] > steady[cap] for cap in steady.keys() & unsteady.keys())


def test_without_shapes_only_larger_caps_are_predicted(job: Any) -> None:
    summaries = [msgspec.structs.replace(each) for each in job(10.0)]
    for summary in summaries:
        summary.tables = {name: of for name, of in summary.tables.items() if name != "gradients"}
    result = answer_to(summaries)
    outcome = result.outcomes["ddp_caps"]
    assert "record_shapes" in (outcome.partial or "")
    assert {row.cap_bytes for row in outcome.rows} <= {50 * MIB, 100 * MIB, None}
    first = rows(result, "ddp_buckets")[0]
    assert (first.least_cap_bytes, first.largest_gradient_bytes) == (None, None)
    assert first.most_cap_bytes >= 10 * MIB


def test_equal_buckets_predict_nothing(tmp_path: Path) -> None:
    content = answer_to(summaries_at([path for path, _ in simulate(JobOptions(ranks=2, steps=2), tmp_path)]))
    assert [row.bytes for row in rows(content, "ddp_buckets")] == [2 * 12 * HIDDEN**2] * 4
    assert "too similar sizes" in content.outcomes["ddp_caps"].reason


def test_unknown_sizes_are_said(job: Any) -> None:
    summaries = [msgspec.structs.replace(each) for each in job(10.0)]
    for summary in summaries:
        summary.columns = summary.columns | {"bytes": np.full(len(summary.column("bytes")), -1).tobytes()}
    result = answer_to(summaries)
    assert {row.bytes for row in rows(result, "ddp_buckets")} == {None}
    assert result.outcomes["ddp_caps"].reason == "sizes of all-reduces were not recorded"


def test_sharded_gradients_have_no_buckets(tmp_path: Path) -> None:
    paths = simulate(JobOptions(ranks=2, steps=1, collectives="fsdp"), tmp_path)
    content = answer_to(summaries_at([path for path, _ in paths]))
    assert {type(content.outcomes[name]) for name in ("ddp_buckets", "ddp_caps")} == {Skipped}


def test_recorded_gradients_fill_the_recorded_buckets() -> None:
    """ResNet-18 by DDP on MI300: the sizes of parameters and those of all-reduces are recorded independently."""
    path = real_trace("mi300_tracelens/resnet_act_checkpoint_rank0of8.json.gz")
    summary = summary_of(AugmentedTrace(read(str(path)), {}))
    size, step = (summary.table_column("gradients", name) for name in ("bytes", "step"))
    assert step is not None
    reduced = (summary.column("kind") == summary.kinds.index("AllReduce")) & (summary.column("bytes") > 0)
    for number in (15, 16, 17):
        buckets = summary.column("bytes")[reduced & (summary.column("step") == number)]
        filled = np.cumsum(size[step == number])
        assert filled[-1] == buckets.sum()
        assert set(np.cumsum(buckets).tolist()) <= set(filled.tolist())


def test_stretched_jobs_have_stretched_buckets(job: Any) -> None:
    before = rows(answer_to(job(50.0)), "ddp_buckets")
    for each, two in zip(before, rows(answer_to(job(50.0, stretch=2.0)), "ddp_buckets"), strict=True):
        assert two.tail_ns == pytest.approx(2 * each.tail_ns, rel=1e-3, abs=100)
        assert two.bytes == each.bytes
