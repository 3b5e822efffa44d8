"""One server at a time, whatever its mount and its lock; one disk; what a start finds after ``kill -9`` at any step."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from in_process import PATIENCE_S, eventually, serving, trace
from serving_process import Ended, Server, augment
from serving_process import serving as serving_process

from augment.batch.conversion import Progress, RunPlan, convert
from augment.batch.inputs import Input
from augment.errors import AugmentError
from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment.v1.service_pb2_grpc import AugmentServiceStub
from augment_server.base.errors import Refusal
from augment_server.storage import catalog
from augment_server.storage.folder import Folder
from augment_server.storage.lease import Holder, expect_local
from augment_server.storage.storage import Storage

pytestmark = pytest.mark.embedded
SENTENCE = "another server uses it, through another mount or without its file lock; choose another folder"


def test_a_second_server_without_the_first_ones_lock(tmp_path: Path) -> None:
    """As through a mount that has locks of its own."""
    with serving(tmp_path / "state") as server:
        (tmp_path / "state" / "lock").unlink()
        with pytest.raises(AugmentError, match=SENTENCE):
            Storage(tmp_path / "state")
        (tmp_path / "state" / "lock").unlink()
        (tmp_path / "state" / "lease").unlink()  # it comes back
        with pytest.raises(AugmentError, match=SENTENCE):
            Storage(tmp_path / "state")
        job = server.wait(server.create(server.upload(trace(tmp_path / "a.json"))).name)
        assert job.state == v1.Job.STATE_SUCCEEDED


def test_a_second_server_through_another_path(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "state")
    with serving(tmp_path / "state"), pytest.raises(AugmentError, match="another server uses it"):
        Storage(tmp_path / "link")


def test_a_second_server_through_another_mount(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with serving(tmp_path / "state"):
        mount = ["mount", "--bind", str(tmp_path / "state"), str(tmp_path / "other")]
        if os.geteuid() or not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("may not mount")
        try:
            for _ in range(2):  # the second time without the lock
                with pytest.raises(AugmentError, match="another server uses it"):
                    Storage(tmp_path / "other")
                (tmp_path / "other" / "lock").unlink()
        finally:
            subprocess.run(["umount", str(tmp_path / "other")], check=True)


def test_who_has_lost_the_directory_stops(tmp_path: Path) -> None:
    """A server stands still for so long that another takes over, and goes on then."""
    state = tmp_path / "state"
    first = Server(state)
    try:
        eventually(lambda: stopped(first, state))
        (state / "lock").unlink()
        os.utime(state / "lease", (0, 0))
        with serving_process(state) as second:
            first.process.send_signal(signal.SIGCONT)
            assert first.wait() == 1
            assert f"--state-dir {state}: another server has taken it over, so this one has stopped" in first.errors
            ended = augment("run", "--server", second.address, trace(tmp_path / "a.json"), "-o", tmp_path / "out")
            assert ended.returncode == 0, ended.stderr
            assert Holder.of((state / "lease").read_text())
    finally:
        first.process.kill()
        first.close()


def stopped(server: Server, state: Path) -> bool:
    """Let a server stand still, unless it is in the midst of a transaction."""
    server.process.send_signal(signal.SIGSTOP)
    os.waitpid(server.process.pid, os.WUNTRACED)
    with contextlib.closing(sqlite3.connect(state / "state.db", timeout=0)) as database:
        try:
            database.execute("BEGIN IMMEDIATE").connection.rollback()
        except sqlite3.OperationalError:
            server.process.send_signal(signal.SIGCONT)
            return False
    return True


def test_who_has_lost_the_database_commits_nothing(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    try:
        with contextlib.closing(sqlite3.connect(tmp_path / "state.db")) as database, database:
            database.execute("UPDATE lease SET holder = 'another'")
        for _ in range(2):
            with pytest.raises(Refusal, match="another server has taken over") as caught, storage.writing() as db:
                db.execute("INSERT INTO leftovers VALUES ('job')")
            assert caught.value.reason == "DRAINING"
        assert storage.lease.lost
        assert not storage.rows("SELECT * FROM leftovers")
    finally:
        storage.close()


@pytest.mark.parametrize("ended", ["killed", "released", "elsewhere"])
def test_nothing_is_waited_for_after_an_end(tmp_path: Path, ended: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state, lease = tmp_path / "state", tmp_path / "state" / "lease"
    if ended == "released":
        Storage(state).close()
        assert not lease.read_text()
    else:
        with serving_process(state) as server:
            server.process.kill()
        assert Holder.of(lease.read_text())
    if ended == "elsewhere":  # of another machine, or another container: its process number tells nothing
        lease.write_text(lease.read_text().replace('"boot": "', '"boot": "of another '))
        os.utime(lease, (time.time() - 60, time.time() - 60))
    elif ended == "killed" and not Holder.new().boot:
        pytest.skip("the system does not tell whether it is the same boot")
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it waits"))
    Storage(state).close()
    assert sorted(path.name for path in state.glob("lease*")) == ["lease"]


def test_network_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts, place = tmp_path / "mountinfo", tmp_path.resolve()
    escaped = str(place).replace(" ", r"\040")
    lines = [
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda rw",
        f"23 22 0:40 / {escaped}/far\\040away rw - nfs4 server:/x rw",
        f"24 23 0:41 / {escaped}/far\\040away/near rw - tmpfs tmpfs rw",
    ]
    mounts.write_text("\n".join(lines) + "\n")
    for folder in (place, place / "far", place / "far away" / "near", place / "far away" / "near" / "state"):
        expect_local(folder, mounts)
    for folder in (place / "far away", place / "far away" / "state"):
        with pytest.raises(AugmentError, match=r"lies on a network file system \(nfs4\): .*--network-state"):
            expect_local(folder, mounts)
    expect_local(place, tmp_path / "none")

    def refuse(_: Path) -> None:
        raise AugmentError("far away")

    monkeypatch.setattr("augment_server.storage.storage.expect_local", refuse)
    with pytest.raises(AugmentError, match="far away"):
        Storage(tmp_path / "state")
    Storage(tmp_path / "state", network=True).close()


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder on another disk."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no other disk")
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.mark.parametrize("folder", ["blobs", "artifacts"])
def test_folders_on_different_disks(tmp_path: Path, elsewhere: Path, folder: str) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / folder).symlink_to(elsewhere)
    with pytest.raises(Ended, match=rf"--state-dir .*: {folder} and .* lie on different disks; .* on one disk"):
        Server(state)
    assert not [path for place in (state, elsewhere) for path in place.rglob("*probe*")]
    (state / folder).unlink()
    Storage(state).close()  # nothing is broken


def test_a_start_looks_at_no_upload_that_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it count bytes anew that the last server has counted: with 100,000 of them, both took seconds."""
    state, looked, counted = tmp_path / "state", [], []
    monkeypatch.setattr(Folder, "recover", lambda _self, row, **_: looked.append(row["id"]) or -1)
    monkeypatch.setattr(catalog, "count_bytes", counted.append)
    with serving(state) as server:
        uploads = [server.upload(trace(tmp_path / name, count=count)) for name, count in (("a.json", 3), ("b.json", 4))]
        gone = server.stub.GetUpload(calls.GetUploadRequest(name=uploads[0])).upload.sha256
    (state / "blobs" / gone).unlink()
    counted.clear()
    with serving(state) as server:
        states = [server.stub.GetUpload(calls.GetUploadRequest(name=name)).upload.state for name in uploads]
    assert states == [v1.Upload.STATE_ACTIVE, v1.Upload.STATE_COMPLETE]
    assert looked == [uploads[0].removeprefix("uploads/")]
    assert counted == []
    with contextlib.closing(sqlite3.connect(state / "state.db")) as database, database:
        database.execute("DROP TRIGGER job_more")
    with serving(state):
        assert len(counted) == 1


def test_an_upload_that_cannot_be_recovered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    with serving(state) as server:
        uploads = [server.upload(trace(tmp_path / name, count=count)) for name, count in (("a.json", 3), ("b.json", 4))]
        digests = [server.stub.GetUpload(calls.GetUploadRequest(name=name)).upload.sha256 for name in uploads]
    for name, digest in zip(uploads, digests, strict=True):  # the server was killed before it moved them
        (state / "blobs" / digest).rename(state / "parts" / name.removeprefix("uploads/"))
    move = os.rename

    def fail(before: Path, after: Path, **folders: int) -> None:
        if Path(after).name == digests[0]:
            raise OSError(5, "Input/output error")
        move(before, after, **folders)

    monkeypatch.setattr(os, "rename", fail)
    logged = []
    for _ in range(2):
        with serving(state) as server:
            first, second = (server.stub.GetUpload(calls.GetUploadRequest(name=name)).upload for name in uploads)
            assert (first.state, second.state) == (v1.Upload.STATE_ACTIVE, v1.Upload.STATE_COMPLETE)
            logged.append(server.observer.logged)
    ((line,), nothing) = logged
    assert line.startswith(f"{uploads[0]}: is to be sent again, its bytes cannot be used")
    assert not nothing
    with serving(state) as server:
        again = server.upload(tmp_path / "a.json")
        job = server.wait(server.create(again).name)
        assert job.state == v1.Job.STATE_SUCCEEDED, job.error


def test_an_upload_goes_on_from_the_last_byte_after_a_kill(tmp_path: Path) -> None:
    state, sent = tmp_path / "state", 5 * (64 << 10)
    with serving_process(state) as server, grpc.insecure_channel(server.address) as channel:
        stub = AugmentServiceStub(channel)
        upload = stub.StartUpload(calls.StartUploadRequest(file_name="a.json", size_bytes=2 * sent)).upload.name

        def get() -> v1.Upload:
            return stub.GetUpload(calls.GetUploadRequest(name=upload)).upload

        def pieces() -> Iterator[calls.UploadTraceRequest]:
            yield calls.UploadTraceRequest(resume=calls.ResumeUpload(name=upload))
            for _ in range(5):
                yield calls.UploadTraceRequest(chunk=b"x" * (64 << 10))
            eventually(lambda: get().received_bytes == sent)
            server.process.kill()
            server.process.wait(PATIENCE_S)

        with pytest.raises(grpc.RpcError):
            stub.UploadTrace(pieces())
    storage = Storage(state)
    assert storage.is_same_boot == bool(Holder.new().boot)
    storage.close()
    if not storage.is_same_boot:
        return
    with contextlib.closing(sqlite3.connect(state / "state.db")) as database:
        rows = database.execute("SELECT received FROM uploads").fetchall()
    assert rows == [(0,)]  # nothing was synced yet
    for boot, there in (("another", 0), (Holder.new().boot, sent)):
        with contextlib.closing(sqlite3.connect(state / "state.db")) as database, database:
            database.execute("UPDATE lease SET boot = ?", (boot,))
        with serving(state) as again:
            assert again.stub.GetUpload(calls.GetUploadRequest(name=upload)).upload.received_bytes == there


WHOLE = "training"  #: the folder of all traces: a job of all of them
LARGE = 4 << 20  #: bytes, of which an upload is made safe more than once
CHUNK = 256 << 10
KILLED = Path(__file__).with_name("killed_server.py")
#: each ends the life of one server: a method, whether before or after it, and at which call
POINTS = [
    ("augment_server.jobs.jobs:Jobs.create", "after", 3),
    ("augment_server.jobs.jobs:Jobs.begin", "after", 1),
    ("augment_server.jobs.scheduler:Scheduler._publish", "before", 1),
    ("augment_server.jobs.scheduler:Scheduler._publish", "after", 2),
    ("augment_server.jobs.jobs:Jobs.end", "after", 3),
    ("augment_server.jobs.jobs:Jobs.end_step", "after", 3),
    ("augment_server.storage.uploads:Uploads.saved", "before", 1),
    ("augment_server.storage.uploads:Uploads.completed", "after", 1),
    ("os:rename", "before", 2),
    ("os:fsync", "after", 3),
]
FLAGS = ("--max-running-jobs", 1, "--max-job-attempts", 1000, "--max-client-jobs", 1000)


class Client:
    """Sends traces and asks for jobs as long as there are servers; knows what was accepted."""

    def __init__(self, folder: Path) -> None:
        self.files = [trace(folder / WHOLE / f"rank{n}.json", count=40 + n) for n in range(4)]
        self.made = {path.name: made_by_the_command(path, folder / "out") for path in self.files}
        self.made[WHOLE] = made_of_all(folder)
        self.uploads: dict[str, str] = {}
        self.jobs: dict[str, str] = {}
        self.asked = self.checked = 0
        self.large: list[str] = []
        self.resumed_from: list[int] = []
        self.random = random.Random(0)

    def use(self, stub: AugmentServiceStub, rounds: int) -> None:
        """Until the server, the ``rounds``th, is gone."""
        sending = threading.Thread(target=self._send_large, args=(stub, rounds))
        sending.start()
        with contextlib.suppress(grpc.RpcError):
            while True:
                if self.asked < 4 * rounds:
                    self._ask(stub)
                else:
                    time.sleep(0.05)
                for name in self.random.sample(sorted(self.jobs), min(3, len(self.jobs))):
                    self.check(stub, stub.GetJob(calls.GetJobRequest(name=name), timeout=PATIENCE_S).job)
        sending.join()

    def _ask(self, stub: AugmentServiceStub) -> None:
        """Ask for a job; in the next round again, with the same request_id, if the answer does not come."""
        name = [*(path.name for path in self.files), WHOLE][self.asked % (len(self.files) + 1)]
        if name == WHOLE:
            inputs = [v1.Input(upload=self._sent(path, stub)) for path in self.files]
            spec = v1.JobSpec(job=v1.WholeJobSpec(inputs=inputs, name=WHOLE))
        else:
            given = v1.Input(upload=self._sent(self.files[self.asked % (len(self.files) + 1)], stub))
            spec = v1.JobSpec(augment=v1.AugmentSpec(input=given))
        request_id = f"request {self.asked}"
        job = stub.CreateJob(calls.CreateJobRequest(spec=spec, request_id=request_id), timeout=PATIENCE_S).job
        self.jobs[job.name] = name
        self.asked += 1

    def _sent(self, path: Path, stub: AugmentServiceStub) -> str:
        if path.name not in self.uploads:
            data = path.read_bytes()
            start = calls.StartUploadRequest(file_name=path.name, size_bytes=len(data))
            parts = [calls.UploadTraceRequest(start=start), calls.UploadTraceRequest(chunk=data)]
            self.uploads[path.name] = stub.UploadTrace(iter(parts), timeout=PATIENCE_S).upload.name
        return self.uploads[path.name]

    def check(self, stub: AugmentServiceStub, job: v1.Job) -> None:
        """What is said to be made is there, whole and right."""
        assert job.state not in (v1.Job.STATE_FAILED, v1.Job.STATE_CANCELLED), job.error
        expected = self.made[self.jobs[job.name]]
        if job.state == v1.Job.STATE_SUCCEEDED:
            self.checked += 1
            assert {artifact.file_name for artifact in job.artifacts} == set(expected)
        for artifact in job.artifacts:
            parts = stub.ReadArtifact(calls.ReadArtifactRequest(name=artifact.name), timeout=PATIENCE_S)
            assert b"".join(part.chunk for part in parts) == expected[artifact.file_name]

    def _send_large(self, stub: AugmentServiceStub, rounds: int) -> None:
        """Send large files, a few for each round, the first from where the last server had it."""
        with contextlib.suppress(grpc.RpcError):
            while len(self.large) < 4 * rounds:
                data = large(len(self.large))
                start = calls.StartUploadRequest(
                    file_name="large.json", size_bytes=LARGE, sha256=hashlib.sha256(data).hexdigest()
                )
                upload = stub.StartUpload(start, timeout=PATIENCE_S).upload
                self.resumed_from.append(upload.received_bytes)
                done = stub.UploadTrace(parts_of(data, upload), timeout=PATIENCE_S).upload
                assert done.state == v1.Upload.STATE_COMPLETE
                self.large.append(done.name)


def large(number: int) -> bytes:
    return number.to_bytes(4, "big") + bytes(LARGE - 4)


def parts_of(data: bytes, upload: v1.Upload) -> Iterator[calls.UploadTraceRequest]:
    at = upload.received_bytes
    yield calls.UploadTraceRequest(resume=calls.ResumeUpload(name=upload.name, offset=at))
    for begin in range(at, len(data), CHUNK):
        yield calls.UploadTraceRequest(chunk=data[begin : begin + CHUNK])


def made_by_the_command(path: Path, folder: Path) -> dict[str, bytes]:
    result = convert(Input(str(path), str(folder), named=True), RunPlan(), Progress())
    assert result.status == "augmented"
    return {Path(name).name: Path(name).read_bytes() for name in result.outputs}


def made_of_all(folder: Path) -> dict[str, bytes]:
    ended = augment("run", folder / WHOLE, "-o", folder / "all")
    assert ended.returncode == 0, ended.stderr
    return {path.name: path.read_bytes() for path in (folder / "all").iterdir() if path.suffix in (".json", ".pftrace")}


@contextlib.contextmanager
def connected(server: Server) -> Iterator[AugmentServiceStub]:
    with grpc.insecure_channel(server.address) as channel:
        yield AugmentServiceStub(channel)


def test_nothing_accepted_is_lost(tmp_path: Path) -> None:
    client = Client(tmp_path)
    for number, point in enumerate(POINTS):
        live_until(client, tmp_path / "state", point, number + 1)
    server = Server(tmp_path / "state", *FLAGS)
    try:
        with connected(server) as stub:
            client._ask(stub)  # of which the answer may have been lost
            listed = stub.ListJobs(calls.ListJobsRequest(page_size=1000)).jobs
            # a request that was sent again made no second job
            assert {each.name for each in listed} == set(client.jobs)
            assert len(listed) == client.asked
            jobs = [eventually(lambda name=name: final(stub, name)) for name in client.jobs]
            for job in jobs:
                client.check(stub, job)
            for name in [*client.large, *client.uploads.values()]:
                upload = stub.GetUpload(calls.GetUploadRequest(name=name)).upload
                assert upload.state == v1.Upload.STATE_COMPLETE
    finally:
        server.process.kill()
        server.close()
    assert sum(job.attempt_count for job in jobs) > len(jobs)  # some were cut off
    assert any(0 < each < LARGE for each in client.resumed_from)


def live_until(client: Client, state: Path, point: tuple[str, str, int], rounds: int) -> None:
    """Use a server until it kills itself, which may be before it listens: of what the last one left."""
    try:
        server = Server(state, *FLAGS, program=(KILLED, *point))
    except Ended:
        return
    with connected(server) as stub:
        client.use(stub, rounds)
    server.close()
    assert server.process.returncode == -signal.SIGKILL, (point, server.errors)


def final(stub: AugmentServiceStub, name: str) -> v1.Job | bool:
    job = stub.GetJob(calls.GetJobRequest(name=name)).job
    return job if job.end_time.seconds else False


def test_workers_die_with_their_server(tmp_path: Path) -> None:
    server = Server(tmp_path / "state", *FLAGS)
    try:
        workers = eventually(lambda: [Path("/proc") / str(pid) for pid in server.workers])
    finally:
        server.process.kill()
        server.close()
    eventually(lambda: not any(running(worker) for worker in workers))


def running(process: Path) -> bool:
    with contextlib.suppress(OSError):
        return process.joinpath("stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
