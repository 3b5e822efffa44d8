"""One client does not lock out others: half-sent bodies, slow uploads, full queues, more connections than files."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import select
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from curl import curl
from in_process import Server as Inside
from in_process import eventually, refused, serving, trace
from raw_frames import connected, sent
from serving_process import PATIENCE_S, Server
from serving_process import serving as serving_apart

from augment.client import Client
from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment.v1.service_pb2_grpc import AugmentServiceStub
from augment_server.api import service
from augment_server.api.admission import Admission
from augment_server.base.interception import Unread, work_for
from augment_server.base.limits import Limits
from augment_server.base.threads import Apart, Together
from augment_server.jobs import scheduler
from augment_server.storage import pages

TOKENS = {"alice": "a" * 32, "bob": "b" * 32}
FEW_FILES = 256


def bearer(name: str) -> tuple[str, str]:
    return "authorization", f"Bearer {TOKENS[name]}"


def answer(connection: socket.socket) -> bytes:
    """All that arrives, until the other side closes."""
    text = b""
    with suppress(ConnectionError):
        while part := connection.recv(4096):
            text += part
    return text


def test_half_sent_bodies_hold_no_place(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("".join(f"{name}:{token}\n" for name, token in TOKENS.items()))
    flags = ("--max-calls", 20, "--max-client-calls", 10, "--max-upload-idle", "2s", "--http", "127.0.0.1:0")
    half = f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKENS['alice']}\r\n"
    with (
        serving_apart(tmp_path / "state", *flags, "--token-file", tmp_path / "tokens") as server,
        grpc.insecure_channel(server.address) as channel,
        ExitStack() as stack,
    ):
        held = [sent(stack, server.http, half.encode() + b"Content-Length: 1000\r\n\r\n{") for _ in range(30)]
        for _ in range(3):  # while they are held, and whatever has become of them
            AugmentServiceStub(channel).ListJobs(calls.ListJobsRequest(), metadata=[bearer("bob")], timeout=PATIENCE_S)
        answers = [answer(connection) for connection in held]
    refusals = [text for text in answers if b" 429 " in text.splitlines()[0]]
    late = [text for text in answers if b" 504 " in text.splitlines()[0]]
    assert len(refusals) + len(late) == 30
    assert len(late) >= 10
    assert all(b"of your calls are running" in text and b"Retry-After: 1" in text for text in refusals)
    assert all(b"UPLOAD_IDLE" in text and b"the body did not come within 2 s" in text for text in late)


ANY, CHECK = "/augment.v1.AugmentService/", "/grpc.health.v1.Health/Check"


@pytest.mark.parametrize("method", [ANY + "GetServerInfo", ANY + "WatchJob", ANY + "UploadTrace", CHECK])
def test_calls_whose_message_never_comes_count_for_their_client_and_end(tmp_path: Path, method: str) -> None:
    """Over gRPC a health check needs no token, and leaves room for other clients' calls."""
    (tmp_path / "tokens").write_text("".join(f"{name}:{token}\n" for name, token in TOKENS.items()))
    flags = ("--max-calls", 20, "--max-client-calls", 10, "--max-upload-idle", "2s", "--log-format", "json")
    token = "" if method == CHECK else TOKENS["alice"]
    with (
        serving_apart(tmp_path / "state", *flags, "--token-file", tmp_path / "tokens") as server,
        connected(server.port, PATIENCE_S) as connection,
        grpc.insecure_channel(server.address) as channel,
    ):
        held = {connection.call(method, token) for _ in range(30)}
        AugmentServiceStub(channel).ListJobs(calls.ListJobsRequest(), metadata=[bearer("bob")], timeout=PATIENCE_S)
        assert eventually(lambda: connection.ended == held)
        name = method.rpartition("/")[2]

        def codes() -> Counter[str]:
            return Counter(str(line["code"]) for line in server.log if line.get("method") == name)

        assert eventually(lambda: codes().total() == 30)
        assert set(codes()) == {"RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}
        assert 10 <= codes()["DEADLINE_EXCEEDED"] < 30


def test_few_messages_of_a_client_arrive_at_once(tmp_path: Path) -> None:
    """Of each of those that have no turn, gRPC takes 64 KiB; those that have one end, and the next have theirs."""
    size = 1 << 20
    message = b"\0" + size.to_bytes(4, "big") + bytes(size)
    with (
        serving_apart(tmp_path / "state", "--max-upload-idle", f"{PATIENCE_S}s") as server,
        connected(server.port, PATIENCE_S) as connection,
    ):
        at = {connection.call(ANY + "CreateJob"): 0 for _ in range(40)}

        def send(most: int) -> int:
            """How many have come, but for the bytes from ``most`` on."""
            connection.settle()
            for call in at.keys() - connection.ended:
                at[call] += connection.send(call, message[at[call] : most])
            return sum(sent >= most for sent in at.values())

        assert eventually(lambda: send(size) == 32)
        for _ in range(5):
            assert send(size) == 32
        assert max(sent for sent in at.values() if sent < size) <= 64 << 10
        assert not connection.ended
        assert eventually(lambda: send(len(message)) == 40 and connection.ended == at.keys())


def test_an_upload_of_a_byte_now_and_then_is_ended(tmp_path: Path) -> None:
    """Each byte comes in time; all of them together are less than a kilobyte a second."""
    with (
        serving_apart(tmp_path / "state", "--max-upload-idle", "2s") as server,
        grpc.insecure_channel(server.address) as channel,
    ):

        def bytes_now_and_then() -> Iterator[calls.UploadTraceRequest]:
            yield calls.UploadTraceRequest(start=calls.StartUploadRequest(file_name="a.json"))
            while True:
                yield calls.UploadTraceRequest(chunk=b" ")
                time.sleep(0.05)

        with refused("UPLOAD_IDLE", "DEADLINE_EXCEEDED"):
            AugmentServiceStub(channel).UploadTrace(bytes_now_and_then(), timeout=PATIENCE_S)


def asked(server: Inside, upload: str, client: str) -> str:
    spec = v1.JobSpec(augment=v1.AugmentSpec(input=v1.Input(upload=upload)))
    request = calls.CreateJobRequest(spec=spec)
    return server.stub.CreateJob(request, metadata=[("client", client)]).job.name


@pytest.mark.usefixtures("both_catalogs")
def test_a_full_queue_has_a_share_for_each_name(tmp_path: Path) -> None:
    with serving(tmp_path / "state", max_queued_jobs=12, max_client_jobs=6, max_running_jobs=1) as server:
        server.freeze()
        upload = server.upload(trace(tmp_path / "a.json"))
        server.until(asked(server, upload, "host:first"), v1.Job.STATE_RUNNING)
        for name in ("host:a", "host:b"):
            for _ in range(6):
                asked(server, upload, name)
        for _ in range(4):  # a third of twelve
            asked(server, upload, "host:c")
        with refused("QUEUE_FULL", "RESOURCE_EXHAUSTED") as output:
            asked(server, upload, "host:c")
        assert "as many as your share, 4" in output[0].message
        assert output[0].retry
        for _ in range(3):
            asked(server, upload, "host:d")
        with refused("QUEUE_FULL", "RESOURCE_EXHAUSTED"):
            asked(server, upload, "host:d")
        rows = server.core._storage.rows("SELECT id FROM jobs WHERE client IN ('host:a', 'host:b')")
        for row in rows[:11]:  # with room in the queue, anybody may add again
            server.stub.CancelJob(calls.CancelJobRequest(name=f"jobs/{row['id']}"))
        asked(server, upload, "host:d")


def test_a_queue_of_more_names_than_places_is_full(tmp_path: Path) -> None:
    with serving(tmp_path / "state", max_queued_jobs=2, max_running_jobs=1) as server:
        server.freeze()
        upload = server.upload(trace(tmp_path / "a.json"))
        server.until(asked(server, upload, "host:first"), v1.Job.STATE_RUNNING)
        for name in ("host:a", "host:b"):
            asked(server, upload, name)
        with refused("QUEUE_FULL", "RESOURCE_EXHAUSTED"):
            asked(server, upload, "host:c")


LIMITED = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({FEW_FILES}, {FEW_FILES}))
from augment.cli import program
sys.exit(program())
"""


@pytest.fixture
def few_files(tmp_path: Path) -> Iterator[Server]:
    """A server that may open few files."""
    flags = ("--http", "127.0.0.1:0", "--max-running-jobs", 1, "--max-connection-idle", "1h")
    server = Server(tmp_path / "state", *flags, program=("-c", LIMITED))
    try:
        yield server
    finally:
        server.process.kill()
        server.close()


def open_files(server: Server) -> int:
    folder = Path(f"/proc/{server.process.pid}/fd")
    if not folder.exists():
        pytest.skip("this system does not tell of open files")
    return len(list(folder.iterdir()))


def test_more_connections_than_files(few_files: Server, tmp_path: Path) -> None:
    """Who comes too late is told so; who is there can still do all that it could."""
    line = few_files.logged("limits are lower: the system allows few open files")
    most = line["max_connections"]
    with Client(few_files.address) as client, ExitStack() as stack:
        client.augment(trace(tmp_path / "a.json"), only=["temporal_breakdown"], out=tmp_path / "first")
        held = [sent(stack, few_files.http, b"") for _ in range(FEW_FILES + 100)]
        eventually(lambda: open_files(few_files) >= most)
        assert open_files(few_files) < FEW_FILES
        result = client.augment(trace(tmp_path / "b.json"), only=["temporal_breakdown"], out=tmp_path / "second")
        assert result.files
        full = [sent(stack, few_files.http, b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(3)]
        texts = [answer(connection) for connection in full]
        assert b" 429 " in texts[0].splitlines()[0]
        assert b"Retry-After: 1" in texts[0]
        assert json.loads(texts[0].partition(b"\r\n\r\n")[2])["details"][0]["reason"] == "TOO_MANY_CONNECTIONS"
        for connection in held:
            connection.close()
        assert eventually(lambda: curl(f"{few_files.http}/v1/jobs").status == 200)
    assert not [line for line in few_files.log if line["level"] == "error"]


@pytest.mark.parametrize(
    ("files", "expected"),
    [(65_536, (10_000, 2_000, 500)), (4_096, (1_322, 1_322, 330)), (256, (42, 42, 10)), (16, (2, 2, 1))],
)
def test_limits_follow_the_files_that_may_be_open(files: int, expected: tuple[int, ...]) -> None:
    limits = Limits(max_running_jobs=4).within(files)
    assert (limits.max_connections, limits.max_calls, limits.max_client_calls) == expected


def test_no_more_files_is_no_bug_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_file(*_: Any) -> None:
        raise OSError(24, "Too many open files")

    with serving(tmp_path / "state") as server:
        monkeypatch.setattr(server.core._uploads, "start", no_file)
        with refused("TOO_MANY_CONNECTIONS", "RESOURCE_EXHAUSTED") as output:
            server.stub.StartUpload(calls.StartUploadRequest(file_name="a.json"))
        assert output[0].retry


def test_clients_take_turns_at_the_threads() -> None:
    """Calls of one client that never end, however many, keep half of the threads at most; all others take turns."""

    async def run() -> list[str]:
        apart, go_on, order = Apart(), threading.Event(), list[str]()

        def asked(client: str, count: int, *, wait: bool = False) -> list[asyncio.Task[None]]:
            def work() -> None:
                order.append(client)
                if wait:
                    go_on.wait(PATIENCE_S)

            async def call() -> None:
                work_for(client)
                await apart(work)

            return [asyncio.create_task(call()) for _ in range(count)]

        waiting = asked("a", 100, wait=True)
        try:
            await asyncio.wait_for(asyncio.gather(*asked("b", 100)), PATIENCE_S / 10)
            assert order == ["a"] * 8 + ["b"] * 100
            waiting += asked("b", 100, wait=True)
            await asyncio.sleep(0)
            waiting += asked("c", 1)
        finally:
            go_on.set()
            await asyncio.gather(*waiting)
            apart.close()
        return order[108:]

    order = asyncio.run(run())
    assert order.index("c") <= 16  # beside those that began together, it was the next
    assert Counter(order) == {"a": 92, "b": 100, "c": 1}


def test_what_is_asked_meanwhile_is_read_together() -> None:
    """A reading begins after what it is of was asked for; who gives up or an error ends no other's call."""
    read, go_on = list[list[int]](), threading.Event()

    def double(asked: Sequence[int]) -> list[int]:
        read.append([*asked])
        go_on.wait(PATIENCE_S)
        return [2 * each if each else 1 // each for each in asked]

    async def run() -> list[Any]:
        apart = Apart()
        together = Together(apart, double, most=3)
        calls = [asyncio.create_task(together(1))]
        while not read:
            await asyncio.sleep(0)
        calls += [asyncio.create_task(together(each)) for each in (2, 3, 4, 5, 0, 6)]
        await asyncio.sleep(0)
        calls[2].cancel()
        go_on.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        answers.append(await together(7))
        apart.close()
        return answers

    first, second, gone, fourth, fifth, *failed, last = asyncio.run(run())
    assert read == [[1], [2, 4, 5], [0, 6], [7]]
    assert (first, second, fourth, fifth, last) == (2, 4, 8, 10, 14)
    assert isinstance(gone, asyncio.CancelledError)
    assert [type(each) for each in failed] == [ZeroDivisionError] * 2


def test_clients_take_turns_at_a_reading() -> None:
    """However many one asks for, or has given up; and while the server's own work has a thread."""
    read, go_on = list[str](), threading.Event()

    def answers(asked: Sequence[str]) -> Sequence[str]:
        read.extend(asked)
        go_on.wait(PATIENCE_S)
        return asked

    async def run() -> None:
        apart = Apart()
        together = Together(apart, answers, most=2)

        async def ask(client: str, number: int) -> str:
            work_for(client)
            return await together(f"{client}{number}")

        sweep = asyncio.create_task(apart(go_on.wait, PATIENCE_S))
        calls = [asyncio.create_task(ask("a", number)) for number in range(6)]
        while not read:
            await asyncio.sleep(0)
        calls[2].cancel()
        calls += [asyncio.create_task(ask(client, 0)) for client in "bc"]
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(sweep, *calls, return_exceptions=True)
        apart.close()

    asyncio.run(run())
    assert read == ["a0", "a1", "a3", "b0", "c0", "a4", "a5"]


@pytest.mark.embedded
def test_a_list_for_which_too_much_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path / "state", max_running_jobs=1, max_client_jobs=200) as server:
        server.freeze()
        upload = server.upload(trace(tmp_path / "a.json"))
        for _ in range(3):
            asked(server, upload, "host:test")
        listed = calls.ListJobsRequest(filter='labels.a = "*a*b*c"')
        assert not server.stub.ListJobs(listed).jobs
        monkeypatch.setattr("augment_server.storage.catalog._STEPS", 1)
        monkeypatch.setattr(pages, "MOST_CPU_S", 0.0)
        with refused("INVALID_REQUEST", "INVALID_ARGUMENT") as output:
            server.stub.ListJobs(listed)
        assert "create_time" in output[0].message
        assert len(server.core._storage.rows("SELECT id FROM jobs")) == 3  # the connection is as before


def test_a_page_reads_no_more_specs_than_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGE_BYTES", 10_000)
    with serving(tmp_path / "state", max_running_jobs=1) as server:
        server.freeze()
        spec = v1.JobSpec(augment=v1.AugmentSpec(input=v1.Input(upload=server.upload(trace(tmp_path / "a.json")))))
        spec.augment.only.extend(["temporal_breakdown"] * 300)
        names = [server.stub.CreateJob(calls.CreateJobRequest(spec=spec)).job.name for _ in range(7)][::-1]
        read, made = [], server.core._jobs._message
        monkeypatch.setattr(
            server.core._jobs, "_message", lambda row, **how: read.append(row["id"]) or made(row, **how)
        )
        request, pages_of = calls.ListJobsRequest(), list[list[str]]()
        while not pages_of or request.page_token:
            answer = server.stub.ListJobs(request)
            pages_of.append([job.name for job in answer.jobs])
            request.page_token = answer.next_page_token
        assert [len(each) for each in pages_of] == [2, 2, 2, 1]
        assert [name for each in pages_of for name in each] == names
        assert len(read) == 7


def test_a_validation_waits_for_no_writer(tmp_path: Path) -> None:
    """And none waits for it: it looks at a thousand inputs of each of a hundred jobs."""
    with serving(tmp_path / "state", max_client_jobs=4) as server:
        spec = v1.JobSpec(augment=v1.AugmentSpec(input=v1.Input(upload=server.upload(trace(tmp_path / "a.json")))))
        request = calls.CreateJobRequest(spec=spec, validate_only=True)
        with server.core._storage.writing():
            (job,) = server.stub.BatchCreateJobs(calls.BatchCreateJobsRequest(requests=[request]), timeout=60).jobs
            assert job.spec == spec
            with refused("TOO_MANY_JOBS", "RESOURCE_EXHAUSTED"):  # those before it count
                server.stub.BatchCreateJobs(calls.BatchCreateJobsRequest(requests=[request] * 5), timeout=60)
        assert not server.stub.ListJobs(calls.ListJobsRequest()).jobs


def test_incomplete_messages_of_a_client_have_a_bound(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("".join(f"{name}:{token}\n" for name, token in TOKENS.items()))
    flags = ("--max-message", "10kB", "--http", "127.0.0.1:0", "--token-file", tmp_path / "tokens")
    head = f"POST /v1/uploads:stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKENS['alice']}\r\n"
    line = head.encode() + b'Content-Length: 100000\r\n\r\n{"chunk":"' + b"A" * 19_000

    with serving_apart(tmp_path / "state", *flags) as server:

        def listed(name: str) -> int:
            return curl(f"{server.http}/v1/jobs", "-H", f"Authorization: Bearer {TOKENS[name]}").status

        def started(name: str) -> int:
            message = json.dumps({"start": {"fileName": "a" * 150 + ".json", "sizeBytes": 0}, "finish": True})
            options = ("-H", f"Authorization: Bearer {TOKENS[name]}", "--json", message)
            return curl(f"{server.http}/v1/uploads:stream", *options).status

        with ExitStack() as stack:
            held = [sent(stack, server.http, line) for _ in range(20)]  # of which 16 are 304 kB
            assert eventually(lambda: select.select(held, [], [], 1)[0])
            refusals = [connection.recv(4096) for connection in select.select(held, [], [], 0)[0]]
            assert all(b" 429 " in text.splitlines()[0] for text in refusals)
            assert (started("bob"), listed("bob")) == (200, 200)
        assert eventually(lambda: started("alice") == 200)


@pytest.mark.parametrize(("method", "request_", "field"), [
    ("CreateJob", calls.CreateJobRequest(spec=v1.JobSpec(augment=v1.AugmentSpec(only=[""] * 100_000))), "only"),
    ("BatchCreateJobs", calls.BatchCreateJobsRequest.FromString(b"\n\0" * 100_001), "requests"),
    ("ListJobs", calls.ListJobsRequest(states=[v1.Job.STATE_QUEUED] * 100_001), "states"),
])  # fmt: skip
def test_a_request_of_too_many_values(tmp_path: Path, method: str, request_: Any, field: str) -> None:
    with serving(tmp_path / "state") as server, refused("INVALID_REQUEST", "INVALID_ARGUMENT") as output:
        getattr(server.stub, method)(request_)
    assert re.fullmatch(rf"(spec.augment.)?{field}: the request has too many values; .*", output[0].message)


def test_large_requests_are_looked_through_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = list[str]()
    monkeypatch.setattr(service, "expect_plain", lambda _: threads.append(threading.current_thread().name))
    with serving(tmp_path / "state") as server:
        for size in (100, 100_000):
            server.stub.ListJobs(calls.ListJobsRequest(states=[v1.Job.STATE_QUEUED] * size))
    assert [name.startswith("augment") for name in threads] == [False, True]


@pytest.mark.usefixtures("both_catalogs")
def test_who_has_all_workers_gives_some_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that never end keep another client waiting no longer than for a while."""
    monkeypatch.setattr(scheduler, "_LONG_S", 0.0)
    with serving(tmp_path / "state", max_running_jobs=2) as server:
        upload = server.upload(trace(tmp_path / "a.json"))
        frozen = server.freeze()
        first = server.until(asked(server, upload, "host:a"), v1.Job.STATE_RUNNING).name
        second = server.until(asked(server, upload, "host:a"), v1.Job.STATE_RUNNING).name
        other = server.wait(asked(server, upload, "host:b"))
        assert other.state == v1.Job.STATE_SUCCEEDED
        again = server.wait(second)  # the newer one; it begins anew, which is no attempt that counts
        assert (again.state, again.attempt_count) == (v1.Job.STATE_SUCCEEDED, 1)
        assert server.get(first).state == v1.Job.STATE_RUNNING
        assert len(set(frozen) & set(server.workers)) == 1
        server.thaw()
        assert server.wait(first).attempt_count == 1


def test_a_refused_request_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC keeps the error of a call, whose traceback refers to the request: a hundred took gigabytes."""
    requests, expect_plain = list[Any](), service.expect_plain
    monkeypatch.setattr(service, "expect_plain", lambda it: requests.append(it) or expect_plain(it))
    with serving(tmp_path / "state") as server:
        gc.disable()
        try:
            for size in (50_000, 100_001):
                with refused("INVALID_REQUEST", "INVALID_ARGUMENT"):
                    server.stub.BatchCreateJobs(calls.BatchCreateJobsRequest.FromString(b"\n\0" * size))
            assert len(requests) == 2
            assert eventually(
                lambda: {sys.getrefcount(requests[at]) for at in range(2)} == {2}
            )  # the list, and the argument
        finally:
            gc.enable()


class Context:
    """What a call gives its handler."""

    def __init__(self) -> None:
        self.ends, self.refusals = list[Any](), list[str]()
        self.add_done_callback = self.ends.append

    async def abort(self, code: grpc.StatusCode, message: str, **_: object) -> None:
        self.refusals.append(message)
        raise PermissionError


def test_few_large_answers_of_a_client_wait_to_be_read() -> None:
    context = Context()

    async def behaviour(request: str, _: object) -> Any:
        return calls.GetJobResponse(job=v1.Job(display_name="x" * 100_000 if request == "large" else ""))

    admission = Admission(Limits())
    answer = admission._bounded(behaviour, admission._short, "calls")

    async def run() -> None:
        for _ in range(16):
            await answer("large", context)
        await answer("small", context)
        with pytest.raises(PermissionError):
            await answer("large", context)
        context.ends[0](None)
        await answer("large", context)

    asyncio.run(run())
    (message,) = context.refusals
    assert "not read 16 large answers" in message


def test_few_large_requests_of_a_client_are_read_at_once() -> None:
    """A message takes up to fifty times as much memory as its bytes."""
    read, go_on, context = list[str](), asyncio.Event(), Context()

    async def behaviour(request: str, _: object) -> str:
        await go_on.wait()
        return request

    admission = Admission(Limits())
    answer = admission._bounded(behaviour, admission._short, "calls")

    async def call(name: str) -> Any:
        async def message() -> str:
            read.append(name)
            return name

        work_for(name)
        return await answer(Unread(100_000, message), context)

    async def run() -> list[Any]:
        asked = [asyncio.create_task(call(name)) for name in "a" * 20 + "b"]
        while len(read) < 3 or len(context.refusals) < 4:
            await asyncio.sleep(0)
        assert Counter(read) == {"a": 2, "b": 1}
        go_on.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    answers = asyncio.run(run())
    assert answers[:16] == ["a"] * 16
    assert answers[20] == "b"
    assert all("large requests" in message for message in context.refusals)
    assert Counter(read) == {"a": 16, "b": 1}
