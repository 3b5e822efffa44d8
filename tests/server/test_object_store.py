"""The bytes of uploads and outputs in an object store: a real one, and one that does not answer, refuses or is full."""

from __future__ import annotations

import hashlib
import http.server
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from in_process import Server, eventually, refused, serving, trace
from object_store import STORES, keys, new_store, store_of, weed
from serving_process import Server as Process
from serving_process import augment

from augment.client import Client, transfers
from augment.client.connection import Deadline
from augment.errors import AugmentError, UsageError
from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment.v1.service_pb2_grpc import AugmentServiceStub
from augment_server.base.errors import Refusal
from augment_server.jobs import scheduler
from augment_server.storage import uploads

SUCCEEDED, FAILED = v1.Job.STATE_SUCCEEDED, v1.Job.STATE_FAILED
KILLED = Path(__file__).with_name("killed_server.py")
FOLDERS = ("parts", "blobs", "ranks", "artifacts")


@pytest.fixture
def url() -> str:
    return new_store()


def stored(server: Server) -> list[str]:
    """The keys of all that is stored."""
    return [key for folder in FOLDERS for key in keys(server.core._storage.store, folder)]


def send(server: Server, name: str, offset: int, data: bytes, *, finish: bool = True) -> v1.Upload:
    resume = calls.UploadTraceRequest(resume=calls.ResumeUpload(name=name, offset=offset))
    pieces = [calls.UploadTraceRequest(chunk=data[at : at + 1000]) for at in range(0, len(data), 1000)]
    if finish:
        pieces.append(calls.UploadTraceRequest(finish=True))
    return server.stub.UploadTrace(iter([resume, *pieces])).upload


def test_what_was_sent_and_made_is_there_after_a_restart(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "SYNC_BYTES", 1500)  # so that there are several pieces
    path = trace(tmp_path / "a.json", count=60)
    data, half = path.read_bytes(), path.stat().st_size // 2
    with serving(tmp_path / "state", store=url) as server:
        name = server.stub.StartUpload(calls.StartUploadRequest(file_name="a.json")).upload.name
        with refused("UPLOAD_INCOMPLETE", "FAILED_PRECONDITION"):
            send(server, name, 0, data[:half], finish=False)
        eventually(lambda: server.stub.GetUpload(calls.GetUploadRequest(name=name)).upload.received_bytes == half)
    with serving(tmp_path / "state", store=url) as server:
        assert send(server, name, half, data[half:]).state == v1.Upload.STATE_COMPLETE
        assert len([key for key in stored(server) if key.startswith("parts/")]) > 2
        job = server.wait(server.create(name).name)
        assert job.state == SUCCEEDED, job.error
        files = {artifact.file_name: server.read(artifact.name) for artifact in job.artifacts}
        last = job.artifacts[-1]
        assert server.read(last.name, offset=100) == files[last.file_name][100:]
        asked = calls.QueryMetricsRequest(name=job.name, analysis="kernel_breakdown")
        assert server.stub.QueryMetrics(asked).total_count
        assert list(server.stub.GetMetrics(calls.GetMetricsRequest(name=job.name)))
    with serving(tmp_path / "folder") as server:
        job = server.wait(server.create(server.upload(path)).name)
        assert {artifact.file_name: server.read(artifact.name) for artifact in job.artifacts} == files


def test_what_is_removed_is_removed_there(tmp_path: Path, url: str) -> None:
    with serving(tmp_path / "state", store=url) as server:
        first, second = (server.upload(trace(tmp_path / "a.json"), name) for name in ("a.json", "b.json"))
        job = server.wait(server.create(first).name)
        assert job.state == SUCCEEDED
        server.stub.DeleteUpload(calls.DeleteUploadRequest(name=first))
        assert server.wait(server.create(second).name).state == SUCCEEDED  # which has the same bytes
        server.stub.DeleteUpload(calls.DeleteUploadRequest(name=second))
        for each in server.stub.ListJobs(calls.ListJobsRequest()).jobs:
            server.stub.DeleteJob(calls.DeleteJobRequest(name=each.name))
        assert stored(server) == []


def test_what_another_server_completes_stays(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store was away for longer than the lock, which ends with PostgreSQL."""
    obstore = pytest.importorskip("obstore")
    with serving(tmp_path / "state", store=url) as server:
        name = server.upload(trace(tmp_path / "a.json"))
        row, lists = server.core._storage.row("SELECT * FROM uploads"), obstore.list
        insert = f"INSERT INTO uploads VALUES ({', '.join('?' * len([*row]))}) ON CONFLICT DO NOTHING"

        def listed(*args: Any) -> Any:
            if not server.core._storage.row("SELECT 1 FROM uploads"):  # else another thread lists, before
                with server.core._storage.writing() as db:  # as may another thread, which removes it, too
                    db.execute(insert, [*row])
                monkeypatch.undo()
            return lists(*args)

        monkeypatch.setattr(obstore, "list", listed)
        server.stub.DeleteUpload(calls.DeleteUploadRequest(name=name))
        job = server.wait(server.create(name).name)
        assert job.state == SUCCEEDED, job.error


def test_strays_are_removed_and_nothing_else(tmp_path: Path, url: str) -> None:
    """What a server left that was killed between a store and its row."""
    strays = ("parts/none/0-a", "blobs/0123/none", "ranks/none/a/x", "artifacts/none/a/x")
    with serving(tmp_path / "state", store=url) as server:
        job = server.wait(server.create(server.upload(trace(tmp_path / "a.json"))).name)
        begun = server.stub.StartUpload(calls.StartUploadRequest(file_name="b.json")).upload.name
        with refused("UPLOAD_INCOMPLETE", "FAILED_PRECONDITION"):
            send(server, begun, 0, b"some", finish=False)
        before = stored(server)
        for key in strays:
            server.core._storage.store.put(key, b"x")  # type: ignore[union-attr]
        server.core._retention._strays_s = 0.0
        server.core._retention.sweep()
        assert stored(server) == before
        assert server.read(job.artifacts[0].name)


@pytest.mark.embedded
@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("whole", [False, True])
def test_what_a_killed_attempt_stored_is_removed_and_nothing_else(tmp_path: Path, kind: str, *, whole: bool) -> None:
    """The server dies between the outputs and the row that names them; the next one makes them again."""
    store, path = store_of(kind), trace(tmp_path / "a.json")
    names = ("folder:Folder", "bucket:Bucket")
    dying = (KILLED, f"augment_server.storage.{names[bool(store)]}.publish", "after", 1 + 2 * whole)
    flags = ("--store", store) if store else ()
    killed = Process(tmp_path / "state", *flags, program=dying)
    with grpc.insecure_channel(killed.address) as channel:
        stub = AugmentServiceStub(channel)
        start = calls.StartUploadRequest(file_name="a.json")
        sent = [calls.UploadTraceRequest(start=start), calls.UploadTraceRequest(chunk=path.read_bytes(), finish=True)]
        upload = v1.Input(upload=stub.UploadTrace(iter(sent)).upload.name)
        inputs = [v1.Input(upload=upload.upload, file_name=f"{rank}/a.json") for rank in range(2)]
        kinds = {True: {"job": v1.WholeJobSpec(inputs=inputs)}, False: {"augment": v1.AugmentSpec(input=upload)}}
        spec = v1.JobSpec(**kinds[whole])  # type: ignore[arg-type]
        name = stub.CreateJob(calls.CreateJobRequest(spec=spec)).job.name
    killed.close()
    with serving(tmp_path / "state", store=store) as server:
        other = server.wait(server.create(server.upload(trace(tmp_path / "b.json", count=7))).name)
        job = server.wait(name)
        assert job.state == SUCCEEDED, job.error
        retention, objects = server.core._retention, server.core._storage.store
        if kind == "folder":  # where a single server has removed it at its start, and several have not
            (tmp_path / "state" / "artifacts" / name[5:] / "attempt").mkdir()
        retention.drop_attempts(age_s=3600)
        before = objects.attempts(time.time() + 9)
        retention.drop_attempts(age_s=-9)
        after = objects.attempts(time.time() + 9)
        assert (len(before), len(after)) == (3, 2)
        assert {key.split("/")[1] for key in after} == {other.name[5:], name[5:]}
        for artifact in (*job.artifacts, *other.artifacts):
            assert hashlib.sha256(server.read(artifact.name)).hexdigest() == artifact.sha256


def test_nothing_that_is_stored_is_replaced(tmp_path: Path, url: str) -> None:
    """An attempt whose key is taken, as by the answer to a request that was lost, is made again."""
    with serving(tmp_path / "state", store=url) as server:
        store = server.core._storage.store
        store.put("elsewhere/a", b"first")  # type: ignore[union-attr]
        with pytest.raises(Refusal) as why:
            store.put("elsewhere/a", b"second", new=True)  # type: ignore[union-attr]
        assert why.value.reason == "STORE_UNAVAILABLE"
        assert store.open("elsewhere/a").read() == b"first"


@pytest.mark.embedded
def test_a_store_belongs_to_one_state_directory(tmp_path: Path, url: str) -> None:
    """Another one would take all that is there for strays."""
    with serving(tmp_path / "state", store=url) as server:
        server.upload(trace(tmp_path / "a.json"))
    with pytest.raises(AugmentError, match="belongs to another state directory"), serving(tmp_path / "b", store=url):
        pass
    with pytest.raises(AugmentError, match=r"bytes lie in s3://.*add --store"), serving(tmp_path / "state"):
        pass
    with serving(tmp_path / "c") as server:
        server.upload(tmp_path / "a.json")
    with pytest.raises(AugmentError, match="needs another one, which is new"), serving(tmp_path / "c", store=url):
        pass
    with pytest.raises(AugmentError, match="cannot be used"), serving(tmp_path / "state", store=f"{url}/other"):
        pass


@pytest.mark.embedded
def test_what_is_no_store(tmp_path: Path) -> None:
    """A folder of this machine is none, as its store would follow links."""
    weed()
    for store in ("s3://", "nonsense", "ftp://host/path", "file:///tmp/x", "memory://"):
        with pytest.raises(UsageError, match="must be s3://BUCKET/PREFIX"), serving(tmp_path / "state", store=store):
            pass
    ended = augment("serve", "--state-dir", tmp_path / "state", "--listen", "127.0.0.1:0", "--store", "s3:/x")
    assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
    assert "--store s3:/x: must be s3://BUCKET/PREFIX" in ended.stderr


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for long for a store."""
    from augment_server.storage import bucket

    monkeypatch.setattr(bucket, "_RETRY", {"max_retries": 0, "retry_timeout": timedelta(seconds=1)})
    monkeypatch.setattr(scheduler, "_STORE_PAUSE_S", 0.1)


def unreachable(server: Server, monkeypatch: pytest.MonkeyPatch, **changed: str) -> Any:
    """Within the patch, requests go where nobody listens."""
    from obstore.store import S3Store

    config = {"endpoint": "http://127.0.0.1:1", "access_key_id": "key", "secret_access_key": "secret", **changed}
    retry = {"max_retries": 0, "retry_timeout": timedelta(seconds=1)}
    store = S3Store("augment", region="us-east-1", client_options={"allow_http": True}, retry_config=retry, **config)
    monkeypatch.setattr(server.core._storage.store, "_store", store)


@pytest.mark.usefixtures("hasty")
def test_while_the_store_does_not_answer_calls_say_so_and_jobs_wait(tmp_path: Path, url: str) -> None:
    with serving(tmp_path / "state", store=url) as server:
        upload = server.upload(trace(tmp_path / "a.json"))
        done = server.wait(server.create(upload).name)
        with pytest.MonkeyPatch.context() as patch:
            unreachable(server, patch)
            job = server.create(upload)
            with refused("STORE_UNAVAILABLE", "UNAVAILABLE") as why:
                server.upload(trace(tmp_path / "b.json", count=7))
            assert why[0].retry
            with refused("STORE_UNAVAILABLE", "UNAVAILABLE"):
                server.read(done.artifacts[0].name)
            with refused("STORE_UNAVAILABLE", "UNAVAILABLE"):
                server.stub.QueryMetrics(calls.QueryMetricsRequest(name=done.name, analysis="steps"))
            eventually(lambda: sum("the store of bytes" in line for line in server.observer.logged) > 2)
            assert server.get(job.name).state in (v1.Job.STATE_QUEUED, v1.Job.STATE_RUNNING)
            server.stub.DeleteJob(calls.DeleteJobRequest(name=done.name))  # its bytes go later
        last = server.wait(job.name)
        assert (last.state, last.attempt_count) == (SUCCEEDED, 1)
        server.upload(tmp_path / "b.json")
        server.core._retention._strays_s = 0.0
        server.core._retention.sweep()
        assert {key.split("/")[1] for key in stored(server) if key.startswith("artifacts")} == {job.name[5:]}


@pytest.mark.usefixtures("hasty")
def test_a_job_does_not_wait_for_ever(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path / "state", store=url, job_deadline_s=1.0) as server:
        upload = server.upload(trace(tmp_path / "a.json"))
        unreachable(server, monkeypatch)
        last = server.wait(server.create(upload).name)
        assert (last.state, last.error.reason) == (FAILED, "STORE_UNAVAILABLE")


@pytest.mark.usefixtures("hasty")
def test_outputs_that_cannot_be_stored_are_made_again(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path / "state", store=url) as server:
        upload, store, failures = server.upload(trace(tmp_path / "a.json")), server.core._storage.store, [1, 2]
        put = store.put  # type: ignore[union-attr]

        def failing(key: str, file: Any, **options: Any) -> None:
            if failures and key.endswith(".pftrace"):
                failures.pop()
                raise Refusal("STORE_UNAVAILABLE", "for a moment")
            put(key, file, **options)

        monkeypatch.setattr(store, "put", failing)
        last = server.wait(server.create(upload, formats=["chrome", "perfetto"]).name)
        assert last.state == SUCCEEDED
        there = [key for key in stored(server) if key.startswith("artifacts/")]
        assert len(there) == len(last.artifacts)  # nothing is left of the attempts that failed


class _Answering(http.server.BaseHTTPRequestHandler):
    code, text = 507, "<Error><Code>InsufficientStorage</Code></Error>"

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(self.code)
        self.end_headers()
        self.wfile.write(self.text.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def full() -> Iterator[str]:
    """The address of a store that is full."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answering)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_store_at_port_507_is_not_full() -> None:
    from augment_server.storage import bucket

    assert not bucket._IS_FULL.search("Error performing PUT http://127.0.0.1:50712/b/x - error sending request")


@pytest.mark.usefixtures("hasty")
def test_a_store_that_is_full_or_refuses_is_told(
    tmp_path: Path, url: str, full: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path / "state", store=url) as server:
        with monkeypatch.context() as patch:
            unreachable(server, patch, endpoint=full)
            with refused("STORAGE_FULL", "RESOURCE_EXHAUSTED") as why:
                server.upload(trace(tmp_path / "a.json"))
            assert "object store is full" in why[0].message
        with monkeypatch.context() as patch:
            unreachable(server, patch, endpoint=weed().environment["AWS_ENDPOINT_URL"], secret_access_key="wrong")
            with refused("STORE_UNAVAILABLE", "UNAVAILABLE") as why:
                server.upload(tmp_path / "a.json")
            assert "refuses" in why[0].message
        assert stored(server) == []
        assert not os.listdir(server.core._storage.root / "parts")
        server.upload(tmp_path / "a.json")


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_a_store_that_is_killed_in_the_midst(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While outputs are stored: an upload and a download go on, too, once it is back, and nothing is half there."""
    first, second = trace(tmp_path / "a.json", count=60), trace(tmp_path / "b.json", count=40)
    waited, killed = list[str](), list[Future[None]]()
    with serving(tmp_path / "state", store=url) as server, ThreadPoolExecutor() as threads:
        store: Any = server.core._storage.store
        done = server.wait(server.create(server.upload(first)).name)
        put, is_down = store.put, threading.Event()

        def bring_back() -> None:
            time.sleep(0.5)
            weed().start()

        def killing(key: str, *rest: Any, **options: Any) -> None:
            if not killed and key.endswith(".pftrace"):
                weed().stop()
                killed.append(threads.submit(bring_back))
                is_down.set()
            put(key, *rest, **options)

        monkeypatch.setattr(store, "put", killing)

        def run(path: Path) -> dict[str, bytes]:
            with Client(server.address, waiting=waited.append) as client:
                return {file.name: file.read_bytes() for file in client.augment(path, out=tmp_path / path.stem).files}

        def read() -> bytes:
            with Client(server.address, waiting=waited.append) as client:
                file = transfers.Download(done.artifacts[-1], tmp_path, client._connection)
                return file.content(client._stub, Deadline(None, ""))

        made = threads.submit(run, first)
        assert is_down.wait(60)
        others = threads.submit(run, second), threads.submit(read)
        assert hashlib.sha256(others[1].result()).hexdigest() == done.artifacts[-1].sha256
        results = {**made.result(), **others[0].result()}
    assert any("object store" in why for why in waited), waited
    assert augment("run", first, second, "-o", tmp_path / "here", "--quiet").returncode == 0
    for name, data in results.items():
        assert data == (tmp_path / "here" / name).read_bytes()
