"""Jobs for which there is no room, on the disk or in memory: they end at once, or put arrays on the disk."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from in_process import Server, eventually, refused, serving, trace
from msgspec.structs import asdict

from augment.batch import memory_limit, spilling
from augment.pipeline.request import Request
from augment.readers.limits import UNLIMITED
from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment_server.base.errors import Refusal
from augment_server.jobs import parts
from augment_server.workers import worker
from simulator import JobOptions, simulate

RANKS = 20
OUTPUTS = RANKS * 320_000  #: bytes, about


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    simulate(JobOptions(ranks=RANKS, layers=2, tp=2), folder)
    return folder


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk on which the job's traces fit, and part of what is made of them."""
    disk = tmp_path / "small"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
    if os.geteuid() or not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("may not mount")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def create(server: Server, folder: Path, *, merge: bool = False) -> str:
    paths = sorted(folder.glob("*.json.gz"))
    spec = v1.WholeJobSpec(inputs=[v1.Input(upload=server.upload(path)) for path in paths])
    if merge:
        spec.merge.SetInParent()
    return server.stub.CreateJob(calls.CreateJobRequest(spec=v1.JobSpec(job=spec))).job.name


def assert_no_room(job: v1.Job) -> None:
    assert (job.state, job.error.reason) == (v1.Job.STATE_FAILED, "STORAGE_FULL"), job
    assert not job.failures
    assert f"no room for the outputs of all {RANKS} traces, which would need about " in job.error.message
    needed, taken, free = (int(job.error.metadata[f"{what}_bytes"]) for what in ("needed", "taken", "free"))
    assert needed > taken + free
    assert f"{needed} bytes" in job.error.message


def test_a_whole_job_that_is_larger_than_the_disk(small: Path, folder: Path, tmp_path: Path) -> None:
    """Another client is told so at most; afterwards it gets its room."""
    sent, ended = [trace(tmp_path / "other.json", count=1500)], threading.Event()
    assert sent[0].stat().st_size > 100_000
    with serving(small / "state") as server:
        job = create(server, folder, merge=True)
        refusals: list[Any] = []

        def others() -> None:
            while not ended.wait(0.05):
                try:
                    name = server.upload(sent[0])
                    server.stub.DeleteUpload(calls.DeleteUploadRequest(name=name))
                except Exception as error:
                    refusals.append(error)

        other = threading.Thread(target=others)
        other.start()
        try:
            assert_no_room(server.wait(job))
        finally:
            ended.set()
            other.join()
        assert {error.code() for error in refusals} <= {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert not server.observer.logged
        assert len([each for each in server.observer.told if each[2:] == ("reading",)]) <= RANKS
        eventually(lambda: not [*small.glob("state/ranks/*"), *small.glob("state/work/*/*")])
        job = server.wait(server.create(server.upload(sent[0])).name)
        assert job.state == v1.Job.STATE_SUCCEEDED


@pytest.mark.parametrize("at", ["a trace", "the last step"])
def test_a_disk_that_fills(tmp_path: Path, folder: Path, at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path / "state", max_running_jobs=1) as server:
        storage = server.core._storage
        query = "SELECT COUNT(*) FILTER (WHERE state = ?) AS done, COUNT(*) AS all_ FROM parts WHERE origin >= 0"

        def free() -> int:
            row = storage.row(query, v1.Job.STATE_SUCCEEDED)
            assert row
            return 1000 if row["done"] >= (2 if at == "a trace" else row["all_"]) else 1 << 40

        monkeypatch.setattr(storage, "free_bytes", free)
        job = server.wait(create(server, folder))
        assert_no_room(job)
        assert len([each for each in server.observer.told if each[2:] == ("reading",)]) == (
            2 if at == "a trace" else RANKS
        )


def test_a_disk_that_fills_while_outputs_are_copied(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> list[int]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with serving(tmp_path / "state", max_running_jobs=1) as server:
        jobs = server.core._scheduler._jobs
        end, ends = jobs.end, iter([full])
        monkeypatch.setattr(jobs, "end", lambda *given: next(ends, end)(*given))  # no room for the record of it
        monkeypatch.setattr(server.core._storage, "free_bytes", lambda: 1000)
        monkeypatch.setattr(server.core._scheduler._store, "publish", full)
        error = server.wait(create(server, folder)).error
        assert (error.reason, server.observer.logged) == ("STORAGE_FULL", [])
        assert f"no room for the outputs of all {RANKS} traces" in error.message


def test_what_is_stored_at_most(tmp_path: Path, folder: Path) -> None:
    """What is made of the traces of a job counts as stored; where it is too much, the job ends with that."""
    most = sum(path.stat().st_size for path in folder.iterdir()) + OUTPUTS // 2
    with serving(tmp_path / "state", max_stored_bytes=most) as server:
        job = create(server, folder)
        assert_no_room(server.wait(job))
        eventually(lambda: not list((tmp_path / "state" / "ranks").iterdir()))
        assert server.core._retention.stored_bytes() < most


def test_what_a_running_job_makes_keeps_its_own_client_alone_from_storing_more(tmp_path: Path, folder: Path) -> None:
    most = 10_000_000
    with serving(tmp_path / "state", max_stored_bytes=most, max_running_jobs=1) as server:
        server.freeze()
        job = create(server, folder)
        server.until(job, v1.Job.STATE_RUNNING)
        other = server.stub.CreateJob(calls.CreateJobRequest(spec=server.get(job).spec)).job.name
        with server.core._storage.writing() as db:
            change = "UPDATE parts SET bytes = ? WHERE job = ? AND position = 1"
            for name, size in ((job, most - 100_000), (other, 50_000)):
                db.execute(change, (size, name.removeprefix("jobs/")))
        upload = calls.StartUploadRequest(file_name="a.json", size_bytes=1_000_000)
        server.stub.StartUpload(upload, metadata=(("client", "another"),))
        with refused("STORAGE_FULL", "RESOURCE_EXHAUSTED"):
            server.stub.StartUpload(upload)
        with server.core._storage.writing() as db:
            parts.expect_room(db, other.removeprefix("jobs/"), 1_000_000, most)
            with pytest.raises(Refusal, match="the outputs of running jobs take all"):
                parts.expect_room(db, job.removeprefix("jobs/"), 1_000_000, most)


NEEDS_LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="bounds of memory need Linux")
GB = 1 << 30


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A trace with arrays of more than 16 kB."""
    return trace(tmp_path / "a.json", count=5_000)


def order_of(source: Path, folder: Path, most: int) -> dict[str, Any]:
    """An order to convert a trace, from a server that lets a job use ``most`` bytes."""
    folder.mkdir()
    return {
        "kind": "augment",
        "folder": str(folder),
        "inputs": [{"at": "0/a.json", "file_name": "a.json", "blob": str(source)}],
        "attached": [],
        "limits": asdict(UNLIMITED),
        "request": msgspec.to_builtins(Request()),
        "summaries": False,
        "metrics_only": False,
        "memory": most,
    }


def outcome_of(order: dict[str, Any]) -> dict[str, Any]:
    """What the worker answers."""
    return worker._outcome(order, lambda **_: None)


@NEEDS_LINUX
def test_the_bound_of_a_job(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bound(most: int) -> int | None:
        return worker._bound({"folder": str(tmp_path), "memory": most}, [source, tmp_path / "none"])

    assert bound(GB) is None  # it needs less
    monkeypatch.setattr(memory_limit, "needed", lambda _: GB)
    assert bound(GB) == 3 * GB // 4
    assert bound(2 * GB) is None
    assert bound(600 << 20) is None  # arrays are not what takes most of so little
    assert bound(0) is None  # no limit
    monkeypatch.setattr(memory_limit, "needed", lambda _: 1 << 60)  # more than twice the disk has
    assert bound(GB) is None


@NEEDS_LINUX
def test_a_job_on_the_disk_has_the_same_outputs(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = outcome_of(order_of(source, tmp_path / "free", GB))
    spills: list[int] = []
    spill = spilling._Memory._spill
    monkeypatch.setattr(
        spilling._Memory, "_spill", lambda self, *where: (spills.append(where[1]), spill(self, *where))[1]
    )
    for name, value in (("LEAST_ARRAY", 1 << 14), ("_FULL", 0.0), ("_EASED", 0.0)):
        monkeypatch.setattr(spilling, name, value)
    monkeypatch.setattr(memory_limit, "needed", lambda _: GB)
    assert outcome_of(order_of(source, tmp_path / "bounded", GB))["made"] == free["made"]
    assert len(spills) > 10
    assert sorted(os.listdir(tmp_path / "bounded")) == ["in", "out"]


@NEEDS_LINUX
def test_a_full_disk_is_no_lack_of_memory(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name, value in (("LEAST_ARRAY", 1 << 14), ("_FULL", 0.0), ("_EASED", 0.0)):
        monkeypatch.setattr(spilling, name, value)
    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(memory_limit, "needed", lambda _: GB)
    failed = outcome_of(order_of(source, tmp_path / "job", GB))["failed"]
    assert failed[0] == "STORAGE_FULL"
    assert str(tmp_path) not in failed[1]


def test_on_a_full_disk_data_can_be_removed(small: Path, tmp_path: Path) -> None:
    """An upload, a job, and with a request_id."""
    with serving(small / "state") as server:
        names = [server.upload(trace(tmp_path / name, count=count)) for name, count in (("a.json", 9), ("b.json", 8))]
        job = server.wait(server.create(names[0]).name)
        for _ in range(3):
            with open(small / "rest", "ab", buffering=0) as file, contextlib.suppress(OSError):
                while file.write(bytes(1 << 12)):
                    pass
            with refused("STORAGE_FULL", "RESOURCE_EXHAUSTED"):
                server.upload(trace(tmp_path / "c.json", count=5000))
            if names:
                server.stub.DeleteUpload(calls.DeleteUploadRequest(name=names.pop(), request_id=f"{len(names)}"))
            else:
                server.stub.DeleteJob(calls.DeleteJobRequest(name=job.name, request_id="job"))
        assert not server.stub.ListJobs(calls.ListJobsRequest()).jobs
        uploads = server.stub.ListUploads(calls.ListUploadsRequest()).uploads
        assert {upload.file_name for upload in uploads} <= {"c.json"}
