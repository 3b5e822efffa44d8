"""Who may listen, and who may call: TLS, certificates of clients, tokens."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import pytest
from certificates import Authority, Pair
from grpc_health.v1 import health_pb2, health_pb2_grpc
from in_process import eventually, told_by
from serving_process import PATIENCE_S, Server, augment, serving

from augment.client import Client, Tls
from augment.errors import ServiceError, UsageError
from augment.v1 import resources_pb2, service_pb2, service_pb2_grpc
from augment_server.api.http.chain import Details
from augment_server.base.security import Address, Gate, Tokens, address, expect_safe
from traces import write_trace


@pytest.mark.parametrize(("text", "host", "port", "shown"), [
    ("127.0.0.1:50051", "127.0.0.1", 50051, "127.0.0.1:50051"),
    ("localhost:0", "localhost", 0, "localhost:0"),
    ("[::1]:80", "::1", 80, "[::1]:80"),
])  # fmt: skip
def test_addresses(text: str, host: str, port: int, shown: str) -> None:
    where = address(text, "--listen")
    assert (where, str(where)) == (Address(host, port), shown)


@pytest.mark.parametrize("text", ["", "50051", ":50051", "::1:80", "host:", "host:x", "host:65536", "host:-1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError, match=r"--listen .*must be HOST:PORT"):
        address(text, "--listen")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_is_safe(host: str) -> None:
    expect_safe(Address(host, 1), "--listen", tls=False, insecure=False)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.7", "example.com", "localhost.example.com", "127.0.0.1.nip.io"]
)
def test_other_addresses_are_not(host: str) -> None:
    with pytest.raises(UsageError, match=r"--listen .*without encryption; give --tls-cert"):
        expect_safe(Address(host, 1), "--listen", tls=False, insecure=False)
    expect_safe(Address(host, 1), "--listen", tls=True, insecure=False)
    expect_safe(Address(host, 1), "--listen", tls=False, insecure=True)


@pytest.mark.parametrize(("args", "message"), [
    (["--listen", "0.0.0.0:0"], "other machines could reach it without encryption"),
    (["--metrics-listen", "0.0.0.0:0"], "other machines could reach it without encryption"),
    (["--http", "0.0.0.0:0"], "--http 0.0.0.0:0: other machines could reach it without encryption"),
    (["--tls-cert", "a.pem"], "--tls-cert and --tls-key need each other"),
    (["--tls-client-ca", "a.pem"], "--tls-client-ca needs both"),
    (["--tls-cert", "/dev/null", "--tls-key", "/dev/null"], "no usable PEM files"),
    (["--tls-cert", "gone.pem", "--tls-key", "gone.key"], "no such file or directory"),
    (["--token-file", "gone"], "--token-file gone: no such file or directory"),
    (["--token-file", "/dev/null"], "contains no token"),
])  # fmt: skip
def test_what_is_refused_at_once(tmp_path: Path, args: list[str], message: str) -> None:
    ended = augment("serve", "--listen", "127.0.0.1:0", "--state-dir", tmp_path / "state", *args)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_tokens_are_the_lines_of_their_file_and_change_with_it(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("# a comment\n\n first \nsecond\n")
    tokens = Tokens(path)
    asked = ("first", "second", "", "# a comment", "firs", "first ", "third")
    assert [token for token in asked if tokens.client(token)] == ["first", "second"]
    path.with_name("other").write_text("second\n")
    os.replace(path.with_name("other"), path)  # as Kubernetes does it: another file under the same name
    assert (bool(tokens.client("first")), bool(tokens.client("second"))) == (False, True)
    path.unlink()
    assert not tokens.client("second")
    path.write_text("third\n")
    assert tokens.client("third")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.sign("server")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "a.json")


def works(address: str, trace: Path, **how: object) -> None:
    with Client(address, patience_s=1, **how) as client:  # type: ignore[arg-type]
        assert client.augment(trace).files[-1].exists()


def refused(address: str, trace: Path, **how: object) -> ServiceError:
    with Client(address, patience_s=1, **how) as client, pytest.raises(ServiceError) as caught:  # type: ignore[arg-type]
        client.augment(trace)
    assert not trace.with_name("a.metrics.json").exists()
    return caught.value


@pytest.fixture(scope="module")
def tls_server(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    state = tmp_path_factory.mktemp("state")
    flags = ("--tls-cert", pair.cert, "--tls-key", pair.key, "--metrics-listen", "127.0.0.1:0")
    with serving(state, *flags) as server:
        yield server


def test_tls_with_the_right_authority(
    tls_server: Server, authority: Authority, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works(tls_server.address, trace, tls=Tls(authority.cert))
    address = f"localhost:{tls_server.port}"
    ended = augment("run", trace, "--server", address, "--tls-ca", authority.cert)  # an earlier form
    assert (ended.returncode, len(ended.stdout.splitlines())) == (0, 2)
    monkeypatch.setenv("AUGMENT_TLS_CA", str(authority.cert))
    assert augment("run", trace, "--server", f"grpcs://{address}").returncode == 0
    ended = augment("run", trace, "--server", f"grpc://{address}")
    assert (ended.returncode, "grpcs:// has it" in ended.stderr) == (2, True)


def test_tls_with_other_authorities_and_without(tls_server: Server, trace: Path, tmp_path: Path) -> None:
    for tls in (Tls(Authority(tmp_path / "other", "other").cert), True):  # another's, and the system's
        assert refused(tls_server.address, trace, tls=tls).code == "UNAVAILABLE"
    error = refused(tls_server.address, trace)
    assert error.code == "UNAVAILABLE"
    assert "both sides use TLS or neither does" in str(error)


def test_tls_figures_are_served_so_too(tls_server: Server, authority: Authority) -> None:
    assert tls_server.metrics.startswith("https://")
    context = ssl.create_default_context(cafile=str(authority.cert))
    with urllib.request.urlopen(tls_server.metrics, context=context, timeout=PATIENCE_S) as answer:
        assert b"augment_jobs" in answer.read()


def test_a_renewed_certificate_needs_no_restart(authority: Authority, trace: Path, tmp_path: Path) -> None:
    old, served = authority.sign("old", host="DNS:old.example"), Pair(tmp_path / "cert.pem", tmp_path / "cert.key")
    copy(old, served)
    with serving(tmp_path / "state", "--tls-cert", served.cert, "--tls-key", served.key) as server:
        refused(server.address, trace, tls=Tls(authority.cert))
        copy(authority.sign("new"), served)
        works(server.address, trace, tls=Tls(authority.cert))


def test_figures_have_the_renewed_certificate_too(authority: Authority, tmp_path: Path) -> None:
    old, served = authority.sign("old", host="DNS:old.example"), Pair(tmp_path / "cert.pem", tmp_path / "cert.key")
    copy(old, served)
    flags = ("--tls-cert", served.cert, "--tls-key", served.key, "--metrics-listen", "127.0.0.1:0")
    trusting = ssl.create_default_context(cafile=str(authority.cert))
    with serving(tmp_path / "state", *flags) as server:
        with pytest.raises(urllib.error.URLError, match="certificate verify failed"):
            urllib.request.urlopen(server.metrics, context=trusting, timeout=60)
        copy(authority.sign("new"), served)
        with urllib.request.urlopen(server.metrics, context=trusting, timeout=60) as answer:
            assert b"augment_jobs" in answer.read()
        place = urlsplit(server.metrics)
        with contextlib.suppress(ConnectionError), socket.create_connection((place.hostname, place.port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")  # without TLS
            while stranger.recv(1000):
                pass
        assert "Traceback" not in server.errors


def copy(pair: Pair, to: Pair) -> None:
    to.key.write_bytes(pair.key.read_bytes())
    to.cert.write_bytes(pair.cert.read_bytes())


@pytest.fixture(scope="module")
def mutual_server(pair: Pair, authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = ("--tls-cert", pair.cert, "--tls-key", pair.key, "--tls-client-ca", authority.cert)
    with serving(tmp_path_factory.mktemp("state"), *flags) as server:
        yield server


def test_mutual_signed_by_the_authority(mutual_server: Server, authority: Authority, trace: Path) -> None:
    part = authority.sign("somebody")
    works(mutual_server.address, trace, tls=Tls(authority.cert, part.cert, part.key))
    flags = ("--tls-ca", authority.cert, "--tls-cert", part.cert, "--tls-key", part.key)
    assert augment("run", trace, "--server", mutual_server.address, *flags).returncode == 0


def test_mutual_none_or_anothers(mutual_server: Server, authority: Authority, trace: Path, tmp_path: Path) -> None:
    part = Authority(tmp_path / "other", "other").sign("somebody")
    for tls in (Tls(authority.cert), Tls(authority.cert, part.cert, part.key)):
        assert refused(mutual_server.address, trace, tls=tls).code == "UNAVAILABLE"


def test_mutual_each_sees_its_own(mutual_server: Server, authority: Authority, trace: Path) -> None:
    seen = []
    for name in ("alice", "bob"):
        part = authority.sign(name)
        with Client(mutual_server.address, tls=Tls(authority.cert, part.cert, part.key)) as client:
            if name == "alice":
                request = service_pb2.StartUploadRequest(file_name="a.json", size_bytes=10)
                upload = client._stub.StartUpload(request).upload.name
            with contextlib.suppress(grpc.RpcError):
                client._stub.GetUpload(service_pb2.GetUploadRequest(name=upload))
                seen.append(name)
    assert seen == ["alice"]


@pytest.fixture(scope="module")
def token_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("state")
    (folder / "tokens").write_text("one-good-token\nanother-good-token\n")
    with serving(folder / "state", "--token-file", folder / "tokens") as server:
        yield server


@pytest.mark.parametrize("token", ["one-good-token", "another-good-token"])
def test_tokens_good(
    token_server: Server, trace: Path, tmp_path: Path, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    works(token_server.address, trace, token=token)
    (tmp_path / "token").write_text(f"{token}\n")
    ended = augment("run", trace, "--server", token_server.address, "--token-file", tmp_path / "token")
    assert ended.returncode == 0  # an earlier form
    monkeypatch.setenv("AUGMENT_TOKEN_FILE", str(tmp_path / "token"))
    assert augment("run", trace, "--server", f"grpc://{token_server.address}").returncode == 0


def seen(address: str, token: str, upload: str) -> bool:
    with Client(address, token=token) as client, contextlib.suppress(grpc.RpcError):
        request, metadata = service_pb2.GetUploadRequest(name=upload), client._connection.metadata
        return bool(client._stub.GetUpload(request, metadata=metadata).upload.name)
    return False


def test_tokens_of_a_name_change_and_what_is_its_own_stays(tmp_path: Path) -> None:
    tokens, hashed = tmp_path / "tokens", hashlib.sha256(b"third").hexdigest()
    tokens.write_text("team:first\nother:else\n")
    with serving(tmp_path / "state", "--token-file", tokens) as server:
        with Client(server.address, token="first") as client:
            request = service_pb2.StartUploadRequest(file_name="a.json", size_bytes=10)
            upload = client._stub.StartUpload(request, metadata=client._connection.metadata).upload.name
        tokens.write_text(f"team:second\nteam:sha256:{hashed}\nother:else\n")
        assert [seen(server.address, each, upload) for each in ("second", "third", "first", "else", hashed)] == [
            True, True, False, False, False
        ]  # fmt: skip


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


def ended(call: Callable[[], object]) -> tuple[str, str]:
    """The code and the reason with which a call ends."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    result = told_by(caught.value)
    return result.code.name, result.reason


@pytest.mark.parametrize("left", ["alice:second\nbob:other\n", "bob:other\nbob:first\n", "bob:other\n"])
def test_tokens_deleted_end_what_they_follow(tmp_path: Path, trace: Path, left: str) -> None:
    """Not the calls of other tokens: they go on. A token that becomes another client's is another token."""
    tokens, go_on = tmp_path / "tokens", threading.Event()
    tokens.write_text("alice:first\nbob:other\n")
    flags = ("--token-file", tokens, "--http", "127.0.0.1:0", "--max-running-jobs", "1")
    server_of = serving(tmp_path / "state", *flags)
    with server_of as server, server.frozen(), grpc.insecure_channel(server.address) as channel:
        stub = service_pb2_grpc.AugmentServiceStub(channel)
        jobs = {token: created(stub, token, trace) for token in ("first", "other")}
        watching = {token: stub.WatchJob(request_of(job), metadata=bearer(token)) for token, job in jobs.items()}
        assert {token: next(watching[token]).job.name for token in jobs} == jobs
        url = f"{server.http}/v1/{jobs['first']}:watch"
        lines = urllib.request.urlopen(urllib.request.Request(url, headers=dict(bearer("first"))), timeout=PATIENCE_S)
        assert b'"result"' in lines.readline()
        sending = stub.UploadTrace.future(pieces(trace, go_on), metadata=bearer("first"))
        begun = service_pb2.ListUploadsRequest(filter="state = ACTIVE")
        eventually(lambda: stub.ListUploads(begun, metadata=bearer("first")).uploads)
        tokens.write_text(left)
        for call in (lambda: list(watching["first"]), lambda: sending.result(PATIENCE_S)):
            assert ended(call) == ("UNAUTHENTICATED", "TOKEN_UNKNOWN")
        go_on.set()
        *_, last = lines
        assert b'"error"' in last
        assert b"TOKEN_UNKNOWN" in last
        stub.CancelJob(service_pb2.CancelJobRequest(name=jobs["other"]), metadata=bearer("other"))
        *_, end = watching["other"]
        assert end.job.state == resources_pb2.Job.STATE_CANCELLED


def test_tokens_deleted_of_who_reads_nothing(tmp_path: Path) -> None:
    """What the call ends with waits behind what is not read, until the connection is ended."""
    tokens = tmp_path / "tokens"
    tokens.write_text("alice:first\n")
    asyncio.run(asyncio.wait_for(unread(tokens), PATIENCE_S))


async def unread(tokens: Path) -> None:
    loop, hung_up, over = asyncio.get_running_loop(), list[str](), asyncio.Event()

    class Call:
        async def abort(self, code: grpc.StatusCode, *_: object, **__: object) -> None:
            await over.wait()
            raise ConnectionError(code.name)

        def add_done_callback(self, _: object) -> None: ...

        def peer(self) -> str:
            return "ipv4:10.0.0.1:7"

    def hang_up(peer: str) -> None:
        hung_up.append(peer)
        loop.call_soon_threadsafe(over.set)

    async def stream(_request: object, _context: object) -> None:
        tokens.write_text("bob:other\n")
        await asyncio.Event().wait()

    async def continuation(_details: object) -> object:
        return grpc.unary_stream_rpc_method_handler(stream)

    gate = Gate(Tokens(tokens), 0.01, hang_up)
    handler = await gate.intercept_service(continuation, Details("/x/Y", bearer("first")))
    with pytest.raises(ConnectionError, match="UNAUTHENTICATED"):
        await handler.unary_stream(None, Call())
    assert hung_up == ["ipv4:10.0.0.1:7"]


def created(stub: service_pb2_grpc.AugmentServiceStub, token: str, trace: Path) -> str:
    upload = stub.UploadTrace(pieces(trace), metadata=bearer(token)).upload.name
    spec = resources_pb2.JobSpec(augment=resources_pb2.AugmentSpec(input=resources_pb2.Input(upload=upload)))
    return stub.CreateJob(service_pb2.CreateJobRequest(spec=spec), metadata=bearer(token)).job.name


def request_of(job: str) -> service_pb2.WatchJobRequest:
    return service_pb2.WatchJobRequest(name=job)


def pieces(path: Path, go_on: threading.Event | None = None) -> Iterator[service_pb2.UploadTraceRequest]:
    """An upload, whose end is sent after a word."""
    yield service_pb2.UploadTraceRequest(start=service_pb2.StartUploadRequest(file_name=path.name))
    yield service_pb2.UploadTraceRequest(chunk=path.read_bytes())
    if go_on:
        go_on.wait(PATIENCE_S)
    yield service_pb2.UploadTraceRequest(finish=True)


@pytest.mark.parametrize("method", ["GetServerInfo", "WatchJob"])
def test_tokens_missing_of_a_call_whose_message_never_comes(token_server: Server, method: str) -> None:
    never = threading.Event()

    def messages() -> Iterator[bytes]:
        never.wait()
        yield b""

    with grpc.insecure_channel(token_server.address) as channel:
        try:
            call = channel.stream_stream(f"/augment.v1.AugmentService/{method}")(messages(), timeout=PATIENCE_S)
            with pytest.raises(grpc.RpcError) as caught:
                next(call)
        finally:
            never.set()
    assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_tokens_missing(token_server: Server, trace: Path) -> None:
    error = refused(token_server.address, trace)
    assert (error.code, error.reason) == ("UNAUTHENTICATED", "TOKEN_MISSING")
    assert "--token-file" in str(error)


@pytest.mark.parametrize("token", ["bad", "one-good-toke", "one-good-token2", "ONE-GOOD-TOKEN"])
def test_tokens_bad(token_server: Server, trace: Path, token: str) -> None:
    error = refused(token_server.address, trace, token=token)
    assert (error.code, error.reason) == ("UNAUTHENTICATED", "TOKEN_UNKNOWN")


def test_tokens_every_call_wants_one(token_server: Server) -> None:
    with grpc.insecure_channel(token_server.address) as channel:
        stub = service_pb2_grpc.AugmentServiceStub(channel)
        for method in service_pb2.DESCRIPTOR.services_by_name["AugmentService"].methods:
            request = getattr(service_pb2, method.input_type.name)()
            given = iter([request]) if method.client_streaming else request
            with pytest.raises(grpc.RpcError) as caught:
                answer = getattr(stub, method.name)(given, timeout=PATIENCE_S)
                list(answer if method.server_streaming else [])
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED, method.name


def test_tokens_health_wants_none_but_for_watching(token_server: Server) -> None:
    """Whoever watches the health takes one of the calls that may be made at once, for as long as they like."""
    with grpc.insecure_channel(token_server.address) as channel:
        stub, request = health_pb2_grpc.HealthStub(channel), health_pb2.HealthCheckRequest()
        assert stub.Check(request, timeout=PATIENCE_S).status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            next(stub.Watch(request, timeout=PATIENCE_S))
    assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_tokens_are_not_logged(token_server: Server, trace: Path) -> None:
    refused(token_server.address, trace, token="bad-secret-token")
    works(token_server.address, trace, token="one-good-token")
    token_server.logged("call", code="UNAUTHENTICATED", reason="TOKEN_UNKNOWN")
    token_server.logged("call", method="CreateJob", code="OK")
    assert "-token" not in token_server.errors


@pytest.mark.parametrize("token", ["", " ", "with\nnewline", "naïve"])
def test_a_token_that_cannot_be_sent(token: str) -> None:
    with pytest.raises(UsageError, match="a token must consist of printable ASCII characters"):
        Client("127.0.0.1:1", token=token)


@pytest.mark.parametrize(("tls", "message"), [
    (Tls(Path("gone.pem")), r"gone\.pem: no such file"),
    (Tls(Path("/dev/null")), "not a PEM file"),
    (Tls(cert=Path("a")), "belong together"),
])  # fmt: skip
def test_tls_files_that_cannot_be_used(tls: Tls, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Client("127.0.0.1:1", tls=tls)
