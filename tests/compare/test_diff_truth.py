"""The simulator makes a known change; the comparison finds that, and nothing else."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import augment
from augment.compare import Diff, diff
from augment.core.trace import Trace
from diffs import adds_up, partners_are_partners, rows
from simulator import JobOptions, simulate

pytestmark = pytest.mark.slow

JOB = JobOptions(ranks=2, steps=3, layers=2, jitter=0.0)


def traces(folder: Path, **changes: Any) -> list[Trace]:
    """The ranks of the job, changed."""
    return [augment.read(str(path)) for path, _ in simulate(dataclasses.replace(JOB, **changes), folder)]


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> list[Trace]:
    return traces(tmp_path_factory.mktemp("control"))


def compared(control: list[Trace], folder: Path, **changes: Any) -> Diff:
    result = diff(control[0], traces(folder, **changes)[0])
    adds_up(result)
    partners_are_partners(result)
    return result


def changed_parts(result: Diff) -> list[tuple[Any, ...]]:
    return [(row.kind, row.change, row.operator, row.delta_ns, row.verdict)
            for row in rows(result, "diff_waterfall") if row.delta_ns]  # fmt: skip


def test_a_kernel_that_takes_a_fifth_longer(control: list[Trace], tmp_path: Path) -> None:
    result = compared(control, tmp_path, slow_kernel="nvjet", slow_percent=20.0)
    slower = [row for row in rows(result, "diff_names") if row.side == "gpu" and row.delta_ns]
    assert len(slower) == 5
    assert all("nvjet" in row.name and row.verdict == "regression" for row in slower)
    assert all(row.delta_ns == pytest.approx(0.2 * row.control_ns, abs=row.control_count) for row in slower)
    parts = rows(result, "diff_waterfall")
    assert {row.operator for row in parts if row.delta_ns} == {"aten::mm", "aten::addmm"}
    assert sum(row.delta_ns for row in parts) == sum(row.delta_ns for row in slower), "all of it is in the step"


def test_an_operator_that_was_added(control: list[Trace], tmp_path: Path) -> None:
    result = compared(control, tmp_path, extra_operator="aten::extra")
    added = [row for row in rows(result, "diff_call_paths") if row.change != "unchanged"]
    assert [(row.path, row.change, row.test_count) for row in added] == [("aten::extra", "added", 6)]
    extra, pace = changed_parts(result)
    assert extra == ("computation", "added", "aten::extra", 180_000, "regression")
    assert pace[:2] == ("kernel_wait", "increased")
    (pair,) = result.pairs
    inside = pair.control.calls.step >= 0
    assert (pair.alignment.call_of_control[inside] >= 0).all(), "it shifts nothing"


def test_a_collective_that_was_left_out(control: list[Trace], tmp_path: Path) -> None:
    result = compared(control, tmp_path, drop_collective=1)
    fewer = [row for row in rows(result, "diff_call_paths") if row.change != "unchanged"]
    assert {row.path.split(" > ")[0] for row in fewer} == {"c10d::allreduce_"}
    assert {(row.change, row.control_count, row.test_count) for row in fewer} == {("decreased", 6, 3)}
    exposed, pace = changed_parts(result)
    assert exposed[:3] == ("exposed_communication", "decreased", "nccl:all_reduce")
    assert exposed[4] == "improvement"
    assert pace[:2] == ("kernel_wait", "decreased")


def test_a_host_that_stalls(control: list[Trace], tmp_path: Path) -> None:
    result = compared(control, tmp_path, host_stall_us=800.0)
    assert changed_parts(result) == [("host_wait", "increased", "", 2_400_000, "regression")]
    (part,) = [row for row in rows(result, "diff_waterfall") if row.delta_ns]
    assert part.test_names == ["enumerate(DataLoader)"]
    figures = {row.figure: row.delta for row in rows(result, "diff_figures")}
    assert figures["wall_ns"] == figures["host_wait_ns"] == 800_000


def test_ranks_against_ranks(control: list[Trace], tmp_path: Path) -> None:
    test = traces(tmp_path, slow_kernel="nvjet")
    result = diff(control, test[::-1])
    assert [(p.control.trace.rank, p.test.trace.rank) for p in result.pairs] == [(0, 0), (1, 1)]
    adds_up(result)
    alone = [diff(*pair) for pair in zip(control, test, strict=True)]
    for name in ("diff_names", "diff_call_paths"):
        assert sum(getattr(row, "test_ns", 0) + getattr(row, "test_gpu_ns", 0) for row in rows(result, name)) == sum(
            getattr(row, "test_ns", 0) + getattr(row, "test_gpu_ns", 0) for each in alone for row in rows(each, name)
        )
    unknown = [
        each.changed(tracks=tuple(structs.replace(track, rank=None) for track in each.tracks)) for each in control
    ]
    assert [(each.code, each.count) for each in diff(unknown, unknown).diagnostics if "rank" in each.code] == [
        ("ranks_unknown", 2)
    ]
    crossed = diff(control, test, control_rank=0, test_rank=1)
    assert [(p.control.trace.rank, p.test.trace.rank) for p in crossed.pairs] == [(0, 1)]


def test_some_steps_alone(control: list[Trace]) -> None:
    result = diff(control[0], control[0], step=(0, 2))
    (row,) = rows(result, "diff_steps")
    assert (row.control_step, row.test_step) == (0, 2)
    assert {diff_figure.verdict for diff_figure in rows(result, "diff_figures")} == {"unknown"}
