"""What strangers found wrong with verdicts, causes and jobs: their scripts, where they are at hand, exit with 0."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", [
    "causes-ddp_gain.py",
    "causes-early_recorder.py",
    "causes-gc_on_one_rank.py",
    "causes-handover_gap.py",
    "causes-imbalance_each_step.py",
    "causes-launch_bound_alone.py",
    "causes-mig_peak.py",
    "causes-pageable_unnamed.py",
    "causes-pipeline_transfers.py",
    "causes-sync_beside_slow_workers.py",
    "causes-waiting_rank_transfers.py",
    "first-augmented-trace-not-known.sh",
    "first-cause-host-or-unknown.py",
    "first-one-screen-one-number.py",
    "first-tensor-cores-fine.py",
    "first-truncated-verdict.py",
    "first-two-answers-one-rank.py",
    "house-same_column_two_meanings.py",
    "verdicts-device-held-up.py",
    "verdicts-eager-attention.py",
    "verdicts-lead-in.py",
    "verdicts-msprof-hccl.py",
    "verdicts-starved-host.py",
    "verdicts-tf32-geforce.py",
])  # fmt: skip
def test_a_script_of_strangers(name: str, shared_traces: Path) -> None:
    script = shared_traces.parent / "repro" / "strangers" / name
    if not script.exists():
        pytest.skip("the script is not at hand")
    environment = {
        **os.environ,
        "SHARED": str(shared_traces.parent),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable if name.endswith(".py") else "bash", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
