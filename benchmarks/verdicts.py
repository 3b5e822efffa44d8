"""How often the verdict on a simulated job is right: rank, cause and dimension; and nobody in healthy jobs.

    python benchmarks/verdicts.py [SEEDS [RANKS [FIRST]]]      (default: 100 faults and 100 healthy jobs, from seed 0)

Faults are of every kind, in jobs of 2 to 32 ranks of data, tensor, pipeline and expert parallelism and their products,
whose clocks are apart; with RANKS, such as 128, in jobs of so many ranks. It prints what share of the faults is named
(and by kind of fault), whom it names in error, how many clocks differ from the truth by more than their stated
uncertainty, and by how much the predicted gain misses that of the same job without the fault.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from augment.core.findings import AugmentedTrace
from augment.job.answer import Answer, answer
from augment.job.ranks.summary import summarize
from augment.readers import read
from simulator import JobOptions, simulate
from simulator.job import START_NS
from simulator.kineto import BASE_TIME_NS
from simulator.options import Ranks, among

SHAPES = (
    {"ranks": 2}, {"ranks": 4}, {"ranks": 8, "collectives": "fsdp"}, {"ranks": 8, "tp": 2, "layers": 2},
    {"ranks": 8, "tp": 2, "pp": 2, "layers": 2, "microbatches": 2}, {"ranks": 16, "layers": 2},
    {"ranks": 16, "tp": 4, "pp": 2, "layers": 2, "microbatches": 2}, {"ranks": 4, "sync_every": 0, "run_ahead": 1},
    {"ranks": 8, "collective_args": "no_seq"}, {"ranks": 8, "ep": 4, "layers": 2},
    {"ranks": 16, "tp": 2, "ep": 4, "layers": 2},
    {"ranks": 16, "tp": 2, "pp": 2, "ep": 2, "layers": 2, "microbatches": 2},
    {"ranks": 32, "tp": 4, "pp": 2, "layers": 2, "microbatches": 2, "collectives": "fsdp"},
    {"ranks": 32, "tp": 2, "pp": 2, "ep": 4, "layers": 2, "microbatches": 2}, {"ranks": 32, "layers": 2},
    {"ranks": 8, "pp": 4, "layers": 4, "microbatches": 4, "schedule": "1f1b"},
    {"ranks": 8, "pp": 2, "layers": 4, "microbatches": 4, "schedule": "interleaved"},
)  # fmt: skip
#: of a job of many ranks
LARGE = (
    {}, {"collectives": "fsdp"}, {"tp": 4}, {"tp": 8, "collectives": "fsdp"}, {"pp": 2, "microbatches": 2},
    {"tp": 4, "pp": 2, "microbatches": 2}, {"collective_args": "no_seq"}, {"sync_every": 0, "run_ahead": 1},
)  # fmt: skip
#: "backlog": the recording begins while the slow rank works off what was launched before; "together": a group is slow
KINDS = ("compute", "host", "once", "communication", "backlog", "together")
#: slow links need other groups of equal data to be compared with
LINKS = (
    {"ranks": 16, "tp": 2, "layers": 2}, {"ranks": 16, "tp": 4, "layers": 2},
    {"ranks": 32, "tp": 2, "pp": 2, "layers": 2, "microbatches": 2}, {"ranks": 32, "tp": 4, "ep": 2, "layers": 2},
)  # fmt: skip


def options_of(seed: int, kind: str, many: int = 0) -> tuple[JobOptions, Ranks, str]:
    """A job (of so ``many`` ranks), the rank or ranks at fault (None for no rank), and the cause."""
    random = np.random.default_rng([seed, 77])
    shape = {"ranks": many, "layers": 2, **LARGE[seed % len(LARGE)]} if many else dict(SHAPES[seed % len(SHAPES)])
    if kind == "communication":
        shape = (
            {"ranks": many, "tp": (2, 4)[seed % 8 // 4], "layers": 2} if many else dict(LINKS[seed // len(KINDS) % 4])
        )
    if kind == "together":
        shape = {"ranks": many or (8, 16)[seed % 2], "layers": 2, **({"tp": (2, 4)[seed // 2 % 2]} if seed % 3 else {})}
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
    if kind == "together":
        size = base.tp if base.tp > 1 else ranks // 2
        group = tuple(range(rank // size * size, rank // size * size + size))
        if seed % 4 < 2:
            return replace(base, straggler=group, straggler_factor=float(random.uniform(1.15, 1.6))), group, "compute"
        return replace(base, host_stall_rank=group, host_stall_us=float(random.uniform(1500, 6000))), group, "host"
    if kind == "communication":
        return replace(base, slow_link=rank, slow_link_factor=float(random.uniform(4, 8))), rank, "communication"
    return base, None, ""


def dimensions_of(options: JobOptions, kind: str) -> set[str]:
    """The dimensions in which others wait for a slow rank: those within each layer, else data parallelism."""
    data = {"dp", "dp_shard", "dp_cp"}
    within = {name for name, size in (("tp", options.tp), ("ep", options.ep)) if size > 1}
    if kind == "communication":
        return within | data | {"pp", ""}
    gathers = options.collectives == "fsdp" and kind in ("host", "once")  # which come before the first layer
    return within | data if gathers else within or data


@lru_cache(4)
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
    if isinstance(rank, tuple):
        return [(tuple(row.ranks), row.cause) for row in rows] == [(rank, cause)], result, options
    if len(rows) != 1 or rows[0].cause != cause or rows[0].dimension not in dimensions_of(options, kind):
        return False, result, options
    in_group = rows[0].rank is None and str(rank) in re.findall(r"\d+", rows[0].evidence.partition("[")[2])
    return rows[0].rank == rank or in_group, result, options


def clocks_apart(result: Answer, options: JobOptions) -> tuple[int, int]:
    """How many clocks were compared, and how many miss the true ones by more than their stated uncertainty.

    The error is that at the ends of the recording, relative to the median rank's, as the job's clock is no rank's.
    """
    known = [place for place, clock in enumerate(result.clocks) if clock.comparable]
    if len(known) < 2:
        return 0, 0
    starts, ends = (
        [int(summary.step_column(side)[at]) - options.offset_of(summary.rank or 0) for summary in result.summaries]
        for side, at in (("start", 0), ("end", -1))
    )
    moments = np.array([min(starts), max(ends)], np.int64)
    errors = []
    for place in known:
        rank = result.summaries[place].rank or 0
        drift = np.rint(options.drift_of(rank) * (moments - START_NS - BASE_TIME_NS)).astype(np.int64)
        shown = moments + options.offset_of(rank) + drift
        errors.append(result.clocks[place].to_common(shown) - moments)
    table = np.array(errors)
    table -= np.median(table, axis=0).astype(np.int64)
    stated = np.array([result.clocks[place].uncertainty_ns for place in known])
    return len(known), int((np.abs(table).max(axis=1) > stated + np.median(stated)).sum())


def healthy(options: JobOptions) -> JobOptions:
    """The same job without its fault."""
    none: dict[str, None] = {"straggler": None, "host_stall_rank": None, "host_stall_step": None, "slow_link": None}
    return replace(options, host_stall_us=0.0, **none)


def main(seeds: int, many: int = 0, start: int = 0) -> None:
    """Print the shares."""
    right, of_kind, misses, named = Counter[str](), Counter[str](), [], 0
    clocks = np.zeros(2, np.int64)
    for seed in range(start, start + seeds):
        kind = KINDS[seed % len(KINDS)]
        good, result, options = judged(seed, kind, many)
        right[kind] += good
        of_kind[kind] += 1
        clocks += clocks_apart(result, options)
        rank = options_of(seed, kind, many)[1]
        named += sum(row.rank not in (*among(rank), None) for row in result.verdict.rows)
        if not good:
            rows = [(row.rank, row.cause, row.dimension) for row in result.verdict.rows]
            print(f"seed {seed}, {kind}, {options_of(seed, kind, many)[1:]}: {rows} {' '.join(result.verdict.text)}")
        elif seed < 4 * len(KINDS) and not many and result.verdict.rows[0].gain_ns is not None:
            with_fault, without = (each.judgement.recorded_ns for each in (result, job(healthy(options))))
            predicted = result.verdict.rows[0].gain_ns / with_fault
            misses.append(100 * (predicted - (with_fault - without) / with_fault))
            print(f"seed {seed}, {kind}, {options.ranks} ranks: gain {100 * predicted:.1f} %, off by {misses[-1]:.1f}")
    missed = f"; predicted gain misses by {np.abs(misses).max():.1f} points at most" if misses else ""
    kinds = ", ".join(f"{kind} {right[kind]} of {count}" for kind, count in of_kind.items())
    print(f"faults: {right.total()} of {seeds} right ({kinds}); {named} other ranks named{missed}")
    nobody = 0
    for seed in range(start, start + seeds):
        good, result, options = judged(seed, "", many)
        nobody += good
        clocks += clocks_apart(result, options)
        if not good:
            print(f"seed {seed}, healthy: {' '.join(result.verdict.text)}")
    print(f"healthy: {nobody} of {seeds} name nobody")
    print(f"clocks: {clocks[1]} of {clocks[0]} differ from the true ones by more than their stated uncertainty")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4] or [100]))
