"""The gate on simulated jobs: hosts that run ahead, recordings begun in a backlog, steps that vary as real ones do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import augment
from augment.compare.compared_steps import without_outlying_first_step
from augment.compare.gate import Line, check
from augment.compare.totals import Samples, samples_of
from augment.facts.steps.step_windows import step_windows
from simulator import JobOptions, simulate

pytestmark = pytest.mark.slow

KINDS: dict[str, dict[str, Any]] = {
    "equal": {},
    "warm-up": {"warmup": 2.5},
    "drifting": {"step_drift": 0.03},
    "heavy-tailed": {"step_tail": 0.05},
    "alike": {"step_jitter": 0.2, "step_seed": 9},
}
AHEAD = {"run_ahead": 2, "record_from": (2.4,)}  #: the recording begins in the midst of a step, and of a backlog


def samples(folder: Path, options: JobOptions) -> Samples:
    ((path, _),) = simulate(options, str(folder))
    trace = augment.read(str(path))
    return samples_of(trace, step_windows(trace))


def step(control: Samples, test: Samples) -> Line:
    control, test, _ = without_outlying_first_step(control, test)
    return check(control, test)[0]


@pytest.mark.parametrize("host", [{}, AHEAD], ids=["waits", "runs ahead"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_equal_runs_and_slower_ones(kind: str, host: dict[str, Any], tmp_path: Path) -> None:
    """Of fixed seeds: no equal run fails, no slower one passes; but for long tails most slower ones fail."""
    caught = 0
    for seed in range(4):
        options = JobOptions(ranks=1, steps=8, layers=1, jitter=0.03, seed=10 * seed, **KINDS[kind], **host)
        control = samples(tmp_path, options)
        again, slower = replace(options, seed=10 * seed + 1), replace(options, seed=10 * seed + 2, stretch=1.1)
        assert step(control, samples(tmp_path, again)).status in ("pass", "uncertain")
        status = step(control, samples(tmp_path, slower)).status
        assert status in ("fail", "uncertain")
        caught += status == "fail"
    assert caught >= (1 if kind == "heavy-tailed" else 3)


def test_a_recording_begun_in_a_backlog_has_a_first_step_like_the_others(tmp_path: Path) -> None:
    """Of a device that never idles; the host is two steps ahead."""
    options = JobOptions(ranks=1, steps=10, layers=4, jitter=0.0, work=6.0, run_ahead=2, record_from=(4.5,))
    steps = samples(tmp_path, options)["wall_ns"]
    assert len(steps) >= 4
    assert np.ptp(steps) < 0.02 * steps.mean()
