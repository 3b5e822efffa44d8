"""What must not change a verdict: the clocks of the hosts, the order of the ranks' files, how the recording is split
into files, and the scale of time."""

from __future__ import annotations

import gzip
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import truth
import verdicts

from answered_jobs import answered
from augment import AugmentedTrace, read
from augment.diagnosis.rules.data_loading import Fetches
from augment.job.answer import answer
from augment.job.rank_answers import cures, rank_in_job
from augment.job.ranks import summarize
from augment.job.verdict.job_verdict import LIKE_MEDIAN
from metamorphic import CALLS, GPU_WORK, Document, Event, load, save, without_waiting_calls
from simulator import JobOptions, simulate
from simulator.options import CollectiveArgs

JOB = JobOptions(ranks=4, steps=4, layers=2, straggler=2, straggler_factor=1.4, seed=11)


def the_row(options: JobOptions) -> tuple[int | None, str, int, int]:
    (row,) = verdicts.job(options).verdict.rows
    return row.rank, row.cause, row.charged_ns, row.gain_ns or 0


def test_clocks_and_scale_change_nothing() -> None:
    rank, cause, charged, gain = the_row(JOB)
    assert (rank, cause) == (2, "compute")
    apart = the_row(replace(JOB, clock_offset_ns=(0, 5_000_000_000, -7_000_000, 123_456_789)))
    assert apart[:2] == (rank, cause)
    assert apart[2:] == pytest.approx((charged, gain), rel=0.01)
    stretched = the_row(replace(JOB, stretch=2.0))
    assert stretched[:2] == (rank, cause)
    assert stretched[2:] == pytest.approx((2 * charged, 2 * gain), rel=0.05)


def test_the_order_of_the_files_changes_nothing(tmp_path: Path) -> None:
    paths = [path for path, _ in simulate(JOB, tmp_path)]
    contents = [summarize(AugmentedTrace(read(str(path)), {})) for path in paths]
    names = [path.name for path in paths]
    forward, backward = answer(contents, names).verdict, answer(contents[::-1], names[::-1]).verdict
    (first,), (second,) = forward.rows, backward.rows
    assert (first.rank, first.cause) == (second.rank, second.cause)
    assert second.charged_ns == pytest.approx(first.charged_ns, rel=0.01)


def test_clocks_and_scale_change_no_transfers(tmp_path: Path) -> None:
    """Slow links hold all ranks up: by as much whatever the clocks show, and twice as long in a job twice as long."""
    options = JobOptions(ranks=4, steps=4, layers=2, gpu="T4", collectives="fsdp", seed=11)
    offset = replace(options, clock_offset_ns=(0, 5_000_000_000, -7_000_000, 123_456_789))
    gains = []
    for number, made in enumerate((options, offset, replace(options, stretch=2.0))):
        job = answered([path for path, _ in simulate(made, tmp_path / str(number))], "diagnosis")
        assert "Transfers that nothing hides" in " ".join(job.verdict.text)
        assert job.judgement.label.startswith("Exposed communication (a fix saves up to ")
        assert job.judgement.severity == ("high", "high")
        gains.append(job.judgement.transfers[0] / job.judgement.recorded_ns)
    assert gains[1:] == pytest.approx(2 * gains[:1], rel=0.05)


@pytest.mark.parametrize("straggler", [None, 2])
def test_transfers_of_a_twentieth_are_named_where_no_rank_costs_more(straggler: int | None, tmp_path: Path) -> None:
    options = JobOptions(ranks=4, steps=4, layers=2, gpu="H100", seed=11, straggler=straggler, straggler_factor=1.15)
    job = answered([path for path, _ in simulate(options, tmp_path)], "diagnosis")
    assert 0.05 < job.judgement.transfer_gain_ns * 4 / job.judgement.recorded_ns < 0.1
    named = "Transfers that nothing hides, 100 % of them AllReduce, hold all ranks up" in job.verdict.text[0]
    communication = any(each.startswith("Communication: ") for each in cures(job))
    assert named == communication == (straggler is None)


def test_transfers_may_wait_for_ranks_of_which_nothing_is_known(tmp_path: Path) -> None:
    """As Ascend's traces, these state neither the job's ranks nor a group's."""
    options = JobOptions(ranks=4, steps=4, layers=2, gpu="T4", collectives="fsdp", seed=11, collective_args="none")
    paths = [path for path, _ in simulate(options, tmp_path)]
    for path in paths:
        text = gzip.decompress(path.read_bytes()).replace(b'"world_size"', b'"unknown"')
        path.write_bytes(gzip.compress(text))
    job = answered(paths, "diagnosis")
    said = " ".join(job.verdict.text)
    assert "Transfers that nothing hides or that wait for other ranks (the traces do not say how many" in said
    assert job.judgement.severity == ("high", "medium")


@pytest.mark.parametrize("recorded", ["full", "no_group", "none"])
@pytest.mark.parametrize("layers", [4, 5])
def test_a_trace_of_another_run_changes_nothing(recorded: CollectiveArgs, layers: int, tmp_path: Path) -> None:
    """Also where its collectives have the numbers of the others'."""
    options = JobOptions(ranks=4, steps=4, collective_args=recorded)
    ranks = [path for path, _ in simulate(replace(options, straggler=1), tmp_path / "a")][:3]
    later = replace(options, seed=7, layers=layers, clock_offset_ns=4 * (300_000_000_000,))
    stray = [path for path, _ in simulate(later, tmp_path / "b")][3]
    alone, beside = answered(ranks), answered([*ranks, stray])
    rows = [
        [(row.rank, row.cause, row.charged_ns, row.gain_ns) for row in each.verdict.rows] for each in (alone, beside)
    ]
    assert rows[0] == rows[1] != []
    assert beside.verdict.text[:1] == alone.verdict.text[:1]
    why = "recorded at another time than the others: it seems to be of another run"
    assert beside.verdict.text[1] == f"Not compared with the others: rank 3 ({why})."
    assert [each.count for each in beside.diagnostics if each.code == "recorded_apart"] == [1]


def test_a_rank_whose_recording_begins_a_step_later_changes_no_gain(tmp_path: Path) -> None:
    """The job is judged on the steps that all ranks recorded; without steps, on the collectives."""
    rank, cause, _, gain = the_row(JOB)
    whole = verdicts.job(JOB).judgement.recorded_ns
    later = replace(JOB, record_from=(0.2, 0.2, 1.1, 0.2))
    assert the_row(later)[:2] == (rank, cause)
    assert the_row(later)[3] / verdicts.job(later).judgement.recorded_ns == pytest.approx(gain / whole, abs=0.02)
    paths = [path for path, _ in simulate(later, tmp_path)]
    for path in paths:
        rows = [each for each in load(path)["traceEvents"] if not each["name"].startswith("ProfilerStep#")]
        save(load(path) | {"traceEvents": rows}, path)
    assert [(row.rank, row.cause) for row in answered(paths).verdict.rows] == [(rank, cause)]


def halves(document: Document, number: int) -> list[Document]:
    """A recording before a step, and from it on: what the host does, and the work that it launches."""
    rows = document["traceEvents"]
    (begin,) = (
        each["ts"] for each in rows if each["name"] == f"ProfilerStep#{number}" and each["cat"] == "user_annotation"
    )
    is_first = {each["args"]["correlation"]: each["ts"] < begin for each in rows if each.get("cat") in CALLS}

    def in_first(event: Event) -> bool:
        known = event.get("args", {}).get("correlation") if event.get("cat") in GPU_WORK else event.get("id")
        return is_first.get(known, event["ts"] < begin)

    parts = ([each for each in rows if each["ph"] == "M" or in_first(each) is first] for first in (True, False))
    return [document | {"traceEvents": part} for part in parts]


def test_an_idle_process_beside_the_ranks_changes_nothing(tmp_path: Path) -> None:
    """A file of a process that belongs to no rank, such as a loader's, and does next to nothing."""
    paths = [path for path, _ in simulate(JOB, tmp_path)]
    document = load(paths[0])
    events = [each for each in document["traceEvents"] if each.get("ph") == "X"]
    begin, end = min(each["ts"] for each in events), max(each["ts"] + each["dur"] for each in events)
    idle: Event = {"ph": "X", "pid": 9, "tid": 9, "cat": "cpu_op", "name": "aten::empty", "ts": begin, "args": {}}
    rows = [idle | {"dur": 3}]
    rows += [idle | {"ts": begin + 5, "dur": end - begin - 5, "cat": "user_annotation", "name": "idle"}]
    alone = {key: value for key, value in document.items() if key != "distributedInfo"} | {"traceEvents": rows}
    beside = save(alone, tmp_path / "worker.json")
    before, after = answered(paths).verdict, answered([*paths, beside]).verdict
    assert after.text[: len(before.text)] == before.text
    assert [(row.rank, row.cause, row.gain_ns) for row in after.rows] == [
        (row.rank, row.cause, row.gain_ns) for row in before.rows
    ]


@pytest.mark.parametrize("fault", [{"straggler": 2}, {"host_stall_us": 5_000.0, "host_stall_rank": 2}])
def test_a_recording_that_is_split_into_files(fault: dict[str, Any], tmp_path: Path) -> None:
    """The steps of each half, and both halves beside each other, tell the same of the same rank."""
    options = JobOptions(ranks=4, steps=6, layers=3, **fault)
    paths = [path for path, _ in simulate(options, tmp_path)]
    parts = [halves(load(path), 3) for path in paths]
    files = [
        [save(part[half], tmp_path / f"half{half}_rank{rank}.json") for rank, part in enumerate(parts)]
        for half in (0, 1)
    ]
    (whole,) = answered(paths).verdict.rows
    for names in (*files, files[0] + files[1]):
        result = answered(names)
        (row,) = result.verdict.rows
        assert (row.rank, row.cause) == (whole.rank, whole.cause)
        assert 2 * row.gain_ns == pytest.approx(whole.gain_ns, rel=0.02)


def one_step(options: JobOptions, folder: Path) -> list[Path]:
    """The traces of a job's last step, which begins a step earlier on the first two ranks."""
    paths = [path for path, _ in simulate(options, folder)]
    for rank, path in enumerate(paths):
        document = load(path)
        marks = [each for each in document["traceEvents"] if each["name"].startswith("ProfilerStep#")]
        *_, before, last = sorted((e for e in marks if e["cat"] == "user_annotation"), key=lambda each: each["ts"])
        document["traceEvents"] = [e for e in document["traceEvents"] if e is last or e not in marks]
        if rank < 2:
            last.update(ts=before["ts"], dur=last["dur"] + last["ts"] - before["ts"])
        save(document, path)
    return paths


def test_steps_that_begin_earlier_on_some_ranks(tmp_path: Path) -> None:
    """Their waits are shares of the ranks' own steps; that these are longer than the job's is said."""
    options = JobOptions(ranks=4, steps=4, layers=2, host_stall_us=8_000.0)
    result = answered(one_step(options, tmp_path))
    (row,) = result.verdict.rows
    assert result.verdict.text[0].startswith("Only one step was recorded, and what follows may ")
    least, most = map(int, re.findall(r"(\d+) (?:to|%)", result.verdict.text[1])[:2])
    assert (row.cause, 0 < least <= most < 60) == ("shared", True)
    assert any("Counted from when the last rank begins" in text for text in result.verdict.text)
    without = verdicts.job(replace(options, host_stall_us=0.0)).judgement
    true = 1 - without.recorded_ns / without.step_count / result.judgement.recorded_ns
    assert row.gain_ns / result.judgement.recorded_ns == pytest.approx(true, abs=0.03)
    options = replace(options, host_stall_us=0.0, gpu="T4", collectives="fsdp")
    slow = answered(one_step(options, tmp_path / "slow"), "diagnosis")
    assert slow.judgement.label.startswith("Exposed communication (a fix may save up to ")


def test_what_all_ranks_wait_for_comes_first_and_no_rank_is_named() -> None:
    """Loaders that are slow on all ranks: what the job and each rank would gain is what it takes without."""
    options = JobOptions(ranks=4, steps=4, layers=2, host_stall_us=8_000.0)
    result = verdicts.job(options)
    (row,) = result.verdict.rows
    assert (row.rank, row.cause, row.ranks) == (None, "shared", [0, 1, 2, 3])
    assert "all four ranks wait for their hosts" in result.verdict.text[0]
    recorded = result.judgement.recorded_ns
    true = 1 - verdicts.job(replace(options, host_stall_us=0.0)).judgement.recorded_ns / recorded
    assert true > 0.1
    assert row.gain_ns / recorded == pytest.approx(true, abs=0.02)
    in_job = rank_in_job(result, 1)
    assert not in_job.late_ranks
    saved = Fetches(8_000_000, 8_000_000, host_alone=False, why="slow_workers").in_job(in_job, 1)[1]
    assert saved == in_job.shared.gain_ns == row.gain_ns // 4


SLOW = {"slowhost": 4.0}


@pytest.mark.parametrize(("family", "ranks", "reads_loss"), [
    ("ddp", 4, True), ("ddp", 8, False), ("ddp", 2, False), ("fsdp", 2, False), ("fsdp", 2, True),
])  # fmt: skip
def test_slow_hosts_of_all_ranks_gain_together(family: str, ranks: int, reads_loss: bool, tmp_path: Path) -> None:
    """By a simulator that shares no code. Truth: simulated again with all hosts as fast as can be, and with a single
    one. A host that is merely ahead is no faster, so that no rank is named. Metamorphic: other numbers and clocks."""
    if not truth.GENERATOR.exists():
        pytest.skip(f"no generator at {truth.GENERATOR}")
    work = truth.Workload(family, 10, ranks, 5, 3, 0.12, 0.8, reads_loss, 0.015)
    world = work.world(SLOW, None)
    run = truth.judged(world)
    recorded = truth.length(world, run)
    fast = work.world(SLOW, None, hz=0.02), *(work.world(SLOW, {*range(ranks)} - {each}) for each in range(ranks))
    true, *alone = (1 - truth.length(each, run) / recorded for each in fast)
    ((named, cause, gain, _),) = run.rows
    assert (named, cause) == (None, "shared")
    assert 0.6 * true < gain < true + 0.03
    assert max(alone) < 0.02
    (promised,) = (each for each in run.findings if each.rule == "launch_bound")
    assert (promised.bound, promised.saved <= true + 0.03) == ("up to", True)
    said = list[tuple[str, ...]]()
    for number in range(2):
        paths = list[Path]()
        for rank in world.ranks[:: 1 - 2 * number]:
            rank.r, rank.offset = len(paths), number * (7e6 - 9e5 * len(paths))
            rank.write(str(tmp_path / f"{number}_{rank.r}.json"))
            paths.append(tmp_path / f"{number}_{rank.r}.json")
        result = answered(paths, "diagnosis")
        said.append((*result.verdict.text, cures(result)[0]))
    assert said[0] == said[1]
    assert said[0][-1] == "Speed up the hosts of all ranks, as one alone gains little"


@pytest.mark.parametrize(("family", "ranks", "reads_loss", "scale", "fault"), [
    ("ddp", 2, False, 0.06, {"slowhost": 1.8}), ("fsdp", 4, False, 0.06, {"slowhost": 1.5}),
    ("fsdp", 2, True, 0.06, {"host_gap_main": 4_000.0}), ("ddp", 2, True, 0.2, {"throttle": 2.0}),
])  # fmt: skip
def test_a_rank_that_is_slower_than_slow_hosts(
    family: str, ranks: int, reads_loss: bool, scale: float, fault: dict[str, float], tmp_path: Path
) -> None:
    """Devices wait for rank 1, and hide that the hosts of all are slow. Truth: simulated again without the fault.
    Metamorphic: the ranks renumbered, and all times doubled."""
    if not truth.GENERATOR.exists():
        pytest.skip(f"no generator at {truth.GENERATOR}")
    work = truth.Workload(family, 10, ranks, 5, 3, scale, 3.2, reads_loss, 0.015)
    world = work.world(fault, [1])
    true = 1 - truth.length(work.world({}, None)) / truth.length(world)
    said = list[float]()
    for number in range(2):
        paths = list[Path]()
        for rank in world.ranks[:: 1 - 2 * number]:
            rank.r, rank.drift = len(paths), number * 1e6
            rank.write(str(tmp_path / f"{number}_{rank.r}.json"))
            paths.append(tmp_path / f"{number}_{rank.r}.json")
        job = answered(paths, "diagnosis")
        late = ranks - 2 if number else 1
        (row,) = (row for row in job.verdict.rows if row.rank == late)
        (row_of_scenario,) = (
            each for each in job.outcomes["job_what_if"].rows if (each.scenario, each.rank) == (LIKE_MEDIAN, late)
        )
        assert (
            true / 2
            < row.gain_ns / job.judgement.recorded_ns
            < true + 0.03
            < row.charged_ns / job.judgement.recorded_ns
        )
        said += [row.gain_ns / job.judgement.recorded_ns, row_of_scenario.gain_ratio]
    assert said == pytest.approx(said[:1] * 4, abs=0.01)


@pytest.mark.parametrize("category", ["", "cpu_op", "user_annotation"])
@pytest.mark.parametrize(
    "fault", [{"straggler": 1, "straggler_factor": 1.8}, {"host_stall_us": 8e3, "host_stall_rank": 1}]
)
def test_a_late_rank_where_no_call_says_that_hosts_wait(fault: dict[str, Any], category: str, tmp_path: Path) -> None:
    """Then it looks as if the hosts of all were busy, so that none could gain by another."""
    paths = [path for path, _ in simulate(JobOptions(ranks=4, steps=6, layers=3, **fault), tmp_path)]
    (known,) = answered(paths, "diagnosis").verdict.rows
    changed = [save(without_waiting_calls(load(path), category), tmp_path / f"{path.stem}.json") for path in paths]
    (row,) = answered(changed, "diagnosis").verdict.rows
    assert (row.rank, row.cause, row.gain_ns) == (known.rank, known.cause, pytest.approx(known.gain_ns, rel=0.02))


@pytest.mark.parametrize("family", ["ddp", "fsdp"])
def test_the_gain_where_no_call_says_that_hosts_wait(family: str, tmp_path: Path) -> None:
    """By a simulator that shares no code. Truth: simulated again without the fault."""
    if not truth.GENERATOR.exists():
        pytest.skip(f"no generator at {truth.GENERATOR}")
    work = truth.Workload(family, 10, 4, 5, 3, 0.6, 0.8, True, 0.015)
    world = work.world({"throttle": 1.6}, [1])
    true = 1 - truth.length(work.world({}, None)) / truth.length(world)
    for rank in world.ranks:
        rank.write(str(tmp_path / f"{rank.r}.json"))
        save(without_waiting_calls(load(tmp_path / f"{rank.r}.json")), tmp_path / f"{rank.r}.json")
    job = answered([tmp_path / f"{rank}.json" for rank in range(4)], "diagnosis")
    (row,) = job.verdict.rows
    assert (row.rank, row.cause) == (1, "compute")
    assert row.gain_ns / job.judgement.recorded_ns == pytest.approx(true, abs=0.02)
