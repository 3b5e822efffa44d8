"""The service over HTTP, with curl: calls, and downloads and answers as browsers and proxies expect them."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import queue
import re
import socket
import ssl
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from certificates import Authority
from curl import Answered, curl
from in_process import eventually, trace
from in_process import serving as serving_within
from serving_process import PATIENCE_S, Server, augment, environment, serving

from augment.client import Client, Tls
from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment.v1.service_pb2_grpc import AugmentServiceStub
from augment_server.api import service as service_module
from augment_server.api.http.calls import part_of

SERVER_FLAGS = ("--http", "127.0.0.1:0", "--max-message", "100kB")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of more than a message."""
    return trace(tmp_path_factory.mktemp("traces") / "rank 0.json", count=5000)


def upload(server: Server, path: Path, name: str = "rank0.json", *options: object) -> str:
    answered = curl(f"{server.http}/v1/uploads:bytes?fileName={name}", "--data-binary", f"@{path}", *options)
    assert (answered.status, answered.json["upload"]["state"]) == (200, "STATE_COMPLETE"), answered.body
    return str(answered.json["upload"]["name"])


def create(server: Server, upload: str, **more: Any) -> str:
    asked = {"spec": {"augment": {"input": {"upload": upload}, "only": ["temporal_breakdown"]}}, **more}
    answered = curl(f"{server.http}/v1/jobs", "--json", json.dumps(asked))
    assert answered.status == 200, answered.body
    return str(answered.json["job"]["name"])


def done(server: Server, job: str) -> dict[str, Any]:
    answered = curl(f"{server.http}/v1/{job}:watch", "--no-buffer")
    assert all(set(line) == {"result"} for line in answered.lines)
    return dict(answered.lines[-1]["result"]["job"])


def test_round_trip(server: Server, given: Path, tmp_path: Path) -> None:
    """The same bytes as the command's, downloaded as files."""
    assert augment("run", given, "-o", tmp_path / "wanted", "--only", "temporal_breakdown").returncode == 0
    job = done(server, create(server, upload(server, given, "rank%200.json")))
    assert job["state"] == "STATE_SUCCEEDED"
    for artifact in job["artifacts"]:
        name = artifact["name"].replace(" ", "%20")
        answered = curl(f"{server.http}/v1/{name}:download")
        assert answered.body == (tmp_path / "wanted" / artifact["fileName"]).read_bytes()
        assert answered.headers["content-type"] == artifact["mediaType"]
        assert answered.headers["content-disposition"].startswith(f'attachment; filename="{artifact["fileName"]}"')
        rest = curl(f"{server.http}/v1/{name}:download?offset=100")
        assert (rest.status, rest.body) == (200, answered.body[100:])
        lines = curl(f"{server.http}/v1/{name}:read").lines
        assert lines[0]["result"]["artifact"] == artifact
        assert b"".join(base64.b64decode(line["result"]["chunk"]) for line in lines) == answered.body
    metrics = curl(f"{server.http}/v1/{job['name']}/metrics?analyses=temporal_breakdown").lines
    assert metrics[0]["result"]["metrics"]["status"] == "STATUS_OK"


def test_an_upload_goes_on(server: Server, given: Path, tmp_path: Path) -> None:
    content = given.read_bytes() + b" "  # so that it is not there already
    text = {"fileName": "a.json", "sizeBytes": str(len(content)), "sha256": hashlib.sha256(content).hexdigest()}
    started = curl(f"{server.http}/v1/uploads", "--json", json.dumps({**text, "fileName": "part.json"})).json["upload"]
    (tmp_path / "first").write_bytes(content[:100_000])
    url = f"{server.http}/v1/{started['name']}:bytes"
    part = curl(url, "-T", tmp_path / "first")
    assert (part.status, part.json["code"]) == (400, 9)  # not all that was announced has come
    there = curl(f"{server.http}/v1/{started['name']}").json["upload"]
    assert (there["receivedBytes"], there["state"]) == ("100000", "STATE_ACTIVE")
    (tmp_path / "rest").write_bytes(content[90_000:])
    whole = curl(f"{url}?offset=90000", "-T", tmp_path / "rest").json["upload"]
    assert (whole["state"], whole["sha256"]) == ("STATE_COMPLETE", text["sha256"])


def test_a_body_that_is_cut_completes_nothing(server: Server) -> None:
    place = server.http.removeprefix("http://").split(":")
    head = f"POST /v1/uploads:bytes?fileName=cut.json HTTP/1.1\r\nHost: {place[0]}\r\nContent-Length: 1000\r\n\r\n"
    with socket.create_connection((place[0], int(place[1]))) as connection:
        connection.sendall(head.encode() + b"x" * 500)
        cut = eventually(lambda: named(server, "cut.json"))
        eventually(lambda: named(server, "cut.json")["receivedBytes"] == "500")
    server.logged("call", method="UploadBytes", code="CANCELLED")
    there = curl(f"{server.http}/v1/{cut['name']}").json["upload"]
    assert (there["state"], there["receivedBytes"]) == ("STATE_ACTIVE", "500")


def named(server: Server, file_name: str) -> dict[str, Any]:
    uploads = curl(f"{server.http}/v1/uploads?pageSize=1000").json["uploads"]
    return next((upload for upload in uploads if upload["fileName"] == file_name), {})


def test_streams_of_json(server: Server, given: Path) -> None:
    """A trace in lines of JSON, to UploadTrace and to Augment."""
    content = given.read_bytes()
    chunks = [content[at : at + 50_000] for at in range(0, len(content), 50_000)]
    lines = [json.dumps({"chunk": base64.b64encode(chunk).decode()}) for chunk in chunks]
    start = json.dumps({"start": {"fileName": "lines.json", "sizeBytes": len(content)}})
    data = "\n".join([start, "", *lines]).encode()
    sent = curl(f"{server.http}/v1/uploads:stream", "--data-binary", "@-", data=data)
    assert sent.json["upload"]["state"] == "STATE_COMPLETE"
    spec = {"only": ["temporal_breakdown"]}
    start = json.dumps({"start": {"file": {"fileName": "lines.json", "sizeBytes": len(content)}, "spec": spec}})
    got = curl(f"{server.http}/v1/augment", "--data-binary", "@-", data="\n".join([start, *lines]).encode()).lines
    assert got[0]["result"]["job"]["state"] in ("STATE_QUEUED", "STATE_RUNNING")
    assert [each["result"]["artifact"]["fileName"] for each in got if "artifact" in each["result"]] == [
        "lines.augmented.pftrace", "lines.metrics.json"
    ]  # fmt: skip


def test_an_error_in_a_stream(server: Server) -> None:
    start = json.dumps({"start": {"file": {"fileName": "bad.json"}}})
    data = "\n".join([start, json.dumps({"chunk": base64.b64encode(b"no trace").decode(), "finish": True})]).encode()
    answered = curl(f"{server.http}/v1/augment", "--data-binary", "@-", data=data)
    assert answered.status == 200
    assert answered.lines[-1]["error"]["details"][0]["reason"] == "UNKNOWN_FORMAT"


def test_lists(server: Server, given: Path) -> None:
    for _ in range(3):
        create(server, upload(server, given))
    page = curl(f"{server.http}/v1/jobs?pageSize=2").json
    assert len(page["jobs"]) == 2
    rest = curl(f"{server.http}/v1/jobs?pageSize=1000&pageToken={page['nextPageToken']}").json
    names = [job["name"] for job in (*page["jobs"], *rest["jobs"])]
    assert len(set(names)) == len(names) >= 3
    states = curl(f"{server.http}/v1/jobs?states=STATE_CANCELLED&states=STATE_FAILED").json["jobs"]
    assert {state["state"] for state in states} <= {"STATE_CANCELLED", "STATE_FAILED"}


def test_the_same_request_again(server: Server, given: Path) -> None:
    sent = upload(server, given)
    assert create(server, sent, requestId="twice") == create(server, sent, requestId="twice")


def test_cancel_and_delete(server: Server, given: Path) -> None:
    job = create(server, upload(server, given))
    done(server, job)
    assert curl(f"{server.http}/v1/{job}:cancel", "-X", "POST").json["job"]["state"] == "STATE_SUCCEEDED"
    assert curl(f"{server.http}/v1/{job}", "-X", "DELETE").json == {}
    gone = curl(f"{server.http}/v1/{job}")
    assert (gone.status, gone.json["code"], gone.reason) == (404, 5, "NOT_FOUND")


def test_a_job_is_renamed(server: Server, given: Path) -> None:
    job = create(server, upload(server, given), labels={"a": "1"})
    url = f"{server.http}/v1/{job}"
    renamed = curl(url, "-X", "PATCH", "--json", '{"displayName": "b", "updateMask": "displayName,labels"}').json["job"]
    assert (renamed["displayName"], renamed["labels"]) == ("b", {})
    assert curl(f"{url}?view=JOB_VIEW_BASIC").json["job"]["displayName"] == "b"
    refused = curl(url, "-X", "PATCH", "--json", '{"updateMask": "state"}')
    assert (refused.status, refused.reason) == (400, "INVALID_REQUEST")


def test_the_server(server: Server) -> None:
    assert curl(f"{server.http}/openapi.json").json["paths"]["/v1/jobs/{name}"].keys() == {"get", "patch", "delete"}
    assert curl(f"{server.http}/healthz").json == {"status": "SERVING"}
    assert curl(f"{server.http}/v1/serverInfo").json["info"]["limits"]["maxMessageBytes"] == "100000"
    assert curl(f"{server.http}/v1/analyses").json["analyses"][0]["name"] == "diagnosis"


@pytest.mark.parametrize(("path", "options", "status", "reason"), [
    ("/v1/nothing", (), 404, "NOT_FOUND"),
    ("/v1/jobs", ("-X", "PATCH"), 405, "INVALID_REQUEST"),
    ("/v1/jobs?pageSize=x", (), 400, "INVALID_REQUEST"),
    ("/v1/jobs", ("--json", "{"), 400, "INVALID_REQUEST"),
    ("/v1/jobs", ("--json", '{"spec": {"augment": {"only": ["x"], "input": {"uri": "/a"}}}}'), 400, "USAGE"),
    ("/v1/jobs", ("--json", "@/dev/zero", "--max-filesize", "1"), 0, ""),
    ("/v1/jobs/../x", ("--path-as-is",), 404, "NOT_FOUND"),
    ("/v1/jobs/nothing", (), 404, "NOT_FOUND"),
    ("/v1/jobs/NOTHING", (), 400, "INVALID_REQUEST"),
    ("/v1/jobs", ("-H", "Origin: https://example.com"), 403, "ORIGIN_NOT_ALLOWED"),
    ("/v1/jobs", ("-H", "Host: example.com"), 403, "ORIGIN_NOT_ALLOWED"),
    ("/v1/jobs", ("--json", "{}", "-H", "Content-Encoding: gzip"), 400, "INVALID_REQUEST"),
])  # fmt: skip
def test_what_is_refused(server: Server, path: str, options: tuple[str, ...], status: int, reason: str) -> None:
    if "@/dev/zero" in options:
        answered = curl(f"{server.http}{path}", "--data-binary", "@-", data=b"0" * 200_000)
        assert (answered.status, answered.reason) == (400, "INVALID_REQUEST")
        return
    answered = curl(f"{server.http}{path}", *options)
    assert (answered.status, answered.reason) == (status, reason)
    assert answered.headers["content-type"] == "application/json"


@pytest.mark.parametrize("data", [
    b"GET /v1/jobs HTTP/1.1\r\nHost: [x\r\n\r\n",
    b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nOrigin: http://[x\r\n\r\n",
    b"GET /\x00 HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n{}",
    b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
    b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
])  # fmt: skip
def test_what_is_no_http_is_answered_and_no_error_of_ours(server: Server, data: bytes) -> None:
    place = server.http.removeprefix("http://").split(":")
    with socket.create_connection((place[0], int(place[1])), timeout=PATIENCE_S) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answered = connection.recv(100)
    assert answered[:12] in (b"HTTP/1.1 400", b"HTTP/1.0 400", b"HTTP/1.1 403", b"")
    assert curl(f"{server.http}/healthz").status == 200
    assert not [line for line in server.log if line["level"] == "error"]


def test_what_is_wrong_is_named(server: Server) -> None:
    answered = curl(f"{server.http}/v1/jobs", "--json", '{"spec": {"augment": {"onyl": ["x"]}}}')
    (violations,) = (detail["fieldViolations"] for detail in answered.json["details"] if "fieldViolations" in detail)
    assert violations[0]["field"] == "spec.augment.onyl"
    assert "known: input, formats, only" in violations[0]["description"]


def test_localhost_is_this_machine(server: Server) -> None:
    port = server.http.rpartition(":")[2]
    assert curl(f"{server.http}/healthz", "-H", f"Host: localhost:{port}").status == 200
    assert curl(f"{server.http}/healthz", "-H", f"Origin: {server.http}").status == 200


def test_calls_are_counted_and_logged_as_any(tmp_path: Path, given: Path) -> None:
    with serving(tmp_path / "state", "--metrics-listen", "127.0.0.1:0", "--http", "127.0.0.1:0") as server:
        upload(server, given)
        line = server.logged("call", method="UploadBytes", code="OK")
        assert line["client"] == "host:ipv4:127.0.0.1"
        assert line["received_bytes"] >= given.stat().st_size
        assert (
            'augment_calls_total{code="OK",method="augment.v1.AugmentService/UploadBytes"} 1.0'
            in curl(server.metrics).body.decode()
        )


def test_tokens(tmp_path: Path, given: Path) -> None:
    (tmp_path / "tokens").write_text("ci:secret\nother:different\n")
    with serving(tmp_path / "state", "--http", "127.0.0.1:0", "--token-file", tmp_path / "tokens") as server:
        url, bearer = f"{server.http}/v1/jobs", ("-H", "Authorization: Bearer secret")
        missing, unknown = curl(url), curl(url, "-H", "Authorization: Bearer wrong")
        assert (missing.status, missing.reason, unknown.status, unknown.reason) == (
            401, "TOKEN_MISSING", 401, "TOKEN_UNKNOWN"
        )  # fmt: skip
        assert missing.headers["www-authenticate"] == "Bearer"
        assert curl(f"{server.http}/healthz").status == 200
        sent = upload(server, given, "rank0.json", *bearer)
        assert curl(f"{server.http}/v1/{sent}", *bearer).status == 200
        assert curl(f"{server.http}/v1/{sent}", "-H", "Authorization: Bearer different").status == 404
        with grpc.insecure_channel(server.address) as channel:  # whoever it is, over gRPC it is the same
            metadata = (("authorization", "Bearer secret"),)
            result = AugmentServiceStub(channel).GetUpload(calls.GetUploadRequest(name=sent), metadata=metadata)
        assert result.upload.name == sent


def test_limits_are_those_of_grpc(tmp_path: Path) -> None:
    """A stream over gRPC takes the only place."""
    with serving(tmp_path / "state", "--http", "127.0.0.1:0", "--max-client-calls", "1") as server:
        with grpc.insecure_channel(server.address) as channel:
            messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
            call = AugmentServiceStub(channel).UploadTrace.future(iter(messages.get, None))
            refused: Answered = eventually(
                lambda: (answered := curl(f"{server.http}/v1/jobs/a:watch")).status == 429 and answered
            )
            messages.put(None)
            assert call.exception()
        assert (refused.reason, refused.headers["retry-after"]) == ("TOO_MANY_CALLS", "1")


def test_tls_and_certificates(tmp_path: Path, given: Path) -> None:
    authority = Authority(tmp_path / "tls")
    ours, theirs = authority.sign("server"), authority.sign("someone")
    flags = ("--tls-cert", ours.cert, "--tls-key", ours.key, "--tls-client-ca", authority.cert)
    with serving(tmp_path / "state", "--http", "127.0.0.1:0", *flags) as server:
        assert server.http.startswith("https://")
        assert curl(f"{server.http}/healthz", "--cacert", authority.cert).code != 0
        shown = ("--cacert", authority.cert, "--cert", theirs.cert, "--key", theirs.key)
        sent = upload(server, given, "rank0.json", *shown)
        tls = Tls(ca=authority.cert, cert=theirs.cert, key=theirs.key)
        with Client(server.address, tls=tls) as client:  # the same owner
            assert client._stub.GetUpload(calls.GetUploadRequest(name=sent)).upload.name == sent
        renewed = authority.sign("renewed")
        ours.key.write_bytes(renewed.key.read_bytes())
        ours.cert.write_bytes(renewed.cert.read_bytes())
        context = ssl.create_default_context(cafile=str(authority.cert))
        context.load_cert_chain(theirs.cert, theirs.key)
        place = server.http.removeprefix("https://").split(":")
        with (
            socket.create_connection((place[0], int(place[1]))) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            output: Any = connection.getpeercert()
        assert output["subject"] == ((("commonName", "renewed"),),)


def test_it_drains(tmp_path: Path, given: Path) -> None:
    with serving(tmp_path / "state", "--http", "127.0.0.1:0") as server:
        job = create(server, upload(server, given))
        server.terminate()
        assert server.wait() == 0
        assert "Traceback" not in server.errors
    with serving(tmp_path / "state", "--http", "127.0.0.1:0") as server:
        assert done(server, job)["state"] == "STATE_SUCCEEDED"


def test_a_reader_that_stalls_is_cut_off(tmp_path: Path) -> None:
    large = trace(tmp_path / "large.json", count=200_000)
    with serving(tmp_path / "state", "--http", "127.0.0.1:0", "--max-unread", "1s") as server:
        sent = upload(server, large, "large.json")
        asked = {"spec": {"augment": {"input": {"upload": sent}, "only": ["kernel_breakdown"], "formats": ["chrome"]}}}
        job = done(server, curl(f"{server.http}/v1/jobs", "--json", json.dumps(asked)).json["job"]["name"])
        name = max(job["artifacts"], key=lambda item: int(item["sizeBytes"]))["name"]
        place = server.http.removeprefix("http://").split(":")
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect((place[0], int(place[1])))
            for _ in range(400):  # one after the other over this connection: more than its buffers hold
                connection.sendall(f"GET /v1/{name}:read HTTP/1.1\r\nHost: {place[0]}\r\n\r\n".encode())
            server.logged("call", method="ReadArtifact", code="DEADLINE_EXCEEDED")


def test_an_answer_that_nobody_reads_ends_its_connection(tmp_path: Path) -> None:
    """Also one that needs no token."""
    with serving(tmp_path / "state", "--http", "127.0.0.1:0", "--max-unread", "1s") as server:
        host, port = server.http.removeprefix("http://").split(":")
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect((host, int(port)))
            for _ in range(100):  # one after the other: more than its buffers hold
                connection.sendall(f"GET /openapi.json HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())

            def is_ended() -> bool:
                try:
                    connection.send(b"G", socket.MSG_DONTWAIT)
                except BlockingIOError:
                    return False
                except OSError:
                    return True
                return False

            eventually(is_ended)


def test_the_commands_of_the_page(server: Server, given: Path, tmp_path: Path) -> None:
    """Each as it stands there, one after the other, but for the port."""
    page = (ROOT / "docs" / "service.md").read_text()
    blocks = [each for each in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if re.search(r"\bcurl ", each)]
    assert len(blocks) >= 4
    (tmp_path / "rank0.json.gz").write_bytes(given.read_bytes())
    script = "\n".join(blocks).replace("http://127.0.0.1:8080", server.http)
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, capture_output=True, encoding="utf-8",
        env=environment(), timeout=PATIENCE_S,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert '"state":"STATE_SUCCEEDED"' in ended.stdout
    assert (tmp_path / "rank0.augmented.pftrace").stat().st_size > 1000


ORIGIN = "https://ui.perfetto.dev"
PAGE = ("-H", f"Origin: {ORIGIN}")


@pytest.fixture(scope="module")
def page_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("state"), "--http", "127.0.0.1:0", "--allow-origin", ORIGIN) as page_server:
        yield page_server


@pytest.fixture(scope="module")
def job(page_server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A job that is done."""
    path = trace(tmp_path_factory.mktemp("traces") / "rank0.json", count=5000)
    sent = curl(f"{page_server.http}/v1/uploads:bytes?fileName=rank0.json", "--data-binary", f"@{path}").json["upload"]
    asked = {"spec": {"augment": {"input": {"upload": sent["name"]}, "only": ["temporal_breakdown"]}}}
    name = curl(f"{page_server.http}/v1/jobs", "--json", json.dumps(asked)).json["job"]["name"]
    watched = curl(f"{page_server.http}/v1/{name}:watch")
    assert watched.headers["x-accel-buffering"] == "no"
    return dict(watched.lines[-1]["result"]["job"])


@pytest.fixture(scope="module")
def artifact(job: dict[str, Any]) -> dict[str, Any]:
    return dict(job["artifacts"][0])


@pytest.fixture(scope="module")
def url(page_server: Server, artifact: dict[str, Any]) -> str:
    return f"{page_server.http}/v1/{artifact['name']}:download"


@pytest.fixture(scope="module")
def content(url: str) -> bytes:
    return curl(url).body


def test_a_download_says_what_it_is(url: str, artifact: dict[str, Any], content: bytes) -> None:
    whole = curl(url)
    assert whole.status == 200
    assert whole.headers["content-length"] == artifact["sizeBytes"] == str(len(content))
    assert whole.headers["etag"] == f'"{artifact["sha256"]}"' == f'"{hashlib.sha256(content).hexdigest()}"'
    assert whole.headers["accept-ranges"] == "bytes"
    assert whole.headers["cache-control"] == "private, no-cache"
    assert "transfer-encoding" not in whole.headers


def test_head_is_a_download_without_its_bytes(page_server: Server, url: str, job: dict[str, Any]) -> None:
    whole, head = curl(url), curl(url, "--head")
    assert (head.code, head.status, head.body) == (0, 200, b"")
    kept = {"date"}
    assert {name: text for name, text in head.headers.items() if name not in kept} == {
        name: text for name, text in whole.headers.items() if name not in kept
    }
    assert curl(f"{page_server.http}/v1/{job['name']}", "--head").status == 200
    assert curl(f"{page_server.http}/healthz", "--head").status == 200
    watched = curl(f"{page_server.http}/v1/{job['name']}:watch", "--head")  # it has no end that a head could wait for
    assert (watched.status, watched.headers["allow"]) == (405, "GET")


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [("100-199", 100, 199), ("0-0", 0, 0), ("100-", 100, None), ("-100", -100, None), ("5-99999999999", 5, None)],
)
def test_a_range(url: str, content: bytes, asked: str, first: int, last: int | None) -> None:
    answered = curl(url, "-H", f"Range: bytes={asked}")
    expected = content[first:] if last is None else content[first : last + 1]
    assert (answered.status, answered.body) == (206, expected)
    begin = first if first >= 0 else len(content) + first
    assert answered.headers["content-range"] == f"bytes {begin}-{begin + len(expected) - 1}/{len(content)}"
    assert answered.headers["content-length"] == str(len(expected))


def test_a_download_goes_on_as_curl_does_it(url: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(content[:1000])
    assert curl(url, "--no-include", "-C", "-", "-o", tmp_path / "part").code == 0
    assert (tmp_path / "part").read_bytes() == content


def test_a_range_of_the_rest(url: str, content: bytes) -> None:
    """With an offset, the file begins there."""
    answered = curl(f"{url}?offset=1000", "-H", "Range: bytes=1-2")
    assert (answered.status, answered.body) == (206, content[1001:1003])
    assert answered.headers["content-range"] == f"bytes 1-2/{len(content) - 1000}"


def test_a_range_behind_the_end(url: str, content: bytes) -> None:
    answered = curl(url, "-H", f"Range: bytes={len(content)}-")
    assert (answered.status, answered.reason) == (416, "OFFSET_OUT_OF_RANGE")
    assert answered.headers["content-range"] == f"bytes */{len(content)}"
    assert answered.headers["cache-control"] == "no-store"


def test_what_is_known_is_not_sent_again(url: str, content: bytes) -> None:
    tag = curl(url).headers["etag"]
    for asked in (tag, f'"other", W/{tag}', "*"):
        answered = curl(url, "-H", f"If-None-Match: {asked}")
        assert (answered.code, answered.status, answered.body, answered.headers["etag"]) == (0, 304, b"", tag)
    assert curl(url, "-H", 'If-None-Match: "other"').body == content


SIZE, SHA = 1000, "ab" * 32


@pytest.mark.parametrize(("asked", "status", "first", "count"), [
    ({}, 200, 0, 1000),
    ({"Range": "bytes=0-9,20-29"}, 200, 0, 1000),
    ({"Range": "lines=0-9"}, 200, 0, 1000),
    ({"Range": "bytes=9-0"}, 200, 0, 1000),
    ({"Range": "bytes=-"}, 200, 0, 1000),
    ({"Range": "bytes=x-"}, 200, 0, 1000),
    ({"Range": "bytes=-5000"}, 206, 0, 1000),
    ({"Range": "bytes=-0"}, 416, 0, 0),
    ({"Range": "bytes=999-"}, 206, 999, 1),
    ({"Range": "bytes=1000-1001"}, 416, 0, 0),
    ({"Range": "bytes=10-19", "If-Range": f'"{SHA}"'}, 206, 10, 10),
    ({"Range": "bytes=10-19", "If-Range": '"other"'}, 200, 0, 1000),
    ({"Range": "bytes=10-19", "If-Range": "Mon, 23 Nov 2026 07:34:16 GMT"}, 200, 0, 1000),
    ({"Range": "bytes=10-19", "If-None-Match": f'"{SHA}"'}, 304, 0, 0),
])  # fmt: skip
def test_parts(asked: dict[str, str], status: int, first: int, count: int) -> None:
    part = part_of("GET", asked, SIZE, SHA)
    assert (part.status, part.first, part.count) == (status, first, count)
    head = part_of("HEAD", asked, SIZE, SHA)
    assert (head.status, head.count, head.headers) == (part.status, 0, part.headers)


def test_an_empty_file_has_no_ranges() -> None:
    assert part_of("GET", {}, 0, SHA).status == 200
    for asked in ("bytes=0-", "bytes=-1"):
        assert part_of("GET", {"Range": asked}, 0, SHA).status == 416


def test_a_page_that_is_named_may_read(page_server: Server, url: str, content: bytes) -> None:
    read = curl(url, *PAGE)
    assert (read.status, read.body) == (200, content)
    assert read.headers["access-control-allow-origin"] == ORIGIN
    assert "ETag" in read.headers["access-control-expose-headers"]
    assert read.headers["vary"] == "Origin"
    asked = ("-X", "OPTIONS", "-H", "Access-Control-Request-Method: GET", "-H", "Access-Control-Request-Headers: range")
    first = curl(url, *PAGE, *asked)
    assert (first.status, first.headers["access-control-allow-origin"]) == (204, ORIGIN)
    assert "Range" in first.headers["access-control-allow-headers"]
    missing = curl(f"{page_server.http}/v1/jobs/nothing", *PAGE)  # errors can be read, too
    assert (missing.status, missing.headers["access-control-allow-origin"]) == (404, ORIGIN)
    changed = curl(f"{page_server.http}/v1/jobs", *PAGE, "--json", "{}")
    assert (changed.status, changed.reason) == (403, "ORIGIN_NOT_ALLOWED")


@pytest.mark.parametrize("origin", ["https://ui.perfetto.dev.example.com", "http://ui.perfetto.dev", "null"])
def test_other_pages_may_not(url: str, origin: str) -> None:
    for verb in ("GET", "OPTIONS"):
        answered = curl(url, "-X", verb, "-H", f"Origin: {origin}")
        assert (answered.status, answered.reason) == (403, "ORIGIN_NOT_ALLOWED")
        assert "access-control-allow-origin" not in answered.headers


@pytest.mark.parametrize("origin", ["*", "ui.perfetto.dev", "https://ui.perfetto.dev/", "null"])
def test_an_origin_is_a_scheme_and_a_host(origin: str, tmp_path: Path) -> None:
    ended = augment("serve", "--state-dir", tmp_path, "--http", "127.0.0.1:0", "--allow-origin", origin)
    assert ended.returncode == 2
    assert "must be a scheme and a host" in ended.stderr


def test_origins_are_of_http(tmp_path: Path) -> None:
    ended = augment("serve", "--state-dir", tmp_path, "--allow-origin", ORIGIN)
    assert ended.returncode == 2
    assert "--allow-origin needs --http" in ended.stderr


def test_large_json_is_packed_for_who_accepts_it(page_server: Server, job: dict[str, Any]) -> None:
    accepts = ("-H", "Accept-Encoding: br, gzip;q=0.5")
    plain, packed = (curl(f"{page_server.http}/v1/analyses", *options) for options in ((), accepts))
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["vary"] == "Origin, Accept-Encoding"
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body) / 2
    metrics = f"{page_server.http}/v1/{job['name']}/metrics"
    streamed = curl(metrics, *accepts)
    assert gzip.decompress(streamed.body) == curl(metrics).body
    assert "content-encoding" not in curl(f"{page_server.http}/healthz", *accepts).headers
    for artifact in job["artifacts"]:  # a file is sent as it is, also of JSON
        file = curl(f"{page_server.http}/v1/{artifact['name']}:download", *accepts)
        assert "content-encoding" not in file.headers
        assert hashlib.sha256(file.body).hexdigest() == artifact["sha256"]
    assert "content-encoding" not in curl(metrics, "-H", "Accept-Encoding: gzip;q=0").headers


def test_each_line_of_a_packed_stream_comes_at_once(page_server: Server, tmp_path: Path) -> None:
    """A job that waits has one line only: it can be read while the stream goes on."""
    import http.client

    with page_server.frozen():
        path = trace(tmp_path / "later.json", count=7)
        sent = curl(f"{page_server.http}/v1/uploads:bytes?fileName=later.json", "--data-binary", f"@{path}").json[
            "upload"
        ]
        asked = {"spec": {"augment": {"input": {"upload": sent["name"]}, "only": ["temporal_breakdown"]}}}
        name = curl(f"{page_server.http}/v1/jobs", "--json", json.dumps(asked)).json["job"]["name"]
        connection = http.client.HTTPConnection(page_server.http.removeprefix("http://"), timeout=PATIENCE_S)
        connection.request("GET", f"/v1/{name}:watch", headers={"Accept-Encoding": "gzip"})
        response = connection.getresponse()
        unpack, text = zlib.decompressobj(wbits=31), b""
        while b"\n" not in text:
            text += unpack.decompress(response.read1())
        assert json.loads(text.splitlines()[0])["result"]["job"]["name"] == name
    text += unpack.decompress(response.read())
    connection.close()
    assert unpack.eof
    assert json.loads(text.splitlines()[-1])["result"]["job"]["state"] == "STATE_SUCCEEDED"


def test_who_watches_hears_something_even_if_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxies end a stream that is silent for a minute."""
    assert service_module.HEARTBEAT_S == 15
    monkeypatch.setattr(service_module, "HEARTBEAT_S", 0.05)
    with serving_within(tmp_path / "state", max_running_jobs=1) as page_server:
        page_server.freeze()
        job = page_server.create(page_server.upload(trace(tmp_path / "a.json"))).name
        page_server.until(job, v1.Job.STATE_RUNNING)
        watching = page_server.stub.WatchJob(calls.WatchJobRequest(name=job), timeout=PATIENCE_S)
        assert {next(watching).job.state for _ in range(5)} == {v1.Job.STATE_RUNNING}
        page_server.thaw()
        *_, last = watching
    assert last.job.state == v1.Job.STATE_SUCCEEDED
