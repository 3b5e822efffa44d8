"""The client against a real server: what it brings back, what it bears, what it says."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cutting import proxy
from in_process import Server as InnerServer
from in_process import eventually
from in_process import serving as in_process
from serving_process import Server, serving

import augment
from augment.client import Augmented, Client
from augment.client import client as client_module
from augment.client.connection import Connection, Deadline
from augment.client.transfers import Download, JobNames, Upload, all_of, sent_name
from augment.core.output_files import OF_TRACE
from augment.errors import InputError, MalformedTrace, OutputError, ServiceError, UnknownFormat, UsageError
from augment.v1 import resources_pb2, service_pb2
from augment.v1 import service_pb2 as calls
from augment_server.base.limits import Limits
from augment_server.storage.uploads import Uploads
from simulator import JobOptions, simulate
from traces import kernel, launch, some_work, write_trace

SERVER_FLAGS = ("--max-running-jobs", 1)


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "rank0.pt.trace.json.gz")


def locally(trace: Path, out: Path, *, formats: tuple[str, ...] = (), **asked: Any) -> list[Path]:
    return augment.write(augment.augment(augment.read(trace), **asked), out, formats=formats)


def large_trace(path: Path, size: int) -> Path:
    """Of ``size`` bytes or a little more, not compressed, and hardly to be."""
    chance = random.Random(7)
    value = 1000
    events = [
        kernel(chance.randbytes(value // 2).hex(), 20 + 20 * number, correlation=number)
        for number in range(size // value + 1)
    ]
    return write_trace(path, *events, launch())


def test_what_is_asked_for_is_asked(client: Client, trace: Path, tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "only": ["idle_time_breakdown", "queue_length"],
        "skip": ["queue_length"],
        "options": {"idle_time_breakdown": {"consecutive_kernel_delay_ns": 17}},
        "formats": ("chrome", "perfetto", "bundle"),
    }
    got = client.augment(trace, **asked, out=tmp_path / "there")
    here = locally(trace, tmp_path / "here", **asked)
    assert [(file.name, file.read_bytes()) for file in got.files] == [(each.name, each.read_bytes()) for each in here]
    assert list(got.metrics["analyses"]) == ["idle_time_breakdown"]


def test_beside_the_trace_if_nothing_is_said(client: Client, trace: Path) -> None:
    assert {file.parent for file in client.augment(trace).files} == {trace.parent}


def test_progress_tells_of_bytes_and_stages(client: Client, trace: Path, tmp_path: Path) -> None:
    output: list[tuple[str, int, int]] = []
    client.augment(trace, out=tmp_path, progress=lambda *item: output.append(item))
    size = trace.stat().st_size
    assert ("sending", size, size) in output
    assert output[-1][0] == "fetching"
    assert output[-1][1] == output[-1][2] > 0


def test_nothing_is_left_on_the_server(client: Client, trace: Path, tmp_path: Path) -> None:
    client.augment(trace, out=tmp_path)
    assert jobs(client) == []


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1", ":1", "127.0.0.1:http"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        Client(address)


def test_time_is_over(server: Server, trace: Path) -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(ServiceError, match=r"not done within 0\.3 s"):
        client.augment(trace, timeout_s=0.3)
    with Client(server.address) as client, pytest.raises(ServiceError) as caught:
        client.augment(trace, timeout_s=1e-6)
    assert caught.value.code == "DEADLINE_EXCEEDED"


def test_an_upload_that_is_cut_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = large_trace(tmp_path / "large.json", 7 << 20)
    begun: list[int] = []
    rest = Upload._rest

    def remembering(self: Upload, there: resources_pb2.Upload, *more: Any) -> resources_pb2.Upload:
        begun.append(there.received_bytes)
        return rest(self, there, *more)

    monkeypatch.setattr(Upload, "_rest", remembering)
    parts, expected = tmp_path / "state" / "parts", iter((2 << 20, 5 << 20))

    def arrived() -> None:
        least = next(expected)  # of what has passed, whole messages of it
        eventually(lambda: sum(part.stat().st_size for part in parts.iterdir()) >= least)

    with serving(tmp_path / "state") as server:
        between_both = proxy(server.port, 3 << 20, 5 << 20, ready=arrived)
        with between_both as between, Client(between.address) as client:
            got = client.augment(trace, out=tmp_path / "there", only=["queue_length"])
            assert between.cut_count == 2
    assert len(begun) == 3
    assert (begun[0], begun[1] >= 2 << 20, begun[2] >= 5 << 20) == (0, True, True)
    assert got.files[-1].read_bytes() == locally(trace, tmp_path / "here", only=["queue_length"])[-1].read_bytes()


def test_a_download_that_is_cut_goes_on_where_it_was(server: Server, tmp_path: Path) -> None:
    trace = large_trace(tmp_path / "large.json", 3 << 20)
    with proxy(server.port) as between, Client(between.address) as client:
        fetched: list[int] = []
        asked: list[int] = []
        read = client._stub.ReadArtifact

        def tell(stage: str, done: int, _of: int) -> None:
            if stage == "fetching":
                fetched.append(done)
                if not between.cut_count:
                    between.cut_all()

        def remembering(request: service_pb2.ReadArtifactRequest, **options: Any) -> Any:
            asked.append(request.offset)
            return read(request, **options)

        client._stub.ReadArtifact = remembering  # type: ignore[assignment]
        got = client.augment(trace, out=tmp_path / "there", only=["queue_length"], progress=tell)
        assert between.cut_count == 1
    assert all(each == 0 or each >= fetched[0] for each in asked)
    assert fetched[:-1] == sorted(fetched[:-1])
    here = locally(trace, tmp_path / "here", only=["queue_length"])
    assert [file.read_bytes() for file in got.files] == [each.read_bytes() for each in here]


def test_a_watch_that_is_cut_goes_on(trace: Path, tmp_path: Path) -> None:
    with in_process(tmp_path / "state", max_running_jobs=1) as server:
        server.freeze()
        server.create(server.upload(trace))
        with proxy(int(server.address.rpartition(":")[2])) as between, Client(between.address) as client:

            def tell(stage: str, _done: int, _of: int) -> None:
                if stage == "queued":  # behind the other job
                    if between.cut_count < 2:
                        between.cut_all()
                    else:
                        server.thaw()

            got = client.augment(trace, out=tmp_path / "there", progress=tell)
            assert between.cut_count == 2
    assert got.files[-1].exists()


def test_a_server_that_is_killed_and_started_again_is_waited_for(trace: Path, tmp_path: Path) -> None:
    done: list[Any] = []
    with serving(tmp_path / "state") as first:
        client = Client(first.address)
        thread = threading.Thread(target=lambda: done.append(client.augment(trace, out=tmp_path / "there")))
        with first.frozen():
            thread.start()
            first.logged("job started")
            first.process.kill()
    with client, serving(tmp_path / "state", listen=first.address):
        thread.join()
    (got,) = done
    here = locally(trace, tmp_path / "here")
    assert [file.read_bytes() for file in got.files] == [each.read_bytes() for each in here]


def test_a_full_queue_is_waited_for(tmp_path: Path) -> None:
    paths = [write_trace(tmp_path / f"{n}.json", *some_work(), kernel(ts=200 + n)) for n in range(4)]
    with serving(tmp_path / "state", "--max-queued-jobs", 1, "--max-running-jobs", 1) as server:
        with Client(server.address) as client:
            got: list[Any] = []
            threads = [
                threading.Thread(target=lambda item=path: got.append(client.augment(item, out=tmp_path / "out")))
                for path in paths
            ]
            with server.frozen():
                for thread in threads:
                    thread.start()
                server.logged("call", code="RESOURCE_EXHAUSTED")
            for thread in threads:
                thread.join()
        assert len(got) == 4


def test_a_server_without_room_is_waited_for_until_patience_ends(trace: Path, tmp_path: Path) -> None:
    size, output = trace.stat().st_size, list[str]()
    with in_process(tmp_path / "state", max_stored_bytes=size + 5) as server:
        server.stub.StartUpload(service_pb2.StartUploadRequest(file_name="other", size_bytes=size))
        with Client(server.address, patience_s=5, waiting=output.append) as client:
            with pytest.raises(ServiceError) as caught:
                client.augment(trace)
            assert caught.value.reason == "STORAGE_FULL"
            server.core._retention._limits = server.core._uploads._limits = Limits(max_stored_bytes=size - 1)
            with pytest.raises(ServiceError) as caught:
                client.augment(trace)
            assert caught.value.reason == "UPLOAD_TOO_LARGE"
    assert output == []  # the server says: in a minute


def test_waiting_says_what_for(trace: Path, tmp_path: Path) -> None:
    output: list[str] = []
    with in_process(tmp_path / "state", max_open_uploads=1) as server:
        other = server.stub.StartUpload(service_pb2.StartUploadRequest(file_name="other")).upload

        def waiting(what: str) -> None:
            output.append(what)
            server.core._retention.remove_upload(other.name.partition("/")[2])

        with Client(server.address, waiting=waiting) as client:
            client.augment(trace, out=tmp_path / "out")
    assert output == ["1 of your uploads are unfinished; finish one first"]


def test_an_upload_that_is_gone_is_begun_anew(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, rest = list[str](), Upload._rest
    with in_process(tmp_path / "state") as server:

        def late(self: Upload, there: resources_pb2.Upload, *more: Any) -> resources_pb2.Upload:
            there.received_bytes = 0 if begun else 5  # first of a server from which another has taken it over
            if len(begun) == 1:
                server.core._retention.remove_upload(there.name.partition("/")[2])
            begun.append(there.name)
            return rest(self, there, *more)

        monkeypatch.setattr(Upload, "_rest", late)
        with Client(server.address) as client:
            assert client.augment(trace, out=tmp_path / "out").files
    assert (len(begun), len({*begun})) == (3, 2)


def test_an_interrupt_cancels_the_job(trace: Path, tmp_path: Path) -> None:
    def tell(stage: str, _done: int, _of: int) -> None:
        if stage == "queued":
            raise KeyboardInterrupt

    with in_process(tmp_path / "state", max_running_jobs=1) as server, Client(server.address) as client:
        server.freeze()
        other = server.create(server.upload(trace))
        with pytest.raises(KeyboardInterrupt):
            client.augment(trace, out=tmp_path / "out", progress=tell)
        ours, first = jobs(client)
        assert (ours.state, first.name) == (resources_pb2.Job.STATE_CANCELLED, other.name)
    assert not (tmp_path / "out").exists()


class Corrupting:
    """A server's stub that sends other bytes than it announced."""

    def ReadArtifact(self, *_: Any, **__: Any) -> Iterator[service_pb2.ReadArtifactResponse]:
        yield service_pb2.ReadArtifactResponse(chunk=b"abd")


def test_what_arrives_damaged_is_no_file(tmp_path: Path) -> None:
    artifact = resources_pb2.Artifact(
        name="jobs/1/artifacts/a", file_name="a.metrics.json", size_bytes=3, sha256="0" * 64
    )
    download = Download(artifact, tmp_path / "a.metrics.json", Connection("there:1", None, 1, 1))
    with pytest.raises(ServiceError, match=r"there:1: a\.metrics\.json did not arrive as it was announced"):
        download.receive(Corrupting(), Deadline(None, ""), "a.json", lambda *_: None)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    ["../rank0.metrics.json", "other.metrics.json", "rank0", "rank0./../x", "rank0.a\\b", "rank0.sh", "rank0.json",
     "rank0.x.metrics.json", "rank0.pt.trace.json.gz", "rank0.memory_snapshot.pickle", "rank0.diff.pftrace"],
)  # fmt: skip
def test_a_server_does_not_choose_where_files_go(name: str) -> None:
    """Nor does a worker that a trace of somebody else has taken over: the user has other files beside a trace."""
    with pytest.raises(ServiceError, match="which is no output of this trace"):
        client_module._local_name(name, {"rank0": "rank0"}, OF_TRACE, "rank0.json", "there:1")


def test_outputs_go_over_no_input(client: Client, tmp_path: Path) -> None:
    """Not even over another trace of the job, whose name is that of an output."""
    paths = [write_trace(tmp_path / "a.json"), write_trace(tmp_path / "a.metrics.json")]
    before = [path.read_bytes() for path in paths]
    with pytest.raises(OutputError, match=r"a\.metrics\.json: is an input"):
        client.augment_job(paths, only=["idle_time_breakdown"], out=tmp_path)
    assert [path.read_bytes() for path in paths] == before


def test_a_name_that_is_no_text(client: Client, tmp_path: Path) -> None:
    name = b"rank\xff.json".decode("utf-8", "surrogateescape")
    try:
        trace = write_trace(tmp_path / name)
    except OSError:
        pytest.skip("this file system wants names to be text")
    assert sent_name(str(trace)) == "rank\ufffd.json"
    assert [file.name for file in client.augment(trace).files] == [
        name.replace(".json", ".augmented.pftrace"),
        name.replace(".json", ".metrics.json"),
    ]


def jobs(client: Client) -> list[resources_pb2.Job]:
    return list(client._stub.ListJobs(service_pb2.ListJobsRequest()).jobs)


def test_clients_with_one_file_wait_for_the_one_that_sends_it(tmp_path: Path) -> None:
    """Each used to go on with the upload at once when another had, so that they cut each other off, again and again."""
    path = tmp_path / "large.json"
    path.write_bytes(bytes(40 << 20))
    cut_off = []
    with in_process(tmp_path / "state") as server:
        taken_over = Uploads.open

        def opened(self: Uploads, caller: Any, upload: str, offset: int) -> Any:
            cut_off.extend([upload] if upload in self._writers else [])
            return taken_over(self, caller, upload, offset)

        with pytest.MonkeyPatch.context() as patched, ThreadPoolExecutor(4) as pool:
            patched.setattr(Uploads, "open", opened)

            def send(_: int) -> str:
                with Client(server.address) as client:
                    return client._upload(str(path), Deadline(None, ""), lambda *_: None)

            names = set(pool.map(send, range(4)))
    assert len(names) == 1
    assert len(cut_off) <= 3  # each of the others once, before it knew


@pytest.fixture(scope="module")
def inner_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InnerServer]:
    with in_process(tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("traces")
    return [path for path, _ in simulate(JobOptions(ranks=2, steps=1, layers=1), folder)]


def test_a_job(inner_server: InnerServer, traces: list[Path], tmp_path: Path) -> None:
    output: list[str] = []
    (tmp_path / "bad.json").write_text("no trace")
    (tmp_path / "broken.json").write_text('{"traceEvents": [{"ph": "X", "ts": 1}, nonsense')
    paths = {
        "rank0/trace.json.gz": traces[0],
        "rank1/tr\x07ce.json.gz": traces[1],
        "bad.json": tmp_path / "bad.json",
        "broken.json": tmp_path / "broken.json",
        "missing.json": tmp_path / "missing.json",
    }
    with Client(inner_server.address, forget=True) as client:
        job = client.augment_job(
            paths,
            name="training",
            merge=True,
            out=tmp_path / "out",
            formats=["chrome"],
            parallelism={"dp": 2},
            progress=lambda stage, _done, _of: output.append(stage),
        )
    names = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*"))
    assert names == [
        "job.augmented.pftrace", "job.metrics.json", "rank0/trace.augmented.json.gz", "rank0/trace.metrics.json",
        "rank1/tr\x07ce.augmented.json.gz", "rank1/tr\x07ce.metrics.json",
    ]  # fmt: skip
    assert [path.name for path in job.files] == names[:2]
    assert job.metrics["source"]["ranks"] == [0, 1]
    assert job.metrics["source"]["name"] == "training"
    failures = {name: type(made) for name, made in job.traces.items() if not isinstance(made, Augmented)}
    assert failures == {"bad.json": UnknownFormat, "broken.json": MalformedTrace, "missing.json": InputError}
    assert str(job.traces["bad.json"]).startswith(str(tmp_path / "bad.json"))
    assert output[0] == "sending"
    assert {"converting", "fetching"} <= set(output)  # of shorter stages, as merging, a busy machine may tell none
    assert not inner_server.stub.ListJobs(calls.ListJobsRequest()).jobs
    assert not inner_server.stub.ListUploads(calls.ListUploadsRequest()).uploads


def test_a_job_of_nothing(inner_server: InnerServer, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("no trace")
    with Client(inner_server.address) as client:
        assert client.most_job_inputs() == 1024
        job = client.augment_job([tmp_path / "bad.json"], out=tmp_path)
        assert (job.files, type(job.traces["bad.json"])) == ((), UnknownFormat)
        job = client.augment_job([tmp_path / "missing.json"], out=tmp_path)
        assert (job.files, type(job.traces["missing.json"])) == ((), InputError)
        with pytest.raises(UsageError, match="equal names"):
            client.augment_job([tmp_path / "a" / "x.json", tmp_path / "b" / "x.json"], out=tmp_path)
        with pytest.raises(UsageError, match="parallelism"):
            client.augment_job([tmp_path / "bad.json"], out=tmp_path, parallelism={"no": 1})


@pytest.mark.parametrize(
    "name",
    ["a/rank0.sh", "a/rank0.json", "a/rank0.x.metrics.json", "../job.metrics.json", "/job.metrics.json",
     "a/../../job.metrics.json", "other.metrics.json", "rank0.x\\y",
     "b/job.metrics.json", "job.sh", ".metrics.json", ""],
)  # fmt: skip
def test_names_that_lead_elsewhere(name: str) -> None:
    with pytest.raises(ServiceError, match="not of this job"):
        JobNames({"a/rank0.json": "/x"}, Path("out"), "server").place(name)


def test_names() -> None:
    names = JobNames({"a/rank1.json": "/x", "a/rank1.x.json": "/y"}, Path("out"), "server")
    assert names.place("a/rank1.metrics.json") == ("a/rank1.json", Path("out/a/rank1.metrics.json"))
    assert names.place("a/rank1.x.metrics.json") == ("a/rank1.x.json", Path("out/a/rank1.x.metrics.json"))
    assert names.place("a/job.metrics.json") == (None, Path("out/a/job.metrics.json"))
    assert names.place("training.5.job-2.augmented.pftrace") == (None, Path("out/training.5.job-2.augmented.pftrace"))


def test_the_rest_is_broken_off() -> None:
    """When one fails, as when somebody interrupts."""
    begun: list[int] = []

    def work(item: int, moved: object) -> int:
        begun.append(item)
        if item == 3:
            raise ValueError("three")
        return item

    with pytest.raises(ValueError, match="three"):
        all_of(range(1000), [1] * 1000, work, lambda _done, _of: None)
    assert all_of(range(20), [1] * 20, lambda item, moved: item, lambda _done, _of: None) == list(range(20))
