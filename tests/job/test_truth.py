"""A simulated job whose clocks, straggler and links are known, through traces and summaries to the job's figures."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from augment.core.findings import AugmentedTrace
from augment.facts.names.kernel_types import bus_factor
from augment.job.answer import Answer, answer
from augment.job.ranks.summary import summarize
from augment.readers import read
from simulator import GPUS, JobOptions, simulate
from simulator.communication import LATENCY_NS
from simulator.job import START_NS
from simulator.kineto import BASE_TIME_NS

pytestmark = pytest.mark.slow

START = BASE_TIME_NS + START_NS


def job(folder: Path, **options: Any) -> Answer:
    paths = [path for path, _ in simulate(JobOptions(**options), folder)]
    contents = [summarize(AugmentedTrace(read(str(path)), {})) for path in paths]
    return answer(contents, [path.name for path in paths])


def rows(answer: Answer, question: str) -> Any:
    outcome = answer.outcomes[question]
    return outcome.rows


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
    worst = max(table, key=lambda row: row.charged_ns)
    assert worst.rank == 2
    assert worst.cause == "gpu"
    assert worst.step_count == 4
    assert worst.robust_z == max(row.robust_z for row in table)
    charged, waited, moved = slowly(tmp_path, offsets)
    assert {row.rank: row.charged_ns for row in table} == charged
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
    worst = max(rows(result, "stragglers"), key=lambda row: row.charged_ns)
    assert worst.cause == "host"
    assert worst.host_ns > 0.6 * worst.charged_ns  # between the launches it works


@pytest.mark.parametrize(("ranks", "collectives"), [(2, "ddp"), (8, "ddp"), (16, "fsdp")])
def test_latency_and_bandwidth_are_found(tmp_path: Path, ranks: int, collectives: str) -> None:
    result = job(tmp_path, ranks=ranks, steps=12, layers=8, collectives=collectives, uneven_buckets=True, jitter=0.005)
    table = rows(result, "job_collectives")
    assert len(table) == (1 if collectives == "ddp" else 2)
    for row in table:
        factor = bus_factor(row.kind, ranks)
        assert factor is not None
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
