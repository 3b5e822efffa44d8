"""A demonstration: simulate a small job, augment its traces, print the main tables, tell what to open where.

    python examples/demo.py        # or: make demo

Everything is written below ``demo-output/`` in the current folder. The job has four ranks. In the third step the data
loader of rank 1 stalls for 8 ms: the page of the job shows that the others wait for it, the trace of rank 1 shows why.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from simulator import JobOptions, simulate

OUTPUT = Path("demo-output")
LATE = 1  #: the rank to look at
JOB = JobOptions(ranks=4, steps=4, layers=8, stacks=True, host_stall_us=8000.0, host_stall_step=2, host_stall_rank=LATE)
TABLES = (
    "temporal_breakdown",
    "idle_time_breakdown",
    "communication_computation_overlap",
    "memory_bandwidth",
    "queue_length",
)
LOOK = """
Look at it: augment open {trace}, or
  1. open https://ui.perfetto.dev in a browser (the file stays on this machine)
  2. "Open trace file": {trace}
  3. expand the process "python" and in it "GPU {rank}": above the streams lie the added tracks
  4. to have them at the top: type > into the search box, choose "Pin tracks by regex", enter
     ^(Job diagnosis|Diagnosis|Steps|GPU state|Critical path|Idle|Exposed communication)$
  5. on the track "Idle", click on the long host_wait at about {moment_ms:.0f} ms: its args name the Python function
     that kept the device waiting for {wait_ms:.1f} ms
The job on one page, to open in a browser: {page}
All figures of the trace, for programs: {metrics}
"""


def augment_command() -> list[str]:
    """The command ``augment``, or the same from the checkout."""
    command = shutil.which("augment")
    return [command] if command else [sys.executable, "-m", "augment"]


def run(arguments: Sequence[str]) -> None:
    """Show the command, and run it."""
    print(f"\n$ augment {' '.join(arguments)}", flush=True)
    root = str(Path(__file__).resolve().parents[1])
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    subprocess.run([*augment_command(), *arguments], check=True, env={**os.environ, "PYTHONPATH": paths})


def longest_wait(truth: Path) -> tuple[float, float]:
    """About when the stalled step begins, ms from the start of the trace, and how long its stall is."""
    span_ns = json.loads(truth.read_text())["temporal_breakdown"][0]["span_ns"]
    stall_ns = JOB.host_stall_us * 1000
    return (span_ns - stall_ns) / JOB.steps * (JOB.host_stall_step or 0) / 1e6, stall_ns / 1e6


def main() -> int:
    """Run the demonstration."""
    job, augmented, page = OUTPUT / "job", OUTPUT / "augmented", OUTPUT / "job.report.html"
    for folder in (job, augmented):
        shutil.rmtree(folder, ignore_errors=True)
    print(f"Simulating a job of {JOB.ranks} ranks in {job}/ …", flush=True)
    simulate(JOB, job)
    try:
        run(["run", str(job), "-o", str(augmented)])
        run(["show", str(augmented / f"rank{LATE}.metrics.json"), *TABLES])
        run(["report", str(augmented), "-o", str(page)])
    except subprocess.CalledProcessError as failed:
        return failed.returncode
    moment_ms, wait_ms = longest_wait(job / f"rank{LATE}.truth.json")
    trace, metrics = (augmented / f"rank{LATE}.{ending}" for ending in ("augmented.pftrace", "metrics.json"))
    paths = {"trace": trace.resolve(), "metrics": metrics, "page": page.resolve()}
    print(LOOK.format(**paths, rank=LATE, moment_ms=moment_ms, wait_ms=wait_ms))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
