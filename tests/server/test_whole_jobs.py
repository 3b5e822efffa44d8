"""What a server makes of the traces of a job is, byte for byte, what ``augment run DIR`` makes of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from in_process import Server, eventually, refused, serving, trace
from object_store import STORES, keys, store_of
from serving_process import augment

from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment_server.jobs import parts
from augment_server.jobs.jobs import Jobs
from augment_server.jobs.scheduler import JobProgress
from augment_server.storage.folder import Folder
from augment_server.storage.inputs import Outputs
from augment_server.workers.workers import Said
from simulator import JobOptions, simulate

SUCCEEDED, FAILED, CANCELLED = v1.Job.STATE_SUCCEEDED, v1.Job.STATE_FAILED, v1.Job.STATE_CANCELLED
RANKS = 3
NOT_MADE_THERE = (".summary", ".jsonl")  #: what the command leaves for its next run
Files = dict[str, bytes]


@dataclass(frozen=True)
class Traces:
    """A folder of traces, and what the command makes of it."""

    folder: Path
    wanted: Files

    @property
    def paths(self) -> list[Path]:
        return sorted(self.folder.rglob("*.json.gz"))


@pytest.fixture(scope="module", params=STORES)
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("state"), store=store_of(request.param)) as running:
        yield running


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    folder = tmp_path_factory.mktemp("traces") / "training"
    simulate(JobOptions(ranks=RANKS, steps=2, layers=1, straggler=1), folder)
    return Traces(folder, by_the_command(folder, folder.parent / "out", "--merge", "--to", "chrome,perfetto"))


def by_the_command(folder: Path, out: Path, *flags: object) -> Files:
    ended = augment("run", folder, "-o", out, "--quiet", *flags)
    assert ended.returncode == 0, ended.stderr
    paths = [path for path in out.rglob("*") if path.is_file() and not path.name.endswith(NOT_MADE_THERE)]
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in paths}


def uploaded(server: Server, traces: Traces) -> list[v1.Input]:
    """The inputs, the last rank first: their order means nothing."""
    names = [path.relative_to(traces.folder).as_posix() for path in traces.paths]
    inputs = [
        v1.Input(upload=server.upload(path), file_name=name if "/" in name else "")
        for path, name in zip(traces.paths, names, strict=True)
    ]
    return inputs[::-1]


def create(server: Server, inputs: Sequence[v1.Input], request_id: str = "", **spec: Any) -> v1.Job:
    spec.setdefault("name", "training")
    wanted = v1.JobSpec(job=v1.WholeJobSpec(inputs=inputs, **spec))
    return server.stub.CreateJob(calls.CreateJobRequest(spec=wanted, request_id=request_id)).job


def made(server: Server, job: v1.Job) -> Files:
    return {artifact.file_name: server.read(artifact.name) for artifact in job.artifacts}


def test_the_files_are_the_commands(server: Server, traces: Traces) -> None:
    spec = v1.AugmentSpec(formats=["chrome", "perfetto"])
    job = server.wait(create(server, uploaded(server, traces), augment=spec, merge=v1.MergeSpec()).name)
    assert (job.state, list(job.failures), job.attempt_count) == (SUCCEEDED, [], 1), job.error
    assert made(server, job) == traces.wanted
    assert job.artifacts[-1].file_name == "job.metrics.json"
    eventually(lambda: not keys(server.core._storage.store, "ranks"))
    assert [stage.stage for stage in job.progress.stages] == ["converting", "comparing", "drawing", "merging"]
    assert job.progress.done_count == job.progress.total_count == RANKS + 3


def test_the_stragglers(server: Server, traces: Traces) -> None:
    """Only metrics are made; the job's answers come first, those of ranks if they are asked for."""
    spec = v1.AugmentSpec(metrics_only=True)
    job = server.wait(create(server, uploaded(server, traces), augment=spec).name)
    names = [f"rank{rank}.metrics.json" for rank in range(RANKS)]
    assert sorted(artifact.file_name for artifact in job.artifacts) == ["job.metrics.json", *names]
    assert server.read(job.artifacts[-1].name) == traces.wanted["job.metrics.json"]
    asked = calls.GetMetricsRequest(name=job.name, analyses=["stragglers"])
    (late,) = server.stub.GetMetrics(asked)
    assert '"rank":1,' in late.metrics.json_rows[0]
    assert list(late.verdict) == json.loads(traces.wanted["job.metrics.json"])["verdict"]["text"]
    asked = calls.GetMetricsRequest(name=job.name, analyses=["steps"], artifact="rank0.metrics.json")
    (steps,) = server.stub.GetMetrics(asked)
    assert len(steps.metrics.json_rows) == 2
    assert steps.verdict[-1] == f"Its job: {' '.join(late.verdict)}"  # a rank's metrics contain it, too
    asked.artifact = "rank9.metrics.json"
    with refused("NOT_FOUND", "NOT_FOUND"):
        list(server.stub.GetMetrics(asked))


def test_notes(server: Server, traces: Traces) -> None:
    """What was left out of the timeline is told, as the command does."""
    job = server.wait(create(server, uploaded(server, traces)).name)
    assert list(job.notes) == []
    note = "job.augmented.pftrace: 2 of 3 ranks"
    with server.core._storage.writing() as db:
        parts.note(db, job.name.removeprefix("jobs/"), Outputs(notes=(note,)))
    assert list(server.get(job.name).notes) == [note]


def test_folders_and_windows(server: Server, traces: Traces, tmp_path: Path) -> None:
    """Traces of the same name lie in folders of their ranks; two windows are two jobs."""
    for window in (1, 2):
        for rank, path in enumerate(traces.paths):
            target = tmp_path / "training" / f"iteration_{window}" / f"rank{rank}_trace.json.gz"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    there = Traces(tmp_path / "training", by_the_command(tmp_path / "training", tmp_path / "out"))
    assert sum("job.metrics.json" in name for name in there.wanted) == 2
    job = server.wait(create(server, uploaded(server, there)).name)
    assert made(server, job) == there.wanted


def test_earlier_jobs(server: Server, traces: Traces) -> None:
    """What they made is used; the traces may be gone."""
    uploads = [server.upload(path) for path in traces.paths]
    earlier = [server.create(upload, formats=["chrome", "perfetto"], summaries=True) for upload in uploads]
    for each in earlier:
        assert server.wait(each.name).state == SUCCEEDED
    inputs = [v1.Input(job=each.name) for each in earlier]
    begun = len([each for each in server.observer.told if each[0] == "stage" and each[2] == "reading"])
    spec = v1.AugmentSpec(formats=["chrome", "perfetto"])
    job = server.wait(create(server, inputs, augment=spec).name)
    assert made(server, job) == {name: text for name, text in traces.wanted.items() if name != "job.augmented.pftrace"}
    assert begun == len([each for each in server.observer.told if each[0] == "stage" and each[2] == "reading"])
    again = server.wait(create(server, [v1.Input(job=job.name)], augment=v1.AugmentSpec(formats=["perfetto"])).name)
    assert made(server, again).keys() == {name for name in made(server, job) if not name.endswith(".json.gz")}
    job = server.wait(create(server, inputs, augment=spec, merge=v1.MergeSpec()).name)
    assert made(server, job) == traces.wanted
    job = server.wait(create(server, [*inputs[:1], v1.Input(upload=uploads[1])], augment=v1.AugmentSpec()).name)
    assert job.state == SUCCEEDED  # with other formats they are converted again
    job = server.wait(create(server, [v1.Input(job=job.name), v1.Input(job=earlier[2].name)], augment=spec).name)
    assert made(server, job).keys() == traces.wanted.keys() - {"job.augmented.pftrace"}


def test_a_trace_that_is_none(server: Server, traces: Traces, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("no trace")
    bad = v1.Input(upload=server.upload(tmp_path / "bad.json"))
    job = server.wait(create(server, [bad, *uploaded(server, traces)]).name)
    assert job.state == SUCCEEDED
    (failure,) = job.failures
    assert (failure.index, failure.file_name, failure.error.reason) == (0, "bad.json", "UNKNOWN_FORMAT")
    job = server.wait(create(server, [bad]).name)
    assert (job.state, job.error.reason, len(job.failures)) == (FAILED, "UNKNOWN_FORMAT", 1)
    eventually(lambda: not keys(server.core._storage.store, "ranks"))


def test_no_error_tells_a_path(server: Server, traces: Traces) -> None:
    """Neither of a trace nor of what is made of all."""
    inputs = uploaded(server, traces)
    spec = v1.AugmentSpec(steps=v1.StepRange(first=900, last=901))
    job = server.wait(create(server, inputs, augment=spec, merge=v1.MergeSpec()).name)
    assert (job.state, len(job.failures), job.error.reason) == (FAILED, RANKS, "USAGE")
    earlier = server.wait(server.create(inputs[0].upload, summaries=True).name)
    store, folder = server.core._storage.store, server.core._jobs.folder(earlier.name.removeprefix("jobs/"))
    for artifact in earlier.artifacts:
        if isinstance(store, Folder):
            (server.core._storage.root / folder / artifact.file_name).write_bytes(b"damaged")
        else:
            store.put(f"{folder}/{artifact.file_name}", b"damaged")
    given = v1.Input(job=earlier.name)
    kinds = [v1.JobSpec(job=v1.WholeJobSpec(inputs=[given, inputs[1]], augment=v1.AugmentSpec()))]
    kinds += [v1.JobSpec(report=v1.ReportSpec(input=given)), v1.JobSpec(diagnose=v1.DiagnoseSpec(inputs=[given]))]
    jobs = [server.stub.CreateJob(calls.CreateJobRequest(spec=kind)).job for kind in kinds]
    ended = [job, *(server.wait(job.name) for job in jobs)]
    assert [each.state for each in ended] == [FAILED] * len(ended)
    for error in [each.error for each in ended] + [failure.error for failure in job.failures]:
        for text in (error.message, *error.metadata.values()):
            assert str(server.core._storage.root) not in text
            assert "/tmp" not in text


def test_the_inputs_must_be_the_callers(tmp_path: Path, traces: Traces) -> None:
    def of(name: str) -> tuple[tuple[str, str], ...]:
        return (("client", f"name:{name}"),)

    with serving(tmp_path / "state", client="name:ann", max_job_inputs=3) as server:
        inputs = uploaded(server, traces)
        earlier = server.wait(server.create(inputs[0].upload, summaries=True).name)
        for given in (inputs[0], v1.Input(job=earlier.name)):
            for kind in (
                v1.JobSpec(job=v1.WholeJobSpec(inputs=[given])),
                v1.JobSpec(augment=v1.AugmentSpec(input=given)),
            ):
                with refused("NOT_FOUND", "NOT_FOUND"):
                    server.stub.CreateJob(calls.CreateJobRequest(spec=kind), metadata=of("bob"))
        with refused("INVALID_REQUEST", "INVALID_ARGUMENT"):
            create(server, [*inputs, v1.Input(job=earlier.name, file_name="other.json")])


@pytest.mark.usefixtures("both_catalogs")
def test_cancelled_in_the_midst(tmp_path: Path, traces: Traces) -> None:
    """All of its traces are let go of, and the next job gets the workers."""
    with serving(tmp_path / "state", max_running_jobs=2) as server:
        server.freeze()
        job = create(server, uploaded(server, traces))
        workers = server.core._scheduler._workers._all  # one that has not begun yet is kept, and stands still for ever
        eventually(lambda: [worker.busy for worker in list(workers)] == [True, True])
        assert len(server.core._scheduler._attempts) == 2
        cancelled = server.stub.CancelJob(calls.CancelJobRequest(name=job.name)).job
        assert cancelled.state == CANCELLED
        assert not server.core._scheduler._attempts
        assert not list((tmp_path / "state" / "ranks").iterdir())
        eventually(lambda: not list((tmp_path / "state" / "work").glob("*/*")))
        assert server.wait(create(server, uploaded(server, traces)).name).state == SUCCEEDED
        server.stub.DeleteJob(calls.DeleteJobRequest(name=job.name))


@pytest.mark.usefixtures("both_catalogs")
def test_workers_that_die(tmp_path: Path, traces: Traces) -> None:
    """A trace whose worker dies is tried again; when it dies again, the job is made of the others."""
    with serving(tmp_path / "state", max_running_jobs=1) as server:
        server.freeze()
        job = create(server, uploaded(server, traces))
        for _ in range(2):
            pid = server.at_work()
            server.freeze()
            os.kill(pid, signal.SIGKILL)
            eventually(lambda pid=pid: server.workers and pid not in server.workers)
        server.thaw()
        done = server.wait(job.name)
        assert (done.state, [failure.error.reason for failure in done.failures]) == (SUCCEEDED, ["WORKER_DIED"])
        assert done.failures[0].file_name == traces.paths[-1].name


@pytest.mark.usefixtures("both_catalogs")
def test_progress_of_attempts_that_count_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A last step that runs again, and an end that is recorded again, since its answer was lost."""
    with serving(tmp_path / "state", max_running_jobs=1) as server:
        jobs, observer = server.core._jobs, server.observer
        monkeypatch.setattr(jobs, "begin", lambda: None)
        inputs = [v1.Input(upload=server.upload(trace(tmp_path / f"rank{at}.json"))) for at in range(2)]
        spec = v1.JobSpec(job=v1.WholeJobSpec(inputs=inputs))
        name = server.stub.CreateJob(calls.CreateJobRequest(spec=spec)).job.name
        first, second = (Jobs.begin(jobs) for _ in range(2))
        assert first
        assert second
        for each in (first, second):
            jobs.end_step(each)
        for _ in range(2):
            last = Jobs.begin(jobs)
            assert last
            progress = JobProgress(last, jobs, observer)
            progress.next(Said(stage="drawing", of=3))
            jobs.queue_again(last, died=True)
            jobs.end_step(second)
            now = server.get(name).progress
            assert (now.stage, now.done_count, [stage.stage for stage in now.stages]) == ("drawing", 2, ["converting"])
        assert [each[2] for each in observer.told if each[0] == "stage"] == ["converting"]


@pytest.mark.usefixtures("both_catalogs")
def test_a_restart_goes_on(tmp_path: Path, traces: Traces) -> None:
    """Traces that were done are not converted again; the uploads may be gone meanwhile."""
    with serving(tmp_path / "state", max_running_jobs=1) as server:
        job = create(server, uploaded(server, traces), augment=v1.AugmentSpec(formats=["chrome", "perfetto"]))
        eventually(lambda: server.get(job.name).progress.done_count >= 1)
        for upload in server.stub.ListUploads(calls.ListUploadsRequest()).uploads:
            server.stub.DeleteUpload(calls.DeleteUploadRequest(name=upload.name))
    with serving(tmp_path / "state", max_running_jobs=1) as server:
        done = server.wait(job.name)
        assert (done.state, list(done.failures)) == (SUCCEEDED, [])
        expected = {name: text for name, text in traces.wanted.items() if name != "job.augmented.pftrace"}
        assert made(server, done) == expected
        assert len([each for each in server.observer.told if each[0] == "stage" and each[2] == "reading"]) < RANKS
        server.core._retention.sweep()
        assert not list((tmp_path / "state" / "blobs").iterdir())
        used = server.core._retention.stored_bytes()
        specs = done.spec.ByteSize() + len("{}") + done.progress.ByteSize()
        assert used == sum(artifact.size_bytes for artifact in done.artifacts) + parts.ROW_BYTES * RANKS + specs
        server.stub.DeleteJob(calls.DeleteJobRequest(name=job.name))
        assert not server.core._retention.stored_bytes()


@pytest.mark.usefixtures("both_catalogs")
def test_an_earlier_job_that_is_needed_stays(tmp_path: Path, traces: Traces) -> None:
    """Removed while a job waits that uses its artifacts, they are kept until that has ended."""
    with serving(tmp_path / "state") as server:
        earlier = [server.wait(server.create(trace.upload, summaries=True).name) for trace in uploaded(server, traces)]
        server.freeze()
        job = create(server, [v1.Input(job=each.name) for each in earlier])
        for each in earlier:
            server.stub.DeleteJob(calls.DeleteJobRequest(name=each.name))
        server.core._retention.sweep()
        server.thaw()
        assert server.wait(job.name).state == SUCCEEDED
        server.core._retention.sweep()
        assert server.stored("artifacts") == {job.name.removeprefix("jobs/")}


def test_several_at_once(server: Server, traces: Traces) -> None:
    """All are accepted, or none."""
    inputs = uploaded(server, traces)
    requests = [
        calls.CreateJobRequest(spec=v1.JobSpec(augment=v1.AugmentSpec(input=each, only=["steps"]))) for each in inputs
    ]
    jobs = server.stub.BatchCreateJobs(calls.BatchCreateJobsRequest(requests=requests)).jobs
    assert [server.wait(job.name).state for job in jobs] == [SUCCEEDED] * len(inputs)
    before = len(server.stub.ListJobs(calls.ListJobsRequest(page_size=1000)).jobs)
    requests.append(calls.CreateJobRequest(spec=v1.JobSpec(augment=v1.AugmentSpec(input=v1.Input(upload="uploads/0")))))
    for bad in (requests, []):
        with pytest.raises(grpc.RpcError):
            server.stub.BatchCreateJobs(calls.BatchCreateJobsRequest(requests=bad))
    assert len(server.stub.ListJobs(calls.ListJobsRequest(page_size=1000)).jobs) == before
