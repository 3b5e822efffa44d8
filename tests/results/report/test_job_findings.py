"""Findings on a pipeline as a whole: simulated stages of which one is slower, or none."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from augment.results.report.health import of_jobs, report_on
from simulator import JobOptions, simulate

JOB: dict[str, Any] = {
    "ranks": 4, "pp": 4, "microbatches": 8, "layers": 4, "steps": 2, "schedule": "1f1b", "jitter": 0.01
}  # fmt: skip


def rows(folder: Path, **options: Any) -> list[dict[str, Any]]:
    traces = [path for path, _ in simulate(JobOptions(**JOB | options), folder)]
    (job,) = of_jobs([report_on(str(path), lambda _: None) for path in traces])
    job_rows: list[dict[str, Any]] = job["rows"]
    return job_rows


def percents(row: dict[str, Any]) -> list[float]:
    return [float(number) for number in re.findall(r"([\d.]+) %", row["title"])]


def test_a_slow_stage_is_named(tmp_path: Path) -> None:
    imbalance, bubble = rows(tmp_path, straggler=1, straggler_factor=1.5)
    assert (imbalance["rule"], imbalance["severity"]) == ("stage_imbalance", "warning")
    assert imbalance["title"].startswith("Stage 1 (rank 1) works ")
    assert percents(imbalance)[0] == pytest.approx(50, abs=4)
    assert len(imbalance["evidence"]) == 4
    assert bubble["rule"] == "pipeline_bubble"


def test_a_stage_is_slow_by_what_equal_stages_would_gain(tmp_path: Path) -> None:
    """One of four works a fifth longer. The others wait 4.8 % of their time for it, as its work is part of the longest
    way; were all as long as their mean, the ideal 1F1B of 11 passes would be 6 % shorter."""
    imbalance = rows(tmp_path, straggler=1, straggler_factor=1.21)[-1]
    assert imbalance["rule"] == "stage_imbalance"
    assert percents(imbalance)[1] < 5


def test_equal_stages_have_the_bubble_of_their_schedule(tmp_path: Path) -> None:
    (bubble,) = rows(tmp_path)
    assert "1F1B, 4 stages, 8 microbatches" in bubble["title"]
    assert percents(bubble) == [pytest.approx(100 * 3 / 11, abs=1)]


def test_other_jobs_have_none(tmp_path: Path) -> None:
    assert rows(tmp_path, ranks=2, pp=1, microbatches=1, schedule="gpipe") == []
