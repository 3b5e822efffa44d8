"""Jobs: accepted once, followed, ended, and what ends them."""

from __future__ import annotations

import asyncio
import gzip
import os
import signal
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2
from in_process import PATIENCE_S, Server, details, eventually, refused, serving, told_by, trace

from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment_server.base.people import Caller
from augment_server.jobs.jobs import Jobs, Wanted
from augment_server.jobs.scheduler import Scheduler
from augment_server.storage import roots
from augment_server.workers.workers import Worker

QUEUED, RUNNING = v1.Job.STATE_QUEUED, v1.Job.STATE_RUNNING
SUCCEEDED, FAILED, CANCELLED = v1.Job.STATE_SUCCEEDED, v1.Job.STATE_FAILED, v1.Job.STATE_CANCELLED


@pytest.fixture
def upload(server: Server, tmp_path: Path) -> str:
    return server.upload(trace(tmp_path / "rank0.json"))


def hung(server: Server, upload: str) -> v1.Job:
    """A job that a worker has, and would have for ever."""
    server.freeze()
    job = server.until(server.create(upload).name, RUNNING)
    server.at_work()
    return job


def die(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Kill the workers that get the next orders, before they can follow them."""
    converse, deaths = Worker._converse, iter(range(times))

    async def dying(worker: Worker, order: dict[str, Any], stage: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        if next(deaths, None) is not None:
            os.kill(worker.pid, signal.SIGKILL)
        return await converse(worker, order, stage)

    monkeypatch.setattr(Worker, "_converse", dying)


def test_a_request_that_is_sent_again_makes_no_second_job(server: Server, upload: str) -> None:
    first = server.create(upload, "same")
    assert server.create(upload, "same").name == first.name
    assert server.wait(first.name).state == SUCCEEDED
    assert server.create(upload, "same").state == SUCCEEDED
    assert server.create(upload).name != first.name
    with refused("REQUEST_ID_REUSED", "ALREADY_EXISTS"):
        server.create(upload, "same", formats=["perfetto"])


def test_the_same_request_at_the_same_time(server: Server, upload: str) -> None:
    request = calls.CreateJobRequest(
        spec=v1.JobSpec(augment=v1.AugmentSpec(input=v1.Input(upload=upload))), request_id="at once"
    )
    made = [server.stub.CreateJob.future(request) for _ in range(20)]
    assert len({each.result().job.name for each in made}) == 1


@pytest.mark.usefixtures("both_catalogs")
def test_two_watchers_see_every_end(tmp_path: Path) -> None:
    with serving(tmp_path / "state") as server:
        server.freeze()
        job = server.create(server.upload(trace(tmp_path / "a.json"))).name
        seen: list[list[int]] = [[], []]
        ready = threading.Barrier(3)

        def watch(states: list[int]) -> None:
            with grpc.insecure_channel(server.address) as channel:
                from augment.v1.service_pb2_grpc import AugmentServiceStub

                for call in AugmentServiceStub(channel).WatchJob(calls.WatchJobRequest(name=job)):
                    if not states:
                        ready.wait(PATIENCE_S)
                    states.append(call.job.state)

        threads = [threading.Thread(target=watch, args=(states,)) for states in seen]
        for thread in threads:
            thread.start()
        ready.wait(PATIENCE_S)
        server.thaw()
        for thread in threads:
            thread.join(PATIENCE_S)
        for states in seen:
            assert states[0] in (QUEUED, RUNNING)
            assert states[-1] == SUCCEEDED
            assert SUCCEEDED not in states[:-1]


@pytest.mark.usefixtures("both_catalogs")
def test_cancel_while_running(tmp_path: Path) -> None:
    with serving(tmp_path / "state") as server:
        upload = server.upload(trace(tmp_path / "a.json"))
        job = hung(server, upload).name
        frozen = server.workers
        cancelled = server.stub.CancelJob(calls.CancelJobRequest(name=job)).job
        assert cancelled.state == CANCELLED
        assert cancelled.end_time.seconds
        assert not cancelled.artifacts
        assert len(set(frozen) - set(server.workers)) == 1  # the one that was at it
        assert server.stub.CancelJob(calls.CancelJobRequest(name=job)).job == cancelled  # and again: nothing changes
        server.thaw()
        assert server.wait(server.create(upload).name).state == SUCCEEDED
        eventually(lambda: not list((tmp_path / "state" / "work").glob("*/*")))


@pytest.mark.usefixtures("both_catalogs")
def test_cancel_while_waiting(tmp_path: Path) -> None:
    with serving(tmp_path / "state", max_running_jobs=1) as server:
        upload = server.upload(trace(tmp_path / "a.json"))
        first = hung(server, upload).name
        second = server.create(upload).name
        assert server.get(second).state == QUEUED
        assert server.stub.CancelJob(calls.CancelJobRequest(name=second)).job.state == CANCELLED
        assert server.get(first).state == RUNNING


@pytest.mark.usefixtures("both_catalogs")
def test_a_deadline(tmp_path: Path) -> None:
    with serving(tmp_path / "state", job_deadline_s=1.0) as server:
        upload = server.upload(trace(tmp_path / "a.json"))
        server.freeze()
        job = server.wait(server.create(upload).name)
        assert (job.state, job.error.reason, job.error.code) == (FAILED, "JOB_DEADLINE", 4)
        assert job.error.message == "a.json: exceeded the time limit of a job, 1 s"
        server.freeze()  # the worker that took the place of that one
        spec = v1.JobSpec(augment=v1.AugmentSpec(input=v1.Input(upload=upload)))
        request = calls.CreateJobRequest(spec=spec, deadline=duration_pb2.Duration(nanos=300_000_000))
        job = server.wait(server.stub.CreateJob(request).job.name)  # with one of its own
        assert job.error.message == "a.json: exceeded the time limit of a job, 0.3 s"


@pytest.mark.embedded
def test_the_deadline_holds_while_outputs_are_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of thousands is synced to the disk."""
    taken = roots.take_over

    def late(*given: Any) -> list[int]:
        given[-1].__self__.ends_s = 0.0
        return taken(*given)

    with serving(tmp_path / "state") as server:
        upload = server.upload(trace(tmp_path / "a.json"))
        with monkeypatch.context() as patch:
            patch.setattr("augment_server.storage.folder.take_over", late)
            job = server.wait(server.create(upload).name)
        assert (job.state, job.error.reason, job.error.code) == (FAILED, "JOB_DEADLINE", 4)
        assert not list((tmp_path / "state" / "artifacts").glob("*/*"))
        assert server.wait(server.create(upload).name).state == SUCCEEDED


def test_too_much_memory(tmp_path: Path) -> None:
    event = f',\n{{"ph": "X", "cat": "cpu_op", "name": "{"k" * 1000}%d", "pid": 0, "tid": 1, "ts": %d, "dur": 1}}'
    head = trace(tmp_path / "head.json").read_text().removesuffix("]}")
    path = tmp_path / "a.json.gz"  # of twice as much text as the process could take in without being watched
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.writelines([head, *(event % (n, n) for n in range(300_000)), "]}"])
    with serving(tmp_path / "state", max_job_memory_bytes=100 << 20) as server:
        job = server.wait(server.create(server.upload(path)).name)
        assert (job.state, job.error.reason, job.error.code) == (FAILED, "JOB_MEMORY", 8)
        assert job.attempt_count == 1
        small = server.upload(trace(tmp_path / "b.json"))
        again = server.wait(server.create(small).name)
        assert again.state == SUCCEEDED, again.error


@pytest.mark.usefixtures("both_catalogs")
def test_a_worker_that_dies_is_given_a_second_try(tmp_path: Path) -> None:
    with serving(tmp_path / "state") as server:
        job = hung(server, server.upload(trace(tmp_path / "a.json")))
        os.kill(server.at_work(), signal.SIGKILL)
        server.thaw()
        done = server.wait(job.name)
        assert (done.state, done.attempt_count) == (SUCCEEDED, 2)


def test_a_worker_that_dies_twice_ends_its_job_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path / "state", max_running_jobs=1) as server:
        upload = server.upload(trace(tmp_path / "a.json"))
        die(monkeypatch, 2)
        done = server.wait(server.create(upload).name)
        assert (done.state, done.error.reason, done.error.code) == (FAILED, "WORKER_DIED", 10)
        assert dict(done.error.metadata) == {"signal": "9"}
        assert done.attempt_count == 2
        assert server.wait(server.create(upload).name).state == SUCCEEDED


def test_who_goes_away_while_a_job_is_accepted_leaves_it_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path / "state") as server:
        upload = server.upload(trace(tmp_path / "a.json"))
        reached, gone, create = threading.Event(), threading.Event(), Jobs.create

        def slow(*given: Any) -> tuple[str, bool]:
            reached.set()
            gone.wait(PATIENCE_S)
            return create(*given)

        monkeypatch.setattr(Jobs, "create", slow)
        spec = v1.JobSpec(augment=v1.AugmentSpec(input=v1.Input(upload=upload)))
        call = server.stub.CreateJob.future(calls.CreateJobRequest(spec=spec))
        reached.wait(PATIENCE_S)
        call.cancel()
        eventually(lambda: not server.call(running_calls()))
        gone.set()
        (job,) = eventually(lambda: list(server.stub.ListJobs(calls.ListJobsRequest()).jobs))
        assert server.wait(job.name).state == SUCCEEDED


async def running_calls() -> int:
    """How many calls create a job."""
    return sum("creating.py" in str(task.get_stack(limit=1)) for task in asyncio.all_tasks())


def test_a_job_that_nobody_told_of_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("augment_server.jobs.scheduler._LOOK_S", 0.05)
    with serving(tmp_path / "state") as server:
        spec = v1.JobSpec(augment=v1.AugmentSpec(input=v1.Input(upload=server.upload(trace(tmp_path / "a.json")))))
        ((job, _),) = server.core._jobs.create(Caller("host:test", ""), [Wanted(spec, "", [""])])
        assert server.wait(f"jobs/{job}").state == SUCCEEDED


def full(method: Callable[..., Any], times: int) -> Callable[..., Any]:
    """``method`` that does not find room on the disk a few times."""
    left = iter(range(times))

    def failing(*given: Any, **options: Any) -> Any:
        if next(left, None) is not None:
            raise sqlite3.OperationalError("database or disk is full")
        return method(*given, **options)

    return failing


@pytest.mark.usefixtures("both_catalogs")
def test_the_end_of_a_job_is_recorded_once_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("augment_server.jobs.scheduler._PAUSE_S", 0.05)
    monkeypatch.setattr(Jobs, "end", full(Jobs.end, 3))
    with serving(tmp_path / "state") as server:
        job = hung(server, server.upload(trace(tmp_path / "a.json")))
        assert server.stub.CancelJob(calls.CancelJobRequest(name=job.name)).job.state == CANCELLED
        assert len(server.observer.logged) == 1


def test_outputs_that_did_not_fit_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("augment_server.jobs.scheduler._PAUSE_S", 0.05)
    publish = Scheduler._publish
    monkeypatch.setattr(Scheduler, "_publish", full(publish, 2))
    with serving(tmp_path / "state") as server:
        job = server.wait(server.create(server.upload(trace(tmp_path / "a.json"))).name)
        assert (job.state, job.attempt_count) == (SUCCEEDED, 3)


@pytest.mark.usefixtures("both_catalogs")
def test_a_full_queue(tmp_path: Path) -> None:
    with serving(tmp_path / "state", max_running_jobs=1, max_queued_jobs=2, max_client_jobs=4) as server:
        upload = server.upload(trace(tmp_path / "a.json"))
        hung(server, upload)
        server.create(upload)
        server.create(upload, "known")
        with refused("QUEUE_FULL", "RESOURCE_EXHAUSTED") as output:
            server.create(upload)
        assert output[0].retry
        assert server.create(upload, "known").state == QUEUED


@pytest.mark.usefixtures("both_catalogs")
def test_jobs_of_one_client(tmp_path: Path) -> None:
    with serving(tmp_path / "state", max_running_jobs=1, max_client_jobs=2) as server:
        upload = server.upload(trace(tmp_path / "a.json"))
        hung(server, upload)
        server.create(upload)
        with pytest.raises(grpc.RpcError) as error:
            server.create(upload)
        said = told_by(error.value)
        assert (said.reason, said.code, said.retry) == ("TOO_MANY_JOBS", grpc.StatusCode.RESOURCE_EXHAUSTED, True)
        (violation,) = details(error.value, error_details_pb2.QuotaFailure()).violations
        assert violation.subject == "client:host:test"
        assert "2 of your jobs are waiting or running" in violation.description
        spec = v1.JobSpec(augment=v1.AugmentSpec(input=v1.Input(upload=upload)))
        other = [("client", "host:other")]
        assert server.stub.CreateJob(calls.CreateJobRequest(spec=spec), metadata=other).job.state == QUEUED


def test_removal(server: Server, upload: str) -> None:
    job = server.wait(server.create(upload).name)
    server.stub.DeleteJob(calls.DeleteJobRequest(name=job.name))
    for call in (
        lambda: server.get(job.name),
        lambda: server.wait(job.name),
        lambda: server.read(job.artifacts[0].name),
        lambda: list(server.stub.GetMetrics(calls.GetMetricsRequest(name=job.name))),
        lambda: server.stub.CancelJob(calls.CancelJobRequest(name=job.name)),
        lambda: server.stub.DeleteJob(calls.DeleteJobRequest(name=job.name)),
        lambda: server.stub.ListArtifacts(calls.ListArtifactsRequest(parent=job.name)),
    ):
        with refused("NOT_FOUND", "NOT_FOUND"):
            call()


def test_what_a_job_that_runs_does_not_offer(tmp_path: Path) -> None:
    with serving(tmp_path / "state") as server:
        job = hung(server, server.upload(trace(tmp_path / "a.json"))).name
        with refused("JOB_NOT_DONE", "FAILED_PRECONDITION"):
            server.stub.DeleteJob(calls.DeleteJobRequest(name=job))
        with refused("JOB_NOT_DONE", "FAILED_PRECONDITION"):
            list(server.stub.GetMetrics(calls.GetMetricsRequest(name=job)))
        assert not server.stub.ListArtifacts(calls.ListArtifactsRequest(parent=job)).artifacts
        with refused("NOT_FOUND", "NOT_FOUND"):
            server.read(f"{job}/artifacts/a.metrics.json")


def test_pages_are_no_larger_than_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("augment_server.storage.pages.PAGE_BYTES", 1000)
    with serving(tmp_path / "state") as server:
        upload = server.upload(trace(tmp_path / "a.json"))
        made = [server.create(upload, skip=["steps"] * 50).name for _ in range(6)]
        seen, token = [], None
        while token != "":
            page = server.stub.ListJobs(calls.ListJobsRequest(page_token=token or ""))
            assert 1 <= len(page.jobs) <= 3
            seen += [job.name for job in page.jobs]
            token = page.next_page_token
        assert seen == made[::-1]


def test_inputs_that_are_not_there(server: Server) -> None:
    with refused("NOT_FOUND", "NOT_FOUND"):
        server.create("uploads/00")
    half = server.stub.StartUpload(calls.StartUploadRequest(file_name="a.json", size_bytes=5)).upload.name
    with refused("UPLOAD_INCOMPLETE", "FAILED_PRECONDITION"):
        server.create(half)


def test_artifacts_that_are_none(server: Server, upload: str) -> None:
    job = server.wait(server.create(upload).name)
    for name in ("../../state.db", "..", "a/b", "rank0.metrics.json/"):
        with refused("NOT_FOUND", "NOT_FOUND"):
            server.read(f"{job.name}/artifacts/{name}")
    for name in (job.name, f"{job.name}/artifacts/", "x"):
        with refused("INVALID_REQUEST", "INVALID_ARGUMENT"):
            server.read(name)
    for offset in (-1, job.artifacts[0].size_bytes + 1):
        with refused("OFFSET_OUT_OF_RANGE", "OUT_OF_RANGE"):
            server.read(job.artifacts[0].name, offset)
    with refused("NOT_FOUND", "NOT_FOUND"):
        list(server.stub.GetMetrics(calls.GetMetricsRequest(name=job.name, analyses=["nothing"])))


@pytest.mark.usefixtures("both_catalogs")
def test_what_others_have_made(tmp_path: Path) -> None:
    with serving(tmp_path / "state", client="token:mine") as server:
        job = server.wait(server.create(server.upload(trace(tmp_path / "a.json")), "same").name)
        theirs = [("client", "token:theirs")]
        with refused("NOT_FOUND", "NOT_FOUND"):
            server.stub.GetJob(calls.GetJobRequest(name=job.name), metadata=theirs)
        with refused("NOT_FOUND", "NOT_FOUND"):
            list(server.stub.ReadArtifact(calls.ReadArtifactRequest(name=job.artifacts[0].name), metadata=theirs))
        with refused("NOT_FOUND", "NOT_FOUND"):
            spec = v1.JobSpec(augment=job.spec.augment)
            server.stub.CreateJob(calls.CreateJobRequest(spec=spec), metadata=theirs)
        assert not server.stub.ListJobs(calls.ListJobsRequest(), metadata=theirs).jobs
        assert len(server.stub.ListJobs(calls.ListJobsRequest()).jobs) == 1


def test_the_one_call_ends_with_its_caller(tmp_path: Path) -> None:
    with serving(tmp_path / "state") as server:
        server.freeze()
        path = trace(tmp_path / "a.json")
        start = calls.AugmentStart(file=calls.StartUploadRequest(file_name="a.json"))
        sent = [calls.AugmentRequest(start=start), calls.AugmentRequest(chunk=path.read_bytes(), finish=True)]
        call = server.stub.Augment(iter(sent))
        job = next(call).job.name
        call.cancel()
        server.until(job, CANCELLED)


def test_the_one_call_tells_why_it_failed(server: Server) -> None:
    file = calls.StartUploadRequest(file_name="rank0.json")
    for data in (b'{"a": nope}', b"{"):
        sent = [calls.AugmentRequest(start=calls.AugmentStart(file=file))]
        sent += [calls.AugmentRequest(chunk=data, finish=True)]
        with refused("MALFORMED_TRACE", "INVALID_ARGUMENT") as output:
            list(server.stub.Augment(iter(sent)))
        assert output[0].message.startswith("rank0.json: byte ")
        assert output[0].message == f"rank0.json: {output[0].metadata['because']}"
        assert f"byte {output[0].metadata['offset']}:" in output[0].message
    for sent in ([], [calls.AugmentRequest(chunk=b"x")]):
        with refused("INVALID_REQUEST", "INVALID_ARGUMENT"):
            list(server.stub.Augment(iter(sent)))
    start = calls.AugmentStart(file=file, spec=v1.AugmentSpec(only=["nothing"]))
    with refused("USAGE", "INVALID_ARGUMENT"):
        list(server.stub.Augment(iter([calls.AugmentRequest(start=start)])))
    with refused("UPLOAD_INCOMPLETE", "FAILED_PRECONDITION"):
        list(server.stub.Augment(iter([calls.AugmentRequest(start=calls.AugmentStart(file=file))])))


@pytest.mark.usefixtures("both_catalogs")
def test_draining(tmp_path: Path) -> None:
    with serving(tmp_path / "state") as server:
        upload = server.upload(trace(tmp_path / "a.json"))
        job = hung(server, upload).name
        watching = server.stub.WatchJob(calls.WatchJobRequest(name=job))
        assert next(watching).job.state == RUNNING
        server.core.refuse()
        with refused("DRAINING", "UNAVAILABLE") as output:
            server.create(upload)
        assert output[0].retry
        server.call(server.core.drain(0.3))
        with refused("DRAINING", "UNAVAILABLE"):
            list(watching)
        assert server.get(job).state == QUEUED
    with serving(tmp_path / "state") as server:
        assert server.wait(job).state == SUCCEEDED
