"""Answers that nobody reads, and requests that are none."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import sqlite3
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from in_process import PATIENCE_S, eventually, outputs, told_by, trace
from serving_process import serving

from augment.client.connection import Connection, Deadline
from augment.client.transfers import Download
from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment.v1.service_pb2_grpc import AugmentServiceStub
from augment_server.api.reading import Answers
from augment_server.base.errors import Refusal
from augment_server.base.sockets import hang_up

SIZE = 300 << 20  #: more than all buffers on the way take


def test_downloads_that_nobody_reads_end(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with serving(state, "--max-unread", "1s") as server, grpc.insecure_channel(server.address) as channel:
        stub = AugmentServiceStub(channel)
        job = done(stub, trace(tmp_path / "a.json"))
        artifact = enlarge(state, job.name.removeprefix("jobs/"), job.artifacts[0])
        reading = [stub.ReadArtifact(calls.ReadArtifactRequest(name=artifact)) for _ in range(5)]
        for each in reading:
            next(each)
        assert eventually(lambda: not any(each.is_active() for each in reading))
        assert {each.code() for each in reading} <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
        assert server.logged("call", method="ReadArtifact", code="DEADLINE_EXCEEDED")["client"].startswith("host:")
        assert stub.ListJobs(calls.ListJobsRequest(), wait_for_ready=True).jobs  # over a new connection
        assert "Traceback" not in server.errors


def done(stub: Any, path: Path) -> v1.Job:
    start = calls.UploadTraceRequest(start=calls.StartUploadRequest(file_name=path.name))
    rest = calls.UploadTraceRequest(chunk=path.read_bytes(), finish=True)
    upload = stub.UploadTrace(iter([start, rest])).upload.name
    spec = v1.JobSpec(augment=v1.AugmentSpec(input=v1.Input(upload=upload)))
    job = stub.CreateJob(calls.CreateJobRequest(spec=spec)).job.name
    *_, last = stub.WatchJob(calls.WatchJobRequest(name=job))
    made: v1.Job = last.job
    return made


def enlarge(state: Path, job: str, artifact: v1.Artifact) -> str:
    """Make a large file of zeros of it."""
    os.truncate(outputs(state, job) / artifact.file_name, SIZE)
    with sqlite3.connect(state / "state.db") as database:
        database.execute("UPDATE artifacts SET size = ? WHERE job = ? AND position = 0", (SIZE, job))
    return artifact.name


class Zeros:
    """A server of streams of zeros, and one of calls that wait, in this process."""

    def __init__(self, unread_s: float) -> None:
        self.hung_up: list[str] = []
        self.answers = Answers(unread_s, self.hung_up.append)
        self.server = grpc.aio.server(interceptors=[self.answers])
        handlers = {
            "Stream": grpc.unary_stream_rpc_method_handler(self.stream, *CODEC),
            "Wait": grpc.unary_stream_rpc_method_handler(self.wait, *CODEC),
            "Ask": grpc.unary_unary_rpc_method_handler(self.ask, *CODEC),
            "Send": grpc.stream_unary_rpc_method_handler(self.send, *CODEC),
        }
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("zeros", handlers),))
        self.port = self.server.add_insecure_port("127.0.0.1:0")

    async def stream(self, request: Any, context: Any) -> AsyncIterator[Any]:
        for _ in range(SIZE >> 18):
            yield calls.ReadArtifactResponse(chunk=bytes(1 << 18))

    async def wait(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield calls.ReadArtifactResponse()
        await asyncio.Event().wait()

    async def ask(self, request: Any, context: Any) -> Any:
        return calls.ReadArtifactResponse()

    async def send(self, request: Any, context: Any) -> Any:
        try:
            async for _ in request:
                pass
        except Refusal as refusal:  # as the service does
            await context.abort(refusal.code, refusal.message)


CODEC = calls.ReadArtifactRequest.FromString, calls.ReadArtifactResponse.SerializeToString


@contextlib.asynccontextmanager
async def zeros(unread_s: float) -> AsyncIterator[tuple[Zeros, grpc.aio.Channel]]:
    served = Zeros(unread_s)
    await served.server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{served.port}") as channel:
            yield served, channel
    finally:
        await served.server.stop(0)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, PATIENCE_S))


async def until(what: Any) -> None:
    while not what():
        await asyncio.sleep(0.01)


def test_another_call_keeps_the_connection() -> None:
    """It may be of somebody else behind a proxy. The download is refused once it is read again."""

    async def test() -> None:
        async with zeros(unread_s=0.2) as (served, channel):
            waiting = channel.unary_stream("/zeros/Wait")(b"")
            await waiting.read()
            reading = channel.unary_stream("/zeros/Stream")(b"")
            await reading.read()
            await until(lambda: served.answers._stuck)
            assert served.hung_up == []
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                while await reading.read():
                    pass
            assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            await until(lambda: not served.answers._stuck)
            assert not waiting.done()
            stuck = channel.unary_stream("/zeros/Stream")(b"")
            await stuck.read()
            await until(lambda: served.answers._stuck)
            waiting.cancel()  # now the stuck one is alone
            await until(lambda: served.hung_up)
            assert served.hung_up[0].startswith("ipv4:127.0.0.1:")

    run(test())


def test_what_is_read_slowly_is_sent_to_its_end() -> None:
    async def test() -> None:
        async with zeros(unread_s=PATIENCE_S) as (served, channel):
            size = 0
            async for message in channel.unary_stream("/zeros/Stream")(b""):
                size += len(calls.ReadArtifactResponse.FromString(message).chunk)
            assert size == SIZE
            await until(lambda: not served.answers._under_way)

    run(test())


def test_a_single_answer_that_nobody_reads_ends_its_connection() -> None:
    ends, hung_up = list[Any](), list[str]()

    class Context:
        def peer(self) -> str:
            return "ipv4:127.0.0.1:1"

        def add_done_callback(self, callback: Any) -> None:
            ends.append(callback)

    async def behaviour(_request: object, _context: object) -> Any:
        return calls.GetJobResponse()

    async def test() -> None:
        answers = Answers(0.0, hung_up.append)
        await answers._answering(behaviour)(calls.GetJobRequest(), Context())
        await until(lambda: bool(hung_up))
        for end in ends:
            end(None)
        assert not answers._under_way
        assert not answers._stuck

    run(test())
    assert hung_up == ["ipv4:127.0.0.1:1"]


@pytest.mark.parametrize("method", ["Ask", "Stream", "Send"])
def test_bytes_that_are_no_message(method: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with zeros(unread_s=PATIENCE_S) as (_, channel):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                if method == "Stream":
                    await channel.unary_stream("/zeros/Stream")(b"\xff\xff").read()
                elif method == "Ask":
                    await channel.unary_unary("/zeros/Ask")(b"\xff\xff")
                else:
                    await channel.stream_unary("/zeros/Send")(iter([b"", b"\xff\xff"]))
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert "not a message" in (caught.value.details() or "")

    run(test())
    assert "servicer method" not in caplog.text  # so begins gRPC's traceback; its poller may tell of other things


def test_the_service_logs_no_error_for_them(tmp_path: Path) -> None:
    """Whoever sends such bytes could else flood those who look after the server."""
    with serving(tmp_path / "state") as server, grpc.insecure_channel(server.address) as channel:
        for method, request in (("stream_unary", iter([b"", b"\xff\xff"])), ("stream_unary", iter([b"\xff\xff"]))):
            with pytest.raises(grpc.RpcError) as caught:
                getattr(channel, method)("/augment.v1.AugmentService/UploadTrace")(request, timeout=PATIENCE_S)
            assert told_by(caught.value).reason == "INVALID_REQUEST"
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/augment.v1.AugmentService/GetJob")(b"\xff\xff", timeout=PATIENCE_S)
        assert told_by(caught.value).reason == "INVALID_REQUEST"
        server.terminate()
        assert server.wait() == 0
        assert {line["level"] for line in server.log} == {"info"}
        assert len(server.log) == len(server.errors.splitlines())


@pytest.mark.parametrize(
    ("listen", "connect", "peer"),
    [
        ("127.0.0.1", "127.0.0.1", "ipv4:127.0.0.1"), ("::1", "::1", "ipv6:%5B::1%5D"),
        ("::", "127.0.0.1", "ipv6:%5B::ffff:127.0.0.1%5D"), ("::", "127.0.0.1", "ipv4:127.0.0.1"),
    ],
)  # fmt: skip
def test_hanging_up(listen: str, connect: str, peer: str) -> None:
    family = socket.AF_INET6 if ":" in listen else socket.AF_INET
    try:
        listening = socket.create_server((listen, 0), family=family, dualstack_ipv6=listen == "::")
    except (OSError, ValueError):
        pytest.skip("this machine has no IPv6")
    with listening, socket.create_connection((connect, listening.getsockname()[1])) as client:
        served, _ = listening.accept()
        with served:
            port = client.getsockname()[1]
            for other in (f"{peer}:1", "unix:/run/socket", "unknown"):
                assert not hang_up(other)
            assert hang_up(f"{peer}:{port}")
            assert client.recv(1) == served.recv(1) == b""


class Unread(grpc.RpcError):
    """What gRPC raises of a call that the server ended so."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.DEADLINE_EXCEEDED

    def details(self) -> str:
        return "nothing was read"

    def trailing_metadata(self) -> Any:
        return (("grpc-status-details-bin", Refusal("UNREAD", self.details()).status().SerializeToString()),)


def test_the_client_goes_on_with_a_download(tmp_path: Path) -> None:
    """Its process may have been stopped for a while."""
    content, offsets = b"ab", []

    class Stub:
        def ReadArtifact(self, request: Any, **_: Any) -> Any:
            offsets.append(request.offset)
            yield calls.ReadArtifactResponse(chunk=content[request.offset : request.offset + 1])
            if not request.offset:
                raise Unread

    artifact = v1.Artifact(name="jobs/x/artifacts/y", size_bytes=2, sha256=hashlib.sha256(content).hexdigest())
    connection = Connection("server:1", None, patience_s=PATIENCE_S, first_patience_s=PATIENCE_S)
    download = Download(artifact, tmp_path / "out", connection)
    download.receive(Stub(), Deadline(None, ""), "", lambda *_: None)  # type: ignore[arg-type]
    assert offsets == [0, 1]
    assert (tmp_path / "out").read_bytes() == content
