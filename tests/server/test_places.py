"""Inputs and outputs in buckets, by URIs that clients choose, and what nobody may reach by a name."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner
from google.protobuf.duration_pb2 import Duration
from in_process import Server, refused, serving, trace, violated
from object_store import STORES, store_of, weed

from augment.cli.run import command as run_command
from augment.client import Client, transfers
from augment.errors import InputError, UsageError
from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment_server.base.errors import Refusal
from augment_server.storage.places import Places

obstore = pytest.importorskip("obstore", reason="obstore is not installed: pip install obstore")
SUCCEEDED, FAILED = v1.Job.STATE_SUCCEEDED, v1.Job.STATE_FAILED


@dataclass
class Bucket:
    """A part of the store for one test: ``in`` to read from, ``out`` to write to, and what lies beside them."""

    url: str
    objects: Any

    def put(self, key: str, data: bytes) -> str:
        obstore.put(self.objects, key, data)
        return f"{self.url}/{key}"

    def below(self, folder: str) -> dict[str, bytes]:
        keys = [entry["path"] for some in obstore.list(self.objects, folder) for entry in some]
        return {key.removeprefix(f"{folder}/"): bytes(obstore.get(self.objects, key).bytes()) for key in keys}


@pytest.fixture
def bucket() -> Bucket:
    name = f"places-{time.time_ns()}"
    return Bucket(f"s3://augment/{name}", weed().objects(name))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Bucket]]:
    """A server, and a bucket with something that may be read, and more beside it."""
    name = f"shared-{time.time_ns()}"
    bucket = Bucket(f"s3://augment/{name}", weed().objects(name))
    for key in ("in/a.json", "secret.json", "inside/a.json"):
        bucket.put(key, b"[]")
    state, places = tmp_path_factory.mktemp("state"), ((f"{bucket.url}/in",), (f"{bucket.url}/out/",))
    with serving(state, prefixes=places[0], outputs=places[1]) as running:
        yield running, bucket


@pytest.fixture(params=STORES)
def server(bucket: Bucket, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    more = {"prefixes": (f"{bucket.url}/in",), "outputs": (f"{bucket.url}/out/",), "store": store_of(request.param)}
    with serving(tmp_path / "state", **more) as running:
        yield running


def create(server: Server, output: str = "", **spec: Any) -> v1.Job:
    wanted = v1.JobSpec(output_uri=output, **spec)
    return server.stub.CreateJob(calls.CreateJobRequest(spec=wanted)).job


def test_an_object_is_read_and_outputs_are_written(server: Server, bucket: Bucket, tmp_path: Path) -> None:
    path = trace(tmp_path / "rank 0#ä%41.json")
    uri = bucket.put("in/run/rank 0#ä%41.json", path.read_bytes())
    sent = server.wait(server.create(server.upload(path)).name)
    spec = v1.AugmentSpec(input=v1.Input(uri=uri))
    job = server.wait(create(server, f"{bucket.url}/out/nightly", augment=spec).name)
    assert job.state == SUCCEEDED, job.error
    made = {artifact.file_name: server.read(artifact.name) for artifact in job.artifacts}
    assert made == {artifact.file_name: server.read(artifact.name) for artifact in sent.artifacts}
    assert bucket.below("out/nightly") == made
    info = server.stub.GetServerInfo(calls.GetServerInfoRequest()).info
    assert list(info.input_prefixes) == [f"{bucket.url}/in/"]
    assert list(info.output_prefixes) == [f"{bucket.url}/out/"]


def test_a_whole_job_reads_its_traces_there(server: Server, bucket: Bucket, tmp_path: Path) -> None:
    path = trace(tmp_path / "a.json")
    uris = [bucket.put(f"in/rank{rank}/t.json", path.read_bytes()) for rank in range(3)]
    inputs = [v1.Input(uri=uri, file_name="/".join(uri.split("/")[-2:])) for uri in uris]
    beside = v1.Attachment(
        kind="nccl_log", input=v1.Input(uri=bucket.put("in/nccl.log", b"host:7:7 [0] NCCL INFO NCCL version 2.21.5\n"))
    )
    spec = v1.WholeJobSpec(inputs=inputs, merge=v1.MergeSpec(), augment=v1.AugmentSpec(attachments=[beside]))
    job = server.wait(create(server, f"{bucket.url}/out", job=spec).name)
    assert job.state == SUCCEEDED, job.error
    assert set(bucket.below("out")) == {artifact.file_name for artifact in job.artifacts}
    assert "rank2/t.metrics.json" in bucket.below("out")
    report = v1.ReportSpec(input=v1.Input(uri=uris[0]))
    assert server.wait(create(server, f"{bucket.url}/out/", report=report).name).state == SUCCEEDED
    assert "t.report.html" in bucket.below("out")


HOSTILE = [
    "{0}/secret.json", "{0}/in", "{0}/in/", "{0}/in//a.json", "{0}/in/../secret.json", "{0}/in/./a.json",
    "{0}/inside/a.json", "{0}/in/x/../../secret.json", "{0}/in/..\\secret.json", "{0}/in\\..\\secret.json",
    "{0}/in/%2e%2e/secret.json", "{0}/in/..%2fsecret.json", "{0}/in/nothing.json", "{0}/In/a.json",
    "s3://other/in/a.json", "s3://augment", "s3:///in/a.json", "S3://augment/in/a.json",
    "s3a://augment/in/a.json", "http://127.0.0.1:1/in/a.json", "https://host/in/a.json", "gs://augment/in/a.json",
    "s3://key:secret@augment/in/a.json", "{0}@host/in/a.json", "{0}/in/" + "a" * 1100 + ".json", "memory://in/a.json",
]  # fmt: skip


@pytest.mark.parametrize("uri", HOSTILE)
def test_nothing_else_is_read(shared: tuple[Server, Bucket], uri: str) -> None:
    """The refusal is that of an object that is not there."""
    server, bucket = shared
    with refused("URI_NOT_ALLOWED", "PERMISSION_DENIED") as why:
        server.create(uri=uri.format(bucket.url))
    with refused("URI_NOT_ALLOWED", "PERMISSION_DENIED") as missing:
        server.create(uri=f"{bucket.url}/in/missing.json")
    assert why == missing
    with violated("spec.augment.input.uri"):
        server.create(uri=uri.format(bucket.url))


@pytest.mark.parametrize("uri", [uri for uri in HOSTILE if "nothing" not in uri and "%2" not in uri])
def test_no_request_is_made_of_what_lies_elsewhere(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, uri: str) -> None:
    """So credentials of the server go to the buckets that its operator names, and to no others."""
    places, asked = Places((), [f"{bucket.url}/in"], most=1000), []
    for name in ("head", "get"):
        monkeypatch.setattr(obstore, name, lambda *_, **__: asked.append(1))
    with pytest.raises(Refusal):
        places.expect_file(uri.format(bucket.url))
    assert not asked


@pytest.mark.parametrize(
    "uri",
    ["{0}", "{0}/outside", "{0}/in", "{0}/out/../in", "{0}/out/./x", "{0}/out//x", "{0}/out\\..\\in", "/tmp/out",
     "s3://other/out", "file:///tmp/out", "{0}/out/..", "http://host/out", "s3a://augment/out"],
)  # fmt: skip
def test_nothing_is_written_elsewhere(shared: tuple[Server, Bucket], tmp_path: Path, uri: str) -> None:
    server, bucket = shared
    upload = server.upload(trace(tmp_path / "a.json"))
    spec = v1.AugmentSpec(input=v1.Input(upload=upload))
    with refused("URI_NOT_ALLOWED", "PERMISSION_DENIED"):
        create(server, uri.format(bucket.url), augment=spec)
    with violated("spec.output_uri"):
        create(server, uri.format(bucket.url), augment=spec)


def test_without_prefixes_nothing_is_allowed(bucket: Bucket, tmp_path: Path) -> None:
    uri = bucket.put("in/a.json", b"[]")
    with serving(tmp_path / "state") as server:
        with refused("URI_NOT_ALLOWED", "PERMISSION_DENIED"):
            server.create(uri=uri)
        with refused("URI_NOT_ALLOWED", "PERMISSION_DENIED"):
            create(server, bucket.url, augment=v1.AugmentSpec(input=v1.Input(upload="uploads/x")))


def test_objects_are_bounded_like_uploads(bucket: Bucket, tmp_path: Path) -> None:
    """When the job is made, and when the object has grown since."""
    uri = bucket.put("in/a.json", trace(tmp_path / "a.json").read_bytes())
    with serving(tmp_path / "state", prefixes=(bucket.url,), max_upload_bytes=100) as server:
        with refused("UPLOAD_TOO_LARGE", "OUT_OF_RANGE"):
            server.create(uri=uri)
        with violated("spec.augment.input.uri"):
            server.create(uri=uri)
    places = Places((), [bucket.url], most=100)
    with pytest.raises(Refusal, match="up to 100 bytes"):
        places.give([(uri, tmp_path / "blob")])
    assert places.expect_file(bucket.put("in/b.json", b"x" * 100)) == "b.json"


def test_an_object_that_goes_meanwhile_ends_its_job(server: Server, bucket: Bucket, tmp_path: Path) -> None:
    uri = bucket.put("in/a.json", trace(tmp_path / "a.json").read_bytes())
    give = server.core._places.give

    def later(uris: Any) -> None:
        obstore.delete(bucket.objects, "in/a.json")
        give(uris)

    server.core._places.give = later  # type: ignore[method-assign]
    job = server.wait(server.create(uri=uri).name)
    assert (job.state, job.error.reason) == (FAILED, "URI_NOT_ALLOWED")


def test_an_object_that_changes_while_it_is_copied_is_copied_again(bucket: Bucket, tmp_path: Path) -> None:
    """Its halves would be of two traces."""
    from augment_server.storage import bucket as module

    uri = bucket.put("in/a.json", b"a" * 100)
    places = Places((), [bucket.url], most=1000)

    class Changing:
        def __init__(self) -> None:
            self.pieces: list[bytes] = []

        def write(self, data: bytes) -> int:
            bucket.put("in/a.json", b"b" * 100)
            self.pieces.append(bytes(data))
            return len(data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE", 60)
        objects, key = next(iter(places._readable.values())), "in/a.json"
        with pytest.raises(Refusal) as why:
            objects.copy(key, Changing())  # type: ignore[arg-type]
        assert why.value.reason == "STORE_UNAVAILABLE"  # so that the attempt is made again
        places.give([(uri, tmp_path / "blob")])
    assert (tmp_path / "blob").read_bytes() == b"b" * 100


def test_a_place_that_does_not_answer_is_tried_again(
    server: Server, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs that cannot be written keep the job from ending, and nothing is half there."""
    from augment_server.jobs import scheduler

    monkeypatch.setattr(scheduler, "_STORE_PAUSE_S", 0.05)
    (objects,) = server.core._places._writable.values()
    put, failures = objects.put, [1, 2]

    def failing(key: str, file: Any) -> None:
        if key.endswith(".pftrace") and failures:
            failures.pop()
            raise Refusal("STORE_UNAVAILABLE", "the server's object store does not answer; try again", retry_s=5)
        if failures:
            assert not key.endswith(".metrics.json"), "it comes once all others are there"
        put(key, file)

    monkeypatch.setattr(objects, "put", failing)
    spec = v1.AugmentSpec(input=v1.Input(upload=server.upload(trace(tmp_path / "a.json"))))
    job = server.wait(create(server, f"{bucket.url}/out/x", augment=spec).name)
    assert (job.state, job.attempt_count, failures) == (SUCCEEDED, 1, [])
    assert set(bucket.below("out/x")) == {artifact.file_name for artifact in job.artifacts}
    assert len([*tmp_path.glob("state/artifacts/*/*")]) <= 1, "those of the attempts before are gone"

    monkeypatch.setattr(objects, "put", Mock(side_effect=BaseException("a panic of obstore")))
    job = server.wait(create(server, f"{bucket.url}/out/y", augment=spec).name)
    assert (job.state, job.error.reason) == (FAILED, "INTERNAL")


def test_a_store_of_uris_that_does_not_answer(server: Server, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    (objects,) = server.core._places._readable.values()
    retry = {"max_retries": 0, "retry_timeout": timedelta(seconds=1)}
    nobody = obstore.store.S3Store(
        "augment", endpoint="http://127.0.0.1:1", client_options={"allow_http": True}, retry_config=retry
    )
    monkeypatch.setattr(objects, "_store", nobody)
    with refused("STORE_UNAVAILABLE", "UNAVAILABLE") as why:
        server.create(uri=f"{bucket.url}/in/a.json")
    assert why[0].retry


@pytest.mark.parametrize(
    "prefix",
    ["s3://", "nonsense", "https://host/x", "file:///tmp", "/tmp", "s3://augment/a/../b", "s3://augment/*",
     "s3://augment/a?x=1", "s3://augment/a%2e", "s3://augment//a", "memory://x"],
)  # fmt: skip
def test_what_is_no_prefix(prefix: str) -> None:
    weed()
    for given in ({"readable": [prefix]}, {"writable": [prefix]}):
        with pytest.raises(UsageError, match=r"--allow-(prefix|output) .*: must be"):
            Places((), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("prefix", "store"),
    [("s3://augment", "s3://augment/state"), ("s3://augment/state/blobs", "s3://augment/state"),
     ("s3a://augment/state/", "s3://augment/state"), ("s3://augment/state", "s3://augment/state/")],
)  # fmt: skip
def test_the_servers_own_store_is_no_place(prefix: str, store: str) -> None:
    """It has what all clients sent."""
    weed()
    with pytest.raises(UsageError, match="must not overlap --store"):
        Places((), [prefix], store=store)
    Places((), ["s3://augment/stateless"], store="s3://augment/state").close()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.address) as made:
        yield made


def test_the_client_knows_what_the_server_reads(client: Client, bucket: Bucket, tmp_path: Path) -> None:
    uri = bucket.put("in/rank0.json", trace(tmp_path / "rank0.json").read_bytes())
    assert (client.reads(uri), client.reads(f"{bucket.url}/inside/x")) == (True, False)
    with pytest.raises(InputError, match="no such file"):
        client.augment(f"{bucket.url}/out/a.json", out=tmp_path)


def test_the_command_sends_nothing_that_the_server_reads(
    server: Server, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lists the folder, and compares the ranks as for a folder of this machine with the same name."""
    pytest.importorskip("fsspec")
    from fsspec.registry import _registry
    from obstore.fsspec import register

    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setitem(_registry, "s3", object)  # so that what follows is undone
    register("s3")
    for rank in range(2):
        path = trace(tmp_path / "in/traces" / f"rank{rank}.json", count=20 + rank)
        bucket.put(f"in/traces/{path.name}", path.read_bytes())
    server_at = ("--server", f"grpc://{server.address}")
    sources = (tmp_path / "in/traces", f"{bucket.url}/in/traces", f"{bucket.url}/in/traces/rank0.json")
    folders = [tmp_path / name for name in ("here", "there", "file")]
    for source, out in zip(sources, folders, strict=True):
        ended = CliRunner().invoke(run_command, [str(source), "-o", str(out), *server_at], catch_exceptions=False)
        assert out.exists(), ended.output
        if source is sources[0]:
            sent = len(server.stub.ListUploads(calls.ListUploadsRequest()).uploads)
    assert len(server.stub.ListUploads(calls.ListUploadsRequest()).uploads) == sent == 2
    made = [
        {path.name: path.read_bytes() for path in folder.iterdir() if "manifest" not in path.name} for folder in folders
    ]
    assert made[0] == made[1]
    assert "job.metrics.json" in made[0]
    assert made[2].keys() < made[0].keys()


def test_large_artifacts_come_from_the_store_itself(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And from the server, where the store's address leads nowhere or its answer ends too soon."""
    monkeypatch.setattr(transfers, "_LINKED", 1)
    path = trace(tmp_path / "a.json")
    with serving(tmp_path / "state", store=f"{bucket.url}/state") as server, Client(server.address) as client:
        read, put, links = server.core._storage.store.open, [], server.core._storage.store.link  # type: ignore[union-attr]
        monkeypatch.setattr(server.core._storage.store, "open", lambda key: put.append(key) or read(key))
        made = {each.name: each.read_bytes() for each in client.augment(path, out=tmp_path / "a").files}
        assert put == []
        monkeypatch.setattr(server.core._storage.store, "link", lambda *_: "http://127.0.0.1:1/nothing")
        assert {each.name: each.read_bytes() for each in client.augment(path, out=tmp_path / "b").files} == made
        assert len(put) == len(made)
        client._connection.has_links = True

        class Short(io.BytesIO):
            headers: ClassVar = {"Content-Length": str(len(made["a.augmented.pftrace"]))}

        monkeypatch.setattr(server.core._storage.store, "link", links)
        whole = made["a.augmented.pftrace"]
        monkeypatch.setattr(transfers.urllib.request, "urlopen", lambda *_, **__: Short(whole[:100]))
        assert {each.name: each.read_bytes() for each in client.augment(path, out=tmp_path / "c").files} == made


@pytest.mark.embedded
def test_a_link_is_of_one_artifact_and_ends(bucket: Bucket, tmp_path: Path) -> None:
    with serving(tmp_path / "state", store=f"{bucket.url}/state") as server:
        job = server.wait(server.create(server.upload(trace(tmp_path / "a.json"))).name)
        name = job.artifacts[0].name

        def link(**life: int) -> str:
            asked = calls.GetArtifactRequest(name=name, link_life=Duration(**life))
            return str(server.stub.GetArtifact(asked).link)

        assert urlopen(link(seconds=60)).read() == server.read(name)
        part = urlopen(Request(link(seconds=60), headers={"Range": "bytes=10-19"}))
        assert (part.status, part.read()) == (206, server.read(name)[10:20])
        assert "X-Amz-Expires=3600&" in link(seconds=999_999)
        assert "secret" not in link(seconds=60)
        assert server.stub.GetArtifact(calls.GetArtifactRequest(name=name)).link == ""
        for elsewhere in (link(seconds=60).replace("/artifacts/", "/blobs/"), link(seconds=60).partition("?")[0]):
            with pytest.raises(HTTPError, match="403"):
                urlopen(elsewhere)
        with pytest.raises(HTTPError, match="403"):
            urlopen(Request(link(seconds=60), method="DELETE"))
        with violated("link_life"):
            link(seconds=-5)
    with serving(tmp_path / "folder") as server:
        job = server.wait(server.create(server.upload(tmp_path / "a.json")).name)
        asked = calls.GetArtifactRequest(name=job.artifacts[0].name, link_life=Duration(seconds=60))
        assert server.stub.GetArtifact(asked).link == ""
