"""A batch that is killed again and again, and started again, ends complete, and nothing is done twice."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from many_ranks import write_ranks
from running import contents, environment

pytestmark = pytest.mark.slow

COUNT = 24  #: benchmarks/batch.py takes 1000
KILLS = 2
JOBS = 2


def start(log: Path, source: Path, out: Path, *lines: int, jobs: int = JOBS) -> subprocess.Popen[bytes]:
    """It kills itself after so many ``lines`` of the manifest."""
    command = [sys.executable, Path(__file__).with_name("counted_batch.py"), log, jobs, source, out, *lines]
    return subprocess.Popen(list(map(str, command)), env=environment())


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_killed_and_started_again(tmp_path: Path) -> None:
    write_ranks(tmp_path / "in", COUNT)
    out, log = tmp_path / "out", tmp_path / "log"
    manifest = out / "augment-manifest.jsonl"
    for _ in range(KILLS):
        with start(log, tmp_path / "in", out, COUNT // (KILLS + 1)) as process:
            assert process.wait() == -signal.SIGKILL
        workers_end(log)
    assert len(lines(manifest)) == COUNT // (KILLS + 1) * KILLS
    with start(log, tmp_path / "in", out) as process:
        assert process.wait() == 0

    content = [json.loads(line) for line in lines(manifest) if line.endswith("}")]
    assert Counter(each["input"] for each in content) == {f"rank{rank}.pt.trace.json.gz": 1 for rank in range(COUNT)}
    begun = Counter(line.split()[0] for line in lines(log))
    assert begun.pop("end") == 1
    assert len(begun) == COUNT
    assert sum(begun.values()) <= COUNT + KILLS * JOBS  # what was under way was not done

    with start(tmp_path / "log1", tmp_path / "in", tmp_path / "out1", jobs=1) as process:
        assert process.wait() == 0
    assert contents(out) == contents(tmp_path / "out1")
    assert len(contents(out)) == 3 * COUNT + 1
    assert json.loads((out / "job.metrics.json").read_text())["source"]["ranks"] == list(range(COUNT))
    peaks = [int(line.split()[2]) for line in lines(tmp_path / "log1")[:-1]]
    assert len(peaks) == COUNT, "all by one process, whose memory does not grow with their number"
    assert peaks[-1] < 1.05 * peaks[COUNT * 2 // 3]  # the allocator has what it keeps after some fifteen


def workers_end(log: Path) -> None:
    """The processes whose parent was killed end by themselves."""
    pids = {int(line.split()[1]) for line in lines(log)}
    deadline = time.monotonic() + 300
    while alive := [pid for pid in pids if Path(f"/proc/{pid}/exe").exists()]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.02)
