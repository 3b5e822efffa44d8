"""``augment run --server``: the same files, words and exit codes as without it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from serving_process import Server, serving

from augment import cli
from augment.client import Client
from simulator import JobOptions, simulate
from traces import write_trace


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


Command = Callable[..., Ended]
OUTPUTS = ("augmented.pftrace", "metrics.json", "ranks.summary")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("state")) as server:
        yield server


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """``augment run ARGS…`` in this process."""

    def command(*args: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["augment", "run", *map(str, args)])
        capsys.readouterr()
        return Ended(cli.main(), *capsys.readouterr())

    return command


@pytest.fixture
def both(run: Command, server: Server, tmp_path: Path) -> Command:
    """The command with a server; it must say, return and write what it does without one."""

    def command(*args: object) -> Ended:
        here = run(*args, "-o", tmp_path / "out")
        kept = files(tmp_path / "out")
        there = run(*args, "-o", tmp_path / "out", "--server", server.address)
        assert there == here
        assert files(tmp_path / "out") == kept
        return there

    return command


def files(folder: Path) -> dict[str, bytes]:
    """What is in ``folder``; taken away."""
    result = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        content = path.read_bytes()
        result[str(path.relative_to(folder))] = _timeless(content) if path.suffix == ".jsonl" else content
        path.unlink()
    return result


def _timeless(manifest: bytes) -> bytes:
    """The line of each input that counts, the last, without when it was written."""
    last = {line["input"]: line for line in map(json.loads, manifest.splitlines())}
    for line in last.values():
        del line["finished_ns"]
    return json.dumps(sorted(last.items())).encode()


def test_one_file(both: Command, tmp_path: Path) -> None:
    ((trace, _),) = simulate(JobOptions(ranks=1, steps=1, layers=1), tmp_path / "job")
    ended = both(trace, "--to", "chrome,perfetto")
    assert ended.code == 0
    assert len(ended.out.splitlines()) == 3
    assert "The GPU is busy" in ended.err


def drawn(folder: Path) -> set[str]:
    """The names of the outputs that show something of their job, as the manifest has it."""
    lines = [json.loads(line) for line in (folder / "augment-manifest.jsonl").read_bytes().splitlines()]
    last = {line["input"]: line for line in lines}.values()
    return {
        output["path"]
        for line in last
        for output in line["outputs"]
        if line["drawn"] and output["sha256"] != output.get("undrawn_sha256", output["sha256"])
    }


def without_manifest(result: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in result.items() if not name.endswith(".jsonl")}


def test_ranks_of_a_job(both: Command, server: Server, run: Command, tmp_path: Path) -> None:
    """The job's own figures and tracks, too: of summaries and seams that the server tells of."""
    simulate(JobOptions(ranks=2, steps=2, layers=1), tmp_path / "job")
    ended = both(tmp_path / "job", "--jobs", 2, "--to", "chrome,perfetto,bundle", "--trust-clocks")
    assert "ranks 0-1 of 2" in ended.err
    assert ended.out.splitlines()[-1] == str(tmp_path / "out" / "job.metrics.json")
    assert both(tmp_path / "job", "--steps", "1", "--only", "collectives", "--to", "perfetto").code == 0
    assert run(tmp_path / "job", "-o", tmp_path / "out", "--server", server.address).code == 0
    outputs = ("augmented.pftrace", "metrics.json")
    assert drawn(tmp_path / "out") == {f"rank{rank}.{output}" for rank in (0, 1) for output in outputs}


def test_a_folder_is_one_job_of_the_server(
    both: Command, server: Server, run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks are compared and merged there; what is fetched is as if it had been made here, and is gone on with."""
    folder = tmp_path / "iteration_5"
    simulate(JobOptions(ranks=2, steps=2, layers=1), folder)
    args = (folder, "--merge", "--parallelism", "dp=2")
    both(*args)
    here = ("augment.job.answer.answer_of", "augment.batch.merged_timeline.merge", "augment.client.Client.augment")
    with monkeypatch.context() as patched:
        for name in here:
            patched.setattr(name, None)
        ended = run(*args, "-o", tmp_path / "out", "--server", server.address, "--json")
    assert ended.code == 0, ended.err
    job_files = ["job.metrics.json", "job.augmented.pftrace"]
    content = [json.loads(line) for line in ended.out.splitlines()]
    assert [each["outputs"] for each in content if each["status"] == "concluded"] == [
        [str(tmp_path / "out" / name)] for name in job_files
    ]
    again = run(*args, "-o", tmp_path / "out", "--server", server.address)
    assert "2 done before" in again.err
    with Client(server.address) as client:
        from augment.v1 import service_pb2 as calls

        assert not [job for job in client._stub.ListJobs(calls.ListJobsRequest()).jobs if job.spec.HasField("job")]


def test_ranks_of_which_some_are_done_here(run: Command, server: Server, tmp_path: Path) -> None:
    """Those done here before, and those done there before, are drawn in again."""
    simulate(JobOptions(ranks=3, steps=1, layers=1), tmp_path / "job")
    args = (tmp_path / "job", "-o", tmp_path / "out", "--to", "chrome,perfetto,bundle")
    there = ("--server", server.address)
    run(*args)
    assert len(drawn(tmp_path / "out")) == 3 * 4
    kept = without_manifest(files(tmp_path / "out"))
    for first, then in (((), there), (there, ()), (there, there)):
        run(*args, *first, "--ranks", "0-1")
        ended = run(*args, *then)
        assert ended.out.splitlines()[-1].endswith("job.metrics.json")
        assert "2 done before" in ended.err
        again = run(*args, *then)
        assert "3 done before" in again.err
        assert without_manifest(files(tmp_path / "out")) == kept


@pytest.mark.parametrize(
    "content", [None, b"no list", b'[{"writer": "other"}, {"writer": "chrome", "of": "a later form"}]']
)
def test_a_server_of_another_version(
    run: Command, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    """It does no whole jobs, and tells of no seams, or of ones that are not ours: all is well, but nothing is drawn."""
    monkeypatch.setattr(Client, "most_job_inputs", lambda _: 0)
    if content is None:
        follow = Client._follow

        def older(*args: Any) -> Any:
            job = follow(*args)
            del job.artifacts[next(n for n, each in enumerate(job.artifacts) if "seams" in each.file_name)]
            return job

        monkeypatch.setattr(Client, "_follow", older)
    else:
        monkeypatch.setattr("augment.client.transfers.Download.content", lambda *_: content)
    simulate(JobOptions(ranks=2, steps=1, layers=1), tmp_path / "job")
    args = (tmp_path / "job", "-o", tmp_path / "out")
    ended = run(*args, "--server", server.address)
    assert (ended.code, drawn(tmp_path / "out")) == (0, set())
    (line,) = [line for line in ended.err.splitlines() if "not drawn" in line]
    assert "of 2 of them" in line
    assert "--force" in line
    monkeypatch.undo()
    result = without_manifest(files(tmp_path / "out"))
    assert sorted(result) == ["job.metrics.json", *(f"rank{n}.{output}" for n in (0, 1) for output in OUTPUTS)]


def test_a_folder_with_all_sorts_of_things(both: Command, tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    write_trace(folder / "a" / "rank0.json.gz")
    write_trace(folder / "b" / "rank1.json")
    (folder / "notes.json").write_text('{"not": "a trace"}')
    (folder / "broken.json").write_text('{"traceEvents": [{"ph": "X", "ts": 1}, nonsense')
    ended = both(folder)
    assert ended.code == 1
    assert "2 augmented, 1 passed over, 1 failed" in ended.err
    again = both(folder, "--jobs", 3, "--json")
    assert again.code == 1
    assert again.out.count('"augmented"') == 2


@pytest.mark.parametrize("args", [["--only", "nothing"], ["--to", "nothing"], ["--option", "a.b=1"], ["--option", "a"]])
def test_usage_errors(both: Command, tmp_path: Path, args: list[str]) -> None:
    assert both(write_trace(tmp_path / "a.json"), *args).code == 2


@pytest.mark.parametrize("content", [b"", b"no trace", b"[{", b"\x1f\x8b\x08garbage", b'{"traceEvents": ['])
def test_bad_inputs(both: Command, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    both(path)


def test_an_input_that_is_not_there(both: Command, tmp_path: Path) -> None:
    assert both(tmp_path / "gone.json").code == 3


def test_an_input_that_cannot_be_opened(both: Command, tmp_path: Path) -> None:
    (tmp_path / "a.json").symlink_to("a.json")
    assert both(tmp_path / "a.json").code == 3


def test_a_place_that_cannot_be_written_to(run: Command, server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    args = (write_trace(tmp_path / "a.json"), "-o", tmp_path / "file" / "out")
    assert run(*args, "--server", server.address) == run(*args)


def test_options_and_choices_go_there(both: Command, tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "a.json")
    option = "idle_time_breakdown.consecutive_kernel_delay_ns=1"
    assert both(trace, "--only", "idle_time_breakdown,queue_length", "--option", option).code == 0


@pytest.mark.parametrize("flag", ["--tls", "--token-file=x", "--tls-ca=x", "--patience=5"])
def test_what_means_nothing_without_a_server(run: Command, tmp_path: Path, flag: str) -> None:
    ended = run(write_trace(tmp_path / "a.json"), flag)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "needs --server" in ended.err


def test_no_server_there(run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("augment.client.session._FIRST_PATIENCE_S", 0.2)
    path = write_trace(tmp_path / "a.json")
    ended = run(path, "--server", "127.0.0.1:1")
    assert ended.code == 1
    assert ended.err.startswith(f"augment: {path}: 127.0.0.1:1: the server cannot be reached")
    assert ended.err.count("\n") == 1


def test_without_grpc(run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [module for module in sys.modules if module.startswith("augment.client")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "grpc", None)
    ended = run(write_trace(tmp_path / "a.json"), "--server", "127.0.0.1:1")
    assert ended.code == 2
    assert "pip install 'kineto-augment[client]'" in ended.err
