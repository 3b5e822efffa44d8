"""What a server makes of two traces is, byte for byte, what ``augment diff`` makes of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from in_process import Server, serving, trace
from serving_process import augment

from augment.client import Client
from augment.errors import MalformedTrace, UsageError
from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from simulator import JobOptions, simulate

NAME = "rank0.pt.trace.json.gz"  #: of both


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Control and test."""
    folder = tmp_path_factory.mktemp("traces")
    simulate(JobOptions(ranks=1, steps=2, layers=1, jitter=0.0), folder / "control")
    simulate(JobOptions(ranks=1, steps=2, layers=1, jitter=0.0, slow_kernel="nvjet"), folder / "test")
    return folder / "control" / NAME, folder / "test" / NAME


def create(server: Server, control: v1.Input, test: v1.Input, **spec: Any) -> v1.Job:
    wanted = v1.JobSpec(diff=v1.DiffSpec(control=control, test=test, **spec))
    return server.stub.CreateJob(calls.CreateJobRequest(spec=wanted)).job


def uploaded(server: Server, path: Path) -> v1.Input:
    return v1.Input(upload=server.upload(path))


def by_the_command(traces: tuple[Path, Path], out: Path, *flags: object) -> dict[str, bytes]:
    ended = augment("diff", *traces, "-o", out, "--quiet", *flags)
    assert ended.returncode == 0, ended.stderr
    return {each.name: each.read_bytes() for each in out.iterdir()}


def test_the_files_are_the_commands(server: Server, traces: tuple[Path, Path], tmp_path: Path) -> None:
    inputs = [uploaded(server, path) for path in traces]
    plain = server.wait(create(server, *inputs).name)
    made = {artifact.file_name: server.read(artifact.name) for artifact in plain.artifacts}
    assert list(made) == ["rank0.diff.pftrace", "rank0.diff.metrics.json"]
    assert made == by_the_command(traces, tmp_path / "plain")
    flags = ("--to", "perfetto", "--overlay", "--label", "before", "--min-delta-us", 0, "--arrows", 3, "--step", "0:1",
             "--short-names", "--functions")  # fmt: skip
    asked = server.wait(
        create(
            server,
            *inputs,
            formats=["perfetto"],
            overlay=True,
            label="before",
            min_delta_us=0,
            arrow_count=3,
            steps=v1.StepPair(control=0, test=1),
            short_names=True,
            functions=True,
        ).name
    )
    made = {artifact.file_name: server.read(artifact.name) for artifact in asked.artifacts}
    assert list(made) == ["rank0.diff.pftrace", "rank0.diff.overlay.pftrace", "rank0.diff.metrics.json"]
    assert made == by_the_command(traces, tmp_path / "asked", *flags)
    metrics = list(server.stub.GetMetrics(calls.GetMetricsRequest(name=asked.name, analyses=["diff_steps"])))
    assert '"control_step":0,"test_step":1' in metrics[0].metrics.json_rows[0]


def test_files_of_the_servers(traces: tuple[Path, Path], tmp_path: Path) -> None:
    wanted = by_the_command(traces, tmp_path / "out")
    with serving(tmp_path / "state", roots=(traces[0].parents[1],)) as server:
        job = server.wait(create(server, v1.Input(uri=str(traces[0])), uploaded(server, traces[1])).name)
        assert {artifact.file_name: server.read(artifact.name) for artifact in job.artifacts} == wanted
        job = server.wait(create(server, uploaded(server, traces[0]), v1.Input(uri=traces[1].as_uri())).name)
        assert {artifact.file_name: server.read(artifact.name) for artifact in job.artifacts} == wanted


def test_by_the_client(server: Server, traces: tuple[Path, Path], tmp_path: Path) -> None:
    output: list[str] = []
    with Client(server.address) as client:
        got = client.diff(*traces, out=tmp_path / "there", overlay=True, step=1, min_delta_us=2,
                          progress=lambda stage, _done, _of: output.append(stage))  # fmt: skip
    wanted = by_the_command(traces, tmp_path / "here", "--overlay", "--step", 1, "--min-delta-us", 2)
    assert {file.name: file.read_bytes() for file in got.files} == wanted
    assert got.metrics["compared"][0]["test"]["steps"] == [1]
    assert output[0] == "sending"
    assert output[-1] == "fetching"
    assert not server.stub.ListJobs(calls.ListJobsRequest(states=[v1.Job.STATE_RUNNING])).jobs


def test_whose_fault_it_is(server: Server, traces: tuple[Path, Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1, "pid": 1, "tid": 1}, nonsense')
    for inputs, name in (((broken, traces[1]), "broken.json"), ((traces[0], broken), "broken.json")):
        job = server.wait(create(server, *(uploaded(server, each) for each in inputs)).name)
        assert job.error.reason == "MALFORMED_TRACE"
        assert job.error.message.startswith(name)
    with Client(server.address) as client:
        with pytest.raises(MalformedTrace):
            client.diff(broken, traces[1], out=tmp_path)
        with pytest.raises(UsageError, match="has no step 9"):
            client.diff(*traces, step=9, out=tmp_path)
        with pytest.raises(UsageError, match="no writer"):
            client.diff(*traces, formats=["nonsense"], out=tmp_path)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"min_delta_us": -1}, "min_delta_us"),
        ({"arrow_count": 10**9}, "arrow_count"),
        ({"label": "x" * 201}, "label"),
        ({"label": "a\nb"}, "label"),
        ({"formats": ["chrome", "chrome"]}, "named twice"),
    ],
)
def test_what_is_refused(server: Server, traces: tuple[Path, Path], spec: dict[str, Any], reason: str) -> None:
    inputs = [uploaded(server, path) for path in traces]
    with pytest.raises(grpc.RpcError, match=reason):
        create(server, *inputs, **spec)


def test_both_inputs_must_be_there(server: Server, traces: tuple[Path, Path]) -> None:
    there = uploaded(server, traces[0])
    for inputs in ((there, v1.Input()), (v1.Input(), there)):
        with pytest.raises(grpc.RpcError, match="must be an upload, a uri or an earlier job"):
            create(server, *inputs)
    with pytest.raises(grpc.RpcError, match="there is no such upload"):
        create(server, v1.Input(upload="uploads/0"), there)


def test_a_control_that_is_needed_stays(traces: tuple[Path, Path], tmp_path: Path) -> None:
    """What removes old uploads leaves the contents of both inputs alone as long as the job waits or runs."""
    control = trace(tmp_path / "control.json")
    with serving(tmp_path / "state") as server:
        frozen = server.freeze()
        job = create(server, uploaded(server, control), uploaded(server, traces[1]))
        blobs = tmp_path / "state" / "blobs"
        for upload in server.core._storage.rows("SELECT id, touched_ns FROM uploads"):
            server.core._retention.remove_upload(upload["id"])
        server.core._retention._drop_contents()
        assert len(list(blobs.iterdir())) == 2
        for pid in frozen:
            os.kill(pid, 18)  # SIGCONT
        assert server.wait(job.name).state == v1.Job.STATE_SUCCEEDED
        server.core._retention._drop_contents()
        assert not list(blobs.iterdir())
