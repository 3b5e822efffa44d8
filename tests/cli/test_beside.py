"""Files that were recorded beside traces: given for one, for each rank of a job, and to ``augment merge``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from running import Augment, unpacked

from augment import diff, read
from augment.viewer.view import view_of
from execution_traces import write_execution_trace
from memory_snapshots import MIB, training, write_snapshot
from memory_timelines import write_memory_timeline
from traces import kernel, op, step, write_trace


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Two ranks, and beside each an execution trace and a memory timeline."""
    for rank in range(2):
        operator = op("aten::mm", **{"Record function id": 5})
        members = {"distributedInfo": {"rank": rank, "world_size": 2}}
        write_trace(tmp_path / "job" / f"rank{rank}.json", step(), operator, kernel(), **members)
        write_execution_trace(
            tmp_path / "et" / f"{rank}.json.gz",
            {"nodes": [{"name": "aten::mm", "id": 70, "rf_id": 5, "parent": 1, "tid": 1}]},
        )
        write_memory_timeline(memory_of(tmp_path, rank), [[-1, 1, 100 + rank, 0], [20_000, 2, 8, 4]])
    return tmp_path / "job"


def memory_of(folder: Path, rank: int | str) -> Path:
    return folder / "memory" / f"{rank}.raw.json.gz"


def found_in(folder: Path, rank: int) -> Any:
    """The bytes of each category at the end, or why there are none."""
    content = json.loads((folder / f"rank{rank}.metrics.json").read_bytes())["analyses"]["memory_timeline"]
    return {row["category"]: row["end_bytes"] for row in content["rows"]} or content["reason"]


def node_of(folder: Path, rank: int) -> Any:
    """The node of the only operator, or why there is none."""
    content = json.loads((folder / f"rank{rank}.metrics.json").read_bytes())["analyses"]["execution_trace"]
    return content["rows"][0]["node_id"] if content["rows"] else content["reason"]


def test_one_trace(job: Path, tmp_path: Path, augment: Augment) -> None:
    nodes = ("--execution-trace", tmp_path / "et" / "1.json.gz")
    ended = augment("run", job / "rank1.json", "--memory-timeline", memory_of(tmp_path, 1), *nodes)
    assert ended.code == 0
    assert found_in(job, 1) == {"total": 109, "Parameter": 101, "Activation": 8}
    output = unpacked(job / "rank1.augmented.pftrace")
    assert (node_of(job, 1), b"augment.execution_trace" in output) == (70, True)
    assert b"Memory timeline Activation" in output
    assert "not used" not in ended.err
    shown = augment("show", job / "rank0.json", "memory_timeline", "--memory-timeline", memory_of(tmp_path, 0))
    assert "Parameter" in shown.out
    missing = augment("show", job / "rank0.json", "memory_timeline", "--memory-timeline", tmp_path / "no.json")
    assert (missing.code, missing.err) == (3, f"augment: {tmp_path / 'no.json'}: no such file or directory\n")
    shown = augment("show", job / "rank1.metrics.json", "--memory-timeline", memory_of(tmp_path, 0))
    assert (shown.code, "--memory-timeline: these metrics are already computed" in shown.err) == (2, True)


def test_that_of_another_recording_is_told_in_a_line(job: Path, tmp_path: Path, augment: Augment) -> None:
    write_memory_timeline(memory_of(tmp_path, 0), [[5 * 10**9, 2, 8, 4]])
    reason = "the memory timeline is of another recording: it begins 4.999900 s after the trace ends"
    single = augment("run", job / "rank0.json", "--memory-timeline", memory_of(tmp_path, 0))
    merged = augment("merge", job, "--memory-timeline", memory_of(tmp_path, "{rank}"))
    for ended in (single, merged, augment("show", job / "rank0.json", "--memory-timeline", memory_of(tmp_path, 0))):
        assert ended.code == 0
        assert f"rank0.json: its memory timeline is not used: {reason}" in ended.err
    assert reason in found_in(job, 0)
    log = tmp_path / "other.log"
    log.write_text("n0:7:9 [0] NCCL INFO comm 0xaa rank 0 nranks 2 cudaDev 0 busId 1000 commId 0xfe - Init COMPLETE\n")
    ended = augment("run", job / "rank0.json", "--nccl-log", log)
    assert "rank0.json: its nccl log is not used: the given log has no communicator of this process" in ended.err


def test_of_each_rank_and_again_when_one_changed(job: Path, tmp_path: Path, augment: Augment) -> None:
    both = "--execution-trace", tmp_path / "et" / "{rank}.json.gz", "--memory-timeline", memory_of(tmp_path, "{rank}")

    def again(*named: object) -> list[str]:
        ended = augment("run", job, "-o", tmp_path / "out", "--json", *named)
        return [json.loads(line)["status"] for line in ended.lines if "input" in json.loads(line)]

    assert again(*both) == ["augmented", "augmented"]
    assert again(*both) == ["done_before", "done_before"]
    assert [found_in(tmp_path / "out", rank)["Parameter"] for rank in range(2)] == [100, 101]
    write_memory_timeline(memory_of(tmp_path, 1), [[-1, 1, 7000, 0], [20_000, 2, 8, 4]])
    assert again(*both) == ["done_before", "augmented"]
    assert found_in(tmp_path / "out", 1)["Parameter"] == 7000
    nodes = [{"name": "aten::mm", "id": 900, "rf_id": 5, "parent": 1, "tid": 1}]
    write_execution_trace(tmp_path / "et" / "0.json.gz", {"nodes": nodes})
    assert again(*both) == ["augmented", "done_before"]
    assert [node_of(tmp_path / "out", rank) for rank in range(2)] == [900, 70]
    assert again(*both[2:]) == ["augmented", "augmented"], "other files beside them"
    memory_of(tmp_path, 0).unlink()
    assert again(*both[2:]) == ["augmented", "done_before"]
    assert "no memory timeline" in found_in(tmp_path / "out", 0)


def test_what_cannot_be_used(job: Path, tmp_path: Path, augment: Augment) -> None:
    trace, beside = job / "rank0.json", memory_of(tmp_path, 0)
    for command, *arguments, code, problem in [
        ("run", job, beside, 2, "there are several inputs; write {rank} in place of the rank"),
        ("merge", job, beside, 2, "there are several inputs; write {rank} in place of the rank"),
        ("run", trace, tmp_path / "no.json", 2, "--memory-timeline"),
        ("run", trace, tmp_path / "et" / "0.json.gz", 3, "not a memory timeline, which is a list of"),
    ]:
        ended = augment(command, arguments[0], "--memory-timeline", arguments[1])
        assert (ended.code, str(problem) in ended.err) == (code, True), ended.err


def test_in_the_folder_of_its_trace_it_is_no_input(job: Path, tmp_path: Path, augment: Augment) -> None:
    (job / "rank1.json").unlink()
    beside = memory_of(tmp_path, 0).rename(job / "0.raw.json.gz")
    executed = (tmp_path / "et" / "0.json.gz").rename(job / "et.json.gz")
    for command in ("run", "merge"):
        ended = augment(command, job, "--memory-timeline", beside, "--execution-trace", executed)
        assert (ended.code, "passed over" in ended.err) == (0, False), ended.err
    assert b"Memory timeline Parameter" in unpacked(job / "job.augmented.pftrace")


def test_all_ranks_on_one_timeline(job: Path, tmp_path: Path, augment: Augment) -> None:
    both = "--execution-trace", tmp_path / "et" / "{rank}.json.gz", "--memory-timeline", memory_of(tmp_path, "{rank}")
    out = job / "job.augmented.pftrace"
    assert augment("merge", job).code == 0
    assert b"augment.execution_trace" not in unpacked(out)
    memory_of(tmp_path, 1).unlink()
    ended = augment("merge", job, *both)
    assert ended.code == 0
    assert b"augment.execution_trace" in unpacked(out)
    assert b"Memory timeline Parameter" in unpacked(out)
    gone = memory_of(tmp_path, 1)
    assert f"rank1.json: no memory timeline: there is no file {gone}" in ended.err


SECOND_US = 10**6
START_US = 1_700_000_000 * SECOND_US


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Two ranks of a job, and a memory snapshot beside each that was recorded meanwhile."""
    for rank in range(2):
        members = {"distributedInfo": {"rank": rank, "world_size": 2}, "baseTimeNanoseconds": 1000 * START_US}
        events = step(0, 10_000), op("aten::mm", 5, 3_000), kernel("gemm", 20, 3_000)
        write_trace(tmp_path / "job" / f"rank{rank}.json", *events, **members)
        made = training(START_US, leak=(rank + 1) * MIB)
        write_snapshot(tmp_path / "job" / f"rank{rank}_memory_snapshot.pickle", made.snapshot())
    return tmp_path / "job"


def held_in(folder: Path, rank: int) -> Any:
    content = json.loads((folder / f"rank{rank}.metrics.json").read_bytes())["analyses"]["memory_snapshot"]
    lines = {row["name"]: row["bytes"] for row in content["rows"] if (row["moment"], row["by"]) == ("peak", "line")}
    return lines.get("run/train.py:40 step") or content["reason"]


def test_a_memory_snapshot_beside_each_rank_is_found_or_named(recorded: Path, tmp_path: Path, augment: Augment) -> None:
    assert "beside     a CUDA memory snapshot: rank1_memory_snapshot.pickle" in augment("doctor", recorded).out
    assert augment("run", recorded, "-o", tmp_path / "out").code == 0
    assert [held_in(tmp_path / "out", rank) for rank in range(2)] == [6 * MIB, 12 * MIB]
    assert b"GPU 0 snapshot allocated" in unpacked(tmp_path / "out" / "rank0.augmented.pftrace")
    for rank in range(2):
        (recorded / f"rank{rank}_memory_snapshot.pickle").rename(tmp_path / f"{rank}.pkl")
    named = "--memory-snapshot", tmp_path / "{rank}.pkl"
    assert augment("run", recorded, "-o", tmp_path / "out", *named).code == 0
    assert [held_in(tmp_path / "out", rank) for rank in range(2)] == [6 * MIB, 12 * MIB]
    merged = augment("merge", recorded, *named, "-o", tmp_path / "all.pftrace")
    assert (merged.code, "not used" in merged.err) == (0, False)
    write_snapshot(tmp_path / "1.pkl", training(START_US + 90 * SECOND_US).snapshot())
    ended = augment("run", recorded / "rank1.json", *named, "-o", tmp_path / "out")
    assert "its memory snapshot is not used: the memory snapshot 1.pkl covers 2023-11-14 22:14:50" in ended.err


def test_memory_snapshots_alone(recorded: Path, tmp_path: Path, augment: Augment) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    for rank in range(2):
        (recorded / f"rank{rank}_memory_snapshot.pickle").rename(alone / f"memory_rank{rank}")
    assert "At the peak of the memory snapshot" in augment("diagnose", alone / "memory_rank0").out
    assert view_of(read(str(alone / "memory_rank0"))).groups == ["memory snapshot", "memory_rank0"]
    assert "never freed" in augment("diagnose", alone).out
    assert "run/model.py:217 forward" in augment("show", alone / "memory_rank1", "memory_snapshot").out
    assert "a CUDA memory snapshot" in augment("doctor", alone / "memory_rank1").out
    assert augment("run", alone, "-o", tmp_path / "out", "--to", "perfetto,chrome").code == 0
    assert [augment("run", alone).code for _ in range(2)] == [0, 0], "outputs beside them are no traces"
    assert b"GPU 0 snapshot holder 1" in unpacked(tmp_path / "out" / "memory_rank0.augmented.pftrace")
    ended = augment("diff", alone / "memory_rank0", alone / "memory_rank1", "-o", tmp_path / "out")
    grew = "At the peak of GPU 0, 6.3 MB more are allocated (40 MB instead of 34 MB): most by `run/train.py:40 step`"
    assert grew in ended.out
    compared = diff(alone / "memory_rank0", alone / "memory_rank1")
    assert compared.verdict.text == [f"{grew} (6.3 MB)."]
    assert "memory_rank1 against memory_rank0: At the peak of GPU 0, 6.3 MB more" in repr(compared)
    assert compared["diff_memory"]["delta_bytes"][0] == 6 * MIB
    several = augment("diff", alone, alone, "-o", tmp_path / "out")
    assert (several.code, "2 memory snapshots on each side: compare one with one" in several.err) == (2, True)
    same = augment("diff", alone / "memory_rank0", alone / "memory_rank0", "-o", tmp_path / "out")
    assert "every line of code holds the same" in same.out
    mixed = augment("diff", alone / "memory_rank0", recorded / "rank0.json", "-o", tmp_path / "out")
    assert (mixed.code, "can only be compared with another" in mixed.err) == (2, True)
