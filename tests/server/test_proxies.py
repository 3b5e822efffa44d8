"""The service behind Debian's nginx: with its own defaults, and as deploy/proxies says. And what Envoy is told."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from certificates import Authority
from curl import curl
from in_process import eventually, trace
from serving_process import PATIENCE_S, Server, augment, serving

from augment.client import Client, Tls
from augment.client.connection import Deadline, Failure
from augment.errors import ServiceError
from machine import free_ports

SERVER_FLAGS = ("--http", "127.0.0.1:0")

PROXIES = Path(__file__).parents[2] / "deploy" / "proxies"
TOKEN = "t" * 32
TEMPORARY = "".join(f"{kind}_temp_path {kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))


@contextlib.contextmanager
def nginx(folder: Path, servers: str, port: int) -> Iterator[None]:
    """nginx with these servers, until the end; one of them listens on ``port``."""
    if shutil.which("nginx") is None:
        pytest.skip("no nginx: apt-get install nginx-light")
    folder.mkdir()
    text = f"daemon off; pid pid; error_log stderr; events {{}}\nhttp {{ access_log off; {TEMPORARY}{servers} }}"
    (folder / "nginx.conf").write_text(text)
    command = ["nginx", "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)

    def listens() -> bool:
        assert process.poll() is None, process.stderr and process.stderr.read().decode()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    try:
        eventually(listens)
        yield
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace that is larger than nginx allows by default."""
    return trace(tmp_path_factory.mktemp("traces") / "large.json", count=30_000)


@pytest.fixture(scope="module")
def plain(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """nginx as it comes: the place of its HTTP and of its gRPC."""
    places = [f"127.0.0.1:{port}" for port in free_ports(2)]
    servers = f"""
    server {{ listen {places[0]}; location / {{ proxy_pass {server.http}; }} }}
    server {{ listen {places[1]} http2; location / {{ grpc_pass grpc://{server.address}; }} }}"""
    with nginx(tmp_path_factory.mktemp("proxy") / "nginx", servers, int(places[0].rpartition(":")[2])):
        yield places[0], places[1]


def test_a_job_is_followed_and_fetched(server: Server, plain: tuple[str, str], tmp_path: Path) -> None:
    """A line comes while the job waits, and not with the end of the stream."""
    place, _ = plain
    with server.frozen():
        path = trace(tmp_path / "a.json")
        sent = curl(f"http://{place}/v1/uploads:bytes?fileName=a.json", "--data-binary", f"@{path}").json["upload"]
        spec = {"spec": {"augment": {"input": {"upload": sent["name"]}, "only": ["temporal_breakdown"]}}}
        job = curl(f"http://{place}/v1/jobs", "--json", json.dumps(spec)).json["job"]["name"]
        connection = http.client.HTTPConnection(place, timeout=PATIENCE_S)
        connection.request("GET", f"/v1/{job}:watch")
        lines = connection.getresponse()
        assert json.loads(lines.readline())["result"]["job"]["name"] == job
    last = json.loads(lines.read().splitlines()[-1])["result"]["job"]
    connection.close()
    assert last["state"] == "STATE_SUCCEEDED"
    artifact = last["artifacts"][0]
    url = f"http://{place}/v1/{artifact['name']}:download"
    assert curl(url).headers["content-length"] == artifact["sizeBytes"]
    part = curl(url, "-H", "Range: bytes=10-19")
    assert (part.status, part.body) == (206, curl(url).body[10:20])
    assert curl(url, "-H", f'If-None-Match: "{artifact["sha256"]}"').status == 304


def test_a_413_is_told_as_the_proxys(plain: tuple[str, str], large: Path) -> None:
    place, grpc_place = plain
    answered = curl(f"http://{place}/v1/uploads:bytes?fileName=large.json", "--data-binary", f"@{large}")
    assert (answered.status, answered.headers["content-type"]) == (413, "text/html")
    with Client(grpc_place) as client, pytest.raises(ServiceError) as caught:
        client._upload(str(large), Deadline(None, str(large)), lambda *_: None)
    assert "a proxy before the server allows no upload of this size" in str(caught.value)
    assert "413" in str(caught.value)


def test_nginx_as_the_page_has_it(tmp_path: Path, large: Path) -> None:
    authority, (port,) = Authority(tmp_path / "tls"), free_ports(1)
    pair = authority.sign("proxy")
    (tmp_path / "tokens").write_text(f"ci:{TOKEN}\n")
    flags = ("--http", "127.0.0.1:0", "--token-file", tmp_path / "tokens")
    with serving(tmp_path / "state", *flags) as server:
        text = (PROXIES / "nginx.conf").read_text()
        for before, after in (
            ("listen 443 ", f"listen 127.0.0.1:{port} "),
            ("/etc/nginx/server.pem", str(pair.cert)),
            ("/etc/nginx/server.key", str(pair.key)),
            ("grpc://127.0.0.1:50051", f"grpc://{server.address}"),
            ("http://127.0.0.1:8080", server.http),
        ):
            assert before in text
            text = text.replace(before, after)
        with nginx(tmp_path / "nginx", text, port):
            tls = Tls(ca=authority.cert)
            with Client(f"127.0.0.1:{port}", tls=tls, token=TOKEN) as client:
                client.augment(large, only=["temporal_breakdown"], out=tmp_path / "grpc")
            shown = ("--cacert", authority.cert, "-H", f"Authorization: Bearer {TOKEN}")
            base = f"https://localhost:{port}"
            page = ("-H", f"Origin: {base}")  # a page of the server itself
            sent = curl(f"{base}/v1/uploads:bytes?fileName=large.json", "--data-binary", f"@{large}", *shown, *page)
            assert sent.json["upload"]["state"] == "STATE_COMPLETE", sent.body
            assert curl(f"{base}/healthz", "--cacert", authority.cert).status == 200
            assert curl(f"{base}/other", "--cacert", authority.cert).status == 404
    assert augment("run", large, "-o", tmp_path / "here", "--only", "temporal_breakdown").returncode == 0
    for path in (tmp_path / "here").iterdir():
        assert path.read_bytes() == (tmp_path / "grpc" / path.name).read_bytes()


@pytest.mark.parametrize(("code", "message", "expected"), [
    ("UNKNOWN", "Received http2 header with status: 413", "allows no upload of this size"),
    ("PERMISSION_DENIED", "Received http2 header with status: 403", "a proxy before the server refuses the call"),
    ("UNAVAILABLE", "Received http2 header with status: 502", "the server cannot be reached"),
    ("UNKNOWN", "Stream removed", "a:1: unknown (Stream removed)"),
])  # fmt: skip
def test_what_is_no_response_of_grpc_is_a_proxys(code: str, message: str, expected: str) -> None:
    error = Failure(code, "", message).error("a:1", "")
    assert expected in str(error)
    assert message in str(error)


@pytest.mark.parametrize(("code", "reason", "message", "passing"), [
    ("UNKNOWN", "", "Stream removed (Data frame with END_STREAM flag received)", True),
    ("INTERNAL", "", "Received RST_STREAM with error code 2", True),
    ("UNKNOWN", "", "Received http2 header with status: 413", False),
    ("INTERNAL", "INTERNAL", "a bug: Stream removed, RST_STREAM", False),
])  # fmt: skip
def test_a_stream_that_ends_without_a_status_is_tried_again(
    code: str, reason: str, message: str, passing: bool
) -> None:
    assert Failure(code, reason, message).passing == passing


def test_envoy_ends_no_stream() -> None:
    """Envoy is not run here: by its defaults each response ends after 15 s, and what is not HTTP/2 is no gRPC."""
    resources = yaml.safe_load((PROXIES / "envoy.yaml").read_text())["static_resources"]
    (listener,) = resources["listeners"]
    (manager,) = (each["typed_config"] for each in listener["filter_chains"][0]["filters"])
    (host,) = manager["route_config"]["virtual_hosts"]
    clusters = {cluster["name"]: cluster for cluster in resources["clusters"]}
    assert all(route["route"]["timeout"] == "0s" for route in host["routes"])
    assert {route["route"]["cluster"] for route in host["routes"]} == set(clusters)
    (options,) = clusters["augment_grpc"]["typed_extension_protocol_options"].values()
    assert "http2_protocol_options" in options["explicit_http_config"]
    assert manager["stream_idle_timeout"] == "300s"  # longer than two minutes, --max-upload-idle
