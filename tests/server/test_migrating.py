"""``augment serve --migrate-to``: from a folder to PostgreSQL and an object store, killed on the way and continued."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from in_process import eventually, trace
from object_store import new_store
from postgres_cluster import cluster
from serving_process import PATIENCE_S, Server, augment, environment, serving

from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment.v1.service_pb2_grpc import AugmentServiceStub

KILLED = Path(__file__).with_name("killed_server.py")
MIGRATING = "augment_server.ops.migrating"
HALF = 700


def upload(stub: AugmentServiceStub, data: bytes, name: str, *, finish: bool = True) -> str:
    start = calls.StartUploadRequest(file_name=name)
    sent = [calls.UploadTraceRequest(start=start), calls.UploadTraceRequest(chunk=data, finish=finish)]
    try:
        return str(stub.UploadTrace(iter(sent)).upload.name)
    except grpc.RpcError:
        (begun,) = stub.ListUploads(calls.ListUploadsRequest(filter="state = ACTIVE")).uploads
        return str(begun.name)


def create(stub: AugmentServiceStub, spec: v1.JobSpec, **more: Any) -> str:
    return str(stub.CreateJob(calls.CreateJobRequest(spec=spec, **more)).job.name)


def watched(stub: AugmentServiceStub, name: str) -> v1.Job:
    *_, last = stub.WatchJob(calls.WatchJobRequest(name=name), timeout=PATIENCE_S)
    return last.job


def files(stub: AugmentServiceStub, job: v1.Job) -> dict[str, bytes]:
    def read(name: str) -> bytes:
        return b"".join(each.chunk for each in stub.ReadArtifact(calls.ReadArtifactRequest(name=name)))

    return {artifact.file_name: read(artifact.name) for artifact in job.artifacts}


def fill(server: Server, path: Path, stub: AugmentServiceStub) -> dict[str, Any]:
    """Finished jobs, half of an upload, and a job that waits for the only worker."""
    data = path.read_bytes()
    first, second = upload(stub, data, "a.json"), upload(stub, data + b" ", "b.json")
    spec = v1.JobSpec(augment=v1.AugmentSpec(input=v1.Input(upload=first)))
    inputs = [v1.Input(upload=each, file_name=f"rank{at}/t.json") for at, each in enumerate((first, second))]
    plain = create(stub, spec, request_id="first", labels={"suite": "nightly"})
    whole = create(stub, v1.JobSpec(job=v1.WholeJobSpec(inputs=inputs)))
    done = [watched(stub, name) for name in (plain, whole)]
    assert all(job.state == v1.Job.STATE_SUCCEEDED for job in done), done
    with server.frozen():
        waiting = [create(stub, spec) for _ in range(2)]
        eventually(lambda: stub.GetJob(calls.GetJobRequest(name=waiting[0])).job.state == v1.Job.STATE_RUNNING)
        half = upload(stub, data[:HALF], "c.json", finish=False)
        known = {"done": done, "files": [files(stub, job) for job in done]}
        known |= {"waiting": waiting, "half": half, "spec": spec}
        server.process.kill()
        server.close()
    return known


@pytest.mark.slow
def test_a_migration_that_is_killed_is_continued(tmp_path: Path) -> None:
    path, state, store = trace(tmp_path / "a.json", count=60), tmp_path / "state", new_store()
    server = Server(state, "--max-running-jobs", 1)
    with grpc.insecure_channel(server.address) as channel:
        known = fill(server, path, AugmentServiceStub(channel))
    with cluster() as database:
        url = database.url("migrated")
        command = ["serve", "--state-dir", str(state), "--migrate-to", url, store]
        dying = [("augment_server.storage.bucket:Objects.put", "before", 4), (f"{MIGRATING}:_copy_rows", "before", 1)]
        dying += [(f"{MIGRATING}:_copy_rows", "after", 1)]
        for place, moment, count in dying:
            args = [sys.executable, str(KILLED), place, moment, str(count), *command]
            assert subprocess.run(args, env=environment(), capture_output=True).returncode == -9, place
        backup = (state / "state.db.before-migration").read_bytes()
        ended = augment(*command)
        assert ended.returncode == 0, ended.stderr
        assert (state / "state.db.before-migration").read_bytes() == backup  # a later one may follow changes by people
        assert ended.stdout.startswith(f"augment serve --catalog '{url}' --store {store} --state-dir ")

        again = augment("serve", "--state-dir", state, "--listen", "127.0.0.1:0")
        assert (again.returncode, "its catalog is in PostgreSQL" in again.stderr) == (1, True), again.stderr
        other = tmp_path / "other"
        with serving(other):
            assert "uses it" in augment(*command[:1], "--state-dir", other, *command[3:]).stderr
        assert "has data of its own" in augment(*command[:1], "--state-dir", other, *command[3:]).stderr
        shutil.rmtree(state)
        moved = Server(tmp_path / "new", "--catalog", url, "--store", store)
        with grpc.insecure_channel(moved.address) as channel:
            check(AugmentServiceStub(channel), known, path.read_bytes())
        moved.terminate()
        assert moved.wait() == 0
        moved.close()


def check(stub: AugmentServiceStub, known: dict[str, Any], data: bytes) -> None:
    """All is there, and goes on."""
    for job, made in zip(known["done"], known["files"], strict=True):
        now = stub.GetJob(calls.GetJobRequest(name=job.name)).job
        now.ClearField("expire_time")
        job.ClearField("expire_time")
        assert now == job
        assert files(stub, now) == made
    for name in known["waiting"]:
        job = watched(stub, name)
        assert job.state == v1.Job.STATE_SUCCEEDED, job.error
        assert files(stub, job) == known["files"][0]
    first = create(stub, known["spec"], request_id="first", labels={"suite": "nightly"})
    assert first == known["done"][0].name
    resume = calls.UploadTraceRequest(resume=calls.ResumeUpload(name=known["half"], offset=HALF))
    rest = calls.UploadTraceRequest(chunk=data[HALF:], finish=True)
    whole = stub.UploadTrace(iter([resume, rest])).upload
    assert whole.state == v1.Upload.STATE_COMPLETE
    made = watched(stub, create(stub, v1.JobSpec(augment=v1.AugmentSpec(input=v1.Input(upload=whole.name)))))
    assert made.state == v1.Job.STATE_SUCCEEDED
    earlier = v1.Input(job=known["done"][0].name)
    assert watched(stub, create(stub, v1.JobSpec(report=v1.ReportSpec(input=earlier)))).state == v1.Job.STATE_SUCCEEDED
    for name in (*known["waiting"], *(job.name for job in known["done"])):
        stub.DeleteJob(calls.DeleteJobRequest(name=name))


@pytest.mark.parametrize(
    ("target", "why"),
    [(("mysql://x/y", "s3://a/b"), "must be a URL such as postgresql"),
     (("postgresql://u:secret@x/y", "s3://a/b"), "leave the password out"),
     (("postgresql://127.0.0.1:1/x", "s3://a/b"), "nothing to migrate")],
)  # fmt: skip
def test_what_cannot_be_migrated(tmp_path: Path, target: tuple[str, str], why: str) -> None:
    ended = augment("serve", "--state-dir", tmp_path / "none", "--migrate-to", *target)
    assert (ended.returncode != 0, ended.stdout) == (True, "")
    assert why in ended.stderr
    assert not (tmp_path / "none").exists()
    assert "name the --state-dir" in augment("serve", "--migrate-to", "postgresql://127.0.0.1:1/x", "s3://a/b").stderr
