"""A simulated job of known shapes: its operations, the parts of its steps, and what changes of it do to its MFU."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import augment
from augment.analyses import roofline, step_efficiency
from augment.analyses.step_efficiency import BESIDE, COMPUTING, Row
from augment.core.findings import Findings
from simulator import JobOptions, simulate
from simulator.communication import HIDDEN, TOKENS

JOB = JobOptions(ranks=1, steps=3, layers=2, collectives="none")
PEAK = 989.4e3  #: of an H100 in bf16, operations a nanosecond
#: operations of a layer: four linear layers of 3, 1, 4 and 1 widths, eight products of their backward, attention
GEMMS = (9 + 8) * 2 * TOKENS * HIDDEN**2
FORWARD = 4 * HIDDEN * (TOKENS * (TOKENS + 1) // 2)  # causal
LAYER = GEMMS + FORWARD + FORWARD * 5 // 2
#: less the scores that the backward of attention computes again
MODEL = GEMMS + 3 * FORWARD


@cache
def rows(options: JobOptions) -> list[Row]:
    """The rows of rank 0."""
    with TemporaryDirectory() as folder:
        simulate(options, Path(folder))
        findings = step_efficiency.analyze(augment.read(Path(folder) / "rank0.pt.trace.json.gz"))
    assert isinstance(findings, Findings)
    return list(findings.rows)


@pytest.mark.parametrize(
    "options",
    [JOB, replace(JOB, layers=3, microbatches=2), replace(JOB, sync_every=0), replace(JOB, side_streams=2),
     replace(JOB, ranks=2, collectives="fsdp", stacks=True), replace(JOB, whole_us=True, jitter=0.1)],
)  # fmt: skip
def test_operations_and_mfu_are_known(options: JobOptions) -> None:
    for row in rows(options):
        count = options.layers * options.microbatches
        assert (row.flops, row.model_flops) == (count * LAYER, count * MODEL)
        assert row.mfu_ratio == pytest.approx(count * MODEL / PEAK / row.wall_ns)
        assert row.hfu_ratio == pytest.approx(count * LAYER / PEAK / row.wall_ns)
        parts = [getattr(row, f"{name}_ns") for name in (*COMPUTING, *BESIDE)]
        assert sum(parts) == row.wall_ns
        assert min(parts) >= 0
        assert row.ideal_compute_ns == pytest.approx(count * LAYER / PEAK, abs=1)


def test_a_job_stretched_in_time_has_half_the_mfu() -> None:
    for row, twice in zip(rows(JOB), rows(replace(JOB, stretch=2.0)), strict=True):
        assert twice.wall_ns == pytest.approx(2 * row.wall_ns, abs=2)
        assert twice.mfu_ratio == pytest.approx((row.mfu_ratio or 0) / 2, rel=1e-5)
        assert twice.ideal_compute_ns == pytest.approx(row.ideal_compute_ns, abs=1)


def test_slower_products_lose_below_the_peak_and_nowhere_else() -> None:
    calm = replace(JOB, jitter=0.0)
    for row, slow in zip(rows(calm), rows(replace(calm, slow_kernel="nvjet", slow_percent=50.0)), strict=True):
        assert slow.compute_above_ns > row.compute_above_ns
        assert slow.wall_ns - row.wall_ns == pytest.approx(slow.compute_above_ns - row.compute_above_ns, rel=0.02)
        assert slow.memory_above_ns == pytest.approx(row.memory_above_ns, rel=0.01)


def test_graphs_leave_no_mfu_and_say_why() -> None:
    for row in rows(replace(JOB, graphs=True)):
        assert row.mfu_ratio is None
        assert "CUDA graphs" in (row.lacking or "")


@pytest.mark.parametrize("options", [replace(JOB, jitter=0.0), JOB, replace(JOB, jitter=0.1, steps=10)])
def test_no_operator_is_above_its_roof(options: JobOptions, tmp_path: Path) -> None:
    simulate(options, tmp_path)
    findings = roofline.analyze(augment.read(tmp_path / "rank0.pt.trace.json.gz"))
    assert isinstance(findings, Findings)
    assert not [diagnostic for diagnostic in findings.diagnostics if diagnostic.code == "above_peak"]
    assert {row.operator for row in findings.rows if row.bound == "compute"} >= {"aten::addmm", "aten::mm"}
    assert all(row.roof_ratio < 1 for row in findings.rows if row.bound == "compute")
