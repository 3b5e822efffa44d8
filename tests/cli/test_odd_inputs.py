"""Inputs that are odd as files: pipes, names that are no UTF-8, texts that end early, traces of another format."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from odd_work import only_the_deadly_fail
from running import Augment, contents, environment, metrics, start

from augment.batch.workers import Processes
from simulator import JobOptions, simulate
from traces import kernel, launch, write_trace

pytestmark = pytest.mark.slow


@pytest.fixture
def alarm() -> Iterator[None]:
    """What hangs fails."""

    def hangs(*_: object) -> None:
        raise AssertionError("hangs")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm")
def test_a_pipe_in_a_folder_is_passed_over(tmp_path: Path, augment: Augment) -> None:
    write_trace(tmp_path / "rank0.json.gz")
    os.mkfifo(tmp_path / "pipe.json")
    os.mkfifo(tmp_path / "pipe.pftrace")
    ended = augment("run", tmp_path, "-o", tmp_path / "out")
    assert ended.code == 0
    assert "2 × is not a regular file" in ended.err
    assert "pipe.json" in ended.err
    assert "1 augmented, 2 passed over, 0 failed" in ended.err
    assert (tmp_path / "out" / "rank0.metrics.json").exists()


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("command", ["run", "doctor", "show", "open", "query", "diff", "merge"])
@pytest.mark.parametrize("name", ["pipe.json", "pipe.pftrace"])
def test_a_pipe_is_refused(tmp_path: Path, augment: Augment, command: str, name: str) -> None:
    os.mkfifo(pipe := tmp_path / name)
    more = {"diff": [pipe], "merge": [pipe, "-o", tmp_path / "all.pftrace"], "query": ["select 1"]}.get(command, [])
    ended = augment(command, pipe, *more)
    assert ended.code in (1, 3)
    assert "is not a regular file" in ended.err


def test_a_name_that_is_no_utf_8(tmp_path: Path, augment_apart: Augment) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    write_trace(folder / "rank0.json.gz")
    name = os.fsdecode(b"bad\xff\xferank1.json.gz")
    try:
        os.rename(write_trace(folder / "rank1.json.gz"), folder / name)
    except OSError as error:
        pytest.skip(f"this file system takes no such name: {error}")
    ended = augment_apart("run", folder, "-o", out, "--to", "chrome,perfetto,bundle", "--merge", "--json")
    assert ended.code == 0, ended.err
    inputs = {json.loads(line).get("input") for line in ended.out.splitlines()}
    assert str(folder / name) in inputs, "it can be read back"
    stem = os.fsdecode(b"bad\xff\xferank1")
    assert metrics(out / f"{stem}.metrics.json")["source"]["name"] == "bad\\xff\\xferank1.json.gz"
    content = [json.loads(line) for line in (out / "augment-manifest.jsonl").read_text().splitlines()]
    assert name in {each["input"] for each in content}
    assert "2 done before" in augment_apart("run", folder, "-o", out, "--to", "chrome,perfetto,bundle", "--merge").err
    for args in (["doctor", "--json"], ["doctor"], ["show"], ["diff", folder / "rank0.json.gz"]):
        ended = augment_apart(*args, folder / name)
        assert (ended.code, "internal error" in ended.err) == (0, False), ended.err
    assert augment_apart("diff", folder / "rank0.json.gz", folder / name, "-o", out, "--overlay").code == 0


def test_a_rank_that_is_cut_off(tmp_path: Path, augment: Augment) -> None:
    simulate(JobOptions(ranks=4), tmp_path / "job")
    path = tmp_path / "job" / "rank2.pt.trace.json.gz"
    text = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(text[: len(text) * 6 // 10]))
    for line in ("4 augmented, 4 passed over, 0 failed; 1 read in part", "4 done before"):
        ended = augment("run", tmp_path / "job", "-o", tmp_path / "out")
        assert line in ended.err, ended.err
        assert f"  {path}: the text ends inside the event" in ended.err, "also of what was done before"
    output = metrics(tmp_path / "out" / "job.metrics.json")["diagnostics"]
    (cut,) = (each for each in output if each["code"] == "truncated_rank")
    assert cut["count"] == 1
    assert path.name in cut["message"]
    manifest = [json.loads(line) for line in (tmp_path / "out" / "augment-manifest.jsonl").read_text().splitlines()]
    assert {each["rank"] for each in manifest if each["partial"]} == {2}


def test_the_format_follows_the_input(tmp_path: Path, augment: Augment) -> None:
    source = write_trace(tmp_path / "a.json")
    assert augment("run", source).lines[0].endswith("a.augmented.pftrace")
    os.rename(augment("run", source, "--to", "perfetto").lines[0], tmp_path / "b.pftrace")
    assert augment("run", tmp_path / "b.pftrace").lines[0].endswith("b.augmented.pftrace")
    assert augment("run", tmp_path / "b.pftrace", "--to", "chrome").code == 1


def test_a_link_to_a_folder_is_followed(tmp_path: Path, augment: Augment) -> None:
    """Each folder is read once, whatever leads to it: links may lead back."""
    (tmp_path / "in" / "node0").mkdir(parents=True)
    (tmp_path / "disk" / "node1").mkdir(parents=True)
    write_trace(tmp_path / "in" / "node0" / "rank0.json")
    write_trace(tmp_path / "disk" / "node1" / "rank1.json")
    (tmp_path / "in" / "node1").symlink_to(tmp_path / "disk" / "node1")
    (tmp_path / "disk" / "node1" / "back").symlink_to(tmp_path / "in")
    done = augment("run", tmp_path / "in", "-o", tmp_path / "out", "--quiet")
    assert done.code == 0, done.err
    written = sorted(
        path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.metrics.json")
    )
    assert written == ["job.metrics.json", "node0/rank0.metrics.json", "node1/rank1.metrics.json"]


def test_a_name_is_taken_by_a_trace_alone(tmp_path: Path, augment: Augment) -> None:
    """A config beside a trace of its name does not keep it from being converted."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rank0.json").write_text('{"lr": 0.1}')
    write_trace(tmp_path / "in" / "rank0.json.gz")
    done = augment("run", tmp_path / "in", "-o", tmp_path / "out")
    assert done.code == 0, done.err
    assert (tmp_path / "out" / "rank0.metrics.json").exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read every folder")
def test_a_folder_that_may_not_be_read_is_named(tmp_path: Path, augment: Augment) -> None:
    for node in ("node0", "node1"):
        (tmp_path / "in" / node).mkdir(parents=True)
        write_trace(tmp_path / "in" / node / "rank0.json")
    (tmp_path / "in" / "node1").chmod(0)
    try:
        done = augment("run", tmp_path / "in", "-o", tmp_path / "out")
    finally:
        (tmp_path / "in" / "node1").chmod(0o700)
    assert (done.code, "node1: this folder is not read" in done.err) == (1, True), done.err


def test_the_search_names_what_it_cannot_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for root, whom the system lets read everything."""
    from augment.batch import inputs

    write_trace(tmp_path / "rank0.json")

    def walk(top: str, *, followlinks: bool, onerror: Any) -> Iterator[tuple[str, list[str], list[str]]]:
        yield top, ["node1"], ["rank0.json"]
        onerror(PermissionError(13, "Permission denied", f"{top}/node1"))

    monkeypatch.setattr(os, "walk", walk)
    plan = inputs.choose_inputs([str(tmp_path)], None)
    assert [item.basename for item in plan.inputs] == ["rank0.json"]
    ((path, error),) = plan.refused
    assert path == f"{tmp_path}/node1"
    assert str(error) == f"{tmp_path}/node1: this folder is not read: permission denied"


def test_files_of_the_same_rank_are_named(tmp_path: Path, augment: Augment) -> None:
    """The file of a rank was copied over that of another, or beside it: the summary says so."""
    paths = [path for path, _ in simulate(JobOptions(ranks=3, steps=2, layers=1), tmp_path / "in")]
    paths[2].write_bytes(paths[1].read_bytes())
    (copy := paths[1].with_name("copy.json.gz")).write_bytes(paths[1].read_bytes())
    done = augment("run", tmp_path / "in", "-o", tmp_path / "out")
    heading = "compared with no other rank, as their names differ in more than the rank or window:"
    assert f"{heading}\n  {copy} (rank 1 of 3)" in done.err
    names = ", ".join(path.name for path in paths[1:])
    assert f"2 files state the same rank 1: {names}; each counts as a rank" in done.err


# Several processes, and processes that end before their time.


def test_processes_change_nothing(tmp_path: Path, augment: Augment, augment_apart: Augment) -> None:
    for rank in range(4):
        write_trace(tmp_path / "in" / f"rank{rank}.json.gz", launch(), kernel(dur=10 + rank))
    (tmp_path / "in" / "rank4.json").write_bytes(b'{"a": nope}')
    ended = augment("run", tmp_path / "in", "-o", tmp_path / "out")
    by_one = contents(tmp_path / "out")
    for path in (tmp_path / "out").iterdir():
        path.unlink()
    two = augment_apart("run", tmp_path / "in", "-o", tmp_path / "out", "--jobs", 2)
    assert contents(tmp_path / "out") == by_one
    assert (two.code, two.out, two.err) == (ended.code, ended.out, ended.err)
    assert ended.code == 1


def test_a_process_that_dies_fails_its_own_input_alone(tmp_path: Path) -> None:
    _, failed, *_ = only_the_deadly_fail(Processes(2), tmp_path)
    assert failed.message.startswith("deadly1: its worker process died")
    assert failed.exit_code == 1


@pytest.mark.parametrize(
    ("jobs", "number", "code"), [(1, signal.SIGINT, 130), (2, signal.SIGINT, 130), (1, signal.SIGTERM, 143)]
)
def test_an_interrupt_ends_it_and_leaves_no_half(tmp_path: Path, jobs: int, number: signal.Signals, code: int) -> None:
    folder = tmp_path / "in"
    traces = [write_trace(folder / name) for name in ("a.json", "held.json")]
    script, held = Path(__file__).with_name("held_command.py"), tmp_path / "held"
    command = [sys.executable, script, held, "run", *traces, "--jobs", jobs]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        list(map(str, command)), stdout=pipe, stderr=pipe, encoding="utf-8", env=environment()
    ) as process:
        assert process.stdout.readline().endswith("a.augmented.pftrace\n")
        assert process.stdout.readline().endswith("a.metrics.json\n")
        while not held.exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        _, err = process.communicate()
    assert process.returncode == code
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("augment: interrupted" if code == 130 else "augment: terminated")
    assert sorted(path.name for path in folder.iterdir()) == [
        "a.augmented.pftrace", "a.json", "a.metrics.json", "a.ranks.summary", "held.json"
    ]  # fmt: skip


def test_a_reader_that_left_is_no_error(tmp_path: Path) -> None:
    for rank in range(2):
        write_trace(tmp_path / f"rank{rank}.json")
    process = start("run", tmp_path, "--quiet")
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 0
    assert len(list(tmp_path.glob("rank*.metrics.json"))) == 2


@pytest.mark.parametrize("word", ["a", "cuda", "aBackward(1): "])
def test_names_of_300_kB_cost_little(alarm: None, augment: Augment, tmp_path: Path, word: str) -> None:
    """A pattern that takes a time quadratic in a name's length would take minutes."""

    def long(beginning: str) -> str:
        return beginning + word * (300_000 // len(word))

    names = {
        "user_annotation": "FSDP::",
        "python_function": "a.py(1): f",
        "cpu_op": "aten::",
        "cuda_runtime": "cudaLaunchKernel",
        "kernel": "void multi_tensor_apply_kernel<",
    }
    args = {"correlation": 1, "External id": 1, "device": 0, "stream": 7}
    args |= {"Input type": [long("")], long("arg"): long("")}
    events = [
        {"ph": "X", "cat": kind, "name": long(name), "pid": 1, "tid": 7 * (kind == "kernel"), "args": args}
        | {"ts": 100 * step + place, "dur": 90 - 2 * place}
        for step in range(3)
        for place, (kind, name) in enumerate(names.items())
    ]
    events += [
        {"ph": "M", "name": f"{of}_name", "pid": 1, "tid": 0, "args": {"name": long("")}}
        for of in ("process", "thread")
    ]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"deviceProperties": [{"id": 0, "name": long("NVIDIA ")}], "traceEvents": events}))
    began = time.process_time()
    assert augment("run", str(path), "-o", str(tmp_path / "out")).code == 0
    assert time.process_time() - began < 20


def test_what_is_no_trace_or_a_part_of_one_is_told_as_such(tmp_path: Path, augment: Augment) -> None:
    """The files of a folder that holds no trace say what they are; a part of a recording names no place in itself."""
    (tmp_path / "serving").mkdir()
    (tmp_path / "serving" / "forwards.jsonl.gz").write_bytes(gzip.compress(b'{"fwd_id": 0, "req_ids": []}\n'))
    ended = augment("diagnose", tmp_path / "serving")
    assert ended.code == 3
    assert "records of an engine's own hooks, which are not read; see --spans" in ended.err
    ((path, _),) = simulate(JobOptions(ranks=1, steps=4, layers=1), tmp_path)
    assert augment("cut", path, "--steps", "1-2", "-o", tmp_path / "part.json.gz").code == 0
    assert "      partial_recording, confidence high\n" in augment("diagnose", tmp_path / "part.json.gz").out
