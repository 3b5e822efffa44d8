"""A server of the real parts in this process: real socket, real workers, its event loop in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import grpc
import grpc.aio
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from object_store import keys

from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment.v1.service_pb2_grpc import AugmentServiceStub, add_AugmentServiceServicer_to_server
from augment_server.base.limits import Limits
from augment_server.base.observer import Observer
from augment_server.base.people import Person
from augment_server.ops.core import Core
from augment_server.storage.storage import Storage

T = TypeVar("T")
PATIENCE_S = 300.0  #: with what must come: a machine may be busy with much else
SMALL = Limits(max_running_jobs=1, job_deadline_s=2 * PATIENCE_S)
CHUNK = 64 << 10


class Remembering(Observer):
    """What a server tells."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.logged: list[str] = []

    def job_queued(self, job_id: str) -> None:
        self.told.append(("queued", job_id))

    def job_started(self, job_id: str, queued_s: float) -> None:
        self.told.append(("started", job_id))

    def job_stage(self, job_id: str, stage: str, seconds: float) -> None:
        self.told.append(("stage", job_id, stage))

    def job_finished(self, job_id: str, state: str, seconds: float, reason: str = "") -> None:
        self.told.append(("finished", job_id, state, reason))

    def log(self, level: int, message: str, *, job_id: str = "", **fields: Any) -> None:
        self.logged.append(message)


@dataclass
class Server:
    """A running server, and a client of it."""

    core: Core
    stub: AugmentServiceStub
    address: str
    observer: Remembering
    loop: asyncio.AbstractEventLoop

    def call(self, coroutine: Coroutine[Any, Any, T], timeout: float = PATIENCE_S) -> T:
        """Run something in the server's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout)

    @property
    def workers(self) -> list[int]:
        """The workers' process numbers."""
        return [worker.pid for worker in self.core._scheduler._workers._all if worker.alive]

    def freeze(self) -> list[int]:
        """Stop all workers: a job that one of them gets goes on for ever."""
        self.call(self.core._scheduler._workers.prepare())
        pids = self.workers
        for worker in list(self.core._scheduler._workers._all):
            worker.stands_still = False  # by the server: it would let it go on
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        return pids

    def thaw(self) -> None:
        """Let the workers that are there go on, but those that end meanwhile."""
        for pid in self.workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def at_work(self) -> int:
        """The worker that has a job: RUNNING is told before."""
        workers = self.core._scheduler._workers._all
        return eventually(lambda: next((worker.pid for worker in list(workers) if worker.alive and worker.busy), None))

    def until(self, job: str, state: int) -> v1.Job:
        """A job once it is in a state."""
        return eventually(lambda: (result := self.get(job)).state == state and result)

    def stored(self, folder: str) -> set[str]:
        """The names in a folder of its store, such as ``blobs`` or ``artifacts/JOB``."""
        return {key.removeprefix(folder + "/").split("/")[0] for key in keys(self.core._storage.store, folder)}

    def upload(self, path: Path, name: str | None = None) -> str:
        """Send a file: the upload's name."""
        start = calls.StartUploadRequest(file_name=name or path.name, size_bytes=path.stat().st_size)
        return self.stub.UploadTrace(iter([calls.UploadTraceRequest(start=start), *chunks(path)])).upload.name

    def create(self, upload: str = "", request_id: str = "", uri: str = "", **spec: Any) -> v1.Job:
        """Ask for a job."""
        given = v1.Input(uri=uri) if uri else v1.Input(upload=upload)
        wanted = v1.JobSpec(augment=v1.AugmentSpec(input=given, **spec))
        return self.stub.CreateJob(calls.CreateJobRequest(spec=wanted, request_id=request_id)).job

    def get(self, job: str) -> v1.Job:
        """A job as it stands."""
        return self.stub.GetJob(calls.GetJobRequest(name=job)).job

    def wait(self, job: str) -> v1.Job:
        """A job once it is final."""
        *_, last = self.stub.WatchJob(calls.WatchJobRequest(name=job), timeout=PATIENCE_S)
        return last.job

    def read(self, artifact: str, offset: int = 0) -> bytes:
        """An artifact's bytes."""
        return b"".join(
            call.chunk for call in self.stub.ReadArtifact(calls.ReadArtifactRequest(name=artifact, offset=offset))
        )


def catalog_of(state: Path) -> str:
    """The URL of the catalog for a state directory; empty: the one in it."""
    return ""


def store_of(state: Path) -> str:
    """The URL of the store for a state directory; empty: its folders."""
    return ""


def opened(state: Path) -> Storage:
    """A state directory without a server."""
    return Storage(state, catalog=catalog_of(state))


def eventually(what: Callable[[], T | bool | None], timeout_s: float = PATIENCE_S) -> T:
    """What ``what`` returns, once it is something."""
    until = time.monotonic() + timeout_s
    while not (result := what()):
        assert time.monotonic() < until, "it never came"
        time.sleep(0.01)
    return cast("T", result)


def outputs(state: Path, job: str) -> Path:
    """The folder with the artifacts of a job that has succeeded at its only attempt."""
    (folder,) = (state / "artifacts" / job.removeprefix("jobs/")).iterdir()
    return folder


def touched(server: Server, upload: str) -> int:
    """When an upload was last."""
    row = server.core._storage.row("SELECT touched_ns FROM uploads WHERE id = ?", upload.removeprefix("uploads/"))
    assert row
    return int(row["touched_ns"])


def trace(path: Path, count: int = 50, name: str = "k", more: str = "") -> Path:
    """A small trace of ``count`` kernels."""
    event = '{"ph": "X", "cat": "kernel", "name": "%s", "pid": 0, "tid": 7, "ts": %d.25, "dur": 5}'
    events = ",\n".join(event % (name, 1000 + 10 * index) for index in range(count))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{{"traceEvents": [\n{events}{more}\n]}}')
    return path


def chunks(path: Path) -> Iterator[calls.UploadTraceRequest]:
    data = path.read_bytes()
    for at in range(0, len(data), CHUNK):
        yield calls.UploadTraceRequest(chunk=data[at : at + CHUNK])


@contextlib.contextmanager
def serving(
    state: Path,
    limits: Limits = SMALL,
    roots: tuple[Path, ...] = (),
    client: str = "host:test",
    store: str = "",
    prefixes: tuple[str, ...] = (),
    outputs: tuple[str, ...] = (),
    **changed: Any,
) -> Iterator[Server]:
    """A server over ``state``."""
    limits = replace(limits, **changed)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    observer = Remembering()

    def person_of(context: Any) -> Person:
        sent = dict(context.invocation_metadata())
        roles = json.loads(sent.get("roles", "{}"))
        return Person(sent.get("client", client), *([roles] if roles else []))

    async def start() -> tuple[Core, grpc.aio.Server, int]:
        more: dict[str, Any] = {"catalog": catalog_of(state), "store": store or store_of(state), "prefixes": prefixes}
        core = Core(state, limits, roots, observer, person_of, outputs=outputs, **more)
        workers: Any = core._scheduler._workers
        workers.prepare = partial(asyncio.sleep, 0)  # many tests have no job done: the first one starts the worker
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", limits.max_message_bytes)])
        add_AugmentServiceServicer_to_server(core.servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await core.start()
        del workers.prepare
        await server.start()
        return core, server, port

    async def stop() -> None:
        await server.stop(0)
        await core.close()

    core, server, port = asyncio.run_coroutine_threadsafe(start(), loop).result(PATIENCE_S)
    address = f"127.0.0.1:{port}"
    try:
        with grpc.insecure_channel(address) as channel:
            yield Server(core, AugmentServiceStub(channel), address, observer, loop)
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@dataclass(frozen=True)
class Told:
    """What an error says."""

    code: grpc.StatusCode
    reason: str
    message: str
    metadata: dict[str, str]
    retry: bool


@contextlib.contextmanager
def refused(reason: str, code: str) -> Iterator[list[Told]]:
    """Expect a call to fail so. What else it says is in the list, afterwards."""
    result: list[Told] = []
    try:
        yield result
    except grpc.RpcError as error:
        result.append(told_by(error))
    assert result, f"nothing failed, expected {reason}"
    assert (result[0].reason, result[0].code.name) == (reason, code), result[0]
    assert_presentable(result[0].message)


@contextlib.contextmanager
def violated(field: str) -> Iterator[None]:
    """Expect a refusal that names a field."""
    output: list[grpc.RpcError] = []
    try:
        yield
    except grpc.RpcError as error:
        output.append(error)
    assert output, f"nothing failed, expected {field}"
    result = details(output[0], error_details_pb2.BadRequest())
    assert [each.field for each in result.field_violations] == [field], result


def details(error: grpc.RpcError, kind: Any) -> Any:
    """The detail of this kind of an error."""
    status = rpc_status.from_call(error)
    assert any(detail.Unpack(kind) for detail in status.details), status
    return kind


def told_by(error: grpc.RpcError) -> Told:
    """What an error says."""
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    status = rpc_status.from_call(error)
    assert status is not None, error
    result = {detail.TypeName(): detail for detail in status.details}
    assert result["google.rpc.ErrorInfo"].Unpack(info)
    assert info.domain == "kineto-augment"
    again = "google.rpc.RetryInfo" in result and result["google.rpc.RetryInfo"].Unpack(retry)
    return Told(error.code(), info.reason, error.details(), dict(info.metadata), bool(again))


def assert_presentable(message: str) -> None:
    """No path of the server's, no traceback, some words."""
    assert len(message) > 15
    for inside in ("/tmp", "/home", "Traceback", 'File "', ".py", "/blobs/", "/work/"):
        assert inside not in message
