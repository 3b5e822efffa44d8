"""``kill -9`` of the server at each step that matters: what it has accepted is there, and whole, when it comes back."""

from __future__ import annotations

import contextlib
import hashlib
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
from in_process import PATIENCE_S, eventually, trace
from serving_process import Ended, Server, augment

from augment.batch.convert import convert
from augment.batch.inputs import Input
from augment.batch.run_plan import Progress, RunPlan
from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment.v1.service_pb2_grpc import AugmentServiceStub

WHOLE = "training"  #: the folder of all traces: a job of all of them
LARGE = 4 << 20  #: bytes, of which an upload is made safe more than once
CHUNK = 256 << 10
KILLED = Path(__file__).with_name("killed_server.py")
#: each ends the life of one server: a method, whether before or after it, and at which call
POINTS = [
    ("augment_server.jobs.jobs:Jobs.create", "before", 2),
    ("augment_server.jobs.jobs:Jobs.create", "after", 1),
    ("augment_server.jobs.jobs:Jobs.create", "after", 3),
    ("augment_server.jobs.jobs:Jobs.begin", "after", 1),
    ("augment_server.jobs.jobs:Jobs.begin", "after", 2),
    ("augment_server.jobs.scheduler:Scheduler._publish", "before", 1),
    ("augment_server.jobs.scheduler:Scheduler._publish", "after", 2),
    ("augment_server.jobs.jobs:Jobs.end", "after", 1),
    ("augment_server.jobs.jobs:Jobs.end", "after", 3),
    ("augment_server.jobs.jobs:Jobs.end_step", "before", 2),
    ("augment_server.jobs.jobs:Jobs.end_step", "after", 3),
    ("augment_server.storage.uploads:Uploads.saved", "before", 1),
    ("augment_server.storage.uploads:Uploads.saved", "after", 2),
    ("augment_server.storage.uploads:Uploads.completed", "before", 1),
    ("augment_server.storage.uploads:Uploads.completed", "after", 1),
    ("os:rename", "before", 1),
    ("os:rename", "before", 2),
    ("os:rename", "after", 3),
    ("os:fsync", "before", 2),
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
                self._check_some(stub)
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

    def _check_some(self, stub: AugmentServiceStub) -> None:
        for name in self.random.sample(sorted(self.jobs), min(3, len(self.jobs))):
            self.check(stub, stub.GetJob(calls.GetJobRequest(name=name), timeout=PATIENCE_S).job)

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
