"""``augment run --server``: the same files, words and exit codes as without it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from serving_process import Server, serving

from augment import cli
from augment.writers.adding import add_tracks
from simulator import JobOptions, simulate
from traces import write_trace


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


Command = Callable[..., Ended]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("state")) as one:
        yield one


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
    """What is in ``folder``, without what a job added; taken away."""
    found = {}
    for line in (line for manifest in folder.glob("*.jsonl") for line in manifest.read_bytes().splitlines()):
        for one in json.loads(line)["outputs"]:
            if "seam" in one:
                add_tracks(folder / one["path"], folder / one["path"], one["seam"], ())
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        content = path.read_bytes()
        found[str(path.relative_to(folder))] = _timeless(content) if path.suffix == ".jsonl" else content
        path.unlink()
    return found


def _timeless(manifest: bytes) -> bytes:
    """Its lines without what differs: when, in which order, and what of the job is drawn."""
    lines = sorted((json.loads(line) for line in manifest.splitlines()), key=lambda line: str(line["input"]))
    lines = [line for line in lines if not line["drawn"]]
    for line in lines:
        del line["finished_ns"]
        for one in line["outputs"]:
            one.pop("seam", None)
            one.pop("undrawn_sha256", None)
    return json.dumps(lines).encode()


def test_one_file(both: Command, tmp_path: Path) -> None:
    ((trace, _),) = simulate(JobOptions(ranks=1, steps=1, layers=1), tmp_path / "job")
    ended = both(trace, "--to", "chrome,perfetto")
    assert ended.code == 0
    assert len(ended.out.splitlines()) == 3
    assert "span" in ended.err


def test_ranks_of_a_job(both: Command, tmp_path: Path) -> None:
    """The job's own figures, too: of summaries that the server makes, and that serve when the batch goes on."""
    simulate(JobOptions(ranks=2, steps=2, layers=1), tmp_path / "job")
    ended = both(tmp_path / "job", "--jobs", 2)
    assert "ranks 0-1 of 2" in ended.err
    assert ended.out.splitlines()[-1] == str(tmp_path / "out" / "job.metrics.json")
    assert both(tmp_path / "job", "--steps", "1", "--only", "collectives", "--to", "perfetto").code == 0


def test_ranks_of_which_some_are_done_here(run: Command, server: Server, tmp_path: Path) -> None:
    simulate(JobOptions(ranks=3, steps=1, layers=1), tmp_path / "job")
    args = (tmp_path / "job", "-o", tmp_path / "out")
    run(*args)
    kept = files(tmp_path / "out")
    run(*args, "--ranks", "0-1")
    ended = run(*args, "--server", server.address)
    assert ended.out.splitlines()[-1].endswith("job.metrics.json")
    assert files(tmp_path / "out") == kept


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


@pytest.mark.parametrize("flag", ["--tls", "--token-file=x", "--tls-ca=x"])
def test_what_means_nothing_without_a_server(run: Command, tmp_path: Path, flag: str) -> None:
    ended = run(write_trace(tmp_path / "a.json"), flag)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "means nothing without --server" in ended.err


def test_no_server_there(run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("augment.client.client._FIRST_PATIENCE_S", 0.2)
    path = write_trace(tmp_path / "a.json")
    ended = run(path, "--server", "127.0.0.1:1")
    assert ended.code == 1
    assert ended.err.startswith(f"augment: {path}: 127.0.0.1:1: the server cannot be reached")
    assert ended.err.count("\n") == 1


def test_without_grpc(run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [one for one in sys.modules if one.startswith("augment.client")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "grpc", None)
    ended = run(write_trace(tmp_path / "a.json"), "--server", "127.0.0.1:1")
    assert ended.code == 2
    assert "pip install 'kineto-augment[client]'" in ended.err
