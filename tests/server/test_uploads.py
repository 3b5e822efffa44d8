"""Uploads: cut, resumed, announced, refused."""

from __future__ import annotations

import errno
import hashlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from in_process import PATIENCE_S, SMALL, Server, chunks, eventually, refused, serving, trace
from object_store import STORES, store_of

from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment_server.base.people import Caller
from augment_server.storage import uploads
from augment_server.storage.storage import Storage

Part = calls.UploadTraceRequest


@pytest.fixture(scope="module", params=STORES)
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Server]:
    state, store = tmp_path_factory.mktemp("state"), store_of(request.param)
    with serving(state, max_upload_bytes=1 << 20, max_open_uploads=40, store=store) as running:
        yield running


def start(server: Server, data: bytes, *, size: bool = True, sha256: bool = False, client: str = "") -> v1.Upload:
    known = {"size_bytes": len(data) if size else None, "sha256": hashlib.sha256(data).hexdigest() if sha256 else ""}
    request = calls.StartUploadRequest(file_name="a.json", **known)
    return server.stub.StartUpload(request, metadata=[("client", client)] if client else None).upload


def get(server: Server, upload: v1.Upload) -> v1.Upload:
    return server.stub.GetUpload(calls.GetUploadRequest(name=upload.name)).upload


def resume(upload: v1.Upload, offset: int) -> Part:
    return Part(resume=calls.ResumeUpload(name=upload.name, offset=offset))


def send(server: Server, *parts: Part) -> v1.Upload:
    return server.stub.UploadTrace(iter(parts)).upload


def halting(upload: v1.Upload, data: bytes, go_on: threading.Event) -> Iterator[Part]:
    """Parts of an upload, of which those after 1000 bytes come once they may."""
    yield resume(upload, 0)
    yield Part(chunk=data[:1000])
    go_on.wait(PATIENCE_S)
    yield Part(chunk=data[1000:])


def half(server: Server, *parts: Part) -> int:
    """Send parts that do not complete an upload: how many bytes are there then."""
    with refused("UPLOAD_INCOMPLETE", "FAILED_PRECONDITION") as output:
        send(server, *parts)
    return int(output[0].metadata["received_bytes"])


def cut(server: Server, upload: v1.Upload, data: bytes) -> None:
    """Send ``data`` in a call that never ends well."""
    go_on = threading.Event()

    def parts() -> Iterator[Part]:
        yield resume(upload, 0)
        yield Part(chunk=data)
        go_on.wait(PATIENCE_S)

    call = server.stub.UploadTrace.future(parts())
    eventually(lambda: get(server, upload).received_bytes == len(data))
    call.cancel()
    go_on.set()


def test_resume_after_a_cut(server: Server) -> None:
    data = os.urandom(300_000)
    upload = start(server, data, sha256=True)
    cut(server, upload, data[:100_000])
    there = get(server, upload)
    assert (there.state, there.received_bytes) == (v1.Upload.STATE_ACTIVE, 100_000)
    again = start(server, data, sha256=True)
    assert (again.name, again.received_bytes) == (upload.name, 100_000)
    whole = send(server, resume(upload, 100_000), Part(chunk=data[100_000:]))
    assert whole.state == v1.Upload.STATE_COMPLETE
    assert whole.sha256 == hashlib.sha256(data).hexdigest()
    assert whole.received_bytes == whole.size_bytes == 300_000


def test_received_bytes_are_right_while_a_call_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call ends directly after the row was read."""
    storage, caller = Storage(tmp_path), Caller("client", "realm")
    every = uploads.Uploads(storage, SMALL)
    upload = every.start(caller, uploads.Announced("a.json", 10, "")).name.removeprefix("uploads/")
    writer, read = every.open(caller, upload, 0), storage.row
    assert writer
    writer.write(b"12345")

    def read_before(*query: Any) -> sqlite3.Row | None:
        row = read(*query)
        writer.close()
        return row

    monkeypatch.setattr(storage, "row", read_before)
    assert [every.get(caller, upload).received_bytes for _ in range(2)] == [5, 5]
    assert writer.closed
    assert not every.busy()
    storage.close()


@pytest.mark.parametrize(("lacks", "is_shared", "is_whole"), [(2, True, True), (1000, True, False), (2, False, False)])
def test_what_another_server_has_completed_may_be_seen_later(
    lacks: int, is_shared: bool, is_whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mount shows the bytes at the third look; what never comes, or lacks where no other server is, was lost."""
    storage, caller, looks = Storage(tmp_path), Caller("client", "realm"), iter(range(10_000))
    every = uploads.Uploads(storage, SMALL)
    announced = uploads.Announced("a.json", 5, hashlib.sha256(b"12345").hexdigest())
    upload = every.start(caller, announced).name.removeprefix("uploads/")
    writer = every.open(caller, upload, 0)
    assert writer
    writer.write(b"12345")
    writer.finish()
    monkeypatch.setattr(type(storage.catalog), "is_shared", is_shared)
    monkeypatch.setattr(uploads, "LAG_S", 0.5)
    monkeypatch.setattr(storage.store, "has", lambda *_: next(looks) >= lacks)
    every._expect_intact(announced.sha256)
    monkeypatch.setattr(type(storage.catalog), "is_shared", False)
    assert (every.get(caller, upload).state == v1.Upload.STATE_COMPLETE) == is_whole
    storage.close()


def test_resume_from_an_earlier_byte(server: Server) -> None:
    data = os.urandom(3000)
    upload = start(server, data, sha256=True)
    assert half(server, resume(upload, 0), Part(chunk=data[:2000])) == 2000
    assert get(server, upload).received_bytes == 2000
    whole = send(server, resume(upload, 500), Part(chunk=data[500:700]), Part(chunk=data[700:]))
    assert whole.state == v1.Upload.STATE_COMPLETE


def test_resume_beyond_what_is_there(server: Server) -> None:
    upload = start(server, bytes(100))
    with refused("OFFSET_OUT_OF_RANGE", "OUT_OF_RANGE") as output:
        send(server, resume(upload, 1), Part(chunk=b"x"))
    assert output[0].metadata == {"received_bytes": "0"}


def test_a_stream_that_ends_completes_nothing(server: Server) -> None:
    first = Part(start=calls.StartUploadRequest(file_name="a.json"))
    assert half(server, first, Part(chunk=b"{}")) == 2
    (begun,) = server.stub.ListUploads(calls.ListUploadsRequest(filter="file_name = a.json AND size_bytes = 2")).uploads
    assert begun.state == v1.Upload.STATE_ACTIVE
    assert half(server, resume(begun, 2)) == 2
    assert send(server, resume(begun, 2), Part(finish=True)).state == v1.Upload.STATE_COMPLETE
    assert send(server, first, Part(chunk=b"{"), Part(chunk=b"}", finish=True)).state == v1.Upload.STATE_COMPLETE


def test_a_newer_call_takes_over(server: Server) -> None:
    data = os.urandom(2000)
    upload = start(server, data)
    go_on = threading.Event()
    call = server.stub.UploadTrace.future(halting(upload, data, go_on))
    eventually(lambda: get(server, upload).received_bytes == 1000)
    assert send(server, resume(upload, 1000), Part(chunk=data[1000:])).state == v1.Upload.STATE_COMPLETE
    go_on.set()
    with refused("UPLOAD_TAKEN_OVER", "ABORTED"):
        call.result()
    assert get(server, upload).state == v1.Upload.STATE_COMPLETE


@pytest.mark.usefixtures("both_catalogs")
def test_another_client_ends_no_call(tmp_path: Path) -> None:
    """It learns nothing by asking to continue an upload whose id it knows, and the call goes on."""
    data = os.urandom(2000)
    ann, bob = (("client", "name:ann"),), (("client", "name:bob"),)
    go_on = threading.Event()
    with serving(tmp_path / "state") as server:
        announced = calls.StartUploadRequest(file_name="rank0.json", size_bytes=len(data))
        upload = server.stub.StartUpload(announced, metadata=ann).upload
        call = server.stub.UploadTrace.future(halting(upload, data, go_on), metadata=ann)
        arrived = calls.GetUploadRequest(name=upload.name)
        eventually(lambda: server.stub.GetUpload(arrived, metadata=ann).upload.received_bytes == 1000)
        with refused("NOT_FOUND", "NOT_FOUND"):
            server.stub.UploadTrace(iter([resume(upload, 0), Part(chunk=data)]), metadata=bob)
        go_on.set()
        assert call.result().upload.state == v1.Upload.STATE_COMPLETE


@pytest.mark.usefixtures("both_catalogs")
@pytest.mark.parametrize("kind", STORES)
def test_equal_bytes_are_stored_once(tmp_path: Path, kind: str) -> None:
    data = os.urandom(5000)
    with serving(tmp_path, store=store_of(kind)) as server:
        first = start(server, data)
        send(server, resume(first, 0), Part(chunk=data))
        second = start(server, data)
        assert second.name != first.name
        assert send(server, resume(second, 0), Part(chunk=data)).state == v1.Upload.STATE_COMPLETE
        known = start(server, data, sha256=True)
        assert known.state == v1.Upload.STATE_COMPLETE
        assert server.core._storage.store.names("blobs") == [hashlib.sha256(data).hexdigest()]
        assert not server.core._storage.store.begun()


def test_knowing_a_digest_is_not_having_the_bytes(server: Server) -> None:
    data = os.urandom(500)
    part = start(server, data, sha256=True, client="token:mine")
    server.stub.UploadTrace(iter([resume(part, 0), Part(chunk=data)]), metadata=[("client", "token:mine")])
    theirs = start(server, data, sha256=True, client="token:theirs")
    assert (theirs.state, theirs.received_bytes) == (v1.Upload.STATE_ACTIVE, 0)
    with refused("NOT_FOUND", "NOT_FOUND"):
        get(server, part)


def test_what_comes_must_be_what_was_announced(server: Server) -> None:
    upload = start(server, b"abc", sha256=True)
    with refused("CHECKSUM_MISMATCH", "DATA_LOSS"):
        send(server, resume(upload, 0), Part(chunk=b"abd"))
    assert get(server, upload).received_bytes == 0
    assert send(server, resume(upload, 0), Part(chunk=b"abc")).state == v1.Upload.STATE_COMPLETE
    upload = start(server, b"abc")
    with refused("UPLOAD_TOO_LARGE", "OUT_OF_RANGE"):
        send(server, resume(upload, 0), Part(chunk=b"abcd"))
    with refused("UPLOAD_INCOMPLETE", "FAILED_PRECONDITION"):
        send(server, resume(upload, 0), Part(chunk=b"ab", finish=True))


def test_bytes_that_are_gone_are_never_made_up(server: Server) -> None:
    """Else other bytes would be completed under the digest of those that were there."""
    data = os.urandom(300_000)
    upload = start(server, data, sha256=True)
    cut(server, upload, data[:100_000])
    name = upload.name.removeprefix("uploads/")
    saved = "SELECT 1 FROM uploads WHERE id = ? AND received = 100000"  # by the call that was cut, when it has ended
    eventually(lambda: server.core._storage.row(saved, name))
    server.core._storage.store.remove(f"parts/{name}")
    with refused("UPLOAD_INCOMPLETE", "FAILED_PRECONDITION"):
        send(server, resume(upload, 100_000), Part(chunk=data[100_000:]))
    assert get(server, upload).received_bytes == 0
    whole = send(server, resume(upload, 0), Part(chunk=data))
    assert whole.sha256 == hashlib.sha256(data).hexdigest()


def test_too_large(server: Server) -> None:
    with refused("UPLOAD_TOO_LARGE", "OUT_OF_RANGE") as output:
        start(server, bytes((1 << 20) + 1))
    assert output[0].metadata == {"max_bytes": str(1 << 20)}
    first = Part(start=calls.StartUploadRequest(file_name="a.json"))
    with refused("UPLOAD_TOO_LARGE", "OUT_OF_RANGE"):
        send(server, first, *[Part(chunk=bytes(1 << 19))] * 3)


def test_who_takes_over_waits_for_no_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is there must be read before a call can go on; meanwhile neither it nor others are in the way."""
    reads, go_on = iter((True, False)), threading.Event()
    made = uploads._hash_of

    def slow(*args: Any) -> Any:
        if next(reads):
            go_on.wait(PATIENCE_S)
        return made(*args)

    with serving(tmp_path) as server:
        data = os.urandom(2000)
        upload = start(server, data)
        half(server, resume(upload, 0), Part(chunk=data[:1000]))
        server.core._uploads._digests.clear()  # as after a restart
        monkeypatch.setattr(uploads, "_hash_of", slow)
        first = server.stub.UploadTrace.future(iter([resume(upload, 1000), Part(chunk=data[1000:])]))
        eventually(lambda: server.core._uploads._writers)
        assert send(server, resume(upload, 1000), Part(chunk=data[1000:])).state == v1.Upload.STATE_COMPLETE
        go_on.set()
        with refused("UPLOAD_TAKEN_OVER", "ABORTED"):
            first.result()


def test_who_goes_on_reads_nothing_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    data, read = os.urandom(3000), []
    upload = start(server, data)
    made = uploads._hash_of

    def counting(pieces: Iterator[bytes], ended: Callable[[], bool]) -> Any:
        return made((read.append(len(piece)) or piece for piece in pieces), ended)

    monkeypatch.setattr(uploads, "_hash_of", counting)
    for at in (0, 1000, 500):
        half(server, resume(upload, at), Part(chunk=data[at : at + 1000]))
    half(server, resume(upload, 2000))
    assert send(server, resume(upload, 2000), Part(chunk=data[2000:])).state == v1.Upload.STATE_COMPLETE
    assert not any(read)
    assert upload.name.removeprefix("uploads/") not in server.core._uploads._digests


def test_a_call_that_has_ended_reads_no_more() -> None:
    assert uploads._hash_of(iter([b"x" * 1000]), lambda: True).digest() == hashlib.sha256().digest()


def test_an_idle_sender_is_let_go(tmp_path: Path) -> None:
    with serving(tmp_path, max_upload_idle_s=PATIENCE_S) as server:
        upload = start(server, bytes(1000))
        go_on = threading.Event()

        def slow() -> Iterator[Part]:
            yield resume(upload, 0)
            yield Part(chunk=b"x")
            eventually(lambda: get(server, upload).received_bytes == 1)
            idle = replace(SMALL, max_upload_idle_s=0.2)
            server.core.servicer._receiving._limits = idle  # after the next message
            yield Part(chunk=b"y")
            go_on.wait(PATIENCE_S)

        with refused("UPLOAD_IDLE", "DEADLINE_EXCEEDED"):
            server.stub.UploadTrace(slow())
        go_on.set()
        assert get(server, upload).received_bytes == 2


@pytest.mark.usefixtures("both_catalogs")
def test_too_many(tmp_path: Path) -> None:
    with serving(tmp_path, max_open_uploads=2) as server:
        first, second = start(server, bytes(10)), start(server, bytes(10))
        with refused("TOO_MANY_UPLOADS", "RESOURCE_EXHAUSTED") as output:
            start(server, bytes(10))  # both are somebody's, who has just been told of them
        assert output[0].retry
        with server.core._storage.writing() as db:
            db.execute("UPDATE uploads SET touched_ns = touched_ns - 61000000000 WHERE id = ?", (first.name[8:],))
        third = start(server, bytes(10))
        with refused("NOT_FOUND", "NOT_FOUND"):
            get(server, first)
        go_on = threading.Event()

        def stuck(upload: v1.Upload) -> Iterator[Part]:
            yield resume(upload, 0)
            yield Part(chunk=b"x")
            go_on.wait(PATIENCE_S)

        under_way = [server.stub.UploadTrace.future(stuck(upload)) for upload in (second, third)]
        for upload in (second, third):
            eventually(lambda upload=upload: get(server, upload).received_bytes == 1)
        with refused("TOO_MANY_UPLOADS", "RESOURCE_EXHAUSTED") as output:
            start(server, bytes(10))
        assert output[0].retry
        go_on.set()
        for each in under_way:
            with refused("UPLOAD_INCOMPLETE", "FAILED_PRECONDITION"):
                each.result(PATIENCE_S)


def test_room_is_looked_after_while_bytes_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("augment_server.storage.uploads.SYNC_BYTES", 1000)
    monkeypatch.setattr("augment_server.api.receiving.SYNC_BYTES", 1000)
    with serving(tmp_path, max_stored_bytes=10_000) as server:
        first = Part(start=calls.StartUploadRequest(file_name="a.json"))
        send(server, first, Part(chunk=bytes(5000), finish=True))
        with refused("STORAGE_FULL", "RESOURCE_EXHAUSTED"):
            send(server, first, *[Part(chunk=bytes(1000))] * 20)


def test_a_full_disk(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/secret/path")

    upload = start(server, bytes(10))
    monkeypatch.setattr("augment_server.storage.uploads.Writer.write", full)
    with refused("STORAGE_FULL", "RESOURCE_EXHAUSTED"):
        send(server, resume(upload, 0), Part(chunk=b"x"))

    def full_database(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("augment_server.storage.uploads.Uploads.start", full_database)
    with refused("STORAGE_FULL", "RESOURCE_EXHAUSTED") as output:
        start(server, bytes(10))
    assert output[0].retry
    monkeypatch.setattr("augment_server.storage.uploads.Uploads.get", lambda *_: 1 / 0)
    with refused("INTERNAL", "INTERNAL"):
        get(server, upload)
    assert "ZeroDivisionError" in server.observer.logged[-1]


def test_no_room(tmp_path: Path) -> None:
    with serving(tmp_path, max_stored_bytes=10_000) as server:
        upload = start(server, bytes(6000))  # what is announced has its place
        with refused("STORAGE_FULL", "RESOURCE_EXHAUSTED") as output:
            start(server, bytes(4001))
        assert output[0].retry
        with refused("UPLOAD_TOO_LARGE", "OUT_OF_RANGE") as output:
            start(server, bytes(10_001))
        assert not output[0].retry
        assert send(server, resume(upload, 0), Part(chunk=bytes(6000))).state == v1.Upload.STATE_COMPLETE


@pytest.mark.parametrize("name", ["", ".", "..", "a/", "x\n", "k" * 181, "../.."])
def test_names_that_no_file_can_have(server: Server, name: str) -> None:
    with refused("INVALID_REQUEST", "INVALID_ARGUMENT"):
        server.stub.StartUpload(calls.StartUploadRequest(file_name=name))


@pytest.mark.parametrize("name", ["/etc/a.json", "..\\..\\a.json", "../../a.json", "C:\\a.json"])
def test_folders_in_names_are_cut_off(server: Server, name: str) -> None:
    assert server.stub.StartUpload(calls.StartUploadRequest(file_name=name)).upload.file_name == "a.json"


def test_requests_that_make_no_sense(server: Server) -> None:
    with refused("INVALID_REQUEST", "INVALID_ARGUMENT"):
        send(server)
    with refused("INVALID_REQUEST", "INVALID_ARGUMENT"):
        send(server, Part(chunk=b"x"))
    upload = start(server, bytes(10))
    with refused("INVALID_REQUEST", "INVALID_ARGUMENT"):
        send(server, resume(upload, 0), resume(upload, 0))
    with refused("NOT_FOUND", "NOT_FOUND"):
        server.stub.GetUpload(calls.GetUploadRequest(name="uploads/0123"))


def test_many_at_once(server: Server, tmp_path: Path) -> None:
    paths = [trace(tmp_path / f"{n}.json", count=200 + n) for n in range(16)]
    starts = [calls.StartUploadRequest(file_name=path.name, size_bytes=path.stat().st_size) for path in paths]
    done = [
        server.stub.UploadTrace.future(iter([Part(start=start), *chunks(path)]))
        for start, path in zip(starts, paths, strict=True)
    ]
    assert {each.result(PATIENCE_S).upload.state for each in done} == {v1.Upload.STATE_COMPLETE}
