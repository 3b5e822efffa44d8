"""Metamorphic: what takes twice as long saves twice as much; what nobody waits for saves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import Augment
from simulated_jobs import changed

from augment.diagnosis.rule import Found
from augment.diagnosis.rules import data_loading, exposed_communication, exposed_copies, matrix_units
from augment.readers import read
from metamorphic import another_time, load, real_trace, save, stretched
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


@pytest.mark.parametrize("name", [
    "h100_rank0_pair_modded_nanogpt/test_hook_rank0.json.gz",
    "a100_torch_compile_ao/quantize_vit_bfloat16.json.gz",
    "hta_amd_mi250/mi250_minitoy_train_ROCm6_2.json.gz",
    "sglang_mi300_tracelens/qwen3_8b_decode.json.gz",
    "vllm_mi300_tracelens/decode_full_graph_execution.json.gz",
])  # fmt: skip
def test_when_it_was_recorded_changes_no_word(name: str, augment: Augment, tmp_path: Path) -> None:
    """With clocks of whole microseconds it may: of two slices of one time, the order tells which is within which."""
    document, path = load(real_trace(name)), tmp_path / "trace.json"
    before = augment("diagnose", save(document, path))
    assert before.code == 0
    assert augment("diagnose", save(another_time(document), path)).out == before.out
