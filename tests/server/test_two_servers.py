"""Two servers on one catalog in PostgreSQL, and one folder."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import in_process
import pytest
from in_process import Server, eventually, refused, serving, trace
from killing import Storm
from postgres_cluster import Cluster, cluster
from serving_process import augment

from augment.errors import AugmentError
from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment_server.base.people import Caller
from augment_server.jobs import parts
from augment_server.jobs.jobs import Jobs
from augment_server.storage import postgres as catalogs
from augment_server.storage.inputs import NOTHING
from augment_server.storage.storage import Storage

SUCCEEDED, RUNNING, QUEUED = v1.Job.STATE_SUCCEEDED, v1.Job.STATE_RUNNING, v1.Job.STATE_QUEUED
CANCELLED = v1.Job.STATE_CANCELLED


@pytest.fixture
def shared(postgres: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers in this process keep their rows in PostgreSQL, and soon notice that another has ended."""
    monkeypatch.setattr(in_process, "catalog_of", postgres.url)
    monkeypatch.setattr(catalogs, "RENEW_S", 0.1)
    monkeypatch.setattr(catalogs, "STALE_S", 1.5)


@pytest.fixture
def both(tmp_path: Path, shared: None) -> Iterator[tuple[Server, Server]]:
    """Two servers; the first begins no jobs by itself."""
    with (
        serving(tmp_path / "state", max_running_jobs=1) as first,
        serving(tmp_path / "state", max_running_jobs=1) as second,
    ):
        yield first, second


def begins_nothing(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.core._jobs, "begin", lambda: None)


def hangs(server: Server) -> None:
    """It renews its row no more, as if its process was stopped."""
    server.core._storage.catalog._ended.set()


def test_what_one_accepts_the_other_does(
    both: tuple[Server, Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = both
    begins_nothing(first, monkeypatch)
    job = first.create(first.upload(trace(tmp_path / "a.json")))
    watched = [each.job for each in first.stub.WatchJob(calls.WatchJobRequest(name=job.name), timeout=60)]
    assert watched[-1].state == SUCCEEDED
    assert [each.state for each in watched] == sorted(each.state for each in watched)
    assert first.get(job.name) == second.get(job.name) == watched[-1]
    assert {stage.stage for stage in watched[-1].progress.stages} >= {"reading", "writing"}
    for artifact in watched[-1].artifacts:
        assert first.read(artifact.name) == second.read(artifact.name)


def test_a_request_is_one_wherever_it_is_sent(both: tuple[Server, Server], tmp_path: Path) -> None:
    first, second = both
    upload = first.upload(trace(tmp_path / "a.json"))
    assert first.create(upload, "once").name == second.create(upload, "once").name
    pages = [server.stub.ListJobs(calls.ListJobsRequest()).jobs for server in both]
    assert [job.name for job in pages[0]] == [job.name for job in pages[1]]


def test_pages_go_on_at_the_other(both: tuple[Server, Server], tmp_path: Path) -> None:
    first, second = both
    upload = first.upload(trace(tmp_path / "a.json"))
    for _ in range(2):
        first.create(upload)
    page = first.stub.ListJobs(calls.ListJobsRequest(page_size=1))
    rest = second.stub.ListJobs(calls.ListJobsRequest(page_size=1, page_token=page.next_page_token))
    assert rest.jobs[0].name != page.jobs[0].name


def test_a_job_is_cancelled_at_the_other(
    both: tuple[Server, Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = both
    begins_nothing(first, monkeypatch)
    second.freeze()
    job = first.create(first.upload(trace(tmp_path / "a.json"))).name
    first.until(job, RUNNING)
    assert first.stub.CancelJob(calls.CancelJobRequest(name=job)).job.state == CANCELLED
    eventually(lambda: not second.core._scheduler._attempts)
    assert second.get(job).state == CANCELLED


def test_places_are_those_of_both(both: tuple[Server, Server], tmp_path: Path) -> None:
    first, second = both
    for server in both:
        server.freeze()
    upload = first.upload(trace(tmp_path / "a.json"))
    jobs = [server.create(upload).name for server in (first, second, first, second)]
    for job in jobs[:2]:
        first.until(job, RUNNING)
    eventually(lambda: [second.get(job).queue_position for job in jobs] == [0, 0, 1, 2])
    eventually(lambda: [first.get(job).queue_position for job in jobs] == [0, 0, 1, 2])


def test_the_late_end_of_an_attempt_is_refused(
    both: tuple[Server, Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first server hangs beyond its lease with a job, which the second does; then the first goes on."""
    first, second = both
    ended, end = [], first.core._jobs.end

    def told_later(*arguments: Any, **more: Any) -> bool:
        ended.append(end(*arguments, **more))
        return ended[-1]

    monkeypatch.setattr(first.core._jobs, "end", told_later)
    monkeypatch.setattr(first.core._jobs, "is_ours", lambda _: True)  # it does not look either
    begin = second.core._jobs.begin
    begins_nothing(second, monkeypatch)
    first.freeze()
    job = first.create(first.upload(trace(tmp_path / "a.json"))).name
    first.until(job, RUNNING)
    first.at_work()
    hangs(first)
    monkeypatch.setattr(second.core._jobs, "begin", begin)
    done = second.wait(job)
    assert (done.state, done.attempt_count) == (SUCCEEDED, 2)
    first.thaw()
    eventually(lambda: ended)
    assert ended == [False]
    assert second.get(job) == done
    folder = job.replace("jobs", "artifacts")
    (kept,) = eventually(lambda: len(attempts := second.stored(folder)) == 1 and attempts)
    assert second.stored(f"{folder}/{kept}") == {artifact.file_name for artifact in done.artifacts}


def test_an_upload_goes_on_at_the_other(both: tuple[Server, Server], tmp_path: Path) -> None:
    first, second = both
    path = trace(tmp_path / "a.json", 2000)
    data, caller = path.read_bytes(), Caller("host:test", "")
    start = calls.StartUploadRequest(file_name="a.json", size_bytes=len(data))
    name = first.stub.StartUpload(start).upload.name
    upload = name.removeprefix("uploads/")
    writer: Any = first.core._uploads.open(caller, upload, 0)
    writer.write(data[:1000])
    writer._save(writer._part)
    other: Any = second.core._uploads.open(caller, upload, 1000)
    writer.write(b"x" * 1000)  # to what has no name any more
    with pytest.raises(Exception, match="another call continues this upload"):
        writer._save(writer._part)
    other.write(data[1000:])
    other.finish()
    writer._part.close()
    assert first.stub.GetUpload(calls.GetUploadRequest(name=name)).upload.state == v1.Upload.STATE_COMPLETE
    assert first.wait(first.create(name).name).state == SUCCEEDED


def test_what_ends_while_the_dead_are_buried_counts(
    both: tuple[Server, Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trace of a whole job is done in one server, while another counts the steps anew."""
    for server in both:
        begins_nothing(server, monkeypatch)
    first, second = both
    inputs = [v1.Input(upload=first.upload(trace(tmp_path / "a.json")), file_name=f"{at}.json") for at in range(2)]
    spec = v1.JobSpec(job=v1.WholeJobSpec(inputs=inputs))
    job = first.stub.CreateJob(calls.CreateJobRequest(spec=spec)).job.name.removeprefix("jobs/")
    begun = [Jobs.begin(first.core._jobs) for _ in range(2)]
    assert begun[0]
    assert begun[1]
    first.core._jobs.end_step(begun[0])
    storage = second.core._storage
    with first.core._storage.changing(job) as db:
        assert begun[1].step
        assert parts.end(db, job, begun[1].step, begun[1].attempt, None, NOTHING) == 2
        burying = threading.Thread(target=second.core._retention.recover, args=(print,))
        burying.start()
        eventually(lambda: storage.row("SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"))
    burying.join()
    row = storage.row("SELECT ready, running FROM wholes WHERE job = ?", job)
    assert row
    assert [*row] == [1, 0]  # the last step


def test_a_catalog_that_goes_away_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster() as away:
        monkeypatch.setattr(in_process, "catalog_of", away.url)
        with serving(tmp_path / "state", max_running_jobs=1) as server:
            upload = server.upload(trace(tmp_path / "a.json"))
            server.freeze()
            running = server.create(upload).name
            server.until(running, RUNNING)
            server.at_work()
            waiting = server.create(upload).name
            away.kill()
            for _ in range(2):
                with refused("CATALOG_AWAY", "UNAVAILABLE") as refusal:
                    server.get(running)
                assert refusal[0].retry
                with refused("CATALOG_AWAY", "UNAVAILABLE"):
                    server.create(upload)
            server.thaw()  # its end is recorded later
            time.sleep(0.5)
            away.start()
            for job in (running, waiting):
                assert eventually(lambda job=job: done(server, job))


def test_a_backup_is_restored(tmp_path: Path, postgres: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_process, "catalog_of", postgres.url)
    with serving(tmp_path / "state", max_running_jobs=1) as server:
        upload = server.upload(trace(tmp_path / "a.json"))
        job = server.wait(server.create(upload).name)
        bytes_ = server.read(job.artifacts[0].name)
    postgres.back_up_and_restore()
    with serving(tmp_path / "state", max_running_jobs=1) as server:
        assert server.get(job.name) == job
        assert server.read(job.artifacts[0].name) == bytes_
        assert server.core._retention.stored_bytes() > len(bytes_)
        assert server.wait(server.create(upload).name).state == SUCCEEDED


def done(server: Server, job: str) -> bool:
    try:
        return server.get(job).state == SUCCEEDED
    except Exception:  # not yet back
        return False


def test_a_folder_has_one_catalog(tmp_path: Path, postgres: Cluster) -> None:
    state = tmp_path / "state"
    Storage(state, catalog=postgres.url("one")).close()
    with pytest.raises(AugmentError, match="belongs to another catalog"):
        Storage(state, catalog=postgres.url("two"))
    with pytest.raises(AugmentError, match="its catalog is in PostgreSQL"):
        Storage(state)
    (tmp_path / "old" / "blobs").mkdir(parents=True)
    (tmp_path / "old" / "blobs" / "x").touch()
    with pytest.raises(AugmentError, match="has files of another catalog"):
        Storage(tmp_path / "old", catalog=postgres.url("one"))


@pytest.mark.parametrize(("url", "said"), [
    ("mysql://x", "must be a URL such as postgresql://HOST/DATABASE"),
    ("postgresql://me:secret@host/x", "leave the password out"),
    ("postgresql://127.0.0.1:1/x", "the database cannot be reached"),
])  # fmt: skip
def test_what_is_no_catalog(tmp_path: Path, url: str, said: str) -> None:
    pytest.importorskip("psycopg")
    ended = augment("serve", "--listen", "127.0.0.1:0", "--state-dir", tmp_path / "state", "--catalog", url)
    assert ended.returncode != 0
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_nothing_is_lost_or_done_twice(tmp_path: Path) -> None:
    """Servers, workers and PostgreSQL are killed at random moments."""
    with cluster() as killed:
        tally = Storm(tmp_path, killed, ranks=0, seed=1).run(["server", "process", "server", "postgres"], jobs=12)
    assert (tally.lost, tally.twice, tally.wrong, tally.errors) == (0, 0, 0, [])
