"""Mutated traces, the same at each run: see ``fuzzing.py``. In a process of its own, which forbidden memory ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[1] / "support" / "fuzzing.py"


@pytest.mark.skipif(sys.platform == "win32", reason="pages are guarded by mprotect")
def test_mutated_traces() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--count", "100"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr[-500:]}"
