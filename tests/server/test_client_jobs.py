"""``Client.augment_job``: the traces of a job there, what is made of all of them back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from in_process import Server, serving

from augment.client import Augmented, Client
from augment.client.transfers import JobNames, all_of
from augment.errors import InputError, MalformedTrace, ServiceError, UnknownFormat, UsageError
from augment.v1 import service_pb2 as calls
from simulator import JobOptions, simulate


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("traces")
    return [path for path, _ in simulate(JobOptions(ranks=2, steps=1, layers=1), folder)]


def test_a_job(server: Server, traces: list[Path], tmp_path: Path) -> None:
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
    with Client(server.address, forget=True) as client:
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
    assert {"converting", "merging", "fetching"} <= set(output)
    assert not server.stub.ListJobs(calls.ListJobsRequest()).jobs
    assert not server.stub.ListUploads(calls.ListUploadsRequest()).uploads


def test_a_job_of_nothing(server: Server, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("no trace")
    with Client(server.address) as client:
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
    ["../job.metrics.json", "/job.metrics.json", "a/../../job.metrics.json", "other.metrics.json", "rank0.x\\y",
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
