"""What a rank's diagnosis says of communication where the job is known: it waits for the late rank, and how long."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import pytest

from augment.core.findings import AugmentedTrace
from augment.core.job_waits import JobWaits
from augment.core.trace import Trace
from augment.diagnosis.measure import measure
from augment.diagnosis.ranking import diagnose
from augment.diagnosis.rule import Answer, Fine, Found, NoData
from augment.facts.collectives.instances import collectives, transfer_ns, waiting_of_job, waits_of_job
from augment.job.answer import Answer as JobAnswer
from augment.job.answer import answer
from augment.job.rank_waits import job_waits
from augment.job.ranks.summary import summarize
from augment.readers import read
from augment.results.report.health import of_jobs, report_on
from said import advice_of, title_of
from simulator import JobOptions, simulate
from simulator.options import GPUS

pytestmark = pytest.mark.slow

JOB = JobOptions(ranks=4, steps=5, layers=3, run_ahead=2, clock_offset_ns=(0, 70_000, -2_000_000, 900))
FAULTS = {"host": {"host_stall_us": 20_000.0, "host_stall_rank": 2}, "compute": {"straggler": 2}}
LATE = 2
LAST = 12  #: collectives at the end of the recording that all ranks have
POINTS = 0.05
PROMISED = 0.03


def with_job(traces: Sequence[Trace]) -> tuple[JobAnswer, list[Trace]]:
    """The job, and its traces with what the others tell each of them."""
    job = answer([summarize(AugmentedTrace(trace, {})) for trace in traces], [str(at) for at in range(len(traces))])
    return job, [trace.changed(job_waits(job, at)) for at, trace in enumerate(traces)]


@cache
def traces_of(options: JobOptions) -> list[Trace]:
    with TemporaryDirectory() as folder:
        return [read(str(path)) for path, _ in simulate(options, folder)]


def answers(trace: Trace) -> dict[str, Answer]:
    return diagnose(trace).answers


def plain_waits(events: Sequence[list[dict[str, object]]], clocks: Sequence[float]) -> list[dict[int, float]]:
    """Of each rank's collectives, by start in ns, the time until the last rank's kernel began; from the JSON alone."""
    starts: dict[tuple[object, ...], list[tuple[float, int, float]]] = defaultdict(list)
    for rank, rows in enumerate(events):
        for row in rows:
            if row.get("cat") == "kernel" and "Seq" in (args := row["args"]):
                key = (args["Process Group Name"], args["Process Group Ranks"], args["Seq"])
                starts[key].append((row["ts"] * 1000 - clocks[rank], rank, row["ts"] * 1000))
    waits: list[dict[int, float]] = [{} for _ in events]
    for parts in starts.values():
        for common, rank, ts in parts:
            waits[rank][round(ts)] = max(parts)[0] - common
    return waits


@pytest.mark.parametrize("cause", FAULTS)
@pytest.mark.parametrize("seed", range(2))
def test_ranks_that_wait_say_for_whom_and_why(cause: str, seed: int) -> None:
    faulty = replace(JOB, seed=seed, **FAULTS[cause])
    before = traces_of(faulty)
    job, traces = with_job(before)
    gained = 1 - measure(traces_of(replace(JOB, seed=seed))[0]).length_ns / measure(before[0]).length_ns
    for rank, trace in enumerate(traces):
        finding = answers(trace)["straggling_rank"]
        assert isinstance(finding, Found)
        assert {"host": "its host", "compute": "its device computes longer"}[cause] in title_of(finding)
        assert finding.saved_ns is not None
        assert measure(trace).ratio(finding.saved_ns) == pytest.approx(gained, abs=POINTS)
        if rank == LATE:
            assert title_of(finding).startswith("Other ranks wait for this one: it takes ")
            continue
        assert "mostly (100 %) rank 2 (" in title_of(finding)
        assert advice_of(finding).startswith("Fix rank 2 rather than communication on this rank: ")
        alone, here = (answers(each)["exposed_communication"] for each in (before[rank], trace))
        assert isinstance(alone, Found)
        assert "first see whether a rank comes late" in advice_of(alone)
        assert alone.at_most
        assert isinstance(here, Fine) or (here.saved_ns or 0) < (alone.saved_ns or 0) / 2
    assert job.verdict.rows[0].rank == LATE


def test_waits_are_as_long_as_the_starts_in_the_files_say(tmp_path: Path) -> None:
    """Truth: the clocks' offsets are those that were simulated."""
    options = replace(JOB, host_stall_us=20_000.0, host_stall_rank=LATE)
    paths = [path for path, _ in simulate(options, tmp_path)]
    events = [json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] for path in paths]
    base = [json.loads(gzip.decompress(path.read_bytes())).get("baseTimeNanoseconds", 0) for path in paths]
    expected = plain_waits(events, options.clock_offset_ns)
    _, traces = with_job([read(str(path)) for path in paths])
    for rank, trace in enumerate(traces):
        every, waits = collectives(trace), waits_of_job(trace)
        known = np.array([expected[rank][round(ts)] for ts in (every.ts - base[rank]).tolist()])
        assert waits.wait_ns == pytest.approx(np.minimum(known, every.dur), abs=20_000)
        assert (transfer_ns(trace) + waits.wait_ns == every.dur).all()
        waiting = waiting_of_job(trace)
        assert (waiting.start[1:] >= waiting.end[:-1]).all()
        assert (waiting.end - waiting.start).sum() <= waits.wait_ns.sum()


def test_in_a_healthy_job_little_is_waiting() -> None:
    job, traces = with_job(traces_of(JOB))
    assert not job.verdict.rows
    for trace in traces:
        finding = answers(trace)["straggling_rank"]
        assert isinstance(finding, Fine) or (isinstance(finding, Found) and finding.saved_ns is None)


@pytest.mark.parametrize("collectives", ["ddp", "fsdp"])
@pytest.mark.parametrize("cause", [*FAULTS, ""])
def test_no_more_is_promised_than_a_job_with_fast_links_saves(
    cause: str, collectives: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Truth: the same job, simulated with links that take hardly any time."""
    monkeypatch.setitem(GPUS, "FAST_LINKS", replace(GPUS["H100"], link_gbps=1e9))
    options = replace(JOB, collectives=collectives, **FAULTS.get(cause, {}))
    before = traces_of(options)
    after = traces_of(replace(options, gpu="FAST_LINKS"))
    true = 1 - measure(after[0]).length_ns / measure(before[0]).length_ns
    _, traces = with_job(before)
    for trace in traces:
        promised = answers(trace)["exposed_communication"]
        assert isinstance(promised, Fine | Found)
        assert measure(trace).ratio(promised.saved_ns or 0) <= true + PROMISED


def test_a_job_that_gains_nothing_without_transfers_is_promised_nothing() -> None:
    """Metamorphic: the same trace, told that its job would gain nothing, something, or that nobody knows."""
    _, (known, *_) = with_job(traces_of(replace(JOB, collectives="fsdp")))
    waits_of_job = known.context.attached(JobWaits)
    assert waits_of_job is not None
    saved = {}
    for gain in (0, 100_000, None):
        waits = msgspec.structs.replace(waits_of_job, transfer_gain_ns=gain)
        answer = answers(known.changed(waits))["exposed_communication"]
        assert isinstance(answer, Fine | Found)
        assert isinstance(answer, Fine) or answer.at_most == (gain is None)
        saved[gain] = answer.saved_ns or 0
    assert saved[0] == 0 < saved[100_000] == 100_000 < saved[None]


def test_waits_of_a_pipeline_are_no_transfers() -> None:
    options = JobOptions(ranks=4, pp=4, steps=4, layers=8, microbatches=8, schedule="1f1b", run_ahead=2)
    for trace in (*traces_of(options), *with_job(traces_of(options))[1]):
        results = answers(trace)
        assert not isinstance(results["exposed_communication"], Found)
        bubble = results["pipeline_bubble"]
        assert isinstance(bubble, Found)
        assert bubble.at_most
        assert 0 < bubble.seen.figures["exposed_ns"] < measure(trace).length_ns
        known = trace.context.attached(JobWaits) is not None
        assert (bubble.seen.figures["transfer_gain_ns"] is not None) == known


def test_without_waits_all_is_transfer() -> None:
    """Metamorphic: what is told without any wait changes no prediction."""
    trace = traces_of(replace(JOB, collectives="fsdp"))[0]
    _, (known, *_) = with_job(traces_of(replace(JOB, collectives="fsdp")))
    waits = known.context.attached(JobWaits)
    assert waits is not None
    nothing = msgspec.structs.replace(waits, wait_ns=np.zeros_like(waits.wait_ns), late_ranks=(), transfer_gain_ns=None)
    before, after = answers(trace), answers(trace.changed(nothing))
    for rule in ("exposed_communication", "small_collectives", "late_gathers"):
        assert getattr(before[rule], "saved_ns", None) == getattr(after[rule], "saved_ns", None)
    assert isinstance(before["straggling_rank"], NoData)
    assert isinstance(after["straggling_rank"], Fine)


def test_a_folder_is_judged_as_a_job(tmp_path: Path) -> None:
    paths = [path for path, _ in simulate(replace(JOB, host_stall_us=20_000.0, host_stall_rank=LATE), tmp_path)]
    reports = [report_on(str(path), lambda _: None) for path in paths]
    assert len(list(of_jobs(reports))) == 1
    for report in (reports[0], reports[1], reports[3]):
        assert any("does nothing but wait for other ranks" in sentence for sentence in report["verdict"])
        assert report["rows"][0]["rule"] == "straggling_rank"


def test_recorded_ranks_wait_for_rank_2(shared_traces: Path) -> None:
    """Plainly: a collective ends on all ranks together, so what exceeds its shortest kernel is waiting."""
    paths = sorted((shared_traces / "v100_4rank_pair_torchrec" / "sst_long_a2a_optimizer").glob("*.json.gz"))
    if not paths:
        pytest.skip("the job is not at hand")
    traces = [read(str(path)) for path in paths]
    _, known = with_job(traces)
    kernels = []
    for path in paths:
        rows = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        named = [row for row in rows if row.get("cat") == "kernel" and "nccl" in row["name"].lower()]
        kernels.append([row["dur"] for row in sorted(named, key=lambda row: row["ts"])[-LAST:]])
    shortest = [min(parts) for parts in zip(*kernels, strict=True)]
    for trace, durations in zip(known, kernels, strict=True):
        waited = sum(dur - least for dur, least in zip(durations, shortest, strict=True)) * 1000
        if trace.rank != LATE:
            assert waits_of_job(trace).wait_ns[-LAST:].sum() == pytest.approx(waited, rel=0.05)
            finding = answers(trace)["straggling_rank"]
            assert isinstance(finding, Found)
            assert "mostly (100 %) rank 2 (its host, outside operators in `# running sparse arch`" in title_of(finding)
