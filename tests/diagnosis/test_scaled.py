"""Metamorphic: what takes twice as long saves twice as much; what nobody waits for saves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated_jobs import changed

from augment.diagnosis.rule import Found
from augment.diagnosis.rules import data_loading, exposed_communication, exposed_copies, matrix_units
from augment.readers import read
from metamorphic import load, save, stretched
from simulator import simulate

JOBS = (
    (data_loading, changed(steps=3, layers=2, host_stall_us=9_000.0, run_ahead=None)),
    (exposed_communication, changed(steps=3, layers=2, gpu="T4")),
    (exposed_copies, changed(steps=3, layers=2, faults=("late_copies",))),
    (matrix_units, changed(steps=3, layers=2, faults=("plain_products",))),
)


@pytest.mark.parametrize(("rule", "job"), JOBS, ids=lambda item: getattr(item, "NAME", ""))
def test_all_twice_as_long_saves_twice_as_much(rule: object, job: object, tmp_path: Path) -> None:
    ((path, _),) = simulate(job, tmp_path)  # type: ignore[arg-type]
    once = rule.check(read(str(path)))  # type: ignore[attr-defined]
    twice = rule.check(read(str(save(stretched(load(path), 2), tmp_path / "twice.json"))))  # type: ignore[attr-defined]
    assert isinstance(once, Found)
    assert isinstance(twice, Found)
    assert twice.saved_ns == pytest.approx(2 * (once.saved_ns or 0), rel=1e-3)
