"""What a client can see and remove of what a server keeps, and what a server tells of itself."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from in_process import Server, eventually, refused, serving, trace
from serving_process import augment
from serving_process import serving as serving_apart

from augment import __version__
from augment.analyses import ANALYSES
from augment.client import Client
from augment.readers import READERS
from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment.writers import WRITERS

MINE, OTHERS = [("client", "name:me")], [("client", "name:you")]


def start(server: Server, name: str, metadata: Any = MINE, **more: Any) -> v1.Upload:
    request = calls.StartUploadRequest(file_name=name, **more)
    return server.stub.StartUpload(request, metadata=metadata).upload


def blobs(state: Path) -> int:
    return len(list((state / "blobs").iterdir()))


def listed(list_: Callable[[str], tuple[list[str], str]]) -> tuple[list[str], list[str]]:
    """All names of a list, and the tokens of its pages."""
    names, tokens = [], [""]
    while True:
        page, token = list_(tokens[-1])
        names += page
        if not token:
            return names, tokens[1:]
        tokens.append(token)


def test_uploads_are_listed_in_pages_without_those_of_others(tmp_path: Path) -> None:
    with serving(tmp_path / "state") as server:
        part = []
        for number in range(5):
            part.append(start(server, f"rank{number}.json").name)
            start(server, "other.json", OTHERS)

        def page(token: str) -> tuple[list[str], str]:
            request = calls.ListUploadsRequest(page_size=2, page_token=token)
            answer = server.stub.ListUploads(request, metadata=MINE)
            return [upload.name for upload in answer.uploads], answer.next_page_token

        names, tokens = listed(page)
        assert names == part[::-1]
        assert len(tokens) == 2
        wrong = [base64.b64encode(each).decode() for each in (b"9" * 30 + b":", b"-1:", b"x", b"\xff:")]
        for token in ("x", "٣", "A" * 9000, *wrong):
            with refused("INVALID_REQUEST", "INVALID_ARGUMENT"):
                page(token)


def test_tokens_of_pages_tell_nothing_of_others(tmp_path: Path) -> None:
    """They used to be the number of the job among those of all clients."""
    output = []
    for strangers in (0, 3):
        with serving(tmp_path / f"state{strangers}", max_running_jobs=1) as server:
            upload = server.upload(trace(tmp_path / "a.json"))
            with server.core._storage.writing() as db:
                db.execute("UPDATE uploads SET realm = ''")
            for _ in range(strangers):
                server.create(upload, only=["queue_length"])
            made = [server.create(upload, only=["queue_length"]) for _ in range(3)]
            token = server.stub.ListJobs(calls.ListJobsRequest(page_size=2)).next_page_token
            text = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
            output.append(len(text))
            assert made[1].name.partition("/")[2].encode() not in text
    assert output[0] == output[1]


def test_an_upload_is_removed_with_its_bytes(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with serving(state) as server:
        upload = server.upload(trace(tmp_path / "a.json"))
        again = server.upload(tmp_path / "a.json", "b.json")
        with refused("NOT_FOUND", "NOT_FOUND"):
            server.stub.DeleteUpload(calls.DeleteUploadRequest(name=upload), metadata=OTHERS)
        server.stub.DeleteUpload(calls.DeleteUploadRequest(name=upload))
        assert blobs(state) == 1  # the other upload has them, too
        with refused("NOT_FOUND", "NOT_FOUND"):
            server.stub.DeleteUpload(calls.DeleteUploadRequest(name=upload))
        server.stub.DeleteUpload(calls.DeleteUploadRequest(name=again))
        assert blobs(state) == 0
        assert server.core._retention.stored_bytes() == 0
        begun = start(server, "c.json", metadata=())
        server.stub.DeleteUpload(calls.DeleteUploadRequest(name=begun.name))
        assert not server.stub.ListUploads(calls.ListUploadsRequest()).uploads


def test_jobs_of_a_removed_upload_go_on(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with serving(state, max_running_jobs=1) as server:
        server.freeze()
        upload = server.upload(trace(tmp_path / "a.json"))
        jobs = [server.create(upload).name for _ in range(2)]
        server.until(jobs[0], v1.Job.STATE_RUNNING)
        server.stub.DeleteUpload(calls.DeleteUploadRequest(name=upload))
        assert blobs(state) == 1
        server.thaw()
        assert [server.wait(job).state for job in jobs] == [v1.Job.STATE_SUCCEEDED] * 2
        server.core._retention.sweep(())
        assert blobs(state) == 0


def test_what_a_server_tells_of_itself(tmp_path: Path) -> None:
    limits = {"max_upload_bytes": 1000, "artifact_life_s": 90.5, "max_client_jobs": 7}
    with serving(tmp_path / "state", **limits) as server:
        info = server.stub.GetServerInfo(calls.GetServerInfoRequest()).info
    assert info.version == __version__
    assert list(info.analyses) == [analysis.NAME for analysis in ANALYSES]
    assert list(info.input_formats) == [reader.NAME for reader in READERS]
    assert list(info.output_formats) == [writer.NAME for writer in WRITERS]
    assert info.metrics_schema_version == "1.0"
    assert (info.limits.max_upload_bytes, info.limits.max_client_jobs) == (1000, 7)
    assert info.retention.artifact_life.ToMilliseconds() == 90_500
    assert info.retention.upload_life.ToSeconds() == 86_400


def test_the_command_has_the_server_forget(tmp_path: Path) -> None:
    state = tmp_path / "state"
    trace(tmp_path / "a.json")
    with serving_apart(state) as server, Client(server.address) as client:

        def kept() -> list[str]:
            return [upload.file_name for upload in client._stub.ListUploads(calls.ListUploadsRequest()).uploads]

        plain = augment("run", tmp_path / "a.json", "-o", tmp_path / "plain", "--server", server.address)
        assert plain.returncode == 0, plain.stderr
        assert kept() == ["a.json"]
        forgotten = augment("run", tmp_path / "a.json", "-o", tmp_path / "out", "--server", server.address, "--forget")
        assert forgotten.returncode == 0, forgotten.stderr
        assert kept() == []
        same = [(tmp_path / folder / "a.metrics.json").read_bytes() for folder in ("plain", "out")]
        assert same[0] == same[1]
        assert not list((state / "artifacts").iterdir())
        bad = tmp_path / "bad.json"
        bad.write_text("no trace")
        assert augment("run", bad, "--server", server.address, "--forget").returncode == 3
        assert kept() == []
    assert augment("run", bad, "--forget").returncode == 2  # without a server


@pytest.mark.parametrize("more", [{}, {"sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}])
def test_an_empty_file_is_complete_at_once(tmp_path: Path, more: dict[str, str]) -> None:
    with serving(tmp_path / "state") as server:
        upload = start(server, "empty.json", metadata=(), size_bytes=0, **more)
        assert upload.state == v1.Upload.STATE_COMPLETE
        job = eventually(lambda: server.wait(server.create(upload.name).name))
        assert job.error.reason == "UNKNOWN_FORMAT"
        with refused("INVALID_REQUEST", "INVALID_ARGUMENT"):
            start(server, "a.json", size_bytes=-5)


@pytest.mark.parametrize("name", ["a\x1b[31m.json", "a\x85.json", "a\u202egnp.json", "a\u2028.json", "a\u2066.json"])
def test_names_that_are_not_shown_as_they_are(tmp_path: Path, name: str) -> None:
    with serving(tmp_path / "state") as server:
        with refused("INVALID_REQUEST", "INVALID_ARGUMENT"):
            start(server, name)
        with Client(server.address) as client:  # it sends another name, and writes files of the right one
            made = client.augment(trace(tmp_path / name), only=["temporal_breakdown"])
        stem = name.removesuffix(".json")
        assert [path.name for path in made.files] == [f"{stem}.augmented.pftrace", f"{stem}.metrics.json"]
