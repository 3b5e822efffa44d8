"""What a job would gain, beside the same job simulated so."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import verdicts

from augment.job.verdict.job_verdict import BALANCED, HIDDEN, LIKE_MEDIAN
from simulator import JobOptions

pytestmark = pytest.mark.slow

POINTS = 5.0  #: by which a predicted gain may miss, of 100


def gain_of(options: JobOptions, scenario: str, dimension: str, otherwise: JobOptions) -> tuple[float, float]:
    """The predicted and the true gain, of 100."""
    before, after = verdicts.job(options), verdicts.job(otherwise)
    outcome = before.outcomes["job_what_if"]
    (row,) = (each for each in outcome.rows if (each.scenario, each.dimension) == (scenario, dimension))
    assert abs(row.error_ratio) < 0.01
    true = 1 - after.judgement.recorded_ns / before.judgement.recorded_ns
    return 100 * row.gain_ratio, 100 * true


@pytest.mark.parametrize(
    ("options", "kind", "dimension"),
    [
        (JobOptions(ranks=4, tp=4, layers=2, steps=4, jitter=0.05), "AllReduce", "tp"),
        (
            JobOptions(ranks=4, steps=4, collectives="fsdp", work=0.1, gpu="A100", sync_every=0, run_ahead=2),
            "AllGather",
            "default_pg",
        ),
        (JobOptions(ranks=8, tp=2, layers=2, steps=4, straggler=3, straggler_factor=1.3), "AllReduce", "tp"),
    ],
    ids=["tp", "fsdp", "straggler"],
)
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


@pytest.mark.parametrize("factor", [1.2, 1.5])
@pytest.mark.parametrize(
    "options",
    [
        JobOptions(),
        JobOptions(uneven_buckets=True),
        JobOptions(bucket_mib=8.0),
        JobOptions(collectives="fsdp"),
        JobOptions(tp=2),
        JobOptions(record_from=(0.2, 0.2, 1.1, 0.2)),
    ],
    ids=["a bucket a layer", "uneven buckets", "large buckets", "fsdp", "tp", "recorded later"],
)
def test_a_rank_that_computes_like_the_others(options: JobOptions, factor: float) -> None:
    """Buckets of gradients wait for the last kernel before them, and for the bucket before them on their stream: on
    ranks that are early, only for that. Tensor and data parallelism have streams of which now one, now the other is
    first. Steps that a rank did not record are not compared."""
    otherwise = replace(options, ranks=4, steps=4, layers=6, jitter=0.03)
    slow = replace(otherwise, straggler=2, straggler_factor=factor)
    before, after = verdicts.job(slow), verdicts.job(otherwise)
    outcome = before.outcomes["job_what_if"]
    (row,) = (each for each in outcome.rows if (each.scenario, each.rank) == (LIKE_MEDIAN, 2))
    assert abs(row.error_ratio) < 0.001
    true = 1 - after.judgement.recorded_ns / before.judgement.recorded_ns
    assert 100 * row.gain_ratio == pytest.approx(100 * true, abs=1.0)
