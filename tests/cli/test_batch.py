"""Batches: what a manifest tells, going on, ranks and shares."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from running import Augment

from augment.batch.conversion import RunPlan
from augment.batch.manifest import Manifest
from augment.errors import OutputError
from simulator import JobOptions, simulate
from traces import kernel, write_trace

pytestmark = pytest.mark.slow

MANIFEST = "augment-manifest.jsonl"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    for rank in range(3):
        write_trace(tmp_path / "job" / f"rank{rank}.json.gz", kernel(dur=10 + rank))
    return tmp_path / "job"


def lines(folder: Path, name: str = MANIFEST) -> list[dict[str, Any]]:
    recorded = map(json.loads, (folder / name).read_text().splitlines())
    return [line for line in recorded if line["status"] not in ("passed_over", "concluded")]


def converted(folder: Path) -> list[str]:
    return [line["input"] for line in lines(folder)]


def test_the_manifest_tells_all(job: Path, tmp_path: Path, augment: Augment) -> None:
    out = tmp_path / "out"
    (job / "node1").mkdir()
    bad = job / "node1" / "rank9.json"
    bad.write_bytes(b'{"a": nope}')
    (job / "settings.json").write_bytes(b"{}")
    assert augment("run", job, "-o", out).code == 1
    output = lines(out)
    assert converted(out) == ["rank0.json.gz", "rank1.json.gz", "rank2.json.gz", "node1/rank9.json"]
    first, failed = output[0], output[-1]
    source = job / "rank0.json.gz"
    assert first["path"] == str(source)
    assert first["size"] == source.stat().st_size
    assert first["sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()
    assert (first["status"], first["rank"]) == ("augmented", 0)
    assert [output["path"] for output in first["outputs"]] == ["rank0.augmented.pftrace", "rank0.metrics.json"]
    for each in first["outputs"]:
        content = (out / each["path"]).read_bytes()
        assert (each["size"], each["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
    assert failed["status"] == "failed"
    assert failed["outputs"] == []
    assert failed["message"].startswith(f"{bad}: byte ")


def test_what_is_no_trace_is_read_once(job: Path, augment: Augment, monkeypatch: pytest.MonkeyPatch) -> None:
    (job / "settings.json").write_bytes(b"{}")
    first = augment("run", job)
    monkeypatch.setattr("augment.readers.read", None)  # nothing is read again
    again = augment("run", job)
    assert (again.code, again.out) == (0, first.out)
    assert "0 augmented, 3 done before, 1 passed over, 0 failed" in again.err
    monkeypatch.undo()
    (job / "settings.json").write_bytes(b'{"traceEvents": []}')
    augment("run", job)
    assert (job / "settings.metrics.json").exists()


def test_what_is_done_is_skipped(job: Path, augment: Augment) -> None:
    first = augment("run", job)
    before = {path.name: path.stat().st_mtime_ns for path in job.iterdir()}
    again = augment("run", job)
    assert (again.code, again.out) == (0, first.out)
    assert "0 augmented, 3 done before, 0 passed over, 0 failed" in again.err
    assert {path.name: path.stat().st_mtime_ns for path in job.iterdir()} == before
    output = map(json.loads, augment("run", job, "--json").lines)
    assert [each["status"] for each in output] == ["done_before"] * 3 + ["concluded"]


def test_what_changed_is_done_again(job: Path, augment: Augment) -> None:
    def again(*args: str) -> list[str]:
        count = len(lines(job))
        assert augment("run", job, *args).code == 0
        return converted(job)[count:]

    augment("run", job)
    everything = converted(job)
    assert again() == []
    write_trace(job / "rank1.json.gz", kernel(dur=99))
    assert again() == ["rank1.json.gz"]
    os.utime(job / "rank2.json.gz", ns=(1, 1))
    assert again() == ["rank2.json.gz"]
    (job / "rank0.metrics.json").unlink()
    assert again() == ["rank0.json.gz"]
    with open(job / "rank0.augmented.pftrace", "ab") as file:
        file.write(b"more")
    assert again() == ["rank0.json.gz"]
    assert again("--skip", "queue_length") == everything
    assert again("--skip", "queue_length") == []
    assert again() == everything
    assert again("--force") == everything


def test_another_version_does_it_again(job: Path, augment: Augment, monkeypatch: pytest.MonkeyPatch) -> None:
    augment("run", job)
    monkeypatch.setattr("augment.batch.manifest.__version__", "99")
    augment("run", job)
    assert len(lines(job)) == 6


def test_failures_are_tried_again(job: Path, augment: Augment) -> None:
    (job / "rank1.json.gz").write_bytes(b'{"a": nope}')
    assert augment("run", job).code == 1
    again = augment("run", job)
    assert again.code == 1
    assert "0 augmented, 2 done before, 0 passed over, 1 failed" in again.err
    assert len(lines(job)) == 4


def test_a_line_that_was_cut_off_counts_for_nothing(job: Path, augment: Augment) -> None:
    augment("run", job)
    content = b"".join(line for line in (job / MANIFEST).read_bytes().splitlines(True) if b'"concluded"' not in line)
    (job / MANIFEST).write_bytes(content[:-40])
    assert "1 augmented, 2 done before" in augment("run", job).err
    assert (job / MANIFEST).read_bytes().startswith(content[:-40] + b"\n{")
    assert "0 augmented, 3 done before" in augment("run", job).err


def test_a_moved_batch_goes_on(job: Path, tmp_path: Path, augment: Augment) -> None:
    augment("run", job, "-o", tmp_path / "out")
    job.rename(tmp_path / "elsewhere")
    (tmp_path / "out").rename(tmp_path / "moved")
    ended = augment("run", tmp_path / "elsewhere", "-o", tmp_path / "moved")
    assert "0 augmented, 3 done before" in ended.err
    assert ended.lines[-2:] == [str(tmp_path / "moved" / name) for name in ("rank2.metrics.json", "job.metrics.json")]


def test_a_file_that_is_named_has_no_manifest(job: Path, tmp_path: Path, augment: Augment) -> None:
    for _ in range(2):
        assert "augmented" in augment("run", job / "rank0.json.gz", job / "rank1.json.gz", "-o", tmp_path / "out").err
    assert not (tmp_path / "out" / MANIFEST).exists()
    augment("run", job / "rank*.json.gz", "-o", tmp_path / "out")
    assert converted(tmp_path / "out") == ["rank0.json.gz", "rank1.json.gz", "rank2.json.gz"]
    assert augment("run", tmp_path / "out" / MANIFEST).code == 3


def test_a_folder_without_traces_stays_as_it_is(tmp_path: Path, augment: Augment) -> None:
    (tmp_path / "a.json").write_bytes(b"{}")
    assert augment("run", tmp_path).code == 3
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_what_cannot_be_drawn_is_told(tmp_path: Path, augment: Augment, monkeypatch: pytest.MonkeyPatch) -> None:
    from augment.writers import seams

    simulate(JobOptions(ranks=2, steps=1, layers=1), tmp_path / "in")

    def full(path: Path, *_: object) -> None:
        raise OutputError(f"{path}: cannot be written: no space left on device")

    monkeypatch.setattr(seams, "add_tracks", full)
    ended = augment("run", tmp_path / "in", "-o", tmp_path / "out")
    assert ended.code == 1
    assert ended.err.count("no space left on device") == 2
    assert "0 augmented, 2 passed over, 2 failed" in ended.err


def test_what_a_killed_process_began_is_taken_away(job: Path, augment: Augment) -> None:
    half = job / ".rank1.augmented.pftrace.0123456789ab.tmp"
    others = [job / ".rank7.augmented.pftrace.0123456789ab.tmp", job / ".rank1.notes.0123456789ab.tmp"]
    for path in (half, *others):
        path.write_bytes(b"half")
    augment("run", job)
    assert not half.exists()
    assert all(path.exists() for path in others)


def test_jobs_are_told(job: Path, augment: Augment) -> None:
    output = augment("run", job).err.splitlines()
    assert "3 traces in job share no collectives" in output
    assert any(line.startswith("These three traces share no collectives") for line in output)
    for rank in (4, 7):
        write_trace(job / "iteration_3" / f"rank{rank}.json", distributedInfo={"rank": rank, "world_size": 8})
    output = augment("run", job).err.splitlines()
    first = output.index("3 traces in job share no collectives")
    assert output[first + 1] == "job job, window 3: ranks 4, 7 of 8"
    assert Path(output[first + 2].rpartition(" ")[2]).name.endswith("job.metrics.json")


def test_some_steps(job: Path, augment: Augment) -> None:
    for _ in range(2):
        assert augment("run", job / "*", "--steps", "0-1").code == 1  # these traces have none
    assert "no step of 0 to 1" in lines(job)[0]["message"]
    write_trace(job / "rank0.json.gz")
    assert "1 augmented" in augment("run", job, "--steps", "0-1").err
    assert "1 done before" in augment("run", job, "--steps", "0-1").err
    assert "3 augmented" in augment("run", job).err


def test_two_runs_do_not_share_a_manifest(job: Path, augment: Augment) -> None:
    manifest = Manifest(str(job), RunPlan())
    ended = augment("run", job)
    assert (ended.code, ended.out) == (1, "")
    assert "another augment run writes into this folder" in ended.err
    manifest.close()
    assert augment("run", job).code == 0


@pytest.mark.parametrize(("ranks", "kept"), [("1", [1]), ("0,2", [0, 2]), ("1-7", [1, 2]), (" 0-0, 2-3 ", [0, 2])])
def test_some_ranks(job: Path, augment: Augment, ranks: str, kept: list[int]) -> None:
    assert augment("run", job, "--ranks", ranks).code == 0
    assert converted(job) == [f"rank{rank}.json.gz" for rank in kept]


def test_the_file_knows_its_rank_better_than_its_name(job: Path, augment: Augment) -> None:
    write_trace(job / "pid77.json", distributedInfo={"rank": 12, "world_size": 16})
    write_trace(job / "rank12.json", distributedInfo={"rank": 4, "world_size": 16})
    augment("run", job, "--ranks", "12")
    assert converted(job) == ["pid77.json"]


def test_no_such_rank(job: Path, augment: Augment) -> None:
    ended = augment("run", job, "--ranks", "8-11")
    assert ended.code == 3
    assert "no trace of these ranks among 3 files of ranks 0-2" in ended.err


@pytest.mark.parametrize(
    "args",
    [("--ranks", "a"), ("--ranks", "3-1"), ("--ranks", ""), ("--shard", "2/2"), ("--shard", "1"), ("--shard", "x/y")],
)
def test_odd_values_are_usage_errors(job: Path, augment: Augment, args: tuple[str, str]) -> None:
    assert augment("run", job, *args).code == 2


def test_shares_make_the_whole(job: Path, tmp_path: Path, augment: Augment) -> None:
    out = tmp_path / "out"
    for share in range(2):
        assert "run the same command without --shard" in augment("run", job, "-o", out, "--shard", f"{share}/2").err
    rows = [[line["input"] for line in lines(out, f"augment-manifest-{share}-of-2.jsonl")] for share in range(2)]
    assert rows == [["rank0.json.gz", "rank2.json.gz"], ["rank1.json.gz"]]
    assert "0 augmented, 3 done before" in augment("run", job, "-o", out).err


def test_traces_that_share_no_collectives_are_no_job(tmp_path: Path, augment: Augment) -> None:
    """Names that differ in the rank alone are no proof: nothing in the files says that they belong together."""
    for rank, name in enumerate(("resnet", "bert")):
        write_trace(tmp_path / f"rank_{rank}" / "trace.json", kernel(name), distributedInfo={"rank": rank})
    run = augment("run", str(tmp_path), "-o", str(tmp_path / "out"))
    assert f"2 traces in {tmp_path.name} share no collectives" in run.err
    assert "These two traces share no collectives: nothing shows that they are ranks of one job." in run.err
    assert "job" not in run.err.replace("one job", "").replace(tmp_path.name, "").replace("job.metrics.json", "")


def test_a_run_with_nothing_to_do_opens_no_file_and_makes_no_figure(tmp_path: Path, augment: Augment) -> None:
    simulate(JobOptions(ranks=3, steps=1, layers=1), tmp_path / "in")
    (tmp_path / "in" / "no_trace.json").write_text('{"schema": "1", "nodes": [{}]}')
    assert augment("run", tmp_path / "in", "-o", tmp_path / "o").code == 0
    opened: list[str] = []

    def opening(event: str, args: tuple[object, ...]) -> None:
        if event == "open" and listening:
            opened.append(str(args[0]))

    listening = True
    sys.addaudithook(opening)  # cannot be removed
    again = augment("run", tmp_path / "in", "-o", tmp_path / "o")
    listening = False
    assert again.code == 0
    assert {name for name in opened if name.startswith(str(tmp_path))} == {str(tmp_path / "o" / MANIFEST)}
    verdict = json.loads((tmp_path / "o" / "job.metrics.json").read_bytes())["verdict"]["text"]
    assert all(sentence in again.err for sentence in verdict)
    assert str(tmp_path / "o" / "job.metrics.json") in again.lines

    (tmp_path / "o" / "job.metrics.json").unlink()
    assert augment("run", tmp_path / "in", "-o", tmp_path / "o").code == 0
    assert (tmp_path / "o" / "job.metrics.json").exists(), "it is concluded again where its file is gone"
    stated = augment("run", tmp_path / "in", "-o", tmp_path / "o", "--parallelism", "dp=3")
    assert stated.code == 0
    assert (tmp_path / "o" / MANIFEST).read_text().count("concluded") == 2, "by what is stated of it"
