"""Watches of all jobs of a list: each change comes, also after an interruption, and nobody else's."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import in_process
import pytest
from curl import curl
from in_process import Server, eventually, serving, trace, violated
from postgres_cluster import Cluster
from serving_process import serving as started

from augment.client import Client, JobWatch
from augment.client.connection import Deadline
from augment.errors import ServiceError
from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment_server.api import service

SUCCEEDED = v1.Job.STATE_SUCCEEDED
ONLY = ["kernel_type_breakdown"]


@pytest.fixture
def server(tmp_path: Path, both_catalogs: str) -> Iterator[Server]:
    with serving(tmp_path / "state") as running:
        yield running


class Watch:
    """A watch, read by a thread."""

    def __init__(self, server: Server, metadata: Any = (), **asked: Any) -> None:
        self.jobs: list[v1.Job] = []
        self.token = ""
        self._call = server.stub.WatchJobs(calls.WatchJobsRequest(**asked), metadata=metadata)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            for message in self._call:
                assert message.HasField("job") != bool(message.resume_token)
                if message.HasField("job"):
                    self.jobs.append(message.job)
                self.token = message.resume_token or self.token
        except grpc.RpcError:
            pass

    def has(self, name: str, state: int) -> bool:
        return any((job.name, job.state) == (name, state) for job in list(self.jobs))

    def end(self) -> str:
        """The last token."""
        self._call.cancel()
        self._thread.join()
        return self.token


def labelled(server: Server, upload: str, **labels: str) -> str:
    spec = v1.JobSpec(augment=v1.AugmentSpec(input=v1.Input(upload=upload), only=ONLY))
    return server.stub.CreateJob(calls.CreateJobRequest(spec=spec, labels=labels)).job.name


def test_changes_come_and_a_token_goes_on(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "HEARTBEAT_S", 0.2)
    upload = server.upload(trace(tmp_path / "a.json"))
    before = labelled(server, upload, suite="a")
    server.wait(before)
    watch = Watch(server, filter="labels.suite = a", view=calls.JOB_VIEW_BASIC)
    eventually(lambda: watch.has(before, SUCCEEDED) and watch.token)
    now, other = labelled(server, upload, suite="a"), labelled(server, upload, suite="b")
    eventually(lambda: watch.has(now, SUCCEEDED))
    assert [job.state for job in watch.jobs if job.name == now] == sorted(
        job.state for job in watch.jobs if job.name == now
    )
    server.wait(other)
    assert {job.name for job in watch.jobs} == {before, now}
    assert not any(job.HasField("spec") for job in watch.jobs)
    eventually(lambda: (job := server.get(now)).state == SUCCEEDED and job)
    token = eventually(lambda: settled(watch, server, filter="labels.suite = a"))
    watch.end()
    missed = labelled(server, upload, suite="a")
    server.wait(missed)
    server.stub.UpdateJob(calls.UpdateJobRequest(name=before, display_name="new"))
    again = Watch(server, filter="labels.suite = a", resume_token=token)
    eventually(lambda: again.has(missed, SUCCEEDED) and any(job.display_name == "new" for job in list(again.jobs)))
    assert now not in {job.name for job in again.jobs}
    eventually(lambda: again.token)  # it comes after the jobs
    again.end()


def settled(watch: Watch, server: Server, **asked: Any) -> str:
    """The token once it is after all jobs that have come: while another transaction runs, they may come twice."""
    token, again = watch.token, Watch(server, resume_token=watch.token, **asked)
    eventually(lambda: again.token)
    again.end()
    return "" if again.jobs else token


def test_any_server_goes_on(tmp_path: Path, postgres: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch sees what another server does, and its token is good there."""
    monkeypatch.setattr(in_process, "catalog_of", postgres.url)
    monkeypatch.setattr(service, "HEARTBEAT_S", 0.2)
    with serving(tmp_path / "state") as server, serving(tmp_path / "state") as other:
        watch = Watch(server)
        upload = other.upload(trace(tmp_path / "a.json"))
        first = labelled(other, upload)
        eventually(lambda: watch.has(first, SUCCEEDED))
        token = eventually(lambda: settled(watch, other))
        watch.end()
        again = Watch(other, resume_token=token)
        second = labelled(server, upload)
        eventually(lambda: again.has(second, SUCCEEDED))
        again.end()
        assert first not in {job.name for job in again.jobs}


def test_the_client_goes_on_after_a_restart(tmp_path: Path) -> None:
    """The server is killed in the middle of a watch, and another time jobs end while nobody watches."""
    path = trace(tmp_path / "a.json")
    with started(tmp_path / "state") as process, Client(process.address) as client:
        listen = process.address

        def created(suite: str) -> str:
            upload = client._upload(str(path), Deadline(None, ""), lambda *_: None)
            spec = v1.JobSpec(augment=v1.AugmentSpec(input=v1.Input(upload=upload), only=ONLY))
            asked = calls.CreateJobRequest(spec=spec, labels={"suite": suite})
            return client._connection.ask(client._stub.CreateJob, asked, Deadline(None, "")).job.name

        def seen_until(watch: JobWatch, name: str) -> list[v1.Job]:
            seen = []
            for job in watch:
                seen.append(job)
                if (job.name, job.state) == (name, SUCCEEDED):
                    break
            return seen

        first, other = created("a"), created("b")
        watch = client.watch("labels.suite = a", timeout_s=300)
        assert not seen_until(watch, first)[0].HasField("spec")
        process.process.kill()
        process.wait()
        with started(tmp_path / "state", listen=listen):
            second = created("a")
            assert {job.name for job in seen_until(watch, second)} <= {first, second}
            if not watch.resume_token:  # it comes after jobs that come together, and with the next at the latest
                seen_until(watch, created("a"))
            assert watch.resume_token
            watch.close()
            assert list(watch) == []
            third = created("a")
            again = client.watch("labels.suite = a", resume_token=watch.resume_token, whole=True, timeout_s=300)
            (*_, last) = seen = seen_until(again, third)
            assert last.artifacts
            assert other not in {job.name for job in seen}
            with pytest.raises(ServiceError, match="not done within"):
                list(client.watch(timeout_s=0.5))
            with pytest.raises(ServiceError, match="resume_token"):
                list(client.watch(resume_token=watch.resume_token))


def test_tokens_of_others_are_refused(server: Server, tmp_path: Path) -> None:
    watch = Watch(server)
    labelled(server, server.upload(trace(tmp_path / "a.json")))
    token = eventually(lambda: watch.token)
    watch.end()
    for asked in (
        {"resume_token": token, "filter": "state = FAILED"},
        {"resume_token": token[:-2] + "aa"},
        {"resume_token": "x" * 4000},
    ):
        with violated("resume_token"):
            list(server.stub.WatchJobs(calls.WatchJobsRequest(**asked)))
    with violated("filter"):
        list(server.stub.WatchJobs(calls.WatchJobsRequest(filter="nothing = 1")))


def test_other_callers_see_nothing(server: Server, tmp_path: Path) -> None:
    eve = (("client", "name:eve"), ("roles", json.dumps({"": "admin"})))
    hers, ours = Watch(server, eve), Watch(server)
    job = labelled(server, server.upload(trace(tmp_path / "a.json")))
    eventually(lambda: ours.has(job, SUCCEEDED))
    assert hers.jobs == []
    for watch in (hers, ours):
        watch.end()
    with pytest.raises(grpc.RpcError, match="team"):
        list(server.stub.WatchJobs(calls.WatchJobsRequest(parent="projects/team"), metadata=eve))


def test_a_silent_watch_sends_tokens(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxies end streams that are silent; more than a read of jobs comes in parts."""
    monkeypatch.setattr(service, "HEARTBEAT_S", 0.1)
    watch = Watch(server)
    assert eventually(lambda: watch.token)
    assert watch.end()


def test_many_jobs_come_in_parts(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("augment_server.jobs.jobs._MOST_CHANGED", 2)
    upload = server.upload(trace(tmp_path / "a.json"))
    names = {labelled(server, upload) for _ in range(5)}
    for name in names:
        server.wait(name)
    watch = Watch(server)
    eventually(lambda: watch.token)
    watch.end()
    assert {job.name for job in watch.jobs} == names


def test_over_http(tmp_path: Path) -> None:
    with started(tmp_path / "state", "--http", "127.0.0.1:0") as process:
        sent = curl(
            f"{process.http}/v1/uploads:bytes?fileName=a.json", "--data-binary", f"@{trace(tmp_path / 'a.json')}"
        )
        asked = {"spec": {"augment": {"input": {"upload": sent.json["upload"]["name"]}, "only": ONLY}}}
        created = curl(f"{process.http}/v1/jobs", "--json", json.dumps(asked))
        seen = curl(f"{process.http}/v1/jobs:watch?view=JOB_VIEW_BASIC", "--no-buffer", "--max-time", "5")
        jobs = [line["result"]["job"]["name"] for line in seen.lines if "job" in line["result"]]
        assert created.json["job"]["name"] in jobs
        assert any(line["result"].get("resumeToken") for line in seen.lines)
