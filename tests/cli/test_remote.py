"""Inputs and outputs by URL: fsspec's memory, a web server, and a file system of which fsspec is told."""

from __future__ import annotations

import functools
import json
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from running import Augment

from augment.batch import locations
from augment.errors import InputError, OutputError, UsageError
from traces import kernel, write_trace

pytestmark = pytest.mark.slow

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    for name in ("rank0.json.gz", "node1/rank1.json.gz", ".hidden/rank2.json"):
        write_trace(tmp_path / "job" / name, kernel(dur=10 + len(name)))
    (tmp_path / "job" / "notes.txt").write_text("none")
    return tmp_path / "job"


@pytest.fixture
def memory(job: Path) -> Iterator[str]:
    """The job in fsspec's memory."""
    fs = fsspec.filesystem("memory")
    fs.put(str(job), "/bucket/job", recursive=True)
    yield "memory://bucket/job"
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


@pytest.fixture
def spools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files are, which shall not stay."""
    folder = tmp_path / "spools"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def web(job: Path) -> Iterator[str]:
    """The job on a web server."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(job))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def expected(job: Path, out: Path, augment: Augment) -> dict[str, bytes]:
    """What comes of the job locally."""
    assert augment("run", job, "-o", out).code == 0
    return contents(out)


def contents(out: Path) -> dict[str, bytes]:
    paths = (path for path in out.rglob("*") if path.is_file() and path.suffix != ".jsonl")
    return without_name({str(path.relative_to(out)): path.read_bytes() for path in paths})


def in_memory(folder: str) -> dict[str, bytes]:
    fs = fsspec.filesystem("memory")
    rows = {path[len(folder) + 1 :]: fs.cat_file(path) for path in fs.find(folder)}
    return without_name({path: content for path, content in rows.items() if not path.endswith(".jsonl")})


def without_name(files: dict[str, bytes]) -> dict[str, bytes]:
    """The files, a job's without its name, which is that of the folder of its traces."""
    return {
        path: re.sub(rb'("source": \{\n    "name": )"[^"]*"', rb"\1", content)
        if path == "job.metrics.json"
        else content
        for path, content in files.items()
    }


def test_from_memory_to_memory(job: Path, memory: str, spools: Path, tmp_path: Path, augment: Augment) -> None:
    ended = augment("run", memory, "-o", "memory://bucket/out")
    assert ended.code == 0
    assert in_memory("/bucket/out") == expected(job, tmp_path / "out", augment)
    outputs = [name for name in in_memory("/bucket/out") if not name.endswith(".summary")]
    assert sorted(ended.lines) == sorted(f"memory://bucket/out/{name}" for name in outputs)
    assert list(spools.iterdir()) == []
    assert "node1/rank1.json.gz" in ended.err


def test_a_remote_batch_goes_on(memory: str, augment: Augment) -> None:
    def summary() -> str:
        lines = augment("run", memory, "-o", "memory://bucket/out").err.splitlines()
        return next(line for line in lines if " augmented, " in line)

    fs = fsspec.filesystem("memory")
    assert summary().startswith("2 augmented, 0 passed")
    assert summary().startswith("0 augmented, 2 done before")
    fs.pipe_file("/bucket/job/rank0.json.gz", fs.cat_file("/bucket/job/node1/rank1.json.gz"))
    assert summary().startswith("1 augmented, 1 done before")
    fs.rm_file("/bucket/out/node1/rank1.metrics.json")
    assert summary().startswith("1 augmented, 1 done before")
    manifest = fs.cat_file("/bucket/out/augment-manifest.jsonl").splitlines()
    recorded = [json.loads(line) for line in manifest]
    assert [line["input"] for line in recorded if line["status"] != "concluded"] == [
        "node1/rank1.json.gz", "rank0.json.gz", "rank0.json.gz", "node1/rank1.json.gz"
    ]  # fmt: skip


def test_beside_remote_inputs_and_between(memory: str, job: Path, tmp_path: Path, augment: Augment) -> None:
    local = expected(job, tmp_path / "out", augment)
    assert augment("run", f"{memory}/rank0.json.gz").code == 0
    assert in_memory("/bucket/job")["rank0.metrics.json"] == local["rank0.metrics.json"]
    assert augment("run", f"{memory}/*/rank*.gz", "-o", tmp_path / "glob").code == 0
    assert contents(tmp_path / "glob") == {name: text for name, text in local.items() if name.startswith("node1/")}
    assert augment("run", job, "-o", "memory://bucket/up").code == 0
    assert in_memory("/bucket/up") == local


def test_ranks_of_remote_files(memory: str, augment: Augment) -> None:
    ended = augment("run", memory, "-o", "memory://bucket/out", "--ranks", "1")
    assert [Path(line).name for line in ended.lines] == ["rank1.augmented.pftrace", "rank1.metrics.json"]


def test_a_web_server(web: str, job: Path, tmp_path: Path, spools: Path, augment: Augment) -> None:
    local = expected(job, tmp_path / "local", augment)
    assert augment("run", f"{web}/", "-o", tmp_path / "all").code == 0
    assert contents(tmp_path / "all") == local
    assert augment("run", f"{web}/rank0.json.gz?token=a*b", "-o", tmp_path / "one").code == 3  # * is a wildcard
    assert augment("run", f"{web}/rank0.json.gz?token=[a]", "-o", tmp_path / "one").code == 0
    alone = {name: text for name, text in local.items() if name.startswith("rank0") and "summary" not in name}
    assert contents(tmp_path / "one") == alone
    beside = augment("run", f"{web}/rank0.json.gz", "--quiet")
    assert beside.code == 1
    assert "files cannot be written to a web server; choose a folder with -o" in beside.err
    assert "files cannot be written to a web server" in augment("run", job, "-o", f"{web}/out", "--quiet").err
    missing = augment("run", f"{web}/rank7.json.gz", "-o", tmp_path)
    assert (missing.code, len(missing.err.splitlines())) == (3, 1)
    assert f"{web}/rank7.json.gz: no such file" in missing.err
    assert list(spools.iterdir()) == []


def test_several_processes_and_another_file_system(
    job: Path, tmp_path: Path, augment_apart: Augment, augment: Augment
) -> None:
    """``local://`` is a file system to fsspec, as HDFS and SFTP are, and processes share it."""
    local = expected(job, tmp_path / "out", augment)
    ended = augment_apart("run", f"local://{job}", "-o", f"local://{tmp_path}/far", "--jobs", 2)
    assert (ended.code, ended.err.count("Traceback")) == (0, 0)
    assert contents(tmp_path / "far") == local
    assert augment_apart("run", f"local://{job}", "-o", f"local://{tmp_path}/far", "--force").out == ended.out
    assert contents(tmp_path / "far") == local


def test_a_file_url_is_a_path(job: Path, tmp_path: Path, augment: Augment) -> None:
    ended = augment("run", f"file://{job}", "-o", f"file://{tmp_path}/out")
    assert ended.lines[0] == str(tmp_path / "out" / "rank0.augmented.pftrace")


def test_paths_load_no_fsspec(job: Path, augment: Augment, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "fsspec"]:
        monkeypatch.delitem(sys.modules, name)
    assert augment("run", job, "--ranks", "0").code == 0
    assert "fsspec" not in sys.modules


def test_errors_name_the_url(memory: str, spools: Path, augment: Augment) -> None:
    fsspec.filesystem("memory").pipe_file("/bucket/job/bad.json", b'{"a": nope}')
    ended = augment("run", f"{memory}/bad.json", "--quiet")
    assert ended.code == 3
    assert ended.err.startswith(f"augment: {memory}/bad.json: byte ")
    assert str(spools) not in ended.err
    assert augment("run", f"{memory}/none.json").err == f"augment: {memory}/none.json: no such file or folder\n"
    assert augment("run", f"{memory}/*.nothing").code == 3
    assert augment("run", "memory://elsewhere").code == 3
    assert augment("run", "nosuch://bucket/a.json").code == 2


def test_no_room_for_a_copy(memory: str, augment: Augment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _path: type("Usage", (), {"free": 10})())
    ended = augment("run", f"{memory}/rank0.json.gz", "--quiet")
    assert ended.code == 3
    assert "set TMPDIR to a folder on a larger disk" in ended.err


def test_what_a_protocol_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(UsageError, match=r"pip install 'kineto-augment\[gs\]'"):
        locations.filesystem("gs://bucket/a.json")


def test_an_upload_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.local import LocalFileSystem

    def fails(_self: object, _source: str, target: str, **_: object) -> None:
        Path(target).write_bytes(b"half")
        raise ConnectionError("the line went dead")

    (tmp_path / "a.json").write_bytes(b"old")
    (tmp_path / "new").write_bytes(b"new")
    monkeypatch.setattr(LocalFileSystem, "put_file", fails)
    with pytest.raises(OutputError, match="the line went dead"):
        locations.put(tmp_path / "new", f"local://{tmp_path}/a.json")
    assert (tmp_path / "a.json").read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "new"]
    with pytest.raises(InputError, match="no such file"):
        locations.read(f"local://{tmp_path}/none")
