"""The limits: what follows from the machine, those that no other file tests, and that none is forgotten."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import json
import re
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import pytest
from google.rpc import code_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from in_process import PATIENCE_S, Server, eventually, refused, serving, trace
from raw_frames import sent
from serving_process import serving as serving_apart

from augment.client import Client
from augment.client.connection import Deadline
from augment.readers import limits as readers
from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment.v1.service_pb2_grpc import AugmentServiceStub
from augment_server.base import limits
from augment_server.base.errors import REASONS, Refusal
from augment_server.base.limits import GIB, Limits
from augment_server.ops import serving as serving_module
from augment_server.ops.flags import flag_of

HERE = Path(__file__).parent
FIRST_FRAMES = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4" + bytes(5)  #: and empty settings


@pytest.mark.parametrize("field", dataclasses.fields(Limits), ids=lambda field: field.name)
def test_each_is_run_against(field: dataclasses.Field[object]) -> None:
    """In some test a server has each limit at a value of the test's own."""
    given = re.compile(rf"\b{field.name}=|\"{field.name}\": |\"{flag_of(field)}\"")
    others = (path for path in HERE.glob("test_*.py") if path.name != "test_serve.py")  # which only parses
    assert any(given.search(path.read_text()) for path in others)


def failure(server: Server, path: Path) -> v1.JobError:
    job = server.wait(server.create(server.upload(path)).name)
    assert job.state == v1.Job.STATE_FAILED
    return job.error


def test_a_ratio_that_no_trace_has(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * (70 << 20) + b"]}"))
    with serving(tmp_path / "state", max_text_ratio=100) as server:
        error = failure(server, path)
    assert error.reason == "LIMIT_EXCEEDED"
    assert error.message == "bomb.json.gz: decompresses to more than 100 times its size; not a trace"


@pytest.mark.parametrize(("limit", "what"), [("max_devices", "devices"), ("max_streams", "streams of devices")])
def test_devices_and_streams(tmp_path: Path, limit: str, what: str) -> None:
    """For all kinds of jobs that read a trace."""
    path, event = (
        tmp_path / "many.json",
        '{"ph": "X", "cat": "kernel", "name": "k", "pid": %d, "tid": 7, "ts": 1, "dur": 1}',
    )
    path.write_text(f'{{"traceEvents": [{", ".join(event % device for device in range(9))}]}}')
    limits = {"max_devices": 8} if limit == "max_devices" else {"max_streams": 8}
    with serving(tmp_path / "state", **limits) as server:
        given = v1.Input(upload=server.upload(path))
        specs = [
            v1.JobSpec(augment=v1.AugmentSpec(input=given)),
            v1.JobSpec(report=v1.ReportSpec(input=given)),
            v1.JobSpec(diagnose=v1.DiagnoseSpec(inputs=[given])),
            v1.JobSpec(diff=v1.DiffSpec(control=given, test=given)),
            v1.JobSpec(job=v1.WholeJobSpec(inputs=[given])),
        ]
        for spec in specs:
            job = server.wait(server.stub.CreateJob(calls.CreateJobRequest(spec=spec)).job.name)
            error = job.failures[0].error if job.failures else job.error
            assert error.reason == "LIMIT_EXCEEDED", job
            assert error.message == f"many.json: has work on 9 {what}, more than 8; split it by rank or by time"


def test_devices_that_the_header_describes(tmp_path: Path) -> None:
    path, device = tmp_path / "many.json", '{"id": %d, "name": "NVIDIA H100"}'
    path.write_text(f'{{"deviceProperties": [{", ".join(map(device.__mod__, range(9)))}], "traceEvents": []}}')
    with serving(tmp_path / "state", max_devices=8) as server:
        error = server.wait(server.create(server.upload(path)).name).error
    assert (error.reason, error.message) == ("LIMIT_EXCEEDED", "many.json: describes 9 devices, more than 8")


def test_nesting(tmp_path: Path) -> None:
    deep = "[" * 20 + "]" * 20
    path = trace(
        tmp_path / "deep.json", more=f',\n{{"ph": "X", "name": "deep", "ts": 1, "dur": 1, "args": {{"x": {deep}}}}}'
    )
    output = []
    for most in (128, 16):
        with serving(tmp_path / f"state{most}", max_nesting=most) as server:
            job = server.wait(server.create(server.upload(path)).name)
            output.append(json.loads(server.read(job.artifacts[-1].name))["diagnostics"])
    assert [[diagnostic["code"] for diagnostic in diagnostics] for diagnostics in output] == [[], ["nested_too_deeply"]]


def test_attempts_over_restarts(tmp_path: Path) -> None:
    with serving(tmp_path / "state", max_job_attempts=3, max_running_jobs=1) as server:
        server.freeze()
        server.until(server.create(server.upload(trace(tmp_path / "a.json"))).name, v1.Job.STATE_RUNNING)
        waiting = server.create(server.upload(trace(tmp_path / "b.json", count=7))).name
        with server.core._storage.writing() as db:
            db.execute("UPDATE jobs SET attempts = 3 WHERE id = ?", (waiting.removeprefix("jobs/"),))
    with serving(tmp_path / "state", max_job_attempts=3, max_running_jobs=1) as server:
        job = server.wait(waiting)
    assert (job.error.reason, job.error.code) == ("WORKER_DIED", code_pb2.ABORTED)
    assert "abandoned after 3 attempts" in job.error.message


FLAGS = ("--max-calls", 2, "--max-connections", 4, "--max-message", "100KiB")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving_apart(tmp_path_factory.mktemp("state"), *FLAGS) as server:
        yield server.address


def test_calls_at_once(address: str) -> None:
    with grpc.insecure_channel(address) as channel, ExitStack() as stack:
        probes = health_pb2_grpc.HealthStub(channel)
        for _ in range(2):
            held = probes.Watch(health_pb2.HealthCheckRequest())
            stack.callback(held.cancel)
            next(held)
        with refused("TOO_MANY_CALLS", "RESOURCE_EXHAUSTED") as output:
            AugmentServiceStub(channel).ListJobs(calls.ListJobsRequest(), timeout=PATIENCE_S)
        assert output[0].retry
        probe = probes.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)  # always room for it
        assert probe.status == health_pb2.HealthCheckResponse.SERVING


def test_watchers_of_one_client_leave_room_for_calls(tmp_path: Path) -> None:
    path = trace(tmp_path / "a.json")
    with serving_apart(tmp_path / "state", "--max-client-calls", 5) as server, Client(server.address) as client:
        stub = client._stub
        with server.frozen():
            upload = client._upload(str(path), Deadline(None, ""), lambda *_: None)
            spec = v1.JobSpec(augment=v1.AugmentSpec(input=v1.Input(upload=upload)))
            job = stub.CreateJob(calls.CreateJobRequest(spec=spec)).job.name
            watching = [stub.WatchJob(calls.WatchJobRequest(name=job)) for _ in range(5)]
            for each in watching:
                next(each)
            with refused("TOO_MANY_CALLS", "RESOURCE_EXHAUSTED"):
                next(stub.WatchJob(calls.WatchJobRequest(name=job)))
            assert stub.GetJob(calls.GetJobRequest(name=job)).job.name == job
            assert stub.StartUpload(calls.StartUploadRequest(file_name="b.json")).upload.name
            for each in watching:
                each.cancel()
        assert eventually(lambda: stub.GetJob(calls.GetJobRequest(name=job)).job.end_time.seconds)


def test_a_message_that_is_too_large(address: str) -> None:
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
        AugmentServiceStub(channel).UploadTrace(
            iter([calls.UploadTraceRequest(chunk=bytes(101 << 10))]), timeout=PATIENCE_S
        )
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def answers(connection: socket.socket) -> bool:
    with suppress(ConnectionError):
        return bool(connection.recv(1))
    return False


def test_a_compressed_message(address: str) -> None:
    """It could be of a kilobyte and inflate to a gigabyte; some versions of gRPC do before they look at the limit."""
    compressed = grpc.insecure_channel(address, compression=grpc.Compression.Gzip)
    with compressed as channel, pytest.raises(grpc.RpcError) as caught:
        AugmentServiceStub(channel).GetJob(calls.GetJobRequest(name="x" * 99_000), timeout=PATIENCE_S)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_message_that_inflates(tmp_path: Path) -> None:
    """100 MB of zeros are 100 kB on their way. The server never holds them, by any gRPC that is allowed."""
    with serving_apart(tmp_path / "state") as server:
        before = peak_bytes(server.process.pid)
        with grpc.insecure_channel(server.address, compression=grpc.Compression.Gzip) as channel:
            ask = channel.unary_unary("/augment.v1.AugmentService/GetJob")
            with pytest.raises(grpc.RpcError):
                ask(bytes(100 << 20), timeout=PATIENCE_S)
        assert peak_bytes(server.process.pid) - before < 30 << 20


def test_ended_calls_do_not_stay(tmp_path: Path) -> None:
    """Of each upload, gRPC kept its last message until Python collected what refers to itself."""
    with serving_apart(tmp_path / "state") as server, grpc.insecure_channel(server.address) as channel:
        stub = AugmentServiceStub(channel)

        def send(count: int) -> int:
            for number in range(count):
                data = number.to_bytes(4, "big") * (1 << 18)
                start = calls.StartUploadRequest(file_name="a.json", size_bytes=len(data))
                parts = [calls.UploadTraceRequest(start=start), calls.UploadTraceRequest(chunk=data)]
                upload = stub.UploadTrace(iter(parts), timeout=PATIENCE_S).upload.name
                stub.DeleteUpload(calls.DeleteUploadRequest(name=upload), timeout=PATIENCE_S)
            return peak_bytes(server.process.pid)

        before = send(20)
        assert send(80) - before < 30 << 20


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        pytest.skip("this system does not tell of memory")
    match = re.search(r"VmHWM:\s+(\d+)", text)
    assert match
    return int(match[1]) << 10


def test_connections_at_once(address: str) -> None:
    with ExitStack() as stack:
        # once those of the tests before have gone
        assert eventually(lambda: answers(sent(stack, address, FIRST_FRAMES)))
        held = [sent(stack, address, FIRST_FRAMES) for _ in range(5)]
        assert not all(answers(each) for each in held)


def test_connections_without_calls_are_closed(tmp_path: Path) -> None:
    with serving_apart(tmp_path / "state", "--max-connection-idle", "1s") as server, ExitStack() as stack:
        connection = sent(stack, server.address, FIRST_FRAMES)
        with suppress(ConnectionError):
            while connection.recv(1000):
                pass


PING, GOAWAY = 6, 7  #: types of frames
PING_FRAME = b"\0\0\x08" + bytes([PING]) + bytes(5) + b"whatever"


def test_who_watches_may_ask_whether_the_connection_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as the server means to allow. gRPC itself allows it every five minutes; our client asks every 30 s."""
    monkeypatch.setattr(serving_module, "_PING_S", 0.001)

    async def ask() -> Counter[int]:
        server = serving_module._grpc_server(Limits(), [])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(FIRST_FRAMES)
        output: Counter[int] = Counter()
        while output[PING] < 10 and not output[GOAWAY]:
            head = await reader.readexactly(9)
            await reader.readexactly(int.from_bytes(head[:3], "big"))
            output[head[3]] += 1
            await asyncio.sleep(0.02)
            writer.write(PING_FRAME)
        writer.close()
        await server.stop(0)
        return output

    ended = asyncio.run(ask())
    assert (ended[PING], ended[GOAWAY]) == (10, 0)


def test_every_limit_says_what_it_is() -> None:
    for limit in dataclasses.fields(Limits):
        assert limit.metadata["doc"].endswith(".")
        assert limit.metadata["unit"] in ("bytes", "s", "count", "ratio")
        assert limit.name.endswith("_bytes") == (limit.metadata["unit"] == "bytes")
        assert limit.name.endswith("_s") == (limit.metadata["unit"] == "s")


@pytest.mark.parametrize(("processors", "memory", "given", "jobs"), [
    (8, 64 * GIB, {}, 8),
    (64, 16 * GIB, {}, 7),
    (1, GIB, {}, 1),
    (8, 64 * GIB, {"max_job_memory_bytes": 16 * GIB}, 3),
    (8, 64 * GIB, {"max_running_jobs": 20}, 20),
])  # fmt: skip
def test_jobs_at_once(
    monkeypatch: pytest.MonkeyPatch, processors: int, memory: int, given: dict[str, int], jobs: int
) -> None:
    monkeypatch.setattr(limits, "processors", lambda: processors)
    monkeypatch.setattr(limits, "memory_bytes", lambda: memory)
    assert Limits(**given).running_jobs() == jobs
    assert Limits().job_memory_bytes() == memory * 3 // 4


def test_nesting_is_the_readers_own() -> None:
    """Otherwise the service would make other files than the command."""
    assert (limits.NESTING, limits.LEAST_NESTING) == (readers.NESTING, readers.LEAST_NESTING)
    assert Limits().max_nesting == readers.Limits().nesting


def test_every_reason_has_a_code() -> None:
    for reason in REASONS:
        status = Refusal(reason, "what to do", {"a": "b"}, retry_s=1.5).status()
        assert status.code == grpc.StatusCode[REASONS[reason][0]].value[0]
        names = [detail.TypeName().removeprefix("google.rpc.") for detail in status.details]
        assert names[:2] == ["ErrorInfo", "RetryInfo"]
        assert names[2:] in ([], ["QuotaFailure"])
