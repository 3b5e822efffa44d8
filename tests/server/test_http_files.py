"""Downloads and answers over HTTP as browsers, curl and proxies expect them."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from curl import curl
from in_process import serving as serving_inside
from in_process import trace
from serving_process import PATIENCE_S, Server, augment, serving

from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment_server.api import service as service_module
from augment_server.api.http.ranges import part_of

ORIGIN = "https://ui.perfetto.dev"
PAGE = ("-H", f"Origin: {ORIGIN}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("state"), "--http", "127.0.0.1:0", "--allow-origin", ORIGIN) as server:
        yield server


@pytest.fixture(scope="module")
def job(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A job that is done."""
    path = trace(tmp_path_factory.mktemp("traces") / "rank0.json", count=5000)
    sent = curl(f"{server.http}/v1/uploads:bytes?fileName=rank0.json", "--data-binary", f"@{path}").json["upload"]
    asked = {"spec": {"augment": {"input": {"upload": sent["name"]}, "only": ["temporal_breakdown"]}}}
    name = curl(f"{server.http}/v1/jobs", "--json", json.dumps(asked)).json["job"]["name"]
    watched = curl(f"{server.http}/v1/{name}:watch")
    assert watched.headers["x-accel-buffering"] == "no"
    return dict(watched.lines[-1]["result"]["job"])


@pytest.fixture(scope="module")
def artifact(job: dict[str, Any]) -> dict[str, Any]:
    return dict(job["artifacts"][0])


@pytest.fixture(scope="module")
def url(server: Server, artifact: dict[str, Any]) -> str:
    return f"{server.http}/v1/{artifact['name']}:download"


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


def test_head_is_a_download_without_its_bytes(server: Server, url: str, job: dict[str, Any]) -> None:
    whole, head = curl(url), curl(url, "--head")
    assert (head.code, head.status, head.body) == (0, 200, b"")
    kept = {"date"}
    assert {name: text for name, text in head.headers.items() if name not in kept} == {
        name: text for name, text in whole.headers.items() if name not in kept
    }
    assert curl(f"{server.http}/v1/{job['name']}", "--head").status == 200
    assert curl(f"{server.http}/healthz", "--head").status == 200
    watched = curl(f"{server.http}/v1/{job['name']}:watch", "--head")  # it has no end that a head could wait for
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


@pytest.mark.parametrize(
    ("asked", "status", "first", "count"),
    [
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
    ],
)
def test_parts(asked: dict[str, str], status: int, first: int, count: int) -> None:
    part = part_of("GET", asked, SIZE, SHA)
    assert (part.status, part.first, part.count) == (status, first, count)
    head = part_of("HEAD", asked, SIZE, SHA)
    assert (head.status, head.count, head.headers) == (part.status, 0, part.headers)


def test_an_empty_file_has_no_ranges() -> None:
    assert part_of("GET", {}, 0, SHA).status == 200
    for asked in ("bytes=0-", "bytes=-1"):
        assert part_of("GET", {"Range": asked}, 0, SHA).status == 416


def test_a_page_that_is_named_may_read(server: Server, url: str, content: bytes) -> None:
    read = curl(url, *PAGE)
    assert (read.status, read.body) == (200, content)
    assert read.headers["access-control-allow-origin"] == ORIGIN
    assert "ETag" in read.headers["access-control-expose-headers"]
    assert read.headers["vary"] == "Origin"
    asked = ("-X", "OPTIONS", "-H", "Access-Control-Request-Method: GET", "-H", "Access-Control-Request-Headers: range")
    first = curl(url, *PAGE, *asked)
    assert (first.status, first.headers["access-control-allow-origin"]) == (204, ORIGIN)
    assert "Range" in first.headers["access-control-allow-headers"]
    missing = curl(f"{server.http}/v1/jobs/nothing", *PAGE)  # errors can be read, too
    assert (missing.status, missing.headers["access-control-allow-origin"]) == (404, ORIGIN)
    changed = curl(f"{server.http}/v1/jobs", *PAGE, "--json", "{}")
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


def test_large_json_is_packed_for_who_accepts_it(server: Server, job: dict[str, Any]) -> None:
    accepts = ("-H", "Accept-Encoding: br, gzip;q=0.5")
    plain, packed = (curl(f"{server.http}/v1/analyses", *options) for options in ((), accepts))
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["vary"] == "Origin, Accept-Encoding"
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body) / 2
    metrics = f"{server.http}/v1/{job['name']}/metrics"
    streamed = curl(metrics, *accepts)
    assert gzip.decompress(streamed.body) == curl(metrics).body
    assert "content-encoding" not in curl(f"{server.http}/healthz", *accepts).headers
    for artifact in job["artifacts"]:  # a file is sent as it is, also of JSON
        file = curl(f"{server.http}/v1/{artifact['name']}:download", *accepts)
        assert "content-encoding" not in file.headers
        assert hashlib.sha256(file.body).hexdigest() == artifact["sha256"]
    assert "content-encoding" not in curl(metrics, "-H", "Accept-Encoding: gzip;q=0").headers


def test_each_line_of_a_packed_stream_comes_at_once(server: Server, tmp_path: Path) -> None:
    """A job that waits has one line only: it can be read while the stream goes on."""
    import http.client

    with server.frozen():
        path = trace(tmp_path / "later.json", count=7)
        sent = curl(f"{server.http}/v1/uploads:bytes?fileName=later.json", "--data-binary", f"@{path}").json["upload"]
        asked = {"spec": {"augment": {"input": {"upload": sent["name"]}, "only": ["temporal_breakdown"]}}}
        name = curl(f"{server.http}/v1/jobs", "--json", json.dumps(asked)).json["job"]["name"]
        connection = http.client.HTTPConnection(server.http.removeprefix("http://"), timeout=PATIENCE_S)
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
    with serving_inside(tmp_path / "state", max_running_jobs=1) as server:
        server.freeze()
        job = server.create(server.upload(trace(tmp_path / "a.json"))).name
        server.until(job, v1.Job.STATE_RUNNING)
        watching = server.stub.WatchJob(calls.WatchJobRequest(name=job), timeout=PATIENCE_S)
        assert {next(watching).job.state for _ in range(5)} == {v1.Job.STATE_RUNNING}
        server.thaw()
        *_, last = watching
    assert last.job.state == v1.Job.STATE_SUCCEEDED
