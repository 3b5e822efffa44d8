"""How often the verdict on a simulated job is right: the rank, the cause, and nobody in healthy jobs.

    python benchmarks/verdicts.py [SEEDS [RANKS]]      (default: 100 faults and 100 healthy jobs)

Faults are of every kind, in jobs of 2 to 16 ranks of data, tensor and pipeline parallelism, whose clocks are apart;
with RANKS, such as 128, in jobs of so many ranks. It also prints by how much the predicted gain misses that of the same
job without the fault.
"""

from __future__ import annotations

import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from augment.findings import AugmentedTrace
from augment.job.answer import Answer, answer
from augment.job.summary import summarize
from augment.readers import read
from simulator import JobOptions, simulate

SHAPES = (
    {"ranks": 2}, {"ranks": 4}, {"ranks": 8, "collectives": "fsdp"}, {"ranks": 8, "tp": 2, "layers": 2},
    {"ranks": 8, "tp": 2, "pp": 2, "layers": 2, "microbatches": 2}, {"ranks": 16, "layers": 2},
    {"ranks": 16, "tp": 4, "pp": 2, "layers": 2, "microbatches": 2}, {"ranks": 4, "sync_every": 0, "run_ahead": 1},
    {"ranks": 8, "collective_args": "no_seq"},
)  # fmt: skip
#: of a job of many ranks
LARGE = (
    {}, {"collectives": "fsdp"}, {"tp": 4}, {"tp": 8, "collectives": "fsdp"}, {"pp": 2, "microbatches": 2},
    {"tp": 4, "pp": 2, "microbatches": 2}, {"collective_args": "no_seq"}, {"sync_every": 0, "run_ahead": 1},
)  # fmt: skip
#: "backlog": the recording begins while the slow rank works off what was launched before
KINDS = ("compute", "host", "once", "communication", "backlog")


def options_of(seed: int, kind: str, many: int = 0) -> tuple[JobOptions, int | None, str]:
    """A job (of so ``many`` ranks), the rank at fault (None for no rank), and the cause."""
    random = np.random.default_rng([seed, 77])
    shape = {"ranks": many, "layers": 2, **LARGE[seed % len(LARGE)]} if many else dict(SHAPES[seed % len(SHAPES)])
    if kind == "communication":  # needs other groups to compare with
        shape = {"ranks": many or 16, "tp": (2, 4)[seed % 8 // 4], "layers": 2}
    ranks = int(shape["ranks"])  # type: ignore[call-overload]
    offsets = (0, *random.integers(-(10**9), 10**9, ranks - 1).tolist())
    drifts = (0.0, *random.uniform(-30, 30, ranks - 1).tolist())
    base = JobOptions(
        steps=5, seed=seed, clock_offset_ns=offsets, clock_drift_ppm=drifts, end_spread_ns=500.0,
        jitter=float(random.uniform(0.02, 0.08)), warmup=float(random.choice([1.0, 1.3])), **shape,  # type: ignore[arg-type]
    )  # fmt: skip
    rank = int(random.integers(0, ranks))
    if kind == "compute":
        return replace(base, straggler=rank, straggler_factor=float(random.uniform(1.15, 1.6))), rank, "compute"
    if kind == "host":
        return replace(base, host_stall_rank=rank, host_stall_us=float(random.uniform(1500, 6000))), rank, "host"
    if kind == "once":
        stall = float(random.uniform(15000, 60000))
        return replace(base, host_stall_rank=rank, host_stall_step=3, host_stall_us=stall), rank, "host"
    if kind == "backlog":
        late = replace(base, steps=7, sync_every=0, run_ahead=2, record_from=(float(random.uniform(1.2, 1.8)),))
        return replace(late, straggler=rank, straggler_factor=float(random.uniform(1.15, 1.6))), rank, "compute"
    if kind == "communication":
        return replace(base, slow_link=rank, slow_link_factor=float(random.uniform(4, 8))), rank, "communication"
    return base, None, ""


def job(options: JobOptions) -> Answer:
    """The answer for a simulated job."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [path for path, _ in simulate(options, folder)]
        contents = [summarize(AugmentedTrace(read(str(path)), {})) for path in paths]
        return answer(contents, [path.name for path in paths])


def judged(seed: int, kind: str, many: int = 0) -> tuple[bool, Answer, JobOptions]:
    """Whether the verdict is right, and the answer."""
    options, rank, cause = options_of(seed, kind, many)
    result = job(options)
    rows = result.verdict.rows
    if rank is None:
        return not rows, result, options
    if len(rows) != 1 or rows[0].cause != cause:
        return False, result, options
    in_group = rows[0].rank is None and str(rank) in re.findall(r"\d+", rows[0].evidence.partition("[")[2])
    return rows[0].rank == rank or in_group, result, options


def main(seeds: int, many: int = 0) -> None:
    """Print the shares."""
    right, misses = 0, []
    for seed in range(seeds):
        kind = KINDS[seed % len(KINDS)]
        good, result, options = judged(seed, kind, many)
        right += good
        if not good:
            print(f"seed {seed}, {kind}: {options_of(seed, kind, many)[1:]}: {' '.join(result.verdict.text)}")
        elif seed < 4 * len(KINDS) and not many:
            healthy = replace(
                options, straggler=None, host_stall_rank=None, host_stall_us=0.0, host_stall_step=None, slow_link=None
            )
            with_fault, without = (each.judgement.recorded_ns for each in (result, job(healthy)))
            predicted = result.verdict.rows[0].gain_ns / with_fault
            misses.append(100 * (predicted - (with_fault - without) / with_fault))
            print(f"seed {seed}, {kind}, {options.ranks} ranks: gain {100 * predicted:.1f} %, off by {misses[-1]:.1f}")
    missed = f"; predicted gain misses by {np.abs(misses).max():.1f} points at most" if misses else ""
    print(f"faults: {right} of {seeds} right{missed}")
    healthy_jobs = [judged(seed, "", many) for seed in range(seeds)]
    for seed, (good, result, _) in enumerate(healthy_jobs):
        if not good:
            print(f"seed {seed}, healthy: {' '.join(result.verdict.text)}")
    print(f"healthy: {sum(good for good, _, _ in healthy_jobs)} of {seeds} name nobody")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3] or [100]))
