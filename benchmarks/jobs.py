"""What the cross-rank part costs: CPU time for each rank, from the ranks' summaries to job.metrics.json.

    python benchmarks/jobs.py [--ranks 8,64,512,2048] [--steps 20] [--jobs 1,2]

Eight ranks are simulated and converted; larger jobs have their summaries again and again, each with a clock and an
arrival of its own, in files. Told are the summary's size, what making it adds to a conversion, and the cost of
concluding with so many processes: of the process that concludes, and of those that read the summaries for it; the most
memory of each; and whether the result is the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from augment.batch.conversion import RunPlan  # noqa: E402
from augment.batch.execution import executor_of  # noqa: E402
from augment.batch.inputs import Input  # noqa: E402
from augment.batch.job_question import compared  # noqa: E402
from augment.batch.jobs import Job, Member  # noqa: E402
from augment.core.threads import keep_freed_memory  # noqa: E402
from augment.job import sidecar  # noqa: E402
from augment.job.ranks.summary import read_summary, summarize  # noqa: E402
from augment.pipeline import augment  # noqa: E402
from augment.pipeline.request import Request  # noqa: E402
from augment.readers import read  # noqa: E402
from simulator import JobOptions, simulate  # noqa: E402


def summaries(ranks: int, steps: int, folder: Path) -> tuple[list[bytes], float, float]:
    """Of simulated ranks; the CPU seconds for a rank without, and for its summary."""
    options = JobOptions(ranks=ranks, steps=steps, layers=8, collectives="fsdp", uneven_buckets=True)
    made, whole, summary_s = [], 0.0, 0.0
    for path, _ in simulate(options, folder):
        began = time.process_time()
        augmented = augment(read(str(path)))
        analysed = time.process_time()
        made.append(summarize(augmented))
        whole, summary_s = whole + analysed - began, summary_s + time.process_time() - analysed
    return made, whole / ranks, summary_s / ranks


def more(few: Sequence[bytes], count: int) -> Iterator[bytes]:
    """``count`` ranks like ``few``, of one process group: one after the other, as a batch reads them from files."""
    random = np.random.default_rng(0)
    for rank in range(count):
        summary = read_summary(few[rank % len(few)], "")
        summary.rank = rank
        for group in summary.groups:
            group[2], group[4] = "", count
        start, end, offset = summary.column("ts"), summary.column("end"), int(random.integers(-(10**10), 10**10))
        late = np.minimum(random.integers(0, 20_000, len(start)), end - start - 1)
        summary.columns |= {"ts": (start + offset + late).tobytes(), "end": (end + offset).tobytes()}
        summary.steps |= {side: (summary.step_column(side) + offset).tobytes() for side in ("start", "end")}
        moments = np.frombuffer(summary.states.ts, np.int64).copy()
        moments[:1] += offset
        summary.states.ts = moments.tobytes()
        yield zlib.compress(msgspec.msgpack.encode(summary), 1)


def conclude(folder: Path, count: int, jobs: int) -> None:
    """Conclude a job from its summaries' files, and print the cost as JSON."""
    keep_freed_memory()  # as the command
    ranks = range(count)
    members = [Member(Input(f"rank{rank}.json", str(folder), named=False), rank) for rank in ranks]
    job = Job(str(folder), "job", "", tuple(members), count)
    paths = [(member, str(folder / f"{member.rank}")) for member in members]
    before = time.process_time()
    result = compared(paths, Request(), executor_of(RunPlan(jobs=jobs)))
    content = sidecar.content(result, job.name, job.window, job.world_size)
    spent = time.process_time() - before
    here, there = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    figures = {
        "cpu_s": spent,
        "workers_cpu_s": there.ru_utime + there.ru_stime,
        "peak_mb": here.ru_maxrss / 1e3,
        "worker_peak_mb": there.ru_maxrss / 1e3,
        "metrics_mb": len(content) / 1e6,
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    print(json.dumps(figures))


def measured(folder: Path, count: int, jobs: int) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--conclude", str(folder), "--ranks", str(count), "--jobs", str(jobs)]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def main() -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="8,64,512,2048,8192")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--jobs", default="1,2")
    parser.add_argument("--conclude", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.conclude:
        conclude(arguments.conclude, int(arguments.ranks), int(arguments.jobs))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        few, whole, summary_s = summaries(8, arguments.steps, Path(folder))
    print(
        f"summary: {len(few[0]) / 1e3:.0f} kB, {len(read_summary(few[0], '').column('ts'))} collectives, "
        f"{summary_s * 1e3:.0f} CPU ms beside {whole * 1e3:.0f} for reading and analysing"
    )
    for count in map(int, arguments.ranks.split(",")):
        with tempfile.TemporaryDirectory() as name:
            for rank, content in enumerate(more(few, count)):
                Path(name, f"{rank}").write_bytes(content)
            results = {jobs: measured(Path(name), count, jobs) for jobs in map(int, arguments.jobs.split(","))}
        for jobs, cost in results.items():
            print(
                f"{count} ranks, --jobs {jobs}: {cost['cpu_s']:.2f} CPU s, "
                f"{cost['cpu_s'] * 1e3 / count:.2f} ms a rank, "
                f"{cost['peak_mb']:,.0f} MB; workers {cost['workers_cpu_s']:.2f} CPU s, "
                f"{cost['worker_peak_mb']:,.0f} MB; job.metrics.json {cost['metrics_mb']:.1f} MB"
            )
        if len({cost["sha256"] for cost in results.values()}) > 1:
            print(f"{count} ranks: the results DIFFER")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
