"""What tools expect of an API: labels, filters, priorities, trials, requests that are sent again, details of errors."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest
from google.protobuf import duration_pb2
from google.protobuf.field_mask_pb2 import FieldMask
from in_process import Server, eventually, opened, refused, serving, trace, violated

from augment.client import Client
from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment_server.base.limits import Limits
from augment_server.base.people import Caller
from augment_server.jobs import jobs as jobs_module
from augment_server.jobs.job_metadata import Card
from augment_server.jobs.jobs import Jobs, Wanted
from simulator import JobOptions, simulate

SERVER_LIMITS = {"max_open_uploads": 5}

QUICK = ["queue_length"]
ALICE = Caller("name:alice", "")
MINE, OTHERS = (("client", "name:me"),), (("client", "name:other"),)


@pytest.fixture(scope="module")
def upload(server: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    return server.upload(trace(tmp_path_factory.mktemp("traces") / "a.json"))


def request(upload: str, **more: Any) -> calls.CreateJobRequest:
    spec = v1.JobSpec(augment=v1.AugmentSpec(input=v1.Input(upload=upload), only=QUICK))
    return calls.CreateJobRequest(spec=spec, **more)


def create(server: Server, upload: str, **more: Any) -> v1.Job:
    return server.stub.CreateJob(request(upload, **more)).job


def listed(server: Server, **asked: Any) -> list[str]:
    """Names, over all pages of two."""
    names, token = list[str](), ""
    while True:
        page = server.stub.ListJobs(calls.ListJobsRequest(page_size=2, page_token=token, **asked))
        names += [job.name for job in page.jobs]
        token = page.next_page_token
        if not token:
            return names


def test_what_is_written_on_a_job(server: Server, upload: str) -> None:
    deadline = duration_pb2.Duration(seconds=30, nanos=500_000_000)
    labels = {"team": "infra", "run.id": "7"}
    made = create(server, upload, display_name="nightly", labels=labels, priority=3, deadline=deadline)
    for job in (made, server.wait(made.name), server.get(made.name)):
        assert (job.display_name, dict(job.labels), job.priority, job.deadline) == ("nightly", labels, 3, deadline)
    assert not server.get(made.name).queue_position
    assert not create(server, upload).HasField("deadline")


def test_what_is_written_on_a_job_changes(server: Server, upload: str) -> None:
    before = create(server, upload, display_name="a", labels={"team": "x", "run": "1"}, priority=3)
    job = server.wait(before.name)

    def update(**more: Any) -> v1.Job:
        mask = FieldMask(paths=more.pop("mask", ()))
        return server.stub.UpdateJob(calls.UpdateJobRequest(name=job.name, update_mask=mask, **more)).job

    taken = stored(server)
    assert update(display_name="b", validate_only=True).display_name == "b"
    assert server.get(job.name) == job
    changed = update(labels={"team": "y"})
    assert (changed.display_name, dict(changed.labels), changed.priority) == ("a", {"team": "y"}, 3)
    assert changed.update_time.ToNanoseconds() > job.update_time.ToNanoseconds() >= job.end_time.ToNanoseconds()
    assert stored(server) == taken - len(',"run":"1"')
    assert job.name in listed(server, filter="labels.team = y")
    assert update(mask=["display_name"], labels={"left": "alone"}).display_name == ""
    assert dict(server.get(job.name).labels) == {"team": "y"}
    assert not update(mask=["*"]).labels
    assert server.get(job.name).priority == 0
    with violated("update_mask"):
        update(mask=["state"])
    with violated("priority"):
        update(priority=11)
    with refused("NOT_FOUND", "NOT_FOUND"):
        server.stub.UpdateJob(calls.UpdateJobRequest(name=job.name, display_name="c"), metadata=OTHERS)


def stored(server: Server) -> int:
    """The bytes that count for all clients."""
    row = server.core._storage.row("SELECT SUM(bytes) AS bytes FROM usage")
    assert row
    return int(row["bytes"])


def test_the_small_view_of_a_job(server: Server, upload: str) -> None:
    full = server.wait(create(server, upload, display_name="small").name)
    basic = calls.JOB_VIEW_BASIC
    expected = v1.Job()
    expected.CopyFrom(full)
    for name in ("spec", "artifacts", "failures", "notes"):
        expected.ClearField(name)
    expected.progress.ClearField("stages")
    assert expected.artifact_count == len(full.artifacts) > 0
    assert server.stub.GetJob(calls.GetJobRequest(name=full.name, view=basic)).job == expected
    assert [last.job for last in server.stub.WatchJob(calls.WatchJobRequest(name=full.name, view=basic))] == [expected]
    page = server.stub.ListJobs(calls.ListJobsRequest(filter='display_name = "small"', view=basic))
    assert list(page.jobs) == [expected]
    assert server.get(full.name) == full


def test_artifacts_in_pages(server: Server, upload: str) -> None:
    job = server.wait(server.create(upload, formats=["chrome", "perfetto"]).name)
    assert len(job.artifacts) == 3
    pages, token = list[list[v1.Artifact]](), ""
    while not pages or token:
        asked = calls.ListArtifactsRequest(parent=job.name, page_size=2, page_token=token)
        page = server.stub.ListArtifacts(asked)
        pages.append(list(page.artifacts))
        token = token if page.next_page_token == token else page.next_page_token
    assert [len(page) for page in pages] == [2, 1]
    assert [artifact for page in pages for artifact in page] == list(job.artifacts)
    assert list(server.stub.ListArtifacts(calls.ListArtifactsRequest(parent=job.name)).artifacts) == list(job.artifacts)
    other = server.wait(create(server, upload).name).name
    first = server.stub.ListArtifacts(calls.ListArtifactsRequest(parent=job.name, page_size=1))
    with violated("page_token"):
        server.stub.ListArtifacts(calls.ListArtifactsRequest(parent=other, page_token=first.next_page_token))
    with violated("page_size"):
        server.stub.ListArtifacts(calls.ListArtifactsRequest(parent=job.name, page_size=-1))


def test_an_artifact_and_a_part_of_it(server: Server, upload: str) -> None:
    job = server.wait(create(server, upload).name)
    for artifact in job.artifacts:
        assert server.stub.GetArtifact(calls.GetArtifactRequest(name=artifact.name)).artifact == artifact
    name = job.artifacts[-1].name
    part = calls.ReadArtifactRequest(name=name, offset=10, limit=20)
    assert b"".join(call.chunk for call in server.stub.ReadArtifact(part)) == server.read(name)[10:30]
    with violated("limit"):
        list(server.stub.ReadArtifact(calls.ReadArtifactRequest(name=name, limit=-1)))
    with refused("NOT_FOUND", "NOT_FOUND"):
        server.stub.GetArtifact(calls.GetArtifactRequest(name=f"{job.name}/artifacts/nothing.json"))


@pytest.fixture(scope="module")
def measured(server: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=3), tmp_path_factory.mktemp("simulated"))
    job = server.wait(server.create(server.upload(path), metrics_only=True).name)
    assert job.state == v1.Job.STATE_SUCCEEDED, job.error
    return job.name


def queried(server: Server, job: str, analysis: str = "kernel_breakdown", **asked: Any) -> Any:
    return server.stub.QueryMetrics(calls.QueryMetricsRequest(name=job, analysis=analysis, **asked))


def test_metrics_are_filtered_sorted_and_described(server: Server, measured: str) -> None:
    name = server.get(measured).artifacts[-1].name
    rows = json.loads(server.read(name))["analyses"]["kernel_breakdown"]["rows"]
    page = queried(server, measured)
    assert [json.loads(row) for row in page.json_rows] == rows
    assert (page.total_count, [column.name for column in page.columns]) == (len(rows), list(rows[0]))
    about = {column.name: column for column in page.columns}
    assert (about["sum_ns"].type, about["sum_ns"].unit) == ("int64", "ns")
    assert about["sum_ns"].summary
    texts = [column for column, of in about.items() if of.type == "string"]
    least = sorted(row["sum_ns"] for row in rows)[len(rows) // 2]
    wanted = sorted((row for row in rows if row["sum_ns"] >= least), key=lambda row: -row["sum_ns"])
    pages, token = list[Any](), ""
    while not pages or token:
        asked = {"filter": f"sum_ns >= {least}", "order_by": "sum_ns desc", "page_size": 3, "page_token": token}
        page = queried(server, measured, columns=["sum_ns", texts[0]], **asked)
        pages.append([json.loads(row) for row in page.json_rows])
        token = page.next_page_token
    assert len(pages) > 1
    assert sum(map(len, pages)) == len(wanted)
    assert [row for page in pages for row in page] == [
        {"sum_ns": row["sum_ns"], texts[0]: row[texts[0]]} for row in wanted
    ]
    assert len(queried(server, measured, filter="row = 0").json_rows) == 1


def test_metrics_as_arrow(server: Server, measured: str) -> None:
    arrow = pytest.importorskip("pyarrow")
    plain = queried(server, measured, order_by="sum_ns")
    page = queried(server, measured, order_by="sum_ns", format=calls.METRICS_FORMAT_ARROW, columns=["sum_ns"])
    table = arrow.ipc.open_stream(page.arrow).read_all()
    assert table.column_names == ["sum_ns"]
    assert table["sum_ns"].to_pylist() == [json.loads(row)["sum_ns"] for row in plain.json_rows]
    assert not page.json_rows


@pytest.mark.parametrize(("field", "asked"), [
    ("filter", {"filter": "nothing = 1"}),
    ("filter", {"filter": "sum_ns = x"}),
    ("order_by", {"order_by": "nothing"}),
    ("columns[0]", {"columns": ["nothing"]}),
    ("page_size", {"page_size": -1}),
    ("page_token", {"page_token": "x"}),
])  # fmt: skip
def test_what_metrics_cannot_be_asked(server: Server, measured: str, field: str, asked: dict[str, Any]) -> None:
    with violated(field):
        queried(server, measured, **asked)
    with refused("NOT_FOUND", "NOT_FOUND"):
        queried(server, measured, "nothing")


def test_uploads_that_begin_together(server: Server) -> None:
    def start(*names: str, **more: Any) -> Any:
        requests = [calls.StartUploadRequest(file_name=name, size_bytes=5, **more) for name in names]
        return server.stub.BatchStartUploads(calls.BatchStartUploadsRequest(requests=requests)).uploads

    assert [upload.name for upload in start("a.json", "b.json", validate_only=True)] == ["", ""]
    begun = start("a.json", "b.json")
    assert [upload.file_name for upload in begun] == ["a.json", "b.json"]
    assert len({upload.name for upload in begun}) == 2
    count = len(server.stub.ListUploads(calls.ListUploadsRequest()).uploads)
    with violated("requests[1].file_name"):
        start("c.json", "..")
    assert len(server.stub.ListUploads(calls.ListUploadsRequest()).uploads) == count
    with violated("requests"):
        start()


def test_lists_are_filtered_and_sorted(server: Server, upload: str) -> None:
    made = [create(server, upload, labels={"suite": "a"}, priority=number % 3) for number in range(5)]
    other = create(server, upload, labels={"suite": "b"})
    for job in (*made, other):
        server.wait(job.name)
    part = "labels.suite = a"
    assert listed(server, filter=part) == [job.name for job in made[::-1]]
    assert listed(server, filter=part, order_by="create_time") == [job.name for job in made]
    by_priority = sorted(made, key=lambda job: (job.priority, job.create_time.ToNanoseconds()), reverse=True)
    assert listed(server, filter=part, order_by="priority desc") == [job.name for job in by_priority]
    assert listed(server, filter="labels:suite AND state = SUCCEEDED AND NOT labels.suite = a") == [other.name]


@pytest.mark.usefixtures("both_catalogs")
def test_uploads_are_filtered_and_sorted(tmp_path: Path) -> None:
    with serving(tmp_path / "state") as server:
        made = [server.upload(trace(tmp_path / "a.json", count=10 + number), f"{number}.json") for number in range(3)]
        server.stub.StartUpload(calls.StartUploadRequest(file_name="begun.json", size_bytes=9))
        for asked, wanted in (
            ({"filter": "state = COMPLETE"}, made[::-1]),
            ({"filter": "state = COMPLETE", "order_by": "size_bytes"}, made),
            ({"filter": "size_bytes > 9 AND file_name != 1.json"}, [made[2], made[0]]),
        ):
            page = server.stub.ListUploads(calls.ListUploadsRequest(**asked))  # type: ignore[arg-type]
            assert [upload.name for upload in page.uploads] == wanted


def test_a_token_belongs_to_its_list(server: Server, upload: str) -> None:
    for _ in range(2):
        create(server, upload)
    token = server.stub.ListJobs(calls.ListJobsRequest(page_size=1)).next_page_token
    again = calls.ListJobsRequest(page_size=5, page_token=token)  # of another size it may be
    assert server.stub.ListJobs(again).jobs
    asked: tuple[dict[str, Any], ...] = ({"filter": "priority = 0"}, {"order_by": "create_time"}, {"states": [1]})
    for other in asked:
        with violated("page_token"):
            server.stub.ListJobs(calls.ListJobsRequest(page_token=token, **other))
    with violated("page_token"):
        server.stub.ListUploads(calls.ListUploadsRequest(page_token=token))
    with violated("page_token"):
        server.stub.ListJobs(calls.ListJobsRequest(page_token=token), metadata=MINE)
    for at in range(0, len(token), 3):
        changed = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]
        with violated("page_token"):
            server.stub.ListJobs(calls.ListJobsRequest(page_token=changed))


def test_tokens_outlive_the_server(tmp_path: Path) -> None:
    with serving(tmp_path / "state") as server:
        upload = server.upload(trace(tmp_path / "a.json"))
        made = [create(server, upload).name for _ in range(2)]
        for job in made:
            server.wait(job)
        token = server.stub.ListJobs(calls.ListJobsRequest(page_size=1)).next_page_token
    with serving(tmp_path / "state") as server:
        assert [job.name for job in server.stub.ListJobs(calls.ListJobsRequest(page_token=token)).jobs] == made[:1]


def test_a_trial_changes_nothing(server: Server, upload: str) -> None:
    before = listed(server)
    output = create(server, upload, validate_only=True, display_name="x")
    assert (output.name, output.state, output.display_name) == ("", v1.Job.STATE_QUEUED, "x")
    with refused("NOT_FOUND", "NOT_FOUND"):
        create(server, "uploads/nothing", validate_only=True)
    with refused("INVALID_REQUEST", "INVALID_ARGUMENT"):
        server.stub.BatchCreateJobs(
            calls.BatchCreateJobsRequest(requests=[request(upload), request(upload, validate_only=True)])
        )
    assert listed(server) == before
    started = server.stub.StartUpload(calls.StartUploadRequest(file_name="x/y.json", size_bytes=5, validate_only=True))
    assert (started.upload.name, started.upload.file_name) == ("", "y.json")
    server.stub.DeleteUpload(calls.DeleteUploadRequest(name=upload, validate_only=True))
    assert server.stub.GetUpload(calls.GetUploadRequest(name=upload))
    job = server.wait(create(server, upload).name)
    server.stub.DeleteJob(calls.DeleteJobRequest(name=job.name, validate_only=True))
    assert server.get(job.name) == job


def test_cancelling_can_be_tried(tmp_path: Path) -> None:
    with serving(tmp_path / "state", max_running_jobs=1) as server:
        upload = server.upload(trace(tmp_path / "a.json"))
        server.freeze()
        job = create(server, upload)
        server.stub.CancelJob(calls.CancelJobRequest(name=job.name, validate_only=True, request_id="c"))
        assert server.get(job.name).state in (v1.Job.STATE_QUEUED, v1.Job.STATE_RUNNING)
        for _ in range(2):
            output = server.stub.CancelJob(calls.CancelJobRequest(name=job.name, request_id="c")).job
            assert output.state == v1.Job.STATE_CANCELLED


def test_requests_that_are_sent_again(server: Server, upload: str, tmp_path: Path) -> None:
    stub = server.stub
    start = calls.StartUploadRequest(file_name="again.json", size_bytes=10, request_id="start")
    first = stub.StartUpload(start).upload
    assert stub.StartUpload(start).upload == first
    with refused("REQUEST_ID_REUSED", "ALREADY_EXISTS"):
        stub.StartUpload(calls.StartUploadRequest(file_name="again.json", size_bytes=11, request_id="start"))
    assert stub.StartUpload(start, metadata=MINE).upload.name != first.name  # of somebody else
    remove = calls.DeleteUploadRequest(name=first.name, request_id="remove")
    for _ in range(2):
        stub.DeleteUpload(remove)
    with refused("NOT_FOUND", "NOT_FOUND"):
        stub.DeleteUpload(calls.DeleteUploadRequest(name=first.name, request_id="another"))
    with refused("REQUEST_ID_REUSED", "ALREADY_EXISTS"):
        stub.DeleteUpload(calls.DeleteUploadRequest(name=upload, request_id="remove"))
    assert stub.StartUpload(start).upload.name != first.name  # it is gone: another begins
    job = server.wait(create(server, upload, request_id="job").name)
    with refused("REQUEST_ID_REUSED", "ALREADY_EXISTS"):
        create(server, upload, request_id="job", priority=1)
    for _ in range(2):
        stub.DeleteJob(calls.DeleteJobRequest(name=job.name, request_id="job"))


def test_augment_that_is_sent_again(server: Server, tmp_path: Path) -> None:
    content = trace(tmp_path / "b.json", count=7).read_bytes()
    start = calls.AugmentStart(
        file=calls.StartUploadRequest(file_name="b.json", request_id="file"), spec=v1.AugmentSpec(only=QUICK),
        request_id="augment", labels={"way": "one"},
    )  # fmt: skip
    parts = [calls.AugmentRequest(start=start), calls.AugmentRequest(chunk=content, finish=True)]
    jobs = [next(iter(server.stub.Augment(iter(parts)))).job for _ in range(2)]
    assert jobs[0].name == jobs[1].name
    assert jobs[0].labels == {"way": "one"}


def test_requests_are_forgotten_after_a_day(server: Server) -> None:
    server.stub.StartUpload(calls.StartUploadRequest(file_name="old.json", request_id="old"))
    storage = server.core._storage
    with storage.writing() as db:
        db.execute("UPDATE requests SET at_ns = at_ns - 86400000000001 WHERE request_id = 'old'")
    server.core._retention.sweep()
    assert not storage.rows("SELECT * FROM requests WHERE request_id = 'old'")


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Callable[..., v1.Job]]:
    """Makes jobs that nobody takes up, with ``begin``, which does."""
    with serving(tmp_path / "state", max_running_jobs=1) as server:
        upload = server.upload(trace(tmp_path / "a.json"))
        jobs = server.core._jobs
        server.call(server.core._scheduler.drain(0))
        spec = v1.JobSpec(augment=v1.AugmentSpec(input=v1.Input(upload=upload), only=QUICK))

        def make(client: str, priority: int = 0) -> str:
            ((job, _),) = jobs.create(Caller(client, ""), [Wanted(spec, "", [""], Card(priority=priority))])
            return job

        make.jobs, make.storage = jobs, server.core._storage  # type: ignore[attr-defined]
        make.begin = lambda: jobs.begin().id  # type: ignore[attr-defined]
        make.place = lambda job: jobs.get(ALICE, job, placed=True).queue_position  # type: ignore[attr-defined]
        yield make  # type: ignore[misc]


@pytest.mark.usefixtures("both_catalogs")
def test_priorities_order_the_jobs_of_one_client(waiting: Any) -> None:
    low, first, second, high = waiting("a", -1), waiting("a"), waiting("a"), waiting("a", 10)
    assert [waiting.place(job) for job in (high, first, second, low)] == [1, 2, 3, 4]
    assert [waiting.begin() for _ in range(4)] == [high, first, second, low]


@pytest.mark.usefixtures("both_catalogs")
def test_jobs_read_together_are_as_alone(waiting: Any) -> None:
    jobs = waiting.jobs
    made = [waiting(client) for client in "aabbc"]
    done, runs = (waiting.begin() for _ in range(2))
    assert jobs.end(done, v1.Job.STATE_SUCCEEDED)
    asked = [("", job, basic) for job in (*made, runs) for basic in (False, True)]
    alone = [jobs.get(ALICE, job, basic=basic, placed=True) for _, job, basic in asked]
    assert jobs.placed(asked) == [None if job.state == v1.Job.STATE_SUCCEEDED else job for job in alone]
    assert sorted({job.queue_position for job in alone}) == [0, 1, 2, 3]
    assert jobs.placed([("", "none", False), ("project:p", runs, False)]) == [None, None]


@pytest.mark.usefixtures("both_catalogs")
def test_nobody_is_ahead_of_another_client_by_priority(waiting: Any) -> None:
    first = waiting("a")
    other = waiting("b")
    urgent = [waiting("b", 10) for _ in range(2)]
    second, third = waiting("a"), waiting("a")
    expected = [first, urgent[0], urgent[1], second, third, other]
    places_told = [waiting.place(job) for job in expected]
    begun = [waiting.begin() for _ in range(6)]
    assert begun == sorted(expected, key=lambda job: places_told[expected.index(job)])
    of_a = [begun.index(job) for job in (first, second, third)]
    assert of_a[0] == 0  # it came first, whatever the others ask for
    assert of_a[1] <= 3  # each has its turn
    assert of_a[2] <= 5


def test_the_place_is_told(tmp_path: Path) -> None:
    with serving(tmp_path / "state", max_running_jobs=1) as server:
        upload = server.upload(trace(tmp_path / "a.json"))
        server.freeze()
        first, second = create(server, upload), create(server, upload)
        eventually(lambda: server.get(first.name).state == v1.Job.STATE_RUNNING)
        assert (server.get(second.name).queue_position, server.get(first.name).queue_position) == (1, 0)


@pytest.mark.embedded
def test_a_database_of_an_earlier_version(tmp_path: Path) -> None:
    """What it lacks is added, and its jobs are told."""
    with serving(tmp_path / "state") as server:
        job = server.wait(create(server, server.upload(trace(tmp_path / "a.json"))).name)
    with contextlib.closing(sqlite3.connect(tmp_path / "state" / "state.db")) as database, database:
        database.execute("DROP INDEX jobs_waiting")
        for trigger in ("job_more", "job_less", "job_other", "labels_more", "labels_other", "labels_less"):
            database.execute(f"DROP TRIGGER {trigger}")
        for column in ("display_name", "labels", "priority", "deadline_ms", "due_ns", "changed_ns"):
            database.execute(f"ALTER TABLE jobs DROP COLUMN {column}")
        database.execute("DROP TABLE requests")
        database.execute("DROP TABLE secrets")
    with serving(tmp_path / "state") as server:
        assert server.get(job.name) == job
        assert listed(server, filter="priority = 0 AND NOT labels:x") == [job.name]


def test_clients_that_forget_the_same_file_do_not_disturb_each_other(server: Server, tmp_path: Path) -> None:
    """One removes the upload, which is the same for all, between another's sending and its job."""
    path = trace(tmp_path / "forgotten.json")

    def use(number: int) -> list[str]:
        with Client(server.address, forget=True) as client:
            made = [client.augment(path, only=QUICK, out=tmp_path / f"{number}-{again}") for again in range(3)]
        return [item.files[-1].name for item in made]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(use, range(4))) == [["forgotten.metrics.json"] * 3] * 4


def test_an_upload_that_goes_before_its_job_is_sent_again(server: Server, tmp_path: Path) -> None:
    paths = [trace(tmp_path / name, count=count) for name, count in (("b.json", 20), ("c.json", 21))]
    with Client(server.address) as client:
        ask, lost = client._connection.ask, []

        def losing(method: Any, request: Any, *rest: Any) -> Any:
            if isinstance(request, calls.CreateJobRequest) and len(lost) < 3 and not lost.count(request.spec):
                lost.append(request.spec)
                for upload in server.stub.ListUploads(calls.ListUploadsRequest()).uploads:
                    server.stub.DeleteUpload(calls.DeleteUploadRequest(name=upload.name))
            return ask(method, request, *rest)

        client._connection.ask = losing  # type: ignore[method-assign]
        assert client.augment(paths[0], only=QUICK, out=tmp_path / "one").files
        assert client.diff(*paths, out=tmp_path / "two").files
    assert len(lost) == 3


@pytest.mark.usefixtures("both_catalogs")
def test_places_are_those_of_the_order_whatever_happens(waiting: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs come, begin, end, wait again and are cancelled, while the time of day jumps; the places are counted anew."""
    jobs, chance, made = waiting.jobs, Random(5), list[str]()
    running: list[Any] = []
    for _ in range(120):
        now = chance.randrange(10**12)
        monkeypatch.setattr(jobs_module, "now_ns", lambda now=now: now)
        happens = chance.random()
        if happens < 0.55:
            made.append(waiting(f"client{chance.randrange(4)}", chance.randint(-2, 2)))
        elif happens < 0.8 and (begun := jobs.begin()):
            running.append(begun)
        elif happens < 0.87 and running:
            jobs.queue_again(running.pop(chance.randrange(len(running))))
        elif happens < 0.9 and made:
            jobs.update(ALICE, chance.choice(made), {"priority": chance.randint(-10, 10)}, False)
        elif happens < 0.94 and running:
            assert jobs.end(running.pop(chance.randrange(len(running))).id, v1.Job.STATE_SUCCEEDED)
        elif made:
            jobs.cancel_waiting(chance.choice(made))
    places = {job: place for job in made if (place := waiting.place(job))}
    with contextlib.suppress(ZeroDivisionError), waiting.storage.writing() as db:
        db.execute("UPDATE jobs SET state = 5")
        raise ZeroDivisionError  # it is undone
    again = {job: place for job in made if (place := waiting.place(job))}
    assert again == places
    begun = iter(jobs.begin, None)
    assert {job.id: number for number, job in enumerate(begun, 1)} == places
    assert len(places) > 20


@pytest.mark.usefixtures("both_catalogs")
def test_clients_take_turns_on_a_single_worker(waiting: Any) -> None:
    """However many jobs of one came before those of another."""
    for client in ("a", "a", "a", "b", "b", "c"):
        waiting(client)
    clients = []
    while begun := waiting.jobs.begin():
        assert waiting.jobs.end(begun.id, v1.Job.STATE_SUCCEEDED)
        clients.append(begun.client)
    assert clients == ["a", "b", "c", "a", "b", "a"]


def test_places_after_a_start(tmp_path: Path) -> None:
    with serving(tmp_path / "state") as server:
        upload = server.upload(trace(tmp_path / "a.json"))
        server.call(server.core._scheduler.drain(0))
        jobs = [server.core._jobs.create(ALICE, [Wanted(request(upload).spec, "", [""])])[0][0] for _ in range(3)]
    with contextlib.closing(opened(tmp_path / "state")) as storage:
        again = Jobs(storage, Limits())
        assert [again.get(ALICE, job, placed=True).queue_position for job in jobs] == [1, 2, 3]
