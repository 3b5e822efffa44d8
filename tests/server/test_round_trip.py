"""What a server makes of a trace is, byte for byte, what the command makes of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from in_process import Server, chunks, serving, trace
from serving_process import augment

from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from simulator import JobOptions, simulate


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated")
    simulate(JobOptions(ranks=2, steps=2), folder)
    return folder


def expect_the_commands(server: Server, path: Path, folder: Path, *flags: str, **spec: object) -> v1.Job:
    ended = augment("run", path, "-o", folder, "--quiet", *flags)
    job = server.wait(server.create(server.upload(path), **spec).name)
    if ended.returncode:
        assert job.state == v1.Job.STATE_FAILED
        assert ended.stderr.strip().endswith(job.error.metadata["because"])
        return job
    assert job.state == v1.Job.STATE_SUCCEEDED, job.error
    made = {artifact.file_name: server.read(artifact.name) for artifact in job.artifacts}
    assert made == {each.name: each.read_bytes() for each in folder.iterdir()}
    for artifact in job.artifacts:
        assert artifact.size_bytes == len(made[artifact.file_name])
        assert artifact.sha256 == hashlib.sha256(made[artifact.file_name]).hexdigest()
    return job


def test_simulated(server: Server, simulated: Path, tmp_path: Path) -> None:
    for rank in (0, 1):
        path = simulated / f"rank{rank}.pt.trace.json.gz"
        flags = ("--to", "chrome,perfetto", "--skip", "queue_length")
        job = expect_the_commands(
            server, path, tmp_path / str(rank), *flags, formats=["chrome", "perfetto"], skip=["queue_length"]
        )
        assert [artifact.file_name.partition(".")[2] for artifact in job.artifacts] == [
            "augmented.json.gz", "augmented.pftrace", "metrics.json"
        ]  # fmt: skip


def test_options(server: Server, simulated: Path, tmp_path: Path) -> None:
    name, option = "idle_time_breakdown", "idle_time_breakdown.consecutive_kernel_delay_ns=500000"
    path = simulated / "rank0.pt.trace.json.gz"
    made = expect_the_commands(
        server, path, tmp_path / "a", "--only", name, "--option", option, only=[name], options=[option]
    )
    plain = server.wait(server.create(server.upload(path), only=[name]).name)
    assert made.artifacts[-1].sha256 != plain.artifacts[-1].sha256


def test_shared(server: Server, shared_traces: Path, tmp_path: Path) -> None:
    small = sorted(
        (path.stat().st_size, path) for path in shared_traces.rglob("*") if path.is_file() and path.suffix != ".md"
    )
    chosen = [path for size, path in small if 10_000 < size < 300_000][::12]
    assert len(chosen) >= 3
    states = {expect_the_commands(server, path, tmp_path / str(n)).state for n, path in enumerate(chosen)}
    assert v1.Job.STATE_SUCCEEDED in states


def test_a_file_of_the_servers(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    path = trace(tmp_path / "traces" / "rank3.json")
    augment("run", path, "-o", tmp_path / "out", "--quiet")
    with serving(tmp_path / "state", roots=(tmp_path / "traces",)) as server:
        for uri in (str(path), path.as_uri()):
            job = server.wait(server.create(uri=uri).name)
            made = {artifact.file_name: server.read(artifact.name) for artifact in job.artifacts}
            assert made == {each.name: each.read_bytes() for each in (tmp_path / "out").iterdir()}


def test_metrics_are_the_sidecars_digits(server: Server, simulated: Path) -> None:
    job = server.wait(server.create(server.upload(simulated / "rank0.pt.trace.json.gz")).name)
    sidecar = json.loads(server.read(job.artifacts[-1].name))["analyses"]
    got = [call.metrics for call in server.stub.GetMetrics(calls.GetMetricsRequest(name=job.name))]
    assert [each.analysis for each in got] == list(sidecar)
    for each in got:
        output = sidecar[each.analysis]
        assert [json.loads(row) for row in each.json_rows] == output["rows"]
        assert v1.AnalysisMetrics.Status.Name(each.status) == f"STATUS_{output['status'].upper()}"
        assert each.reason == output.get("reason", "")
    (only,) = server.stub.GetMetrics(calls.GetMetricsRequest(name=job.name, analyses=["temporal_breakdown"]))
    assert only.metrics in got


def test_many_rows_come_in_several_messages(server: Server, tmp_path: Path) -> None:
    more = "".join(
        f',\n{{"ph": "X", "cat": "kernel", "name": "{"k" * 300}{n}", "pid": 0, "tid": 7, "ts": {9000 + n}, "dur": 1}}'
        for n in range(5000)
    )
    path = trace(tmp_path / "many.json", more=more)
    job = server.wait(server.create(server.upload(path), only=["kernel_breakdown"]).name)
    got = list(server.stub.GetMetrics(calls.GetMetricsRequest(name=job.name)))
    assert len(got) > 1
    assert sum(len(each.metrics.json_rows) for each in got) == 5001


def test_an_artifact_from_any_byte(server: Server, tmp_path: Path) -> None:
    job = server.wait(server.create(server.upload(trace(tmp_path / "a.json"))).name)
    for artifact in server.stub.ListArtifacts(calls.ListArtifactsRequest(parent=job.name)).artifacts:
        whole = server.read(artifact.name)
        for offset in (1, 100, len(whole)):
            assert server.read(artifact.name, offset) == whole[offset:]


def test_all_in_one_call(server: Server, simulated: Path, tmp_path: Path) -> None:
    path = simulated / "rank1.pt.trace.json.gz"
    augment("run", path, "-o", tmp_path, "--quiet")
    file = calls.StartUploadRequest(file_name=path.name)
    start = calls.AugmentRequest(start=calls.AugmentStart(file=file))
    sent = [start, *(calls.AugmentRequest(chunk=row.chunk) for row in chunks(path)), calls.AugmentRequest(finish=True)]
    made: dict[str, bytes] = {}
    current, last = "", v1.Job()
    for each in server.stub.Augment(iter(sent)):
        kind = each.WhichOneof("part")
        if kind == "job":
            last = each.job
        elif kind == "artifact":
            current = each.artifact.file_name
            made[current] = b""
        else:
            made[current] += each.chunk
    assert last.state == v1.Job.STATE_SUCCEEDED
    assert made == {each.name: each.read_bytes() for each in tmp_path.iterdir()}


def test_analyses_are_the_commands(server: Server) -> None:
    listed = json.loads(augment("list", "--json").stdout)["analyses"]
    got = server.stub.ListAnalyses(calls.ListAnalysesRequest()).analyses
    assert [(each.name, each.summary) for each in got] == [(each["name"], each["about"]) for each in listed]
    assert {(o.name, o.default_value) for each in got for o in each.options} == {
        (name, str(value)) for each in listed for name, value in each["options"].items()
    }


def test_a_state_directory_named_from_where_the_server_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = trace(tmp_path / "a.json")
    monkeypatch.chdir(tmp_path)
    with serving(Path("state")) as server:
        assert server.wait(server.create(server.upload(path)).name).state == v1.Job.STATE_SUCCEEDED


def test_progress_names_every_stage(server: Server, tmp_path: Path) -> None:
    job = server.wait(server.create(server.upload(trace(tmp_path / "a.json"))).name)
    names = [stage.stage for stage in job.progress.stages]
    assert (names[0], names[-1]) == ("reading", "writing")
    assert job.progress.done_count == job.progress.total_count == len(names)
    assert all(stage.duration.ToMicroseconds() >= 0 for stage in job.progress.stages)
    rows = [what[2] for what in server.observer.told if what[:2] == ("stage", job.name.removeprefix("jobs/"))]
    assert rows == names
