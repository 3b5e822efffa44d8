"""What the job tells each rank, in its outputs and its sidecar: whom it waits for, or that others wait for it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from augment.core.findings import AugmentedTrace
from augment.core.job_waits import LateRank, Reason
from augment.diagnosis.late_ranks import fix_rank
from augment.job.answer import Answer, answer
from augment.job.rank_answers import RankAnswer, rank_answer, track
from augment.job.ranks.summary import summarize
from augment.readers import read
from simulator import JobOptions, simulate

JOB = JobOptions(ranks=4, steps=5, layers=3, run_ahead=2, clock_offset_ns=(0, 70_000, -2_000_000, 900))
FAULTS = {"host": {"host_stall_us": 20_000.0, "host_stall_rank": 2}, "compute": {"straggler": 2}}
LATE = 2


def job_of(paths: Sequence[Path]) -> Answer:
    traces = [read(str(path)) for path in paths]
    return answer([summarize(AugmentedTrace(trace, {})) for trace in traces], [str(path) for path in paths])


def simulated(options: JobOptions, folder: Path) -> Answer:
    return job_of([path for path, _ in simulate(options, folder)])


def plain_wait_ns(paths: Sequence[Path], rank: int, clocks: Sequence[float]) -> float:
    """The time from the start of each of a rank's collectives to the start on its last rank; from the JSON alone."""
    starts: dict[Any, dict[int, tuple[float, float]]] = {}
    for member, path in enumerate(paths):
        for row in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
            if row.get("cat") == "kernel" and "Seq" in (args := row["args"]):
                key = args["Process Group Name"], args["Seq"]
                starts.setdefault(key, {})[member] = row["ts"] * 1000 - clocks[member], row["dur"] * 1000
    parts = [part for part in starts.values() if len(part) == len(paths)]
    return sum(min(max(start for start, _ in part.values()) - part[rank][0], part[rank][1]) for part in parts)


@pytest.mark.parametrize("cause", FAULTS)
def test_each_rank_is_told_whom_it_waits_for(cause: str, tmp_path: Path) -> None:
    job = simulated(replace(JOB, **FAULTS[cause]), tmp_path)
    reason = {"host": "its host", "compute": "its device computes longer"}[cause]
    paths = sorted(tmp_path.glob("*.json.gz"))
    for rank in range(JOB.ranks):
        said = rank_answer(job, rank)
        assert reason in said.sentence
        if rank == LATE:
            assert said.sentence.startswith("Other ranks wait for this one: it takes ")
            assert (said.waits_for, said.charged_ns) == ("", job.verdict.rows[0].charged_ns // JOB.steps)
            continue
        assert "this rank does nothing but wait for others, mostly (" in said.sentence
        assert said.waits_for == f"rank {LATE}"
        assert said.advice.startswith(f"Fix rank {LATE} rather than communication on this rank: ")
        # what computation hides is in the plain sum, too
        assert said.wait_ns <= plain_wait_ns(paths, rank, JOB.clock_offset_ns) / JOB.steps + 20_000
        assert said.wait_ns > said.transfer_ns


def test_nobody_is_blamed_in_a_healthy_job(tmp_path: Path) -> None:
    job = simulated(JOB, tmp_path)
    for rank in range(JOB.ranks):
        said = rank_answer(job, rank)
        assert "delays" not in said.sentence
        assert "Fix" not in said.advice
        assert said.charged_ns == -1


def test_what_cannot_be_told_is_said(tmp_path: Path) -> None:
    paths = [path for path, _ in simulate(replace(JOB, straggler=LATE), tmp_path)]
    one_of_four = job_of(paths[:2])
    assert one_of_four.verdict.text[0].startswith("Cannot tell")
    assert rank_answer(one_of_four, 0) == RankAnswer()
    drawn = track(one_of_four, 0)
    assert list(drawn.names.values) == [" ".join(one_of_four.verdict.text)]


def test_the_ranks_steps_and_collectives_are_spanned(tmp_path: Path) -> None:
    job = simulated(replace(JOB, straggler=LATE), tmp_path)
    for rank in range(JOB.ranks):
        drawn, summary = track(job, rank), job.summaries[rank]
        assert drawn.ts[0] <= summary.column("ts").min()
        assert drawn.ts[0] + drawn.dur[0] >= summary.column("end").max()
        assert drawn.under == summary.main_track >= 0


def test_a_longer_stall_makes_the_waits_as_much_longer(tmp_path: Path) -> None:
    """Metamorphic: what the late rank stalls longer in each step, the others wait longer."""
    waits = []
    for stall in (20_000.0, 30_000.0):
        options = replace(JOB, host_stall_us=stall, host_stall_rank=LATE)
        waits.append([rank_answer(simulated(options, tmp_path / str(stall)), rank).wait_ns for rank in (0, 1, 3)])
    for before, after in zip(*waits, strict=True):
        assert after - before == pytest.approx(10_000_000, rel=0.01)


@cache
def recorded(folder: Path) -> Answer | None:
    paths = sorted(folder.glob("*.json.gz"))
    return job_of(paths) if paths else None


def test_recorded_ranks_wait_for_rank_2(shared_traces: Path) -> None:
    job = recorded(shared_traces / "v100_4rank_pair_torchrec" / "sst_long_a2a_optimizer")
    if job is None:
        pytest.skip("the job is not at hand")
    for member in (0, 1, 3):
        assert rank_answer(job, member).waits_for == "rank 2"
    assert rank_answer(job, 2).sentence.startswith("Other ranks wait for this one: it takes 1.0 s per step longer")


def test_advice_tells_that_little_would_be_gained(shared_traces: Path) -> None:
    """In the recorded job the replay gains a tenth of the wait if the late rank is like the median."""
    late = LateRank("rank 7", is_own=False, reason=Reason("host"), charged_ns=9, gain_ns=5, confidence="high")
    assert fix_rank(late, 8).startswith("Fix rank 7 rather than communication on this rank: see its own findings for")
    assert fix_rank(late, 11).startswith("Fix rank 7 (most of the wait would remain): see its own findings for")
    assert "remain" not in fix_rank(structs.replace(late, gain_ns=None), 11)
    job = recorded(shared_traces / "dlrm_8rank_v100_param" / "kineto")
    if job is None:
        pytest.skip("the job is not at hand")
    assert rank_answer(job, 0).advice.startswith("Fix rank 7 (most of the wait would remain): ")
