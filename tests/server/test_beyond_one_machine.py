"""Fronts and workers that share PostgreSQL and an S3-compatible store, and no folder."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from in_process import eventually, refused, trace
from object_store import new_store, weed
from postgres_cluster import Cluster
from serving_process import PATIENCE_S, Server, Worker, augment
from test_hostile_worker import NEEDS_LANDLOCK, NEEDS_SECCOMP
from test_proxies import nginx

from augment.client import Client
from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment.v1.service_pb2_grpc import AugmentServiceStub
from machine import free_ports

SUCCEEDED, RUNNING, QUEUED = v1.Job.STATE_SUCCEEDED, v1.Job.STATE_RUNNING, v1.Job.STATE_QUEUED
HASTY = (str(Path(__file__).with_name("hasty.py")),)


class Fleet:
    """Two fronts, and a worker."""

    def __init__(self, folder: Path, catalog: str, store: str) -> None:
        self._folder, self._store, self._started = folder, store, list[Server]()
        self._shared = ("--catalog", catalog, "--store", store)
        self.fronts = [self.front() for _ in range(2)]
        self.callers = [Caller(front.address) for front in self.fronts]
        self.worker = self.another()

    def front(self, listen: str = "127.0.0.1:0") -> Server:
        state = self._folder / f"state{len(self._started)}"
        self._started.append(Server(state, *self._shared, "--role", "front", listen=listen, program=HASTY))
        return self._started[-1]

    def another(self, *flags: object, code: str = "") -> Worker:
        """One more worker."""
        program = (*HASTY, "--worker", code) if code else HASTY
        worker = Worker(*self._shared, "--max-running-jobs", 1, *flags, program=program)
        self._started.append(worker)
        return worker

    def stop(self) -> None:
        for each in self._started:
            if each.process.poll() is None:
                each.process.kill()
            each.close()

    def keys(self, job: str) -> list[str]:
        """What is stored of a job's outputs."""
        import obstore

        objects = weed().objects(self._store.rpartition("/")[2])
        folder = job.replace("jobs/", "artifacts/")
        return [entry["path"] for some in obstore.list(objects, folder) for entry in some]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, postgres: Cluster) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    made = Fleet(folder, postgres.url(folder), new_store())
    yield made
    made.stop()


class Caller:
    """Calls to a front."""

    def __init__(self, address: str) -> None:
        self.stub = AugmentServiceStub(grpc.insecure_channel(address))

    def upload(self, path: Path) -> str:
        start = calls.StartUploadRequest(file_name=path.name, size_bytes=path.stat().st_size)
        sent = [calls.UploadTraceRequest(start=start), calls.UploadTraceRequest(chunk=path.read_bytes(), finish=True)]
        return str(self.stub.UploadTrace(iter(sent)).upload.name)

    def create(self, *paths: Path) -> str:
        """A job on a trace, or a whole job."""
        inputs = [v1.Input(upload=self.upload(path), file_name=path.name if paths[1:] else "") for path in paths]
        spec = v1.JobSpec(augment=v1.AugmentSpec(input=inputs[0]))
        if len(inputs) > 1:
            spec = v1.JobSpec(job=v1.WholeJobSpec(inputs=inputs, name="job"))
        return str(self.stub.CreateJob(calls.CreateJobRequest(spec=spec)).job.name)

    def get(self, job: str) -> v1.Job:
        return self.stub.GetJob(calls.GetJobRequest(name=job)).job

    def until(self, job: str, state: int) -> v1.Job:
        return eventually(lambda: (result := self.get(job)).state == state and result)

    def wait(self, job: str) -> v1.Job:
        *_, last = self.stub.WatchJob(calls.WatchJobRequest(name=job), timeout=PATIENCE_S)
        return last.job

    def outputs(self, job: v1.Job) -> dict[str, bytes]:
        reads = {
            artifact.file_name: self.stub.ReadArtifact(calls.ReadArtifactRequest(name=artifact.name))
            for artifact in job.artifacts
        }
        return {name: b"".join(piece.chunk for piece in read) for name, read in reads.items()}


def of_command(folder: Path, *names: str) -> dict[str, bytes]:
    """The outputs of ``augment run``."""
    assert augment("run", *names or [folder], "-o", folder / "out", "--quiet").returncode == 0
    made = {path.name: path.read_bytes() for path in (folder / "out").iterdir()}
    return {name: content for name, content in made.items() if not name.endswith((".summary", ".jsonl"))}


def test_what_one_front_accepts_workers_do_and_the_other_tells(fleet: Fleet, tmp_path: Path) -> None:
    first, second = fleet.callers
    leaves = fleet.another("--idle-exit", "1s")
    paths = [trace(tmp_path / "job" / f"rank{at}.json", 40 + at) for at in range(4)]
    job = second.wait(first.create(*paths))
    assert job.state == SUCCEEDED, job.error
    assert first.get(job.name) == job
    assert {stage.stage for stage in job.progress.stages} >= {"converting", "comparing"}
    assert second.outputs(job) == first.outputs(job) == of_command(tmp_path / "job")
    assert [front.workers for front in fleet.fronts] == [[], []]
    assert leaves.wait() == 0  # nothing is left to do
    assert first.wait(second.create(paths[0])).state == SUCCEEDED


def test_progress_of_two_workers_never_goes_back(fleet: Fleet, tmp_path: Path) -> None:
    other = fleet.another()
    job = fleet.callers[0].create(*(trace(tmp_path / f"rank{at}.json", 40 + at) for at in range(12)))
    watch = fleet.callers[1].stub.WatchJob(calls.WatchJobRequest(name=job), timeout=PATIENCE_S)
    seen = [update.job.progress for update in watch]
    other.terminate()
    assert other.wait() == 0
    converted = [progress.done_count for progress in seen if progress.stage == "converting"]
    assert converted == sorted(converted)
    assert (seen[-1].done_count, seen[-1].total_count) == (14, 14)
    spent = {stage.stage: stage.duration.ToTimedelta() for stage in seen[-1].stages}
    assert spent["converting"] > spent["comparing"]  # all of it, not what the server of the last step saw


def test_a_worker_that_stood_still_ends_nothing(fleet: Fleet, tmp_path: Path) -> None:
    """SIGSTOP beyond its lease, then SIGCONT: another one has done its job, and its own outputs count for nothing."""
    caller, late, path = fleet.callers[0], fleet.worker, trace(tmp_path / "a.json")
    with late.frozen():
        job = caller.create(path)
        caller.until(job, RUNNING)
        late.process.send_signal(signal.SIGSTOP)
    other = fleet.another()
    done = caller.wait(job)
    other.terminate()
    assert done.state == SUCCEEDED, done.error
    assert done.attempt_count > 1
    made, kept = caller.outputs(done), fleet.keys(job)
    late.process.send_signal(signal.SIGCONT)
    late.logged("this attempt no longer counts: the job was cancelled, or another server has it")
    assert other.wait() == 0
    assert caller.wait(caller.create(path)).state == SUCCEEDED  # at the late one, which has removed what it made
    assert caller.get(job) == done
    assert (caller.outputs(done), fleet.keys(job)) == (made, kept)
    assert made == of_command(tmp_path, str(path))


#: what a worker tries that a trace has taken over: the tally of what it could
TRIES = """
import ctypes, hashlib, socket
could = []
def tried(name, what):
    try:
        what()
        could.append(name)
    except OSError:
        pass
above = os.path.dirname(os.path.dirname(order["folder"]))
tried("write beside", lambda: open(above + "/stray", "w"))
tried("write its input", lambda: open(order["inputs"][0]["blob"], "r+b"))
tried("write in the folder of all", lambda: open({folder!r} + "/stray", "w"))
tried("read the environment of its parent", lambda: open(f"/proc/{{os.getppid()}}/environ").read())
tried("read a file", lambda: open({secret!r}).read())
tried("fork", os.fork)
tried("connect", lambda: socket.create_connection(("127.0.0.1", {port})))
tried("stop its parent", lambda: os.kill(os.getppid(), 19))
tried("be another", lambda: os.setuid(12345))
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
could += [name for name in os.environ if name.startswith(("AWS", "PG"))]
could += [] if status["NoNewPrivs"].strip() == "1" else ["have new privileges"]
could += [] if int(status["CapEff"], 16) == 0 else ["be root"]
text = json.dumps(could)
open(out + "/a.metrics.json", "w").write(text)
return {{"made": [["a.metrics.json", hashlib.sha256(text.encode()).hexdigest()]]}}
"""


@NEEDS_LANDLOCK
@NEEDS_SECCOMP
def test_a_worker_has_no_rights(fleet: Fleet, tmp_path: Path) -> None:
    """Whatever a trace makes it do: it has neither the store nor the catalog, and no file but its own."""
    secret = trace(tmp_path / "secret")
    code = TRIES.format(folder=str(tmp_path), secret=str(secret), port=weed().port)
    caller, taken_over = fleet.callers[0], fleet.another(code=code)
    fleet.worker.process.send_signal(signal.SIGSTOP)
    job = caller.wait(caller.create(trace(tmp_path / "a.json")))
    fleet.worker.process.send_signal(signal.SIGCONT)
    taken_over.terminate()
    assert taken_over.wait() == 0
    assert job.state == SUCCEEDED, job.error
    assert [json.loads(text) for text in caller.outputs(job).values()] == [[]]


def test_while_the_store_is_away_calls_say_so_and_jobs_wait(fleet: Fleet, tmp_path: Path) -> None:
    caller, path = fleet.callers[0], trace(tmp_path / "a.json")
    done = caller.wait(caller.create(path))
    upload = caller.upload(path)
    weed().stop()
    try:
        spec = v1.JobSpec(augment=v1.AugmentSpec(input=v1.Input(upload=upload)))
        waits = caller.stub.CreateJob(calls.CreateJobRequest(spec=spec)).job.name
        with refused("STORE_UNAVAILABLE", "UNAVAILABLE"):
            caller.outputs(done)
        with refused("STORE_UNAVAILABLE", "UNAVAILABLE"):
            caller.upload(trace(tmp_path / "b.json"))
        eventually(lambda: any("the store of bytes" in line["message"] for line in fleet.worker.log))
        assert caller.get(waits).state in (QUEUED, RUNNING)
    finally:
        weed().start()
    last = caller.wait(waits)
    assert last.state == SUCCEEDED, last.error
    assert caller.outputs(last) == caller.outputs(done)


def test_fronts_are_restarted_one_by_one_and_no_call_fails(fleet: Fleet, tmp_path: Path) -> None:
    """Under load, behind nginx, which sends each call to one that answers."""
    path, (port,) = trace(tmp_path / "a.json"), free_ports(1)
    upstream = "".join(f"server {front.address};" for front in fleet.fronts)
    servers = f"""
    upstream fronts {{ {upstream} }}
    server {{ listen 127.0.0.1:{port} http2; client_max_body_size 0; location / {{ grpc_pass grpc://fronts; }} }}"""
    ended, failures, counts = threading.Event(), list[BaseException](), [0, 0]

    def client(number: int) -> None:
        with Client(f"127.0.0.1:{port}") as calling:
            while not ended.wait(0.1):
                try:
                    calling.augment(path, only=["temporal_breakdown"], out=tmp_path / f"out{number}")
                except BaseException as error:
                    failures.append(error)
                counts[number] += 1

    with nginx(tmp_path / "nginx", servers, port):
        threads = [threading.Thread(target=client, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()

        def goes_on() -> None:
            before = sum(counts)
            eventually(lambda: sum(counts) > before + 1)

        for front in fleet.fronts:
            goes_on()
            front.terminate()
            assert front.wait() == 0
            fleet.front(front.address)
        goes_on()
        ended.set()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert failures == []
