"""The verdict of a comparison: one or two sentences that are right about the step."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from augment.compare import diff
from augment.compare.core import Diff
from augment.compare.outputs import document
from augment.readers import read
from augment.writers.metrics import encode
from simulator import JobOptions, simulate

JOB = JobOptions(ranks=1, steps=6, layers=2, collectives="none", jitter=0.01)


def compared(folder: Path, **changes: Any) -> Diff:
    ((control, _),) = simulate(JOB, folder / "control")
    ((test, _),) = simulate(dataclasses.replace(JOB, seed=1, **changes), folder / "test")
    return diff(read(str(control)), read(str(test)))


def test_a_slower_loader_is_named(tmp_path: Path) -> None:
    result = compared(tmp_path, host_stall_us=3_000.0)
    first, second = result.verdict.text
    assert first.startswith("A step is 3")
    assert "slower" in first
    assert "waiting for the host (enumerate(DataLoader)" in second
    assert result.verdict.rows[0].kind == "host_wait"
    sidecar = json.loads(encode(document(result)))
    assert sidecar["verdict"]["text"] == [first, second]
    assert sidecar["verdict"]["rows"][0]["kind"] == "host_wait"


def test_noise_is_no_difference(tmp_path: Path) -> None:
    (first, *_) = compared(tmp_path).verdict.text
    assert first.startswith("No difference beyond noise: ")


@pytest.mark.parametrize("faster", [True, False])
def test_the_direction_is_right(faster: bool, tmp_path: Path) -> None:
    (first, *_) = compared(tmp_path, work=0.7 if faster else 1.4).verdict.text
    assert ("faster" if faster else "slower") in first


def test_equal_traces_are_equal(tmp_path: Path) -> None:
    ((path, _),) = simulate(JOB, tmp_path)
    assert diff(read(str(path)), read(str(path))).verdict.text == ["No difference: a step is as long on both sides."]
