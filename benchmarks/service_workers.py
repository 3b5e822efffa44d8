"""A whole job by one worker and by several, each on a core of its own: wall time and CPU. For Linux, with PostgreSQL.

    python benchmarks/service_workers.py [--ranks 64] [--workers 1,2] [--rounds 2] [--steps 4] [--layers 4]

The numbers of workers take turns, for what else runs on the machine slows all. The time begins when the job is asked
for, after its traces were sent. Exits 1 if the outputs differ.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / part) for part in ("", "server", "examples", "tests/server", "tests/support", "benchmarks")]

from bench import cache  # noqa: E402
from postgres_cluster import cluster  # noqa: E402
from service import times_of  # noqa: E402
from serving_process import Server, Worker  # noqa: E402

from augment.client import Client  # noqa: E402
from augment.client.connection import Deadline  # noqa: E402
from augment.v1 import resources_pb2, service_pb2  # noqa: E402
from simulator import JobOptions, simulate  # noqa: E402


def run(folder: Path, url: str, traces: list[Path], count: int) -> tuple[float, float, dict[str, str]]:
    """Wall and CPU seconds of the job with so many workers, and the digests of what it made."""
    shared = ("--catalog", url)
    front = Server(folder / "state", *shared, "--role", "front")
    workers = [Worker("--state-dir", folder / "state", *shared, "--max-running-jobs", 1) for _ in range(count)]
    for core, worker in zip(sorted(os.sched_getaffinity(0)), workers, strict=False):
        for pid in (worker.process.pid, *worker.workers):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {core})  # which what it starts has, too
    try:
        with Client(front.address) as client:
            names = [client._upload(str(path), Deadline(None, str(path)), lambda *_: None) for path in traces]
            inputs = [resources_pb2.Input(upload=name) for name in names]
            spec = resources_pb2.JobSpec(job=resources_pb2.WholeJobSpec(inputs=inputs, name="job"))
            began, before = time.monotonic(), cpu_s(workers)
            job = client._stub.CreateJob(service_pb2.CreateJobRequest(spec=spec)).job.name
            *_, last = client._stub.WatchJob(service_pb2.WatchJobRequest(name=job))
            wall_s, spent_s = time.monotonic() - began, cpu_s(workers) - before
        if last.job.state != resources_pb2.Job.STATE_SUCCEEDED or last.job.failures:
            raise SystemExit(f"the job failed: {last.job.error}{last.job.failures}")
        return wall_s, spent_s, {each.file_name: each.sha256 for each in last.job.artifacts}
    finally:
        for each in (front, *workers):
            each.terminate()
            each.close()


def cpu_s(workers: list[Worker]) -> float:
    """Of the workers, their processes, and those that have ended."""
    return sum(sum(times_of(pid)) for worker in workers for pid in (worker.process.pid, *worker.workers))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("ranks", 64), ("rounds", 2), ("steps", 4), ("layers", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--workers", default="1,2")
    asked = parser.parse_args()
    counts = [int(count) for count in asked.workers.split(",")]
    walls: dict[int, list[float]] = {count: [] for count in counts}
    outputs = []
    with tempfile.TemporaryDirectory(dir=cache()) as name, cluster() as catalog:
        options = JobOptions(ranks=asked.ranks, steps=asked.steps, layers=asked.layers)
        traces = [path for path, _ in simulate(options, Path(name) / "traces")]
        size = sum(path.stat().st_size for path in traces) / len(traces)
        print(f"{asked.ranks} ranks of {size / 1000:.0f} kB", flush=True)
        for at in range(asked.rounds):
            for count in counts:
                folder = Path(name) / f"{at}.{count}"
                wall_s, spent_s, made = run(folder, catalog.url(folder), traces, count)
                walls[count].append(wall_s)
                outputs.append(made)
                load = os.getloadavg()[0]
                print(f"{count} workers: wall {wall_s:.1f} s, CPU {spent_s:.1f} s; load {load:.1f}", flush=True)
    for count in counts[1:]:
        ratio = statistics.median(walls[count]) / statistics.median(walls[counts[0]])
        print(f"wall of {count} workers by that of {counts[0]}: {ratio:.2f}")
    return int(any(made != outputs[0] for made in outputs))


if __name__ == "__main__":
    sys.exit(main())
