"""What is kept, for how long, what a start finds, and what a client can see and remove of it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from in_process import PATIENCE_S, Server, eventually, outputs, refused, serving, told_by, trace
from serving_process import augment
from serving_process import serving as serving_apart

from augment import AugmentError, __version__
from augment.analyses import ANALYSES
from augment.client import Client
from augment.readers import READERS
from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment.writers import WRITERS
from augment.writers.metrics import SCHEMA_VERSION
from augment_server.jobs.retention import Clock
from augment_server.storage.storage import Storage


def sweep(server: Server) -> None:
    server.core._retention.sweep()


def age(server: Server, change: str, *values: Any) -> None:
    with server.core._storage.writing() as db:
        db.execute(change, values)


@pytest.mark.usefixtures("both_catalogs")
def test_what_is_old_goes(tmp_path: Path) -> None:
    with serving(tmp_path / "state", artifact_life_s=100.0, upload_life_s=300.0) as server:
        upload = server.upload(trace(tmp_path / "a.json"))
        job = server.wait(server.create(upload).name)
        sweep(server)
        assert server.get(job.name) == job
        age(server, "UPDATE jobs SET ended_ns = ended_ns - ?", 101 * 10**9)
        sweep(server)
        with refused("NOT_FOUND", "NOT_FOUND"):
            server.get(job.name)
        assert not server.stored("artifacts")
        assert len(server.stored("blobs")) == 1
        age(server, "UPDATE uploads SET touched_ns = touched_ns - ?", 301 * 10**9)
        sweep(server)
        with refused("NOT_FOUND", "NOT_FOUND"):
            server.stub.GetUpload(calls.GetUploadRequest(name=upload))
        assert not server.stored("blobs")


@pytest.mark.usefixtures("both_catalogs")
def test_a_job_that_waits_keeps_its_input(tmp_path: Path) -> None:
    with serving(tmp_path / "state", max_running_jobs=1) as server:
        first = server.upload(trace(tmp_path / "a.json"))
        (worker,) = server.freeze()
        server.until(server.create(first).name, v1.Job.STATE_RUNNING)
        second = server.create(server.upload(trace(tmp_path / "b.json", count=7))).name
        age(server, "UPDATE uploads SET touched_ns = 0")
        sweep(server)
        assert len(server.stored("blobs")) == 2
        os.kill(worker, 18)
        assert server.wait(second).state == v1.Job.STATE_SUCCEEDED
        sweep(server)
        assert not server.stored("blobs")


def test_a_job_of_several_inputs_keeps_no_upload_that_was_never_sent(tmp_path: Path) -> None:
    with serving(tmp_path / "state", max_running_jobs=1, max_stored_bytes=100_000) as server:
        name = server.upload(trace(tmp_path / "a.json"))
        server.freeze()
        server.until(server.create(name).name, v1.Job.STATE_RUNNING)
        both = [v1.Input(upload=name), v1.Input(upload=name, file_name="b.json")]
        server.stub.CreateJob(calls.CreateJobRequest(spec=v1.JobSpec(diagnose=v1.DiagnoseSpec(inputs=both))))
        server.stub.StartUpload(calls.StartUploadRequest(file_name="never.json", size_bytes=90_000))
        age(server, "UPDATE uploads SET touched_ns = touched_ns - 700000000000")
        (tmp_path / "c.json").write_bytes(b" " * 30_000)
        server.upload(tmp_path / "c.json")
        left = {each.file_name for each in server.stub.ListUploads(calls.ListUploadsRequest()).uploads}
        assert left == {"a.json", "c.json"}


@pytest.mark.embedded
def test_the_oldest_go_for_want_of_room(tmp_path: Path) -> None:
    with serving(tmp_path / "state") as server:
        jobs = [server.wait(server.create(server.upload(trace(tmp_path / f"{n}.json", 50 + n))).name) for n in range(4)]
        stored = server.core._retention.stored_bytes()
        specs = sum(job.spec.ByteSize() + len("{}") + job.progress.ByteSize() for job in jobs)
    stored_files = [*(tmp_path / "state" / "blobs").rglob("*"), *(tmp_path / "state" / "artifacts").rglob("*")]
    on_disk = sum(path.stat().st_size for path in stored_files if path.is_file())
    assert stored == on_disk + specs
    with serving(tmp_path / "state", max_stored_bytes=stored - 1) as server:
        sweep(server)
        assert len(server.stub.ListJobs(calls.ListJobsRequest()).jobs) == 4  # all are fresh
        with refused("STORAGE_FULL", "RESOURCE_EXHAUSTED"):
            server.upload(tmp_path / "0.json", "new.json")
        age(server, "UPDATE jobs SET ended_ns = ended_ns - 700000000000 WHERE number <= 2")
        sweep(server)
        left = [job.name for job in server.stub.ListJobs(calls.ListJobsRequest()).jobs]
        assert left == [job.name for job in jobs[:0:-1]]  # one was enough
        assert server.core._retention.stored_bytes() < stored


def test_what_can_never_fit_moves_nothing(tmp_path: Path) -> None:
    with serving(tmp_path / "state") as server:
        job = server.wait(server.create(server.upload(trace(tmp_path / "a.json"))).name)
        age(server, "UPDATE jobs SET ended_ns = ended_ns - 700000000000")
        age(server, "UPDATE uploads SET touched_ns = touched_ns - 700000000000")
        with refused("UPLOAD_TOO_LARGE", "OUT_OF_RANGE"):
            server.stub.StartUpload(calls.StartUploadRequest(file_name="x", size_bytes=2**62))
        assert server.get(job.name).state == v1.Job.STATE_SUCCEEDED
        assert len(server.stored("blobs")) == 1


def sent(server: Server, client: str, name: str, size: int) -> str:
    """An upload of ``client``."""
    start = calls.StartUploadRequest(file_name=name, size_bytes=size)
    parts = [calls.UploadTraceRequest(start=start), calls.UploadTraceRequest(chunk=name.encode().ljust(size))]
    metadata = [("client", f"token:{client}")]
    return server.stub.UploadTrace(iter(parts), metadata=metadata).upload.name


def there(server: Server, client: str, upload: str) -> bool:
    request, metadata = calls.GetUploadRequest(name=upload), [("client", f"token:{client}")]
    try:
        server.stub.GetUpload(request, metadata=metadata)
    except grpc.RpcError:
        return False
    return True


@pytest.mark.usefixtures("both_catalogs")
def test_whoever_has_more_than_its_share_makes_room(tmp_path: Path) -> None:
    with serving(tmp_path / "state", max_stored_bytes=1000) as server:
        first, second = sent(server, "a", "1", 300), sent(server, "a", "2", 600)
        third = sent(server, "b", "3", 400)  # both are fresh, but a has more than half
        assert [there(server, "a", each) for each in (first, second)] == [False, True]
        with refused("STORAGE_FULL", "RESOURCE_EXHAUSTED"):
            sent(server, "b", "4", 150)  # then b would have more than half
        age(server, "UPDATE uploads SET touched_ns = touched_ns - 700000000000")
        fourth = sent(server, "b", "4", 150)  # what is b's own goes first, although a's is older
        assert [there(server, "b", each) for each in (third, fourth)] == [False, True]
        assert there(server, "a", second)
        assert server.core._retention.stored_bytes() == 750


def announced(server: Server, client: str, size: int, request_id: str = "") -> str:
    """An upload of ``client`` of which nothing comes."""
    start = calls.StartUploadRequest(file_name=f"{size}", size_bytes=size, request_id=request_id)
    return server.stub.StartUpload(start, metadata=[("client", f"token:{client}")]).upload.name


def test_what_is_announced_takes_nothing_from_others(tmp_path: Path) -> None:
    with serving(tmp_path / "state", max_stored_bytes=1000) as server:
        first = sent(server, "b", "1", 600)
        age(server, "UPDATE uploads SET touched_ns = touched_ns - 700000000000")
        announced(server, "a", 700)
        with refused("STORAGE_FULL", "RESOURCE_EXHAUSTED"):
            announced(server, "a", 301)  # of its own it may not have more either
        second = sent(server, "b", "2", 300)
        sweep(server)
        assert [there(server, "b", each) for each in (first, second)] == [True, True]
        third = sent(server, "a", "3", 90)
        assert [there(server, "b", each) for each in (first, second)] == [True, True]
        fourth = sent(server, "a", "4", 10)  # these have come; the rest never does
        assert all([*(there(server, "b", each) for each in (first, second)), there(server, "a", third)])
        sent(server, "a", "5", 100)
        assert [there(server, "b", each) for each in (first, second)] == [False, True]
        assert there(server, "a", fourth)


@pytest.mark.usefixtures("both_catalogs")
def test_own_data_is_kept_while_others_have_more_than_their_share(tmp_path: Path) -> None:
    with serving(tmp_path / "state", max_stored_bytes=1000) as server:
        old = sent(server, "b", "1", 200)
        age(server, "UPDATE uploads SET touched_ns = touched_ns - 700000000000")
        others = sent(server, "a", "2", 750)
        new = sent(server, "b", "3", 100)
        assert [there(server, "b", each) for each in (old, new)] == [True, True]
        assert not there(server, "a", others)


@contextlib.contextmanager
def sending(server: Server, client: str, size: int) -> Iterator[tuple[str, Callable[[], grpc.RpcError]]]:
    """An upload that has got ``size`` bytes and is still open; and a function that sends one more: the call's end."""
    upload, go_on = announced(server, client, size + 1), threading.Event()

    def parts() -> Iterator[calls.UploadTraceRequest]:
        yield calls.UploadTraceRequest(resume=calls.ResumeUpload(name=upload))
        yield calls.UploadTraceRequest(chunk=bytes(size))
        go_on.wait(PATIENCE_S)
        yield calls.UploadTraceRequest(chunk=bytes(1))

    call = server.stub.UploadTrace.future(parts(), metadata=[("client", f"token:{client}")])

    def end() -> grpc.RpcError:
        go_on.set()
        error = call.exception(PATIENCE_S)
        assert isinstance(error, grpc.RpcError)
        return error

    asked = calls.GetUploadRequest(name=upload)
    metadata = [("client", f"token:{client}")]
    eventually(lambda: server.stub.GetUpload(asked, metadata=metadata).upload.received_bytes == size)
    try:
        yield upload, end
    finally:
        go_on.set()
        call.cancel()


def test_an_upload_under_way_yields_at_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that really come, and never end, would keep others from their share."""
    monkeypatch.setattr("augment_server.storage.uploads.SYNC_BYTES", 100)
    with serving(tmp_path / "state", max_stored_bytes=1000) as server, sending(server, "a", 700) as (upload, end):
        done = sent(server, "a", "2", 200)
        first = sent(server, "b", "1", 250)
        assert (there(server, "a", upload), there(server, "a", done)) == (True, False)
        second = sent(server, "b", "2", 240)
        assert not there(server, "a", upload)
        assert told_by(end()).reason == "NOT_FOUND"
        assert all(there(server, "b", each) for each in (first, second))
        assert server.core._retention.stored_bytes() == 490


def test_a_removed_upload_takes_no_more_bytes(tmp_path: Path) -> None:
    with serving(tmp_path / "state") as server, sending(server, "a", 10_000) as (upload, end):
        request, metadata = calls.DeleteUploadRequest(name=upload), [("client", "token:a")]
        server.stub.DeleteUpload(request, metadata=metadata)
        assert not server.stored("parts")
        held = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        assert not [path for path in held if upload.removeprefix("uploads/") in path]
        assert told_by(end()).reason == "NOT_FOUND"
        assert server.core._retention.stored_bytes() == 0
        assert not server.stored("parts")


@pytest.mark.usefixtures("both_catalogs")
def test_the_number_that_is_kept_has_a_share_for_each_client(tmp_path: Path) -> None:
    with serving(tmp_path / "state", max_kept=4, max_running_jobs=1) as server:
        server.freeze()
        server.until(server.create(server.upload(trace(tmp_path / "a.json"))).name, v1.Job.STATE_RUNNING)
        uploads, jobs = {}, {}
        for client, count in (("b", 1), ("c", 1), ("a", 7)):  # the newest are all a's
            metadata = [("client", f"token:{client}")]
            uploads[client] = [sent(server, client, f"{n}", 10 + n) for n in range(count)]
            spec = v1.JobSpec(augment=v1.AugmentSpec(input=v1.Input(upload=uploads[client][0])))
            asked = [server.stub.CreateJob(calls.CreateJobRequest(spec=spec), metadata=metadata) for _ in range(count)]
            jobs[client] = [each.job.name for each in asked]
            for name in jobs[client]:
                server.stub.CancelJob(calls.CancelJobRequest(name=name), metadata=metadata)
            for number in range(2 * count):
                announced(server, client, 5, request_id=f"{number}")
        sweep(server)
        rows = server.core._storage.rows("SELECT client, COUNT(*) AS count FROM jobs WHERE ended_ns > 0 GROUP BY 1")
        assert {row["client"]: row["count"] for row in rows} == {"token:a": 2, "token:b": 1, "token:c": 1}
        assert [there(server, client, each) for client in "bc" for each in uploads[client]] == [True, True]
        assert [there(server, "a", each) for each in uploads["a"]] == [True] + [False] * 6  # its jobs used it last
        rows = server.core._storage.rows("SELECT realm, COUNT(*) AS count FROM requests GROUP BY 1")
        assert sorted(row["count"] for row in rows) == [1, 1, 2]


@pytest.mark.usefixtures("both_catalogs")
def test_specs_and_labels_take_room(tmp_path: Path) -> None:
    with serving(tmp_path / "state", max_running_jobs=1) as server:
        server.freeze()
        spec = v1.JobSpec(augment=v1.AugmentSpec(input=v1.Input(upload=sent(server, "a", "1", 100))))
        spec.augment.only.extend(["temporal_breakdown"] * 500)
        request, metadata = calls.CreateJobRequest(spec=spec, labels={"k": "é" * 60}), [("client", "token:a")]
        for _ in range(2):
            server.stub.CreateJob(request, metadata=metadata)
        used = server.core._retention.used()["token:a"]
        assert used == 100 + 2 * (spec.ByteSize() + len('{"k":""}') + 120)


@pytest.mark.usefixtures("both_catalogs")
def test_sums_are_those_of_the_tables(tmp_path: Path) -> None:
    with serving(tmp_path / "state") as server:
        path = trace(tmp_path / "a.json")
        uploads = [server.upload(path), server.upload(path, "again.json"), server.upload(trace(tmp_path / "b.json", 9))]
        jobs = [server.wait(server.create(upload).name).name for upload in uploads]
        server.stub.StartUpload(calls.StartUploadRequest(file_name="c.json", size_bytes=77))
        server.stub.DeleteJob(calls.DeleteJobRequest(name=jobs[1]))
        age(server, "DELETE FROM uploads WHERE id = ?", uploads[0].removeprefix("uploads/"))
        kept = server.core._retention.stored_bytes()
    with serving(tmp_path / "state") as server:  # where they are added up anew
        assert server.core._retention.stored_bytes() == kept
        age(server, "DELETE FROM uploads")
        age(server, "DELETE FROM jobs")
        assert server.core._retention.stored_bytes() == 0


def test_a_state_directory_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AugmentError, match=r"--state-dir .*file"):
        Storage(tmp_path / "file")


def test_a_database_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"what once was a database" * 100)
    for _ in range(2):  # and the directory is let go of
        with pytest.raises(AugmentError, match=r"--state-dir .*: cannot be used: file is not a database; .*--repair"):
            Storage(tmp_path)
    Storage(tmp_path, repair=True).close()
    (aside,) = tmp_path.glob("aside-*")
    assert (aside / "state.db").read_bytes().startswith(b"what once")
    Storage(tmp_path, repair=True).close()  # nothing to repair
    assert len(list(tmp_path.glob("aside-*"))) == 1


@pytest.mark.embedded
@pytest.mark.parametrize("damage", ["gone", "empty", "foreign", "later"])
def test_a_database_that_is_lost_or_anothers(tmp_path: Path, damage: str) -> None:
    state = tmp_path / "state"
    with serving(state) as server:
        job = server.wait(server.create(server.upload(trace(tmp_path / "a.json"))).name)
    path = state / "state.db"
    if damage in ("gone", "foreign"):
        path.unlink()
    if damage == "empty":
        path.write_bytes(b"")
    with contextlib.closing(sqlite3.connect(path if damage in ("foreign", "later") else ":memory:")) as database:
        database.execute("CREATE TABLE theirs (x)" if damage == "foreign" else "PRAGMA user_version = 99")
    with pytest.raises(AugmentError, match=r"state\.db .*--repair"):
        Storage(state)
    artifacts = [path.name for path in outputs(state, job.name).iterdir()]
    assert sorted(artifacts) == sorted(artifact.file_name for artifact in job.artifacts)


@pytest.mark.embedded
def test_bytes_that_were_damaged_are_healed_by_an_upload(tmp_path: Path) -> None:
    path, state = trace(tmp_path / "a.json"), tmp_path / "state"
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    announced = calls.StartUploadRequest(file_name="a.json", size_bytes=len(data), sha256=digest)
    with serving(state) as server:
        server.upload(path)
        blob = state / "blobs" / digest
        os.truncate(blob, 10)
        server.upload(path, "again.json")
        assert blob.read_bytes() == data
        for damage in (blob.unlink, lambda: os.truncate(blob, 10)):
            assert server.stub.StartUpload(announced).upload.state == v1.Upload.STATE_COMPLETE
            damage()
            upload = server.stub.StartUpload(announced).upload
            assert (upload.state, upload.received_bytes) == (v1.Upload.STATE_ACTIVE, 0)
            resume = calls.UploadTraceRequest(resume=calls.ResumeUpload(name=upload.name))
            server.stub.UploadTrace(iter([resume, calls.UploadTraceRequest(chunk=data)]))
            assert blob.read_bytes() == data
        job = server.wait(server.create(upload.name).name)
        assert job.state == v1.Job.STATE_SUCCEEDED
        os.truncate(outputs(state, job.name) / job.artifacts[0].file_name, 10)
        with refused("ARTIFACT_DAMAGED", "DATA_LOSS"):
            server.read(job.artifacts[0].name)


@pytest.mark.embedded
def test_damaged_pages_are_told_as_such(tmp_path: Path) -> None:
    """Of a database that was whole when the server started."""
    with serving(tmp_path / "state") as server:
        job = server.wait(server.create(server.upload(trace(tmp_path / "a.json"))).name)
        storage = server.core._storage
        storage.catalog._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = (tmp_path / "state" / "state.db").stat().st_size
        with open(tmp_path / "state" / "state.db", "r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (size - 4096))
        storage._local = threading.local()  # connections that have read nothing
        with refused("STATE_DAMAGED", "DATA_LOSS") as output:
            server.get(job.name)
        assert "--repair" in output[0].message
        assert any("malformed" in line for line in server.observer.logged)


@pytest.mark.parametrize("how", ["killed", "written to", "replaced"])
def test_a_database_that_was_not_closed_in_order_is_read_as_a_whole(tmp_path: Path, how: str) -> None:
    """Damage that changes neither its size nor its time, as no program makes, shows whether it was."""
    path, mark = tmp_path / "state.db", tmp_path / "closed"
    Storage(tmp_path).close()
    before, data = path.stat(), path.read_bytes()
    damaged = data[:100] + data[100:].replace(b"\x0d", b"\xff")  # the types of its pages that hold rows
    path.write_bytes(damaged)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    (storage := Storage.__new__(Storage)).root, marked = tmp_path, mark.read_text()
    assert "damaged" not in storage._fault()
    assert not mark.exists()
    if how != "killed":
        mark.write_text(marked)
    if how == "written to":
        path.write_bytes(damaged)
    if how == "replaced":
        os.replace(shutil.copy2(path, tmp_path / "copy"), path)
    assert "damaged" in storage._fault() or "malformed" in storage._fault()


class Times:
    """A machine's clocks, in seconds."""

    def __init__(self) -> None:
        self.of_day, self.since_start = 1_000_000.0, 50.0

    def clock(self, saved: int | None = None) -> Clock:
        return Clock(saved, int(PAUSE * 1e9), lambda: int(self.of_day * 1e9), lambda: int(self.since_start * 1e9))

    def go_on(self, seconds: float) -> None:
        self.of_day += seconds
        self.since_start += seconds


DAY, PAUSE = 86400.0, 8640.0


def test_ages_do_not_jump_with_the_clock() -> None:
    times = Times()
    clock = times.clock()
    times.go_on(100)
    assert clock.now_ns() == times.of_day * 1e9
    times.of_day += 8 * DAY
    before = clock.now_ns()
    times.go_on(1000)
    assert clock.now_ns() - before == 1100 * 10**9  # it comes closer
    times.of_day -= 9 * DAY
    assert clock.now_ns() == times.of_day * 1e9  # and is never ahead
    times.go_on(5)
    assert clock.now_ns() == times.of_day * 1e9


def test_a_pause_at_most_passes_between_two_servers() -> None:
    times = Times()
    saved = times.clock().now_ns()
    times.go_on(PAUSE / 2)
    assert times.clock(saved).now_ns() - saved == PAUSE / 2 * 1e9
    times.go_on(8 * DAY)
    assert times.clock(saved).now_ns() - saved == PAUSE * 1e9
    times.of_day = 0.0
    assert times.clock(saved).now_ns() == 0


def test_a_jump_of_the_clock_removes_nothing(tmp_path: Path) -> None:
    with serving(tmp_path / "state") as server:
        job = server.wait(server.create(server.upload(trace(tmp_path / "a.json"))).name)
        sweep(server)
        retention = server.core._retention
        retention.clock._time_of_day = lambda: time.time_ns() + int(8 * DAY * 1e9)
        sweep(server)
        assert server.get(job.name) == job
    with serving(tmp_path / "state") as server:
        saved = server.core._storage.row("SELECT ns FROM clock")
        assert saved
        assert abs(saved["ns"] - time.time_ns()) < DAY * 1e9
        retention = server.core._retention
        retention.clock = Clock(saved["ns"], int(PAUSE * 1e9), lambda: time.time_ns() + int(8 * DAY * 1e9))
        sweep(server)
        assert server.get(job.name) == job


def test_a_clock_that_is_wrong_at_a_start_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path / "state") as server:
        upload = server.upload(trace(tmp_path / "a.json"))
        begun = server.stub.StartUpload(calls.StartUploadRequest(file_name="b.json", size_bytes=9)).upload.name
        job = server.wait(server.create(upload).name)
        sweep(server)
    right = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: right() + int(30 * DAY * 1e9))
    monkeypatch.setattr(Clock.__init__, "__defaults__", (time.time_ns, time.monotonic_ns))
    with serving(tmp_path / "state") as server:
        for _ in range(3):
            sweep(server)
        assert not server.core._retention.removed
        assert server.get(job.name).state == v1.Job.STATE_SUCCEEDED
        for name in (upload, begun):
            server.stub.GetUpload(calls.GetUploadRequest(name=name))


def test_a_sweep_ends_with_its_server(tmp_path: Path) -> None:
    with serving(tmp_path / "state", upload_life_s=100.0) as server:
        uploads = [server.upload(trace(tmp_path / "a.json", count=n)) for n in range(1, 4)]
        age(server, "UPDATE uploads SET touched_ns = touched_ns - ?", 101 * 10**9)
        retention = server.core._retention
        retention.stopping = True
        sweep(server)
        assert len(server.core._storage.rows("SELECT id FROM uploads")) == len(uploads)
        retention.stopping = False
        sweep(server)
        assert retention.removed == {("upload", "age"): 3}
        assert not server.stored("blobs")


def test_what_was_asked_for_again_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at what is old and its removal, a client may have been told that it is there."""
    with serving(tmp_path / "state") as server:
        path = trace(tmp_path / "a.json")
        upload = server.upload(path)
        age(server, "UPDATE uploads SET touched_ns = 5")
        retention = server.core._retention
        removal = retention._remove_uploads

        def late(*result: Any) -> None:
            sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
            request = calls.StartUploadRequest(file_name="a.json", size_bytes=path.stat().st_size, sha256=sha256)
            assert server.stub.StartUpload(request).upload.name == upload
            removal(*result)

        monkeypatch.setattr(retention, "_remove_uploads", late)
        sweep(server)
        assert server.wait(server.create(upload).name).state == v1.Job.STATE_SUCCEEDED


@pytest.mark.usefixtures("both_catalogs")
def test_an_upload_that_goes_while_its_bytes_come(tmp_path: Path) -> None:
    with serving(tmp_path / "state") as server:
        started = server.stub.StartUpload(calls.StartUploadRequest(file_name="a.json", size_bytes=4)).upload.name

        def parts() -> Iterator[calls.UploadTraceRequest]:
            yield calls.UploadTraceRequest(resume=calls.ResumeUpload(name=started))
            yield calls.UploadTraceRequest(chunk=b"ab")
            eventually(lambda: server.core._uploads._writers)
            server.core._retention.remove_upload(started.removeprefix("uploads/"))
            yield calls.UploadTraceRequest(chunk=b"cd")

        with refused("NOT_FOUND", "NOT_FOUND"):
            server.stub.UploadTrace(parts())
        assert not server.observer.logged


@pytest.mark.embedded
def test_a_start_completes_what_was_begun(tmp_path: Path) -> None:
    """The database says first what is meant; a server may be killed before it is done."""
    state = tmp_path / "state"
    with serving(state) as server:
        upload = server.upload(trace(tmp_path / "a.json"))
        half = server.stub.StartUpload(calls.StartUploadRequest(file_name="b.json", size_bytes=9)).upload.name
        parts = [calls.UploadTraceRequest(resume=calls.ResumeUpload(name=half))]
        parts += [calls.UploadTraceRequest(chunk=b"12345")]
        with refused("UPLOAD_INCOMPLETE", "FAILED_PRECONDITION"):
            server.stub.UploadTrace(iter(parts))
        job = server.wait(server.create(upload).name)
    (blob,) = (state / "blobs").iterdir()
    blob.rename(state / "parts" / upload.removeprefix("uploads/"))
    with open(state / "parts" / half.removeprefix("uploads/"), "ab") as part:
        part.write(b"67")  # that the database does not know of
    for stray in ("parts/stray", "blobs/stray"):
        (state / stray).write_text("x")
    for stray in ("work/stray", "artifacts/stray"):
        (state / stray).mkdir()
        (state / stray / "file").write_text("x")
    with serving(state) as server:
        assert server.get(job.name) == job
        assert server.wait(server.create(upload).name).state == v1.Job.STATE_SUCCEEDED
        assert server.stub.GetUpload(calls.GetUploadRequest(name=half)).upload.received_bytes == 7
        whole = [calls.UploadTraceRequest(resume=calls.ResumeUpload(name=half, offset=7))]
        whole += [calls.UploadTraceRequest(chunk=b"89")]
        done = server.stub.UploadTrace(iter(whole)).upload
        assert done.sha256 == "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225"  # of 123456789
        sweep(server)
        assert not list(state.rglob("stray"))


MINE, OTHERS = [("client", "name:me")], [("client", "name:you")]


def start(server: Server, name: str, metadata: Any = MINE, **more: Any) -> v1.Upload:
    request = calls.StartUploadRequest(file_name=name, **more)
    return server.stub.StartUpload(request, metadata=metadata).upload


def listed(list_: Callable[[str], tuple[list[str], str]]) -> tuple[list[str], list[str]]:
    """All names of a list, and the tokens of its pages."""
    names, tokens = [], [""]
    while True:
        page, token = list_(tokens[-1])
        names += page
        if not token:
            return names, tokens[1:]
        tokens.append(token)


def test_uploads_are_listed_in_pages_without_those_of_others(tmp_path: Path) -> None:
    with serving(tmp_path / "state") as server:
        part = []
        for number in range(5):
            part.append(start(server, f"rank{number}.json").name)
            start(server, "other.json", OTHERS)

        def page(token: str) -> tuple[list[str], str]:
            request = calls.ListUploadsRequest(page_size=2, page_token=token)
            answer = server.stub.ListUploads(request, metadata=MINE)
            return [upload.name for upload in answer.uploads], answer.next_page_token

        names, tokens = listed(page)
        assert names == part[::-1]
        assert len(tokens) == 2
        wrong = [base64.b64encode(each).decode() for each in (b"9" * 30 + b":", b"-1:", b"x", b"\xff:")]
        for token in ("x", "٣", "A" * 9000, *wrong):
            with refused("INVALID_REQUEST", "INVALID_ARGUMENT"):
                page(token)


def test_tokens_of_pages_tell_nothing_of_others(tmp_path: Path) -> None:
    """They used to be the number of the job among those of all clients."""
    output = []
    for strangers in (0, 3):
        with serving(tmp_path / f"state{strangers}", max_running_jobs=1) as server:
            upload = server.upload(trace(tmp_path / "a.json"))
            with server.core._storage.writing() as db:
                db.execute("UPDATE uploads SET realm = ''")
            for _ in range(strangers):
                server.create(upload, only=["queue_length"])
            made = [server.create(upload, only=["queue_length"]) for _ in range(3)]
            token = server.stub.ListJobs(calls.ListJobsRequest(page_size=2)).next_page_token
            text = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
            output.append(len(text))
            assert made[1].name.partition("/")[2].encode() not in text
    assert output[0] == output[1]


def test_an_upload_is_removed_with_its_bytes(tmp_path: Path) -> None:
    with serving(tmp_path / "state") as server:
        upload = server.upload(trace(tmp_path / "a.json"))
        again = server.upload(tmp_path / "a.json", "b.json")
        with refused("NOT_FOUND", "NOT_FOUND"):
            server.stub.DeleteUpload(calls.DeleteUploadRequest(name=upload), metadata=OTHERS)
        server.stub.DeleteUpload(calls.DeleteUploadRequest(name=upload))
        assert len(server.stored("blobs")) == 1  # the other upload has them, too
        with refused("NOT_FOUND", "NOT_FOUND"):
            server.stub.DeleteUpload(calls.DeleteUploadRequest(name=upload))
        server.stub.DeleteUpload(calls.DeleteUploadRequest(name=again))
        assert not server.stored("blobs")
        assert server.core._retention.stored_bytes() == 0
        begun = start(server, "c.json", metadata=())
        server.stub.DeleteUpload(calls.DeleteUploadRequest(name=begun.name))
        assert not server.stub.ListUploads(calls.ListUploadsRequest()).uploads


def test_jobs_of_a_removed_upload_go_on(tmp_path: Path) -> None:
    with serving(tmp_path / "state", max_running_jobs=1) as server:
        server.freeze()
        upload = server.upload(trace(tmp_path / "a.json"))
        jobs = [server.create(upload).name for _ in range(2)]
        server.until(jobs[0], v1.Job.STATE_RUNNING)
        server.stub.DeleteUpload(calls.DeleteUploadRequest(name=upload))
        assert len(server.stored("blobs")) == 1
        server.thaw()
        assert [server.wait(job).state for job in jobs] == [v1.Job.STATE_SUCCEEDED] * 2
        server.core._retention.sweep()
        assert not server.stored("blobs")


def test_what_a_server_tells_of_itself(tmp_path: Path) -> None:
    limits = {"max_upload_bytes": 1000, "artifact_life_s": 90.5, "max_client_jobs": 7}
    with serving(tmp_path / "state", **limits) as server:
        info = server.stub.GetServerInfo(calls.GetServerInfoRequest()).info
    assert info.version == __version__
    assert list(info.analyses) == [analysis.NAME for analysis in ANALYSES]
    assert list(info.input_formats) == [reader.NAME for reader in READERS]
    assert list(info.output_formats) == [writer.NAME for writer in WRITERS]
    assert info.metrics_schema_version == SCHEMA_VERSION
    assert (info.limits.max_upload_bytes, info.limits.max_client_jobs) == (1000, 7)
    assert (info.limits.max_page_size, info.limits.max_labels, info.limits.max_priority) == (1000, 64, 10)
    assert info.retention.artifact_life.ToMilliseconds() == 90_500
    assert info.retention.upload_life.ToSeconds() == 86_400


def test_the_command_has_the_server_forget(tmp_path: Path) -> None:
    state = tmp_path / "state"
    trace(tmp_path / "a.json")
    with serving_apart(state) as server, Client(server.address) as client:

        def kept() -> list[str]:
            return [upload.file_name for upload in client._stub.ListUploads(calls.ListUploadsRequest()).uploads]

        plain = augment("run", tmp_path / "a.json", "-o", tmp_path / "plain", "--server", server.address)
        assert plain.returncode == 0, plain.stderr
        assert kept() == ["a.json"]
        forgotten = augment("run", tmp_path / "a.json", "-o", tmp_path / "out", "--server", server.address, "--forget")
        assert forgotten.returncode == 0, forgotten.stderr
        assert kept() == []
        same = [(tmp_path / folder / "a.metrics.json").read_bytes() for folder in ("plain", "out")]
        assert same[0] == same[1]
        assert not list((state / "artifacts").iterdir())
        bad = tmp_path / "bad.json"
        bad.write_text("no trace")
        assert augment("run", bad, "--server", server.address, "--forget").returncode == 3
        assert kept() == []
    assert augment("run", bad, "--forget").returncode == 2  # without a server


@pytest.mark.parametrize("more", [{}, {"sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}])
def test_an_empty_file_is_complete_at_once(tmp_path: Path, more: dict[str, str]) -> None:
    with serving(tmp_path / "state") as server:
        upload = start(server, "empty.json", metadata=(), size_bytes=0, **more)
        assert upload.state == v1.Upload.STATE_COMPLETE
        job = eventually(lambda: server.wait(server.create(upload.name).name))
        assert job.error.reason == "UNKNOWN_FORMAT"


@pytest.mark.parametrize("name", ["a\x1b[31m.json", "a\x85.json", "a\u202egnp.json", "a\u2028.json", "a\u2066.json"])
def test_names_that_are_not_shown_as_they_are(tmp_path: Path, name: str) -> None:
    with serving(tmp_path / "state") as server:
        with refused("INVALID_REQUEST", "INVALID_ARGUMENT"):
            start(server, name)
        with Client(server.address) as client:  # it sends another name, and writes files of the right one
            made = client.augment(trace(tmp_path / name), only=["temporal_breakdown"])
        stem = name.removesuffix(".json")
        assert [path.name for path in made.files] == [f"{stem}.augmented.pftrace", f"{stem}.metrics.json"]
