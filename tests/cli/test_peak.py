"""``--peak``: what a device can do, told on the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from running import Augment

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from simulator import JobOptions, simulate


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = JobOptions(ranks=1, steps=2, layers=2, collectives="none")
    return simulate(options, tmp_path_factory.mktemp("job"))[0][0]


def mfu(augment: Augment, trace: Path, *options: str) -> float:
    shown = augment("show", trace, "--only", "step_efficiency", "--json", *options)
    ratio: float = json.loads(shown.out)["step_efficiency"]["rows"][0]["mfu_ratio"]
    return ratio


def test_a_peak_of_half_is_twice_the_mfu(trace: Path, augment: Augment) -> None:
    whole = mfu(augment, trace)
    assert mfu(augment, trace, "--peak", "bf16=494.7") == pytest.approx(2 * whole)
    assert mfu(augment, trace, "--peak", "H100:bf16=494.7") == pytest.approx(2 * whole)
    assert mfu(augment, trace, "--peak", "A100:bf16=494.7") == whole


def test_a_wrong_peak_is_refused_before_anything_is_read(augment: Augment) -> None:
    result = augment("run", "nowhere.json", "--peak", "bf16=989e12")
    assert result.code == 2
    assert "10^12 operations a second" in result.err


def test_both_sides_of_a_comparison_have_it(trace: Path, tmp_path: Path, augment: Augment) -> None:
    result = augment("diff", trace, trace, "-o", tmp_path, "--peak", "bf16=400", "--json")
    rows = {row["figure"]: row for row in json.loads(result.out)["analyses"]["diff_efficiency"]["rows"]}
    assert rows["mfu_ratio"]["control"] == rows["mfu_ratio"]["test"] == pytest.approx(
        989.4 / 400 * mfu(augment, trace), rel=0.2
    )  # fmt: skip
    augment("run", trace, "-o", tmp_path)
    shown = augment("show", tmp_path / "rank0.metrics.json", "--peak", "bf16=400")
    assert "--peak" in shown.err
