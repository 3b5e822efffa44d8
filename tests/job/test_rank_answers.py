"""What the job tells each rank: whom it waits for, or that others wait for it, and one answer by whatever way."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from augment import AugmentedTrace, Trace, augment, read
from augment.cli.registry import group
from augment.core import LateRank, RankInJob, Reason, SharedWait
from augment.core.text import percent, period, ranges_text, three_digits, time, words_of
from augment.diagnosis.judging import measure
from augment.diagnosis.late_ranks import fix_rank
from augment.diagnosis.ranking import diagnose
from augment.diagnosis.rule import NOWHERE, Fine, Found, judged_in_job
from augment.diagnosis.rules.data_loading import Fetches
from augment.diagnosis.rules.matrix_units import MatrixUnitsUse
from augment.diagnosis.rules.straggling_rank import of_job
from augment.diagnosis.rules.synchronizing_calls import SynchronizingCalls
from augment.facts.operators.matrix_products import TileFit
from augment.job.aggregates import Aggregation
from augment.job.answer import Answer, Portion, answer, answer_of
from augment.job.path import Path as Path_
from augment.job.path import is_handover
from augment.job.rank_answers import RankAnswer, cures, rank_answer, rank_in_job, track
from augment.job.ranks import OwnDiagnosis, read_summary, summarize
from augment.job.timeline import handovers
from augment.results.report.health import lines_of, of_jobs, report_on
from augment.results.report.of_trace import document
from augment.results.sidecars import in_job
from perfetto_engine import PerfettoEngine
from said import problem_of
from simulator import JobOptions, simulate
from simulator.options import GPUS

JOB = JobOptions(ranks=4, steps=5, layers=3, run_ahead=2, clock_offset_ns=(0, 70_000, -2_000_000, 900))
FAULTS: dict[str, dict[str, Any]] = {
    "host": {"host_stall_us": 20_000.0, "host_stall_rank": 2},
    "compute": {"straggler": 2},
}
REASONS = {"host": "its host", "compute": "it computes longer"}
LATE = 2
LAST = 12  #: collectives at the end of the recording that all ranks have
POINTS = 0.05
PROMISED = 0.03


def job_of(traces: Sequence[Trace]) -> Answer:
    judged = [augment(trace, only=["diagnosis"]) for trace in traces]
    return answer([summarize(each) for each in judged], [trace.source.path for trace in traces])


@cache
def traces_of(options: JobOptions) -> list[Trace]:
    with TemporaryDirectory() as folder:
        return [read(str(path)) for path, _ in simulate(options, folder)]


@cache
def simulated(options: JobOptions) -> Answer:
    return job_of(traces_of(options))


def rows_of(said: RankAnswer) -> dict[str, dict[str, Any]]:
    return {row["rule"]: row for row in said.rows}


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
@pytest.mark.parametrize("seed", range(2))
def test_each_rank_says_for_whom_it_waits_and_why(cause: str, seed: int, tmp_path: Path) -> None:
    faulty = replace(JOB, seed=seed, **FAULTS[cause])
    job, before = simulated(faulty), traces_of(faulty)
    paths = [path for path, _ in simulate(faulty, tmp_path)]
    gained = 1 - measure(traces_of(replace(JOB, seed=seed))[0]).length_ns / measure(before[0]).length_ns
    for rank in range(JOB.ranks):
        said = rank_answer(job, rank)
        row = rows_of(said)["straggling_rank"]
        assert row["status"] == "found"
        assert REASONS[cause] in said.text[0]
        assert row["saved_ratio"] == pytest.approx(gained, abs=POINTS)
        assert f"{row['title']}." == said.verdict[1] == said.text[0]
        if rank == LATE:
            assert said.text[0].startswith("Other ranks wait for this one: its own work takes ")
            assert said.figures.itself.charged_ns == job.verdict.rows[0].charged_ns // JOB.steps
            continue
        assert "100 % of it for rank 2 (" in said.text[0]
        assert said.figures.waits_for == f"rank {LATE}"
        assert row["advice"].startswith(f"Fix rank {LATE} rather than communication on this rank: ")
        # what computation hides is in the plain sum, too
        steady = int(job.summaries[rank].step_column("steady").sum())
        assert said.figures.wait_ns <= plain_wait_ns(paths, rank, JOB.clock_offset_ns) / steady + 20_000
        assert said.figures.wait_ns > said.figures.transfer_ns
        diagnosis = job.summaries[rank].own_diagnosis
        alone = next(row for row in diagnosis.rows if row["rule"] == "exposed_communication")
        assert "irst see whether a rank comes late" in alone["advice"]
        assert alone["at_most"]
        assert any("exposed_communication" in rules for _, rules in diagnosis.sentences)
        assert (rows_of(said)["exposed_communication"]["saved_ns"] or 0) < alone["saved_ns"] / 2
        assert not any(f"{alone['title']}." == sentence for sentence in said.verdict)


def test_nobody_is_blamed_in_a_healthy_job() -> None:
    job = simulated(JOB)
    assert not job.verdict.rows
    for rank in range(JOB.ranks):
        said = rank_answer(job, rank)
        assert said.figures.itself is None
        assert not any("delays" in sentence or "Fix" in sentence for sentence in (*said.text, *said.verdict))
        row = rows_of(said)["straggling_rank"]
        assert row["status"] == "fine" or row["saved_ns"] is None


def test_what_cannot_be_told_is_said() -> None:
    one_of_four = job_of(traces_of(replace(JOB, straggler=LATE))[:2])
    assert one_of_four.verdict.text[0].startswith("Cannot tell")
    assert cures(one_of_four) == []
    assert rank_answer(one_of_four, 0) == RankAnswer()
    drawn = track(one_of_four, 0)
    assert list(drawn.names.values) == [" ".join(one_of_four.verdict.text)]
    assert drawn.reported["wait_per_step_ns"] is None
    seen = job_of([trace for rank, trace in enumerate(traces_of(replace(JOB, **FAULTS["host"]))) if rank != LATE])
    said = " ".join(rank_answer(seen, 0).verdict)
    assert "transfers, or waiting for ranks without traces, and" in said
    assert "Removing the transfers would save up to" in said


def test_waits_are_told_where_clocks_are_uncertain() -> None:
    """Metamorphic: the ends of collectives are apart by so much that nobody can be named; the waits remain."""
    clear = JobOptions(ranks=2, steps=3, layers=2, straggler=1, straggler_factor=3.0, seed=3)
    known, unclear = (simulated(replace(clear, end_spread_ns=ns)) for ns in (0, 1e6))
    assert unclear.verdict.text[0].startswith("Cannot tell")
    assert cures(unclear) == []
    waits = [rank_in_job(job, 0).wait_ns for job in (known, unclear)]
    assert waits[1] == pytest.approx(waits[0], rel=0.05)
    said = rank_answer(unclear, 0)
    assert "which of them are late cannot be told" in said.text[0]
    (exposed,) = (row for row in said.rows if row["rule"] == "exposed_communication")
    assert exposed["saved_ns"] <= exposed["figures"]["exposed_ns"] - waits[1]


def test_without_its_own_diagnosis_a_rank_is_told_the_same() -> None:
    """What the job tells rests on the job alone, but for what a rank gains at most without communication."""
    options = replace(JOB, **FAULTS["host"])
    bare = [summarize(AugmentedTrace(trace, {})) for trace in traces_of(options)]
    job, known = answer(bare, [str(rank) for rank in range(JOB.ranks)]), simulated(options)
    for rank in range(JOB.ranks):
        said, beside = rank_answer(job, rank), rank_answer(known, rank)
        assert said.text == beside.text
        assert msgspec.structs.replace(said.figures, transfer_gain_ns=beside.figures.transfer_gain_ns) == beside.figures
        assert (said.figures.transfer_gain_ns or 0) >= (beside.figures.transfer_gain_ns or 0)
        assert (said.rows, said.verdict) == ([], [])


def test_the_ranks_steps_and_collectives_are_spanned() -> None:
    job = simulated(replace(JOB, straggler=LATE))
    for rank in range(JOB.ranks):
        drawn, summary = track(job, rank), job.summaries[rank]
        assert drawn.ts[0] <= summary.column("ts").min()
        assert drawn.ts[0] + drawn.dur[0] >= summary.column("end").max()
        assert drawn.under == summary.main_track >= 0
        (name,) = drawn.names.values
        assert name == f"Rank 2 is late (a fix saves 27 %): {' '.join(job.verdict.text)}"
        assert drawn.args["rank"].values == [" ".join(rank_answer(job, rank).text)]


def test_a_longer_stall_makes_the_waits_as_much_longer() -> None:
    """Metamorphic: what the late rank stalls longer in each step, the others wait longer."""
    waits = []
    for stall in (20_000.0, 30_000.0):
        job = simulated(replace(JOB, host_stall_us=stall, host_stall_rank=LATE))
        figures = [rank_in_job(job, rank) for rank in (0, 1, 3)]
        waits.append([each.wait_ns for each in figures if each is not None])
    for before, after in zip(*waits, strict=True):
        assert after - before == pytest.approx(10_000_000, rel=0.01)


@pytest.mark.parametrize("collectives", ["ddp", "fsdp"])
@pytest.mark.parametrize("cause", [*FAULTS, ""])
def test_no_more_is_promised_than_a_job_with_fast_links_saves(
    cause: str, collectives: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Truth: the same job, simulated with links that take hardly any time."""
    monkeypatch.setitem(GPUS, "FAST_LINKS", replace(GPUS["H100"], link_gbps=1e9))
    options = replace(JOB, collectives=collectives, **FAULTS.get(cause, {}))
    before = traces_of(options)
    true = 1 - measure(traces_of(replace(options, gpu="FAST_LINKS"))[0]).length_ns / measure(before[0]).length_ns
    job = simulated(options)
    for rank in range(JOB.ranks):
        promised = rows_of(rank_answer(job, rank)).get("exposed_communication")
        if promised is not None:  # a finding, or fine since the job is known; else it was fine before
            assert (promised["saved_ratio"] or 0) <= true + PROMISED
            assert not promised["at_most"]
    limiting = job.judgement.transfers[0] / job.judgement.recorded_ns
    assert limiting <= true + PROMISED
    assert limiting >= true - 2 * PROMISED or true < 0.12
    assert any("Transfers that nothing hides" in each for each in job.verdict.text) == (limiting > 0)
    assert any(each.startswith("Communication: ") for each in cures(job)) == (limiting > 0)
    assert job.outcomes["job_what_if"].rows[0].time_ns == job.judgement.recorded_ns, "the verdict's is the table's"


def test_transfers_that_a_late_host_hides_are_told_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Truth: the same job without the stall, with links that take hardly any time, and with both."""
    for name, gbps in (("SLOW_LINKS", 20.0), ("FAST_LINKS", 1e9)):
        monkeypatch.setitem(GPUS, name, replace(GPUS["H100"], link_gbps=gbps))
    late = replace(JOB, gpu="SLOW_LINKS", host_stall_us=30_000.0, host_stall_rank=LATE)
    cures_of = {"host_stall_us": 0.0}, {"gpu": "FAST_LINKS"}, {"host_stall_us": 0.0, "gpu": "FAST_LINKS"}
    before, *after = (measure(traces_of(replace(late, **of))[0]).length_ns for of in ({}, *cures_of))
    cured, fast, both = (1 - each / before for each in after)
    job = simulated(late)
    judgement, verdict = job.judgement, job.verdict
    assert verdict.rows[0].gain_ns / judgement.recorded_ns == pytest.approx(cured, abs=PROMISED)
    assert fast < 0 < judgement.transfer_gain_ns * JOB.steps < PROMISED * judgement.recorded_ns, (
        "the host takes as long"
    )
    assert judgement.transfers[0] / judgement.recorded_ns == pytest.approx(both, abs=PROMISED)
    said = (
        "Once rank 2 is like the other ranks, transfers that nothing hides hold all ranks up, 100 % of them AllReduce."
    )
    assert verdict.text[1].startswith(f"{said} Without these, too, a mean step would take ")
    assert judgement.label.split("; ")[1].startswith("with exposed communication fixed, too, up to ")
    assert [each.partition(": ")[0] for each in cures(job)] == ["Rank 2", "Communication"]


def test_a_job_that_gains_nothing_without_transfers_is_promised_nothing() -> None:
    """Metamorphic: the same trace, told that its job would gain nothing, something, or that nobody knows."""
    options = replace(JOB, collectives="fsdp")
    known = rank_in_job(simulated(options), 0)
    saved = {}
    for gain in (0, 200_000, None):
        job = msgspec.structs.replace(known, transfer_gain_ns=gain)
        answered = diagnose(traces_of(options)[0].changed(job)).answers["exposed_communication"]
        assert isinstance(answered, Fine) or answered.at_most == (gain is None)
        saved[gain] = answered.saved_ns or 0
    assert saved[0] == 0 < saved[200_000] <= 200_000 < saved[None] <= known.transfer_ns


@pytest.mark.parametrize("launches", [True, False])
def test_a_job_without_launches_is_promised_nothing(launches: bool, tmp_path: Path) -> None:
    """What waits for its transfers is unknown then."""
    paths = [path for path, _ in simulate(replace(JOB, collectives="fsdp", gpu="T4"), tmp_path)]
    for path in paths:
        known = json.loads(gzip.decompress(path.read_bytes()))
        known["traceEvents"] = [each for each in known["traceEvents"] if launches or each.get("cat", "")[:4] != "cuda"]
        path.write_bytes(gzip.compress(json.dumps(known).encode()))
    assert (job_of([read(str(path)) for path in paths]).judgement.transfers[0] > 0) == launches


@pytest.mark.parametrize("possible_ns", [0, 4_000_000])
@pytest.mark.parametrize("hides", [False, True])
def test_a_late_host_that_hides_loaders_promises_a_limit(possible_ns: int, hides: bool) -> None:
    """But for what is a bound from below already."""
    late = LateRank("rank 2", True, Reason("host"), 5_000_000, 5_000_000, "high", at_most=hides)
    alone = Found(SynchronizingCalls(1, 5_000_000, [], [], possible_ns), NOWHERE, "high", 3_000_000)
    answered = judged_in_job(alone, RankInJob(0, 0, late_ranks=(late,)), words_of("nvidia", "step", 10_000_000))
    assert isinstance(answered, Found)
    assert answered.at_most == (hides and not possible_ns)


def test_what_a_faster_host_saves_a_rank_waits_longer() -> None:
    """Metamorphic: the same finding, of a rank that waits for others for part of what it saves, and for all of it."""
    words = words_of("nvidia", "step", 10_000_000)
    alone = Found(SynchronizingCalls(1, 5_000_000, [], []), NOWHERE, "high", 3_000_000)
    assert judged_in_job(alone, RankInJob(0, 0), words) == alone
    beside = judged_in_job(alone, RankInJob(1_000_000, 0), words)
    assert beside == msgspec.structs.replace(alone, saved_ns=2_000_000)
    assert isinstance(judged_in_job(alone, RankInJob(2_900_000, 0), words), Fine)
    alike = RankInJob(2_900_000, 0, shared=SharedWait(Reason("host", "many_operators"), 2_000_000))
    assert isinstance(judged_in_job(alone, alike, words), Fine), "it waits for what may be late itself"
    for fetch_ns, saved in ((1_000_000, 1_000_000), (3_000_000, 2_000_000)):  # a host that only works
        fetches = msgspec.structs.replace(
            alone, seen=Fetches(fetch_ns, fetch_ns, False, "no_workers"), saved_ns=fetch_ns
        )
        beyond = "but only if the hosts of all ranks become faster"
        known = judged_in_job(fetches, alike, words)
        assert known == msgspec.structs.replace(fetches, saved_ns=saved, at_most=True, beyond=beyond, cut=None)
    limit = Found(MatrixUnitsUse(6, 0, [], "bf16", 2, 2, TileFit(False)), NOWHERE, "medium", 3_000_000, at_most=True)
    assert judged_in_job(limit, RankInJob(0, 0, transfer_gain_ns=9), words) == limit, "by its peaks, not by others"
    faster = msgspec.structs.replace(limit, seen=msgspec.structs.replace(limit.seen, peak_ratio=8.0), at_most=False)
    assert faster.at_least
    late = LateRank("rank 2", False, Reason("host"), 2_900_000, 9, "high")
    for each, why in (
        (RankInJob(0, 0), "other ranks limit it"),
        (RankInJob(0, 0, late_ranks=(late,)), "it waits for rank 2"),
    ):
        answered = judged_in_job(faster, each, words)
        assert isinstance(answered, Found)
        assert (answered.saved_ns, answered.at_most, answered.at_least) == (3_000_000, False, False)
        assert answered.beyond.startswith(f"by this rank's trace alone: the job may gain less, as {why}")
    for gain, saved in ((500_000, 500_000), (2_900_000, 2_900_000), (None, 3_000_000)):  # of 2.9 ms that it is late
        late = LateRank("rank 2", True, Reason("host"), 2_900_000, gain, "high")
        beyond = "limited by other ranks" if saved < 2_900_000 else ""
        answered = judged_in_job(alone, RankInJob(0, 0, late_ranks=(late,)), words)
        assert answered == msgspec.structs.replace(alone, saved_ns=saved, beyond=beyond)
        other = RankInJob(0, 0, late_ranks=(msgspec.structs.replace(late, is_own=False),))
        waits = {"at_most": True, "beyond": "as the job waits for rank 2"} if gain else {}
        assert judged_in_job(alone, other, words) == msgspec.structs.replace(alone, **waits)


def test_a_late_rank_promises_what_its_job_gains() -> None:
    """Truth: the same job, simulated without the stall, in which the slow device of another rank then decides."""
    stalling = replace(JOB, host_stall_us=20_000.0, host_stall_rank=LATE, straggler=0, straggler_factor=2.0)
    before, after = (measure(traces_of(each)[0]).length_ns for each in (stalling, replace(stalling, host_stall_us=0.0)))
    row = rows_of(rank_answer(simulated(stalling), LATE))["data_loading"]
    assert row["saved_ratio"] == pytest.approx(1 - after / before, abs=POINTS)
    assert row["title"].endswith(", limited by other ranks")


@pytest.mark.parametrize(("loader", "transfers"), [("_MultiProcessing", 0), ("_SingleProcess", 1_000_000)])
def test_transfers_hide_again_without_the_wait_but_pace_no_workers(loader: str, transfers: int) -> None:
    """A rank whose transfers are exposed as another is late gains both; faster transfers gain nothing where the late
    rank's batches come at moments of the clock."""
    reason = Reason("host", "annotation", f"enumerate(DataLoader)#{loader}DataLoaderIter.__next__")
    late = LateRank("rank 2", is_own=False, reason=reason, charged_ns=9, gain_ns=3_500_000, confidence="high")
    job = RankInJob(2_000_000, 1_000_000, "rank 2", 1.0, (late,), 4_000_000)
    waiting = problem_of(of_job(job, words_of("nvidia", "step", 10_000_000)))
    assert waiting.saved_ns == 3_000_000
    assert job.most_saved_ns == transfers


def test_waits_of_a_pipeline_are_no_transfers() -> None:
    options = JobOptions(ranks=4, pp=4, steps=4, layers=8, microbatches=8, schedule="1f1b", run_ahead=2)
    for trace in traces_of(options):
        results = diagnose(trace).answers
        assert not isinstance(results["exposed_communication"], Found)
        bubble = problem_of(results["pipeline_bubble"])
        assert bubble.at_most
        assert 0 < bubble.seen.figures["exposed_ns"] < measure(trace).length_ns
        in_job = problem_of(diagnose(trace.changed(RankInJob(0, 0, transfer_gain_ns=9))).answers["pipeline_bubble"])
        assert (bubble.seen.figures["transfer_gain_ns"], in_job.seen.figures["transfer_gain_ns"]) == (None, 9)
        assert in_job.saved_ns == bubble.saved_ns


def one_truth(folder: Path, out: Path) -> None:
    """What ``diagnose FOLDER`` says of each rank is what the metrics of ``run FOLDER`` say, by every way."""
    runner = CliRunner()
    reports = [report_on(str(path), lambda _: None) for path in sorted(folder.glob("*.json.gz"))]
    (job,) = of_jobs(reports)
    assert runner.invoke(group(), ["run", str(folder), "-o", str(out), "--quiet"]).exit_code == 0
    for report in reports:
        path = next(out.rglob(f"{Path(report['input']).name.partition('.')[0]}.metrics.json"))
        last = f"Its job: {' '.join(job['verdict'])}"
        of_run = report_on(str(path), lambda _: None)
        assert [*report["verdict"], last] == of_run["verdict"]
        assert json.loads(json.dumps(report["rows"])) == of_run["rows"]
        page = document(json.loads(path.read_bytes()))
        assert list(page.verdict) == of_run["verdict"]
        assert page.findings == of_run["rows"]
        shown = runner.invoke(group(), ["show", str(path), "diagnosis", "--json"])
        assert json.loads(shown.output)["diagnosis"]["rows"] == of_run["rows"]
        text = " ".join(runner.invoke(group(), ["show", str(path)]).output.split())
        assert all(" ".join(sentence.split()) in text for sentence in of_run["verdict"])
        of_job = json.loads(path.read_bytes())["told_by_job"]
        straggling = next(row for row in of_run["rows"] if row["rule"] == "straggling_rank")
        assert straggling["figures"]["wait_ns"] == of_job["wait_per_step_ns"]
        for row in of_run["rows"]:
            if row["rule"] == "exposed_communication" and row["status"] == "found":
                figures = row["figures"]
                assert figures["wait_ns"] == of_job["wait_per_step_ns"]
                assert figures["exposed_ns"] - figures["wait_ns"] == of_job["transfer_per_step_ns"]


def test_a_rank_has_one_answer_by_every_way(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    simulate(replace(JOB, **FAULTS["host"]), tmp_path / "job")
    one_truth(tmp_path / "job", tmp_path / "out")


def test_a_recorded_rank_has_one_answer_by_every_way(shared_traces: Path, tmp_path: Path) -> None:
    source = shared_traces / "h100_8rank_modded_nanogpt"
    if not source.exists():
        pytest.skip("the job is not at hand")
    (tmp_path / "job").mkdir()
    for path in source.glob("rank*.json.gz"):
        (tmp_path / "job" / path.name).symlink_to(path)
    one_truth(tmp_path / "job", tmp_path / "out")
    waiting = json.loads((tmp_path / "out" / "rank2.metrics.json").read_bytes())
    assert "largest minor" in str(waiting["verdict_alone"])  # and no more where the job blames rank 1
    assert "largest minor" not in str([waiting["verdict"], waiting["told_by_job"]["verdict"]])
    by_the_same_steps(source, tmp_path / "out")


def by_the_same_steps(source: Path, out: Path) -> None:
    """Plainly: what exceeds the shortest kernel of a collective is waiting, for rank 1 where that is rank 1's. Most
    ranks lack a part of the first of four steps: neither they nor the job are judged by it."""
    steps, in_each = 3, 19
    kernels = []
    for path in sorted(source.glob("rank*.json.gz")):
        rows = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        named = [row for row in rows if row.get("cat") == "kernel" and "nccl" in row["name"].lower()]
        kernels.append([row["dur"] for row in sorted(named, key=lambda row: row["ts"])[-steps * in_each :]])
    wait = np.array(kernels) - np.min(kernels, axis=0)
    waits_ns = wait[:, np.argmin(kernels, axis=0) == 1].sum(axis=1) * 1000 / steps
    said = [json.loads((out / f"rank{rank}.metrics.json").read_bytes())["told_by_job"] for rank in range(8)]
    for rank in (0, 2, 3, 4, 5, 6, 7):  # of which 3 and 4 recorded a whole first step
        assert said[rank]["wait_per_step_ns"] == pytest.approx(waits_ns[rank], rel=0.09)
        assert ("the job is judged" in said[rank]["verdict"][0]) == bool(said[rank]["steps"]) == (rank in (3, 4))
        assert "a mean step of 44 ms" in said[rank]["verdict"][0]
        assert not any("No rule found" in sentence for sentence in said[rank]["verdict"])
    late_ns = said[1]["longer_than_peers_per_step_ns"]
    assert late_ns == pytest.approx(np.median(waits_ns), rel=0.05)
    job = json.loads((out / "job.metrics.json").read_bytes())["verdict"]
    assert job["rows"][0]["charged_ns"] // steps == late_ns
    assert f"by {late_ns / 1e6:.1f} ms per step" in job["text"][0]
    assert job["text"][-1].startswith("Figures are of 3 steps (11-13), without the first one, which warms up or")


@pytest.mark.parametrize("unsteady", range(JOB.ranks + 1))
def test_the_job_leaves_out_the_first_steps_that_most_ranks_leave_out(unsteady: int) -> None:
    contents = [summarize(augment(trace, only=["diagnosis"])) for trace in traces_of(replace(JOB, **FAULTS["host"]))]
    summaries = [read_summary(content, "") for content in contents]
    for summary in summaries[:unsteady]:
        steady = summary.step_column("steady").copy()
        steady[0] = 0
        summary.steps["steady"] = steady.tobytes()
    job = answer_of([Portion(summaries, Aggregation(), [])])
    left_out = int(2 * (JOB.ranks - unsteady) < JOB.ranks)
    numbers = summaries[0].step_column("number").tolist()
    assert job.judgement.steps.numbers.tolist() == numbers[left_out:]
    assert job.judgement.step_count == JOB.steps - left_out
    assert any("without the first one" in sentence for sentence in job.verdict.text) == bool(left_out)
    for member in range(JOB.ranks):
        said, summary = rank_answer(job, member), summaries[member]
        other = (member < unsteady) != bool(left_out)
        assert said.steps == (numbers[left_out:] if other else [])
        assert any("by which the job is judged" in sentence for sentence in said.verdict) == other
        length = (summary.step_column("end") - summary.step_column("start"))[left_out:]
        computing = percent(summary.step_column("compute_ns")[left_out:].sum() / length.sum())
        assert not other or f"a mean step of {time(int(length.mean()))}: {computing} computing" in said.verdict[0]


# What a rank's own track ``Diagnosis`` says, in the outputs of a run.

DRAWN = "select distinct name, extract_arg(arg_set_id, 'ARGS.rule') from slice where category = 'augment.diagnosis'"


@pytest.mark.parametrize(("suffix", "args"), [("pftrace", "debug"), ("json.gz", "args"), ("zip", "debug")])
def test_the_diagnosis_that_a_rank_has_drawn_is_that_of_its_job(
    run_of_a_job: Path, perfetto: PerfettoEngine, suffix: str, args: str
) -> None:
    for path in sorted(run_of_a_job.glob("rank*.metrics.json")):
        perfetto.load(path.with_name(path.name.replace("metrics.json", f"augmented.{suffix}")))
        assert not {problem for problem in perfetto.problems() if "negative" not in problem}
        says_what_the_job_tells(path, perfetto.rows(DRAWN.replace("ARGS", args)))


def test_so_it_is_in_the_merged_file(run_of_a_job: Path, perfetto: PerfettoEngine) -> None:
    perfetto.load(run_of_a_job / "job.augmented.pftrace")
    of_rank = (
        f"{DRAWN.replace('ARGS', 'debug')} and track_id in (select id from track where name = 'Diagnosis rank %d')"
    )
    for rank in range(JOB.ranks):
        says_what_the_job_tells(run_of_a_job / f"rank{rank}.metrics.json", perfetto.rows(of_rank % rank))


def says_what_the_job_tells(path: Path, drawn: list[tuple[Any, ...]]) -> None:
    of_job = in_job(json.loads(path.read_bytes()))
    (verdict,) = {name for name, _ in drawn if all(sentence in name for sentence in of_job["verdict"]["text"][:-1])}
    assert f"Its job: {json.loads(path.read_bytes())['told_by_job']['job']}" == of_job["verdict"]["text"][-1]
    rows = {row["rule"]: row for row in of_job["analyses"]["diagnosis"]["rows"] if row["status"] == "found"}
    assert "straggling_rank" in rows
    findings = {rule: name for name, rule in drawn if name != verdict}
    assert {rule for rule, row in rows.items() if row["count"]} <= findings.keys() <= rows.keys()
    assert rows["straggling_rank"]["in_verdict"] == ("straggling_rank" not in findings), "the verdict alone says it"
    for rule, name in findings.items():
        assert f": {rows[rule]['title']} → {rows[rule]['advice']}" in name


@pytest.fixture(scope="module")
def run_of_a_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The outputs of ``augment run`` on a job of which one rank's host is late."""
    folder, out = tmp_path_factory.mktemp("job"), tmp_path_factory.mktemp("out")
    simulate(replace(JOB, **FAULTS["host"]), folder)
    (alone,) = folder.glob("rank1*.json.gz")
    findings = {row.rule for row in augment(read(str(alone)), only=["diagnosis"]).verdict.rows}
    assert "exposed_communication" in findings  # which the job withdraws
    formats = ("--to", "perfetto,chrome,bundle")
    result = CliRunner().invoke(group(), ["run", str(folder), "-o", str(out), "--quiet", "--merge", *formats])
    assert result.exit_code == 0, result.output
    return out


@pytest.mark.parametrize("fault", FAULTS)
def test_a_slow_first_step_changes_no_promise(fault: str) -> None:
    """Metamorphic: all that the first step does takes three times as long, as it warms up. The promise is that of the
    steps that follow. Truth: the same job simulated without the fault."""
    warm = replace(JOB, warmup=3.0)
    job, sound = simulated(replace(warm, **FAULTS[fault])), simulated(warm)
    steps = [JOB.steps - 1, JOB.steps - 1]
    assert [result.judgement.step_count for result in (job, sound)] == steps
    recorded = [result.judgement.recorded_ns for result in (job, sound)]
    figures = rank_in_job(job, LATE)
    saved = figures.itself.gain_ns * steps[0] / recorded[0]
    assert saved == pytest.approx(1 - recorded[1] / recorded[0], abs=PROMISED)
    for member in range(JOB.ranks):
        assert not any("the job is judged" in sentence for sentence in rank_answer(job, member).verdict)


def test_a_job_says_what_to_do(tmp_path: Path) -> None:
    """The late rank's own gravest finding and its cure, under the verdict; of a healthy job nothing."""
    for faults, rank in ((FAULTS["host"], LATE), ({}, None)):
        folder = tmp_path / f"of{rank}"
        folder.mkdir()
        simulate(replace(JOB, **faults), folder)
        reports = [report_on(str(path), lambda _: None) for path in sorted(folder.glob("*.json.gz"))]
        (job,) = of_jobs(reports)
        if rank is None:
            assert job["cures"] == []
            continue
        grave = [row for row in reports[rank]["rows"] if row["status"] == "found" and row["rule"] != "straggling_rank"]
        at = period(grave[0]["start_ns"], grave[0]["dur_ns"])
        place = f"; see it: `augment open FOLDER --rank {rank} --at {at}`"
        what = f"{grave[0]['title']}. {grave[0]['advice']}{place}"
        assert job["cures"] == [f"Rank {rank}: {what}"]
        text = "\n".join(lines_of([job], markdown=False, brief=True))
        assert f"  → Rank {rank}: {what}" in text
        of_ranks = "\n".join(lines_of(reports, markdown=False, brief=True))
        assert f": augment open {reports[rank]['input']} --at {at}\n  → {grave[0]['advice']}" in of_ranks
        assert "\n".join(lines_of([job, *reports], markdown=False, brief=True)).count(grave[0]["advice"]) == 1
        assert f"\n\n- Rank {rank}: " in "\n".join(lines_of([job], markdown=True, brief=True))
        ran = CliRunner().invoke(group(), ["run", str(folder), "-o", str(tmp_path / "out")])
        assert f"→ Rank {rank}: {what.replace('FOLDER', str(folder))}\n" in ran.output
        for command in (["show"], ["report", "--markdown"]):
            assert (
                f"augment open {folder} --rank {rank} " in CliRunner().invoke(group(), [*command, str(folder)]).output
            )


def test_ranks_with_the_same_kinds_of_finding_are_told_together(tmp_path: Path) -> None:
    simulate(replace(JOB, ranks=6, **FAULTS["host"]), tmp_path)
    reports = [report_on(str(path), lambda _: None) for path in sorted(tmp_path.glob("*.json.gz"))]
    jobs = [*of_jobs(reports)]
    lines = [*lines_of([*jobs, *reports[::-1]], markdown=False, brief=True)]
    first, *others = sorted({*range(6)} - {LATE}, reverse=True)
    assert [line.partition(",")[0] for line in lines if line.startswith("rank ")] == [f"rank {first}", f"rank {LATE}"]
    more = f"with other figures (to see one alone: augment diagnose {reports[others[0]]['input']})"
    ranks = ranges_text(others[::-1])
    assert lines[-1] == f"ranks {ranks}: the same findings as rank {first}, {more}"
    small = {row["rule"]: row for row in reports[LATE]["rows"] if row["status"] == "found"}["straggling_rank"]
    small |= {"severity": "info"}  # who holds up the job is told apart, however little a fix saves
    assert f"rank {LATE}, {reports[LATE]['input']}:" in [*lines_of([*jobs, *reports], markdown=False, brief=True)]
    unknown = [report | {"rank": None} for report in reports[::-1]]  # as many traces say nothing of ranks
    last = [*lines_of([*jobs, *unknown], markdown=False, brief=True)][-1]
    assert last == f"4 other traces: the same findings as {reports[first]['input']}, {more}"


def of_found(job: Answer, *saved: dict[str, int]) -> Answer:
    """The job if rules of each rank had found this much to save, ns."""
    summaries = []
    for summary, of_rank in zip(job.summaries, saved, strict=True):
        grave = {"severity": "high", "confidence": "high", "status": "found", "at_most": False, "figures": {}}
        rows = [{"rule": rule, "saved_ns": ns, "title": rule, "advice": "", **grave} for rule, ns in of_rank.items()]
        diagnosis = OwnDiagnosis("nvidia", [], [], others=rows)
        packed = zlib.compress(msgspec.msgpack.encode(diagnosis))
        summaries.append(msgspec.structs.replace(summary, diagnosis=packed))
    return answer_of([Portion(summaries, Aggregation(), [])])


def test_what_the_peers_have_as_well_is_no_cure_of_a_late_rank() -> None:
    """The gravest finding of the late rank is one of its peers, too: what it alone has explains its delay."""
    job = simulated(replace(JOB, **FAULTS["host"]))
    ranks = [{"matrix_units": 90, "host_gaps": 10} for _ in job.summaries]
    ranks[LATE] = {"matrix_units": 95, "host_gaps": 40}
    assert cures(of_found(job, *ranks)) == [f"Rank {LATE}: host_gaps"]
    ranks[LATE] = {"garbage_collection": 40}  # of which its job knows nothing
    assert cures(of_found(job, *ranks)) == [f"Rank {LATE} (in its own trace): garbage_collection"]
    ranks[LATE] = {"matrix_units": 95, "host_gaps": 15}
    assert cures(of_found(job, *ranks)) == []


def test_what_would_save_most_ranks_more_than_the_late_one_costs_is_told_too() -> None:
    job = simulated(replace(JOB, **FAULTS["host"]))
    costs = of_found(job, *({} for _ in job.summaries)).verdict.rows[0].gain_ns // job.judgement.step_count
    ranks = [{"host_gaps": costs * (rank == LATE)} for rank in range(JOB.ranks)]
    for more, shown in ((1, "such as rank 0: matrix_units"), (-1, "")):
        *others, last = cures(of_found(job, *({**each, "matrix_units": costs + more} for each in ranks)))
        every = f"By their own traces {JOB.ranks} of {JOB.ranks} ranks would gain 5 % or more, {shown}"
        assert others == ([every] if shown else [])
        assert last == f"Rank {LATE}: host_gaps"


def test_the_workers_of_another_rank_limit_what_a_late_one_gains() -> None:
    """Metamorphic: the same job, in which a rank that waits for the late one also waits for its workers' batches."""
    job = simulated(replace(JOB, **FAULTS["host"]))
    whole, steps, gain = job.judgement.recorded_ns, job.judgement.step_count, job.verdict.rows[0].gain_ns
    for left in (2 * gain, gain // 4, 0):
        figures = {"why": "slow_workers", "pace_ns": (whole - left) // steps}
        alone = OwnDiagnosis("nvidia", [], [{"rule": "data_loading", "status": "fine", "figures": figures}])
        packed = zlib.compress(msgspec.msgpack.encode(alone))
        paced, *rest = job.summaries
        answer = answer_of([Portion([msgspec.structs.replace(paced, diagnosis=packed), *rest], Aggregation(), [])])
        gains = [row.gain_ns for row in answer.verdict.rows]
        assert gains == ([pytest.approx(min(gain, left), rel=0.01)] if left else [])
        assert (", as batches of other ranks take that long." in answer.verdict.text[0]) == (left == gain // 4)
        assert ("keeps others waiting" in answer.verdict.text[-1]) == (left == 0)


def test_a_cure_fits_the_place_that_the_verdict_names() -> None:
    """Waits for the GPU explain no time outside operators, and nothing but requests of memory does time in these."""
    ranks: list[dict[str, int]] = [{} for _ in range(JOB.ranks)]
    ranks[LATE] = {"synchronizing_calls": 40, "host_gaps": 30, "matrix_units": 40}
    job_of_them = of_found(simulated(replace(JOB, **FAULTS["host"])), *ranks)
    (row,) = job_of_them.verdict.rows
    for where, first in {
        "": "synch",
        "annotation": "host_gaps",
        "call": "synch",
        "memory": "Compare the sizes",
    }.items():
        placed = msgspec.structs.replace(
            row, charged_ns=40 * job_of_them.judgement.step_count, figures={**row.figures, "where": where}
        )
        vars(job_of_them)["verdict"] = SimpleNamespace(rows=[placed])
        assert cures(job_of_them)[0].startswith(f"Rank {LATE}: {first}")
    computing = msgspec.structs.replace(row, cause="compute", figures={})
    vars(job_of_them)["verdict"] = SimpleNamespace(rows=[computing])
    assert cures(job_of_them)[1] == f"Rank {LATE}: matrix_units"


def test_of_ranks_that_wait_alike_the_rule_that_would_save_most_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not the gravest finding of the first rank: what the most time of all ranks goes to is what the job waits for."""
    row = SimpleNamespace(rank=None, cause="shared", figures={})
    job = simulated(JOB)
    ranks = [{"unfused_optimizer": 9}, {"unfused_optimizer": 9, "host_gaps": 30}, {"host_gaps": 40}, {}]
    job_of_them = of_found(job, *ranks, *({} for _ in job.summaries[len(ranks) :]))
    vars(job_of_them)["verdict"] = SimpleNamespace(rows=[row])
    whose = f"By their own traces 2 of {len(job.summaries)} ranks would gain 5 % or more"
    assert cures(job_of_them) == [f"{whose}, rank 2 most: host_gaps"]
    monkeypatch.setattr("augment.job.rank_answers.MOST_PEERS", len(job.summaries) // 2)
    whose = f"By their own traces 1 of {len(job.summaries) // 2} ranks looked at would gain 5 % or more"
    assert cures(job_of_them) == [f"{whose}, rank 2 most: host_gaps"]
    for row.cause, what in (("uneven", "Balance the work"), ("communication", "Measure the slow links alone")):
        assert [each[: len(what)] for each in cures(job_of_them)] == [what]


def test_times_of_jobs_have_three_digits() -> None:
    times = {999_600_000: "1.00 s", 999_400_000: "999 ms", 999_700: "1.00 ms", 44_000_000: "44.0 ms", 2_500: "2.50 µs"}
    assert {ns: three_digits(ns) for ns in times} == times
    assert three_digits(1234.4e9) == "1,234 s"


@cache
def recorded(folder: Path) -> Answer | None:
    paths = sorted(folder.glob("*.json.gz"))
    return job_of([read(str(path)) for path in paths]) if paths else None


def test_recorded_ranks_wait_for_rank_2(shared_traces: Path) -> None:
    """Plainly: a collective ends on all ranks together, so what exceeds its shortest kernel is waiting."""
    folder = shared_traces / "v100_4rank_pair_torchrec" / "sst_long_a2a_optimizer"
    job = recorded(folder)
    if job is None:
        pytest.skip("the job is not at hand")
    kernels = []
    for path in sorted(folder.glob("*.json.gz")):
        rows = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        named = [row for row in rows if row.get("cat") == "kernel" and "nccl" in row["name"].lower()]
        kernels.append([row["dur"] for row in sorted(named, key=lambda row: row["ts"])[-LAST:]])
    shortest = [min(parts) for parts in zip(*kernels, strict=True)]
    for member, durations in enumerate(kernels):
        said = rank_answer(job, member)
        if member == LATE:
            assert said.text[0].startswith("Other ranks wait for this one: its own work takes 1.00 s per step longer")
            continue
        waited = sum(dur - least for dur, least in zip(durations, shortest, strict=True)) * 1000
        rows = job.matched.rows_of(member)
        assert job.parted.wait_ns[rows][-LAST:].sum() == pytest.approx(waited, rel=0.05)
        assert said.figures.waits_for == "rank 2"
        assert "100 % of it for rank 2 (its host, in `# running sparse arch`, outside its operators" in said.text[0]


def test_advice_tells_that_little_would_be_gained(shared_traces: Path) -> None:
    """In the recorded job the replay gains a tenth of the wait if the late rank is like the median."""
    late = LateRank("rank 7", is_own=False, reason=Reason("host"), charged_ns=9, gain_ns=5, confidence="high")
    assert fix_rank(late, 8).startswith("Fix rank 7 rather than communication on this rank: see its own findings for")
    assert fix_rank(late, 11).startswith("Fix rank 7 (most of the wait would remain): see its own findings for")
    assert "remain" not in fix_rank(msgspec.structs.replace(late, gain_ns=None), 11)
    job = recorded(shared_traces / "dlrm_8rank_v100_param" / "kineto")
    if job is None:
        pytest.skip("the job is not at hand")
    row = rows_of(rank_answer(job, 0))["straggling_rank"]
    advice = "The hosts of all ranks are slow alike: see what this rank's own findings say of its host"
    assert (row["advice"], row["saved_ns"]) == (advice, None)
    speed_up, slows, ways = cures(job)  # a line says what to do, what was found, or how
    assert speed_up == "Speed up the hosts of all ranks, as one alone gains little"
    assert slows.startswith("What slows them, ")
    assert "; see it: `" in slows
    assert ways.startswith("Launch many")
    assert "rank 7" not in row["title"], "rank 6 is nearly as late: without rank 7 most of the wait would remain"
    answers = [rank_answer(job, rank) for rank in range(8)]  # the verdict names none
    assert not any("Other ranks wait for this one" in " ".join(each.text) for each in answers)
    for each in answers:  # none says of what its host does in each step that it is fine
        assert {rows_of(each)[rule]["status"] for rule in ("data_loading", "launch_bound")} == {"found"}
    waits = sorted(int(each.verdict[0].partition(" % waiting for")[0].split()[-1]) for each in answers)
    assert f"each for {waits[0]} to {waits[-1]} % of its time" in job.verdict.text[1]


def test_transfers_that_would_save_more_than_a_late_rank_come_first(shared_traces: Path) -> None:
    """Each rank says so, although they are less than a tenth of a step."""
    job = recorded(shared_traces / "v100_4rank_pair_torchrec" / "control")
    if job is None:
        pytest.skip("the job is not at hand")
    (late,) = job.verdict.rows
    gain = job.judgement.transfers[0]
    assert late.gain_ns < gain < 0.1 * job.judgement.recorded_ns
    assert job.verdict.text[0].startswith("Transfers that nothing hides, 96 % of them AllToAll, hold all ranks up")
    assert [each.partition(": ")[0] for each in cures(job)[:2]] == ["Communication", "Rank 2"]
    job = recorded(shared_traces / "v100_4rank_pair_torchrec" / "test")
    least = [2 * 10_221_000, job.verdict.rows[0].gain_ns]  # by rank 1's own trace, of two steps; by rank 2 in time
    assert least == [job.judgement.transfers[0], 5_436_808], "rank 2 in time gains less than the rest"
    assert job.verdict.text[0].startswith(
        "Matrix units are not used: fixed on all ranks, a mean step would take 149 ms"
    )
    assert "95 % of them AllToAll" in job.verdict.text[2]
    stalls = rows_of(rank_answer(job, 2))["host_gaps"]  # why it is late, which saves 15 % by its own trace
    assert (stalls["saved_ns"], stalls["in_verdict"], stalls["severity"]) == (least[1] // 2, True, "info")
    assert f"Rank 2: {stalls['title']}. {stalls['advice']}; see it: " in cures(job)[1]
    assert cures(job)[0].startswith("On all 4 ranks, such as rank 2: FP32")
    rows = rows_of(rank_answer(job, 0))
    assert (rows["host_gaps"]["status"], rows["matrix_units"]["in_verdict"]) == ("fine", True), (
        "as the job's verdict does"
    )


def test_what_makes_a_recorded_host_late(shared_traces: Path) -> None:
    """Without a device, what its main thread is in. One that launches what its peers do needs no fewer launches."""
    for folder, cause in (
        ("evidence/joint_gloo_2rank", "Rank 0: While no thread runs an operator, its main thread spends 66 % in "),
        ("traces/h100_8rank_modded_nanogpt", "Rank 1: Compare its CPU with its peers': "),
    ):
        job = recorded(shared_traces.parent / folder)
        if job is None:
            pytest.skip("the job is not at hand")
        others = cures(job)
        assert others.pop(next(place for place, each in enumerate(others) if "Rank " in each)).startswith(cause)
        graphs = [each.partition(": ")[0] for each in others if "CUDA graphs" in each]
        assert {*graphs} <= {"Hosts of all ranks"}, "not of this alone"
        assert not any(each.startswith("Rank ") for each in others), "what is found, and has no cure, is no cure"


# What a job draws on a rank's timeline, judged by Perfetto's engine.


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Answer, list[Trace]]:
    options = JobOptions(ranks=3, steps=2, collectives="fsdp", straggler=1, clock_offset_ns=(0, 7_000_000, -(10**10)))
    traces = [read(str(path)) for path, _ in simulate(options, tmp_path_factory.mktemp("job"))]
    contents = [summarize(AugmentedTrace(trace, {})) for trace in traces]
    return answer(contents, [trace.source.name for trace in traces]), traces


def test_waits_and_transfers_lie_under_their_kernels(job: tuple[Answer, list[Trace]]) -> None:
    result, traces = job
    for member, trace in enumerate(traces):
        *_, slices, counter = result.annotations(member)
        assert (slices.ts[1:] >= (slices.ts + slices.dur)[:-1]).all()
        _, members, rows = result.links()
        kernels = np.sort(rows[members == member])
        assert len(kernels) == len(result.matched)
        assert slices.dur.sum() == trace.events.dur[kernels].sum()
        assert 290 < np.median(counter.values[counter.values > 0]) < 335
        assert counter.values[-1] == 0


def test_links_are_in_the_order_of_arrival(job: tuple[Answer, list[Trace]]) -> None:
    result, traces = job
    instance, member, row = result.links()
    start = np.array([result.clocks[m].to_common(traces[m].events.ts[r : r + 1])[0]
                      for m, r in zip(member.tolist(), row.tolist(), strict=True)])  # fmt: skip
    assert (np.diff(instance) >= 0).all()
    same = np.diff(instance) == 0
    assert (np.diff(start)[same] >= 0).all()


def test_the_path_is_drawn_where_it_is(job: tuple[Answer, list[Trace]]) -> None:
    result, traces = job
    path = result.path
    assert isinstance(path, Path_)
    drawn, come, left = 0, [], []
    for member in range(len(traces)):
        tracks = [each for each in result.annotations(member) if each.name == "Cross-rank critical path"]
        assert len(tracks) == (member in path.member)
        for each in tracks:
            part = path.member == member
            at = result.clocks[member].to_common(each.ts), result.clocks[member].to_common(each.ts + each.dur)
            assert (at[0] == path.start[part]).all()
            assert (at[1] == path.end[part]).all()
            drawn += len(each.ts)
            (_, _, first), (_, _, second) = handovers([each])
            come += first.tolist()
            left += second.tolist()
    assert drawn == len(path)
    assert sorted(come) == sorted(left) == list(range(int(is_handover(path).sum())))


def test_a_rank_that_is_cut_short_is_left_out(tmp_path: Path) -> None:
    """Of four ranks one was killed while it wrote, before its first step was over: the others are judged."""
    simulate(replace(JOB, **FAULTS["host"]), tmp_path)
    cut = sorted(tmp_path.glob("*.json.gz"))[(LATE + 1) % JOB.ranks]
    text = gzip.decompress(cut.read_bytes())
    cut.write_bytes(gzip.compress(text[: len(text) // 6]))
    for command in (["diagnose"], ["run", "-o", str(tmp_path / "out")], ["report", "-o", str(tmp_path / "a.html")]):
        ended = CliRunner().invoke(group(), [command[0], str(tmp_path), *command[1:]])
        assert ended.exception is None or isinstance(ended.exception, SystemExit), command
        assert "internal error" not in ended.output
    assert f"Rank {LATE} delays" in CliRunner().invoke(group(), ["diagnose", str(tmp_path)]).output


def test_runs_in_one_folder_are_told_apart(tmp_path: Path) -> None:
    """As TensorBoard's handler names them: a rank has a trace for each run."""
    for moment, faults in ((1_698_955_364, FAULTS["host"]), (1_698_955_629, {})):
        folder = tmp_path / str(moment)
        folder.mkdir()
        simulate(replace(JOB, **faults), folder)
        for rank, path in enumerate(sorted(folder.glob("*.json.gz"))):
            path.rename(tmp_path / f"{moment % 1000}{rank}.{moment}00000000{rank}.pt.trace.json.gz")
    first, second = of_jobs([report_on(str(path), lambda _: None) for path in sorted(tmp_path.glob("*.gz"))])
    assert "window 1698955364" in first["input"]
    assert first["verdict"][0].startswith(f"Rank {LATE} delays")
    assert "window 1698955629" in second["input"]
    assert second["verdict"][0].startswith("No rank stands out")
