"""Who holds a job up: the rank, the cause, and what would be gained, beside simulated truth; and nobody otherwise."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import truth
import verdicts
from running import Augment

import layered_job
from answered_jobs import answered, job_at
from augment import AugmentedTrace, read
from augment.job.answer import Answer, answer
from augment.job.path import Shift, progress_of, replay_of, stretches
from augment.job.ranks import read_summary, summarize
from augment.job.verdict.verdict_text import place_of
from job_summaries import summary_of
from simulator import JobOptions, simulate

pytestmark = pytest.mark.slow
POINTS = 0.05  #: by which a predicted gain may miss


@pytest.mark.parametrize("seed", range(5))
def test_the_rank_and_the_cause_are_named_and_the_gain_is_true(seed: int) -> None:
    right, result, options = verdicts.judged(seed, verdicts.KINDS[seed % len(verdicts.KINDS)])
    assert right, result.verdict
    before = result.judgement.recorded_ns
    true = (before - verdicts.job(verdicts.healthy(options)).judgement.recorded_ns) / before
    assert result.verdict.rows[0].gain_ns / before == pytest.approx(true, abs=POINTS)


@pytest.mark.parametrize("seed", [11, 16])
def test_products_of_dimensions(seed: int) -> None:
    """Experts' kernels, whose groups are known from the list of all; and a stall before the sends of interleaved
    stages, which delays the stages after it."""
    right, result, options = verdicts.judged(seed, verdicts.KINDS[seed % len(verdicts.KINDS)])
    assert right, result.verdict
    (row,) = result.verdict.rows
    compared, apart = verdicts.clocks_apart(result, options)
    assert compared == options.ranks
    assert not apart
    before = result.judgement.recorded_ns
    true = (before - verdicts.job(verdicts.healthy(options)).judgement.recorded_ns) / before
    assert row.gain_ns / before == pytest.approx(true, abs=POINTS)


@pytest.mark.parametrize("seed", range(4))
def test_nobody_is_named_in_a_healthy_job(seed: int) -> None:
    right, result, _ = verdicts.judged(seed, "")
    assert right, result.verdict
    assert result.verdict.text[0].startswith("No rank stands out (largest excess ")


@pytest.mark.parametrize(
    ("variant", "late"), [("seq", "gpu"), ("p2p", "host"), ("coalesced", "gpu"), ("noseq", "host")]
)
def test_a_job_of_several_dimensions(tmp_path: Path, variant: str, late: str) -> None:
    result = answered(layered_job.make(tmp_path, variant, 4, late))
    rows = result.verdict.rows
    assert [(row.rank, row.cause, row.dimension) for row in rows] == [
        (layered_job.SLOW, {"gpu": "compute", "host": "host"}[late], "tp")
    ]
    outcome = result.outcomes["job_what_if"]
    assert outcome.rows[0].scenario == "unchanged"
    assert outcome.rows[0].error_ratio == pytest.approx(0, abs=0.001)


def test_ranks_that_nothing_joins_are_named(tmp_path: Path) -> None:
    text = answered(layered_job.make(tmp_path, "seq", 4, "gpu")).verdict.text
    assert any(sentence.startswith("Not compared with the others: ranks 8 to 15 (") for sentence in text)


def test_what_cannot_be_told_is_not_told(tmp_path: Path, shared_traces: Path) -> None:
    sampled = answered(job_at(shared_traces / "hta_sampled_2_of_128"))
    verdict = sampled.verdict
    assert not sampled.judgement.are_transfers_first
    assert not verdict.rows
    assert verdict.text[0] == (
        "Cannot tell which rank delays the job: most collectives have traces of at most half of their ranks (record "
        "all ranks of a process group)."
    )


def test_a_recorded_job_that_slept(shared_traces: Path) -> None:
    (row,) = answered(job_at(shared_traces / "v100_4rank_pair_torchrec" / "sst_long_a2a_optimizer")).verdict.rows
    assert (row.rank, row.cause) == (2, "host")
    assert "in `# running sparse arch`, outside its operators" in row.evidence
    assert row.charged_ns == pytest.approx(3.0e9, rel=0.02)


def test_replay_is_exact_and_shifts_do_what_they_say(tmp_path: Path) -> None:
    result = verdicts.job(JobOptions(ranks=4, steps=3, layers=3, seed=4, jitter=0.05))
    progress = progress_of(result.matched, result.clocks, result.summaries)
    replay = replay_of(progress)
    assert replay.time_ns(is_steady=False) == replay.recorded_ns
    part = stretches(progress, result.summaries)
    last = part.member == 3
    longer = np.where(last & (np.arange(len(last)) == np.flatnonzero(last)[-1]), 10_000_000, 0)
    assert replay.time_ns(shift=Shift(part, longer)) - replay.recorded_ns == pytest.approx(10_000_000, abs=300_000)
    assert replay.time_ns(moving=np.zeros_like(replay.moving)) <= replay.recorded_ns


def test_parts_of_a_stretch_add_up(tmp_path: Path) -> None:
    result = verdicts.job(JobOptions(ranks=4, steps=3, layers=3, tp=2))
    part = stretches(progress_of(result.matched, result.clocks, result.summaries), result.summaries)
    assert (sum(part.parts) - part.parts.communication == part.own_ns).all()
    assert (part.own_ns >= 0).all()


# Ranks that are late alike are one finding, with what all of them gain together: alone none would gain.
JOB = JobOptions(ranks=4, steps=5, layers=3, run_ahead=2)
PER_NODE = 4


def nodes_of(options: JobOptions, folder: Path, count: int = 2) -> Answer:
    """The job repeated on several nodes: all ranks of all nodes do each collective together."""
    contents, names = [], []
    for node in range(count):
        for rank, (path, _) in enumerate(simulate(options, folder / str(node))):
            number, whole = node * PER_NODE + rank, count * PER_NODE
            summary = read_summary(summarize(AugmentedTrace(read(str(path)), {})), path.name)
            summary.rank, summary.host, summary.world, summary.name = number, f"node{node}", whole, f"rank{number}"
            every = str(list(range(whole)))
            summary.groups = [[name, about, every, comms, whole, at] for name, about, _, comms, _, at in summary.groups]
            contents.append(encoded(summary))
            names.append(summary.name)
    return answer(contents, names)


def encoded(summary: Any) -> bytes:
    import zlib

    import msgspec

    return zlib.compress(msgspec.msgpack.encode(summary))


@pytest.mark.parametrize(
    ("fault", "cause"), [({"host_stall_us": 20_000.0, "host_stall_rank": 1}, "host"), ({"straggler": 1}, "compute")]
)
def test_the_same_local_rank_of_each_node(fault: dict[str, Any], cause: str, tmp_path: Path) -> None:
    """Truth: the same job without the fault on any node."""
    result = nodes_of(replace(JOB, **fault), tmp_path / "a")
    healthy = nodes_of(JOB, tmp_path / "b")
    whole = result.judgement.recorded_ns
    lost = 1 - healthy.judgement.recorded_ns / whole
    assert lost > 0.1
    (row,) = result.verdict.rows
    assert (row.rank, row.ranks, row.cause) == (1, [1, 5], cause)
    assert row.place == "local rank 1 of all 2 nodes"
    assert row.gain_ns / whole == pytest.approx(lost, abs=0.05)
    assert result.verdict.text[0].startswith("Ranks 1 and 5 (local rank 1 of all 2 nodes) delay the others in ")
    assert any(f"Cause: {whose} " in result.verdict.text[0] for whose in ("their", "they"))
    assert "Together at the median's speed a mean step would take " in result.verdict.text[0]


#: jobs, and ranks that are late alike: all of a tensor-parallel group, half of a job
TOGETHER = (
    ({"tp": 2}, (2, 3), "dp", "all ranks of a tp group"),
    ({"tp": 4, "ranks": 16}, (4, 5, 6, 7), "dp", "all ranks of a tp group"),
    ({}, (4, 5, 6, 7), "dp", ""),
    ({"pp": 2, "tp": 2, "layers": 4, "microbatches": 2}, (2, 3), "pp", "all ranks of a tp group"),
)


@pytest.mark.parametrize(
    "fault", [("straggler", {"straggler_factor": 1.4}), ("host_stall_rank", {"host_stall_us": 6e3})]
)
@pytest.mark.parametrize(("job", "ranks", "waiting", "place"), TOGETHER)
def test_groups_that_are_late_as_a_whole(
    job: dict[str, Any], ranks: tuple[int, ...], waiting: str, place: str, fault: tuple[str, dict[str, float]]
) -> None:
    """Their ranks are no measure of each other. Truth: the same job without the fault."""
    options = JobOptions(
        **{"ranks": 8, "steps": 5, "layers": 3, "seed": 3, "jitter": 0.04, "end_spread_ns": 500.0, **job}
    )
    healthy, result = verdicts.job(options), verdicts.job(replace(options, **{fault[0]: ranks}, **fault[1]))
    whole = result.judgement.recorded_ns
    lost = 1 - healthy.judgement.recorded_ns / whole
    (row,) = result.verdict.rows
    assert (tuple(row.ranks), row.cause) == (ranks, "compute" if fault[0] == "straggler" else "host")
    assert (row.dimension, row.place) == (waiting, place)
    assert row.gain_ns / whole == pytest.approx(lost, abs=0.02)
    assert sorted(member for member, _, _ in result.judgement.late_ranks) == list(ranks)
    assert not healthy.verdict.rows


def test_uneven_pipeline_stages() -> None:
    """The device of one stage is slower; truth: a job whose stages compute for the mean."""
    options = JobOptions(ranks=8, pp=2, layers=4, microbatches=4, steps=5, seed=3, jitter=0.04)
    healthy, result = verdicts.job(options), verdicts.job(replace(options, straggler=(4, 5, 6, 7)))
    (row,) = result.verdict.rows
    assert (row.rank, row.ranks, row.cause, row.dimension) == (None, [4, 5, 6, 7], "uneven", "pp")
    assert result.verdict.text[0].startswith("Pipeline stages are uneven: the devices of ranks 4 to 7 compute ")
    assert not healthy.verdict.rows


def test_a_single_late_rank_is_one_rank(tmp_path: Path) -> None:
    paths = [path for path, _ in simulate(replace(JOB, straggler=1), tmp_path)]
    result = answer([summarize(AugmentedTrace(read(str(path)), {})) for path in paths], [path.name for path in paths])
    (row,) = result.verdict.rows
    assert (row.rank, row.ranks, row.place) == (1, [], "")


@pytest.mark.parametrize(("late", "place"), [
    ((1, 5), "local rank 1 of all 2 nodes"),
    ((4, 5, 6, 7), "all ranks of b"),
    ((1, 6), ""),
    ((4, 5), ""),
    ((0, 1, 4, 5), ""),
])  # fmt: skip
def test_places(late: tuple[int, ...], place: str) -> None:
    summaries = []
    for rank in range(8):
        summary = summary_of(rank, [])
        summary.host = "ab"[rank // PER_NODE]
        summaries.append(summary)
    assert place_of([summaries[rank] for rank in late], summaries) == place


def test_copies_of_a_late_rank_are_no_computing(tmp_path: Path, augment: Augment, shared_traces: Path) -> None:
    """By a simulator that shares no code: one rank copies pageable memory; its kernels are as long as its peers'. The
    terminal and the job's metrics say the same, and the gain is that of the run without."""
    simulated, step = truth.generator(), {}
    faults = {"pageable": 3.0, "pageable_bytes": 20_000_000}
    for name, late in (("late", [2]), ("healthy", [])):
        layers = simulated.Cfg(L=3, scale=0.5, hostf=0.7)
        world = simulated.World(4, seed=7).run(simulated.train(6, 10, layers, faults, "ddp", late))
        step[name] = simulated.steptime(world, False)[0]
        (tmp_path / name).mkdir()
        for rank in world.ranks:
            rank.write(str(tmp_path / name / f"rank{rank.r}.json"))
    augment("run", tmp_path / "late", "-o", tmp_path / "out")
    verdict = json.loads((tmp_path / "out" / "job.metrics.json").read_text())["verdict"]
    (row,) = verdict["rows"]
    assert (row["rank"], row["cause"], row["figures"]["kernels"]) == (2, "copies", [])
    assert row["gain_ns"] / 6 == pytest.approx((step["late"] - step["healthy"]) * 1000, rel=0.1)
    assert verdict["text"][0] in augment("diagnose", tmp_path / "late").out
