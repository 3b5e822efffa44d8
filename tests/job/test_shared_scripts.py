"""What strangers found wrong with jobs: their scripts, where they are at hand, exit with 0."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "name",
    [
        "batch-same-local-rank-slow",
        "causes-ddp_gain",
        "causes-early_recorder",
        "causes-gc_on_one_rank",
        "causes-imbalance_each_step",
        "causes-waiting_rank_transfers",
        "first-cause-host-or-unknown",
        "verdicts-merged-ranks",
    ],
)
def test_a_script_of_strangers(name: str, shared_traces: Path) -> None:
    script = shared_traces.parent / "repro" / "strangers" / f"{name}.py"
    if not script.exists():
        pytest.skip("the script is not at hand")
    environment = {
        **os.environ,
        "SHARED": str(shared_traces.parent),
        "NODES": "2",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
