"""Bytes and paths that mean harm: each gets one clear answer, and the server lives on."""

from __future__ import annotations

import gzip
import io
import os
import random
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from in_process import Server, assert_presentable, refused, serving, trace

from augment.v1 import resources_pb2 as v1

MIB = 1 << 20
EVENT = b'{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 5}'


def zipped(*contents: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, data in enumerate(contents):
            archive.writestr(f"{number}.json", data)
    return buffer.getvalue()


def spaces(count: int) -> bytes:
    """A text of so many bytes, gzipped in no time: members may follow one another."""
    return gzip.compress(b'{"traceEvents": [') + gzip.compress(bytes(MIB).replace(b"\0", b" ")) * (count // MIB)


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


CASES: dict[str, tuple[Callable[[], bytes], str]] = {  #: made when they are needed
    "random": (lambda: random.Random(0).randbytes(10 * MIB), "UNKNOWN_FORMAT"),
    "empty": (lambda: b"", "UNKNOWN_FORMAT"),
    "text": (lambda: b"hello\n" * 100, "UNKNOWN_FORMAT"),
    "other JSON": (lambda: b'{"a": 1}', "UNKNOWN_FORMAT"),
    "bomb of gzip": (lambda: spaces(200 * MIB), "LIMIT_EXCEEDED"),
    "bomb in a bomb": (lambda: gzip.compress(spaces(200 * MIB)), "LIMIT_EXCEEDED"),
    "bomb of zip": (lambda: zipped(b'{"traceEvents": [' + b" " * 200 * MIB), "LIMIT_EXCEEDED"),
    "zip of several": (lambda: zipped(EVENT, EVENT), "UNKNOWN_FORMAT"),
    "layers": (
        lambda: gzip.compress(gzip.compress(gzip.compress(gzip.compress(gzip.compress(EVENT))))),
        "UNKNOWN_FORMAT",
    ),
    "nested around": (lambda: b'{"x": ' + nested(MIB) + b', "traceEvents": []}', "MALFORMED_TRACE"),
    "nested and open": (lambda: b'{"x": ' + b"[" * MIB, "MALFORMED_TRACE"),
    "array of arrays": (lambda: nested(MIB), "UNKNOWN_FORMAT"),
    "too many events": (lambda: b'{"traceEvents": [' + b",".join([EVENT] * 60_001) + b"]}", "LIMIT_EXCEEDED"),
    "a name too long": (
        lambda: b'{"traceEvents": [' + EVENT.replace(b'"k"', b'"%s"' % (b"k" * 5001)) + b"]}",
        "LIMIT_EXCEEDED",
    ),
    "gzip cut at once": (lambda: gzip.compress(EVENT)[:12], "MALFORMED_TRACE"),
}


SERVER_LIMITS = {"max_text_bytes": 100 * MIB, "max_events": 60_000, "max_name_bytes": 5000, "max_client_jobs": 1000}


def job_of(server: Server, path: Path, data: bytes) -> v1.Job:
    path.write_bytes(data)
    return server.wait(server.create(server.upload(path), formats=["chrome", "perfetto"]).name)


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_with_its_reason(server: Server, tmp_path: Path, case: str) -> None:
    make, reason = CASES[case]
    data = make()
    job = job_of(server, tmp_path / "hostile.bin", data)
    assert (job.state, job.error.reason) == (v1.Job.STATE_FAILED, reason), job.error
    assert job.attempt_count == 1  # no worker died of it
    assert job.error.message == f"hostile.bin: {job.error.metadata['because']}"
    assert_presentable(job.error.message)


def test_it_costs_only_what_is_broken(server: Server, tmp_path: Path) -> None:
    deep = EVENT[:-1] + b', "args": {"x": ' + nested(100_000) + b"}}"
    events = b'{"traceEvents": [' + b",\n".join([EVENT, deep, EVENT]) + b"]}"
    whole = gzip.compress(b'{"traceEvents": [' + b",\n".join([EVENT] * 20_000) + b"]}")
    for data in (events, whole[:-2000], nested(5).join([b'{"traceEvents": [', b"]}"])):
        assert job_of(server, tmp_path / "odd.json", data).state == v1.Job.STATE_SUCCEEDED


def test_the_server_lives_on(server: Server, tmp_path: Path) -> None:
    for case in ("random", "bomb of gzip", "nested around"):
        job_of(server, tmp_path / "hostile.bin", CASES[case][0]())
    path = trace(tmp_path / "fine.json")
    assert server.wait(server.create(server.upload(path)).name).state == v1.Job.STATE_SUCCEEDED
    assert not server.observer.logged


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """A server that may read one folder, and that folder."""
    top = tmp_path_factory.mktemp("top")
    folder = top / "allowed"
    (folder / "below").mkdir(parents=True)
    (top / "allowed_not").mkdir()
    for path in (folder / "a.json", folder / "below" / "b.json", top / "secret.json", top / "allowed_not" / "c.json"):
        trace(path)
    (folder / "out.json").symlink_to(top / "secret.json")
    (folder / "up").symlink_to(top)
    (folder / "in.json").symlink_to(folder / "below" / "b.json")
    (folder / "dangling.json").symlink_to(top / "nothing")
    os.mkfifo(folder / "pipe.json")
    with serving(top / "state", roots=(folder,)) as running:
        yield running, folder


@pytest.mark.parametrize("name", ["a.json", "below/b.json", "below/../a.json", "in.json", "./a.json"])
def test_a_file_inside(inside: tuple[Server, Path], name: str) -> None:
    server, folder = inside
    job = server.wait(server.create(uri=f"{folder}/{name}").name)
    assert job.state == v1.Job.STATE_SUCCEEDED, job.error
    assert {artifact.file_name.partition(".")[0] for artifact in job.artifacts} == {Path(name).stem}


@pytest.mark.parametrize(
    "name",
    ["../secret.json", "below/../../secret.json", "out.json", "up/secret.json", "up/allowed_not/c.json", "nothing.json",
     "dangling.json", "below", "../allowed_not/c.json", "pipe.json", "up/state/state.db", "below/b.json/x",
     "../../../../etc/hostname"],
)  # fmt: skip
def test_a_file_outside(inside: tuple[Server, Path], name: str) -> None:
    server, folder = inside
    with refused("URI_NOT_ALLOWED", "PERMISSION_DENIED"):
        server.create(uri=f"{folder}/{name}")


@pytest.mark.parametrize(
    "uri", ["/etc/passwd", "/proc/self/environ", "/dev/zero", "file:///etc/passwd", "/", "s3://a/b.json"]
)
def test_a_file_elsewhere(inside: tuple[Server, Path], uri: str) -> None:
    with (
        refused("URI_NOT_ALLOWED", "PERMISSION_DENIED")
        if uri != "/"
        else refused("INVALID_REQUEST", "INVALID_ARGUMENT")
    ):
        inside[0].create(uri=uri)


@pytest.mark.parametrize("uri", ["a.json", "file://host/a.json", "/a\0b", "file://[", ""])
def test_what_is_no_path(inside: tuple[Server, Path], uri: str) -> None:
    with refused("INVALID_REQUEST", "INVALID_ARGUMENT"):
        inside[0].create(uri=uri)


def test_without_roots_there_is_no_file(server: Server, tmp_path: Path) -> None:
    with refused("URI_NOT_ALLOWED", "PERMISSION_DENIED"):
        server.create(uri=str(trace(tmp_path / "a.json")))


def inside_and_outside(folder: Path) -> Path:
    """A folder that may be read, with a trace in ``sub``; and beside it another that has one."""
    for place in ("allowed/sub", "outside"):
        (folder / place).mkdir(parents=True)
        trace(folder / place / "a.json")
    return folder / "allowed"


def lead_outside(allowed: Path) -> None:
    (allowed / "sub").rename(allowed.parent / "moved")
    (allowed / "sub").symlink_to(allowed.parent / "outside")


def test_a_link_that_comes_later(tmp_path: Path) -> None:
    """The path was fine when the job was accepted; when it runs, a link leads outside."""
    allowed = inside_and_outside(tmp_path)
    with serving(tmp_path / "state", roots=(allowed,)) as server:
        server.core._scheduler._stopping = True  # nothing begins yet
        job = server.create(uri=f"{allowed}/sub/a.json").name
        lead_outside(allowed)
        server.core._scheduler._stopping = False
        server.loop.call_soon_threadsafe(server.core._scheduler._wake.set)
        done = server.wait(job)
        assert (done.state, done.error.reason) == (v1.Job.STATE_FAILED, "URI_NOT_ALLOWED")


def test_a_link_that_comes_between_look_and_open(tmp_path: Path) -> None:
    from augment_server.base.errors import Refusal
    from augment_server.storage.roots import open_below, resolve

    allowed = inside_and_outside(tmp_path)
    looked = resolve(f"{allowed}/sub/a.json", [os.path.realpath(allowed)])
    os.close(open_below(*looked))
    lead_outside(allowed)
    with pytest.raises(Refusal, match="no file that this server may read"):
        open_below(*looked)


def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    trace(tmp_path / "real" / "a.json")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with serving(tmp_path / "state", roots=(tmp_path / "link",)) as server:
        job = server.wait(server.create(uri=f"{tmp_path}/link/a.json").name)
        assert job.state == v1.Job.STATE_SUCCEEDED
