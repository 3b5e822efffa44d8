"""A simulated job whose clocks, straggler and links are known, through traces and summaries to the job's figures."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import verdicts

from answered_jobs import answered, rows
from augment import Trace, read
from augment.core import RankInJob
from augment.facts.names import bus_factor
from augment.job.answer import Answer
from augment.job.rank_answers import rank_in_job, with_its_ranks
from augment.job.verdict.job_verdict import BALANCED, HIDDEN, LIKE_MEDIAN
from augment.results.report.health import report_on
from simulator import GPUS, JobOptions, simulate
from simulator.communication import LATENCY_NS
from simulator.job import START_NS
from simulator.kineto import BASE_TIME_NS

pytestmark = pytest.mark.slow

START = BASE_TIME_NS + START_NS


def job(folder: Path, **options: Any) -> Answer:
    paths = [path for path, _ in simulate(JobOptions(**options), folder)]
    return answered(paths)


@pytest.mark.parametrize(("ranks", "layers"), [(2, 4), (8, 4), (64, 2)])
def test_clocks_are_found_within_what_is_said_of_them(tmp_path: Path, ranks: int, layers: int) -> None:
    random = np.random.default_rng(ranks)
    offsets = (0, *random.integers(-10_000_000_000, 10_000_000_000, ranks - 1).tolist())
    drifts = (0.0, *random.uniform(-50, 50, ranks - 1).tolist())
    result = job(tmp_path, ranks=ranks, steps=6, layers=layers, clock_offset_ns=offsets, clock_drift_ppm=drifts,
                end_spread_ns=400.0)  # fmt: skip
    part = result.matched.member == 0
    moments = np.linspace(result.matched.ts[part].min(), result.matched.end[part].max(), 7).astype(np.int64)
    for clock, offset, drift in zip(result.clocks, offsets, drifts, strict=True):
        part = moments + offset + np.rint(drift / 1e6 * (moments - START)).astype(np.int64)
        assert np.abs(clock.to_common(part) - moments).max() <= clock.uncertainty_ns
        assert 200 < clock.uncertainty_ns < 4000
        assert clock.comparable
    assert all(row.status == "corrected" for row in rows(result, "clock_alignment")[1:])


def test_drift_is_told(tmp_path: Path) -> None:
    result = job(
        tmp_path, ranks=3, steps=8, clock_offset_ns=(0, 5, -5), clock_drift_ppm=(0, 40.0, 0.0), end_spread_ns=50
    )
    output = [row.drift_ppm for row in rows(result, "clock_alignment")]
    assert output[1] == pytest.approx(40, rel=0.02)
    assert (output[0], output[2]) == (0, 0)


def test_clocks_that_agree_are_left_alone(tmp_path: Path) -> None:
    result = job(tmp_path, ranks=4, steps=4, end_spread_ns=900.0)
    assert [clock.offset_ns for clock in result.clocks] == [0, 0, 0, 0]
    assert {row.status for row in rows(result, "clock_alignment")} == {"kept"}


@pytest.mark.parametrize("collectives", ["ddp", "fsdp"])
def test_the_straggler_is_named_with_its_milliseconds(tmp_path: Path, collectives: str) -> None:
    offsets = (0, 3_000_000_000, -7_000_000_000, 250_000)
    result = job(tmp_path, ranks=4, steps=4, collectives=collectives, straggler=2, clock_offset_ns=offsets)
    table = rows(result, "stragglers")
    worst = max(table, key=lambda row: row.after_the_others_ns)
    assert worst.rank == 2
    assert worst.cause == "gpu"
    assert worst.step_count == 4
    assert worst.robust_z == max(row.robust_z for row in table)
    charged, waited, moved = slowly(tmp_path, offsets)
    assert {row.rank: row.after_the_others_ns for row in table} == charged
    assert {row.rank: row.wait_ns for row in table} == waited
    assert sum(row.transfer_ns for row in rows(result, "job_collectives")) == moved


def slowly(folder: Path, offsets: tuple[int, ...]) -> tuple[dict[int, int], dict[int, int], int]:
    """What is charged to each rank, what it waits, and what all move, ns: from the files, by the true clocks."""
    parts: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
    for rank, offset in enumerate(offsets):
        for event in json.loads(gzip.decompress((folder / f"rank{rank}.pt.trace.json.gz").read_bytes()))["traceEvents"]:
            if event.get("cat") == "kernel" and event["name"].startswith("nccl"):
                start = round(event["ts"] * 1000) - offset
                parts[event["args"]["Seq"]][rank] = start, start + round(event["dur"] * 1000)
    charged, waited, moved = dict.fromkeys(range(len(offsets)), 0), dict.fromkeys(range(len(offsets)), 0), 0
    for part in parts.values():
        before, arrival = sorted(start for start, _ in part.values())[-2:]
        late = next(rank for rank, (start, _) in sorted(part.items()) if start == arrival)
        charged[late] += arrival - before
        for rank, (start, end) in part.items():
            wait = min(arrival - start, end - start)
            waited[rank] += wait
            moved += end - start - wait
    return charged, waited, moved


def test_a_late_host_is_told_from_a_late_gpu(tmp_path: Path) -> None:
    result = job(tmp_path, ranks=2, steps=3, work=0.02, jitter=0.2)
    worst = max(rows(result, "stragglers"), key=lambda row: row.after_the_others_ns)
    assert worst.cause == "host"
    assert worst.host_ns > 0.6 * worst.after_the_others_ns  # between the launches it works


@pytest.mark.parametrize(("ranks", "collectives"), [(2, "ddp"), (8, "ddp"), (16, "fsdp")])
def test_latency_and_bandwidth_are_found(tmp_path: Path, ranks: int, collectives: str) -> None:
    result = job(tmp_path, ranks=ranks, steps=12, layers=8, collectives=collectives, uneven_buckets=True, jitter=0.005)
    table = rows(result, "job_collectives")
    assert len(table) == (1 if collectives == "ddp" else 2)
    for row in table:
        factor = bus_factor(row.kind, ranks)
        assert row.alpha_ns == pytest.approx(LATENCY_NS, rel=0.02)
        assert row.beta_gbps * factor == pytest.approx(GPUS["H100"].link_gbps, rel=0.02)
        assert row.r2 > 0.999
        assert row.fit_count == row.count
    for size in rows(result, "collective_sizes"):
        assert size.fitted_ns == pytest.approx(size.median_ns, rel=0.02)


def test_wait_and_transfer_are_the_duration(tmp_path: Path) -> None:
    for options in ({"clock_offset_ns": (0, 10**10, -(10**9), 3)}, {"collectives": "fsdp", "straggler": 1}):
        result = job(tmp_path / str(len(options)), ranks=4, steps=2, end_spread_ns=20_000.0, **options)
        parted, matched = result.parted, result.matched
        assert (parted.wait_ns + parted.transfer_ns == matched.end - matched.ts).all()
        assert (parted.wait_ns >= 0).all()
        assert (parted.transfer_ns >= 0).all()


# Ranks that another tool merged into one file are ranks: their diagnosis says which comes late.
JOB = JobOptions(ranks=4, steps=5, layers=3, run_ahead=2)
NUMBERS = 1_000_000  #: between the correlations of two ranks


def merged(options: JobOptions, folder: Path, *, named: bool = True) -> Path:
    """The ranks of a job in one file: as TraceLens' TraceFusion does, with the rank in the args of each event."""
    events: list[dict[str, Any]] = []
    for rank, (path, _) in enumerate(simulate(options, folder / "ranks")):
        for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
            args = event.get("args", {})
            numbers = {key: args[key] + rank * NUMBERS for key in ("correlation", "External id") if key in args}
            event["args"] = {**args, **numbers, **({"rank": rank} if named else {})}
            if "id" in event:
                event["id"] += rank * NUMBERS
            if event["ph"] != "M" or "args" in event:
                event["pid"] = f"{rank}:{event['pid']}"
                events.append(event)
    out = folder / "merged.json"
    out.write_text(json.dumps({"traceEvents": events}))
    return out


def of_its_ranks(trace: Trace) -> RankInJob | None:
    return with_its_ranks(trace).context.attached(RankInJob)


@pytest.mark.parametrize(("options", "reason"), [
    (JobOptions(ranks=4, steps=5, layers=3, run_ahead=2, host_stall_us=20_000.0, host_stall_rank=2), "its host"),
    (JobOptions(ranks=4, steps=5, layers=3, run_ahead=2, straggler=2), "it computes longer"),
], ids=["host", "compute"])  # fmt: skip
def test_the_late_rank_of_a_merged_file_is_named(options: JobOptions, reason: str, tmp_path: Path) -> None:
    report = report_on(str(merged(options, tmp_path)), lambda _: None)
    row = next(row for row in report["rows"] if row["rule"] == "straggling_rank")
    assert row["status"] == "found"
    assert f"100 % of it for rank 2 ({reason}" in row["title"]
    assert any("rank 2" in sentence for sentence in report["verdict"])
    communication = next(row for row in report["rows"] if row["rule"] == "exposed_communication")
    assert (communication["saved_ns"] or 0) < row["saved_ns"] / 2
    apart = rank_in_job(answered(sorted((tmp_path / "ranks").glob("*.json.gz"))), 0)
    together = of_its_ranks(read(str(tmp_path / "merged.json")))
    ((separate,), (merged_rank,)) = apart.late_ranks, together.late_ranks
    assert (merged_rank.name, merged_rank.reason.cause) == (separate.name, separate.reason.cause)
    assert merged_rank.gain_ns == pytest.approx(separate.gain_ns, rel=0.01)


def test_nobody_is_late_in_a_healthy_merged_file(tmp_path: Path) -> None:
    assert not of_its_ranks(read(str(merged(JOB, tmp_path)))).late_ranks


def test_a_file_that_names_no_ranks_or_one_is_left_as_it_is(tmp_path: Path) -> None:
    unnamed = read(str(merged(JOB, tmp_path, named=False)))
    assert with_its_ranks(unnamed) is unnamed
    one_rank = read(str(next((tmp_path / "ranks").glob("*.json.gz"))))
    assert with_its_ranks(one_rank) is one_rank


# What a job would gain, beside the same job simulated so.
POINTS = 5.0  #: by which a predicted gain may miss, of 100


def gain_of(options: JobOptions, scenario: str, dimension: str, otherwise: JobOptions) -> tuple[float, float]:
    """The predicted and the true gain, of 100."""
    before, after = verdicts.job(options), verdicts.job(otherwise)
    outcome = before.outcomes["job_what_if"]
    (row,) = (each for each in outcome.rows if (each.scenario, each.dimension) == (scenario, dimension))
    assert abs(row.error_ratio) < 0.01
    true = 1 - after.judgement.recorded_ns / before.judgement.recorded_ns
    return 100 * row.gain_ratio, 100 * true


@pytest.mark.parametrize(("options", "kind", "dimension"), [
    (JobOptions(ranks=4, tp=4, layers=2, steps=4, jitter=0.05), "AllReduce", "tp"),
    (
        JobOptions(ranks=4, steps=4, collectives="fsdp", work=0.1, gpu="A100", sync_every=0, run_ahead=2),
        "AllGather",
        "default_pg",
    ),
    (JobOptions(ranks=8, tp=2, layers=2, steps=4, straggler=3, straggler_factor=1.3), "AllReduce", "tp"),
], ids=["tp", "fsdp", "straggler"])  # fmt: skip
def test_a_collective_that_is_hidden(options: JobOptions, kind: str, dimension: str) -> None:
    unawaited = {"AllReduce": "allreduce", "AllGather": "allgather"}[kind]
    otherwise = replace(options, unawaited=unawaited)  # type: ignore[arg-type]
    predicted, true = gain_of(options, HIDDEN.format(kind), dimension, otherwise)
    assert true > 2
    assert predicted == pytest.approx(true, abs=POINTS)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("ranks", "slow"), [(4, 1), (4, 3), (8, None)])
def test_stages_that_are_balanced(ranks: int, slow: int | None, schedule: str) -> None:
    """Four stages of which one computes half as long again; two such pipelines would both have to."""
    options = JobOptions(ranks=ranks, pp=4, layers=4, microbatches=8, steps=4, schedule=schedule, jitter=0.03)  # type: ignore[arg-type]
    unbalanced = options if slow is None else replace(options, straggler=slow, straggler_factor=1.5)
    balanced = options if slow is None else replace(options, work=(3 + 1.5) / 4)
    predicted, true = gain_of(unbalanced, BALANCED, "pp", balanced)
    assert (true > 8) == (slow is not None)
    assert predicted == pytest.approx(true, abs=POINTS)


POINTS_OF_TWO_STREAMS = 6


@pytest.mark.parametrize("factor", [1.2, 1.5])
@pytest.mark.parametrize("options", [
    JobOptions(),
    JobOptions(uneven_buckets=True),
    JobOptions(bucket_mib=8.0),
    JobOptions(collectives="fsdp"),
    JobOptions(tp=2),
    JobOptions(record_from=(0.2, 0.2, 1.1, 0.2)),
], ids=["a bucket a layer", "uneven buckets", "large buckets", "fsdp", "tp", "recorded later"])  # fmt: skip
def test_a_rank_that_computes_like_the_others(options: JobOptions, factor: float) -> None:
    """Buckets of gradients wait for the last kernel before them, and for the bucket before them on their stream: on
    ranks that are early, only for that. Tensor and data parallelism have streams of which now one, now the other is
    first: there the gain may be told too small. Steps that a rank did not record are not compared."""
    otherwise = replace(options, ranks=4, steps=4, layers=6, jitter=0.03)
    before, after = verdicts.job(replace(otherwise, straggler=2, straggler_factor=factor)), verdicts.job(otherwise)
    outcome = before.outcomes["job_what_if"]
    (row,) = (each for each in outcome.rows if (each.scenario, each.rank) == (LIKE_MEDIAN, 2))
    assert abs(row.error_ratio) < 0.001
    missed = 100 * (row.gain_ratio - (1 - after.judgement.recorded_ns / before.judgement.recorded_ns))
    assert -(POINTS_OF_TWO_STREAMS if options.tp > 1 else 1) < missed < 1
