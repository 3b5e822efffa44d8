"""Reports, diagnoses and comparisons of whole runs by a server: the bytes of the commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from in_process import SMALL, Server, refused, serving
from serving_process import augment

from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from simulator import JobOptions, simulate

SUCCEEDED = v1.Job.STATE_SUCCEEDED
NAME = "training"
Whole = dict[str, v1.Job]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders ``before`` and ``training``, of two ranks each."""
    top = tmp_path_factory.mktemp("runs")
    simulate(JobOptions(ranks=2, steps=2, layers=1, jitter=0.0), top / "before")
    simulate(JobOptions(ranks=2, steps=2, layers=1, jitter=0.0, slow_kernel="nvjet"), top / NAME)
    return top


@pytest.fixture(scope="module")
def whole(server: Server, runs: Path) -> Whole:
    """A job of each folder, done. Files that are no traces lie there, too."""
    jobs = {}
    for folder in sorted(runs.iterdir()):
        spec = v1.WholeJobSpec(inputs=uploads(server, folder), name=folder.name)
        jobs[folder.name] = ask(server, job=spec)
    jobs = {name: server.wait(job.name) for name, job in jobs.items()}
    assert all(job.failures for job in jobs.values())
    return jobs


def uploads(server: Server, folder: Path) -> list[v1.Input]:
    return [v1.Input(upload=server.upload(path)) for path in sorted(folder.iterdir())]


def ask(server: Server, **spec: Any) -> v1.Job:
    return server.stub.CreateJob(calls.CreateJobRequest(spec=v1.JobSpec(**spec))).job


def made(server: Server, job: v1.Job) -> dict[str, str]:
    done = server.wait(job.name)
    assert done.state == SUCCEEDED, done.error
    return {artifact.file_name: server.read(artifact.name).decode("utf-8", "replace") for artifact in done.artifacts}


def command(*args: object, code: int = 0) -> str:
    ended = augment(*args)
    assert ended.returncode == code, ended.stderr
    return ended.stdout


def test_a_report_of_a_whole_job(server: Server, runs: Path, whole: Whole, tmp_path: Path) -> None:
    command("report", runs / NAME, "-o", tmp_path / "page.html")
    files = made(server, ask(server, report=v1.ReportSpec(input=v1.Input(job=whole[NAME].name), markdown=True)))
    assert list(files) == [f"{NAME}.report.md", f"{NAME}.report.html"]
    assert files[f"{NAME}.report.html"] == (tmp_path / "page.html").read_text()
    assert files[f"{NAME}.report.md"].strip() == command("report", runs / NAME, "--markdown").strip()


def test_a_report_of_a_whole_job_in_folders(server: Server, runs: Path) -> None:
    inputs = uploads(server, runs / NAME)
    done = server.wait(ask(server, job=v1.WholeJobSpec(inputs=inputs, name=f"today/{NAME}")).name)
    files = made(server, ask(server, report=v1.ReportSpec(input=v1.Input(job=done.name))))
    assert list(files) == [f"{NAME}.report.html"]


def test_metrics_that_augment_does_not_write(server: Server, whole: Whole, tmp_path: Path) -> None:
    """A report and a diagnosis of them are refused, and are no bug of the server; others are diagnosed all the same."""
    name = next(a.name for a in whole[NAME].artifacts if a.file_name.startswith("rank0") and "metrics" in a.file_name)
    content = json.loads(server.read(name))
    good, bad = tmp_path / "good.metrics.json", []
    good.write_text(json.dumps(content))
    for number, analyses in enumerate(({"a<b": content["analyses"]["steps"]}, {"diagnosis": {"rows": [{"a": 1}]}})):
        bad.append(tmp_path / f"bad{number}.metrics.json")
        bad[-1].write_text(json.dumps({**content, "source": {}, "analyses": analyses}))
    given = [v1.Input(upload=server.upload(path)) for path in (*bad, good)]
    for each in given[:2]:
        for kind in ({"report": v1.ReportSpec(input=each)}, {"diagnose": v1.DiagnoseSpec(inputs=[each])}):
            assert server.wait(ask(server, **kind).name).error.reason == "UNKNOWN_FORMAT"
    job = server.wait(ask(server, diagnose=v1.DiagnoseSpec(inputs=given)).name)
    assert job.state == SUCCEEDED, job.error
    assert [(each.index, each.error.reason) for each in job.failures] == [(0, "UNKNOWN_FORMAT"), (1, "UNKNOWN_FORMAT")]


def test_a_report_of_a_trace(server: Server, runs: Path, tmp_path: Path) -> None:
    path = sorted((runs / NAME).iterdir())[0]
    command("report", path, "-o", tmp_path / "page.html")
    upload = v1.Input(upload=server.upload(path))
    files = made(server, ask(server, report=v1.ReportSpec(input=upload)))
    assert files == {"rank0.report.html": (tmp_path / "page.html").read_text()}
    earlier = server.wait(server.create(upload.upload).name)
    assert made(server, ask(server, report=v1.ReportSpec(input=v1.Input(job=earlier.name)))) == files
    with refused("JOB_NOT_DONE", "FAILED_PRECONDITION"):
        server.freeze()
        try:
            waiting = ask(server, report=v1.ReportSpec(input=upload))
            ask(server, report=v1.ReportSpec(input=v1.Input(job=waiting.name)))
        finally:
            server.thaw()
    server.wait(waiting.name)
    with refused("INVALID_REQUEST", "INVALID_ARGUMENT"):  # of a report there is none
        ask(server, report=v1.ReportSpec(input=v1.Input(job=waiting.name)))


def without_folders(lines: str) -> list[Any]:
    """What the command says of files in another folder."""
    content = [json.loads(line) for line in lines.splitlines()]
    return [{**each, "input": each["input"].rpartition("/")[2]} for each in content]


def test_a_diagnosis_of_traces(server: Server, runs: Path, tmp_path: Path) -> None:
    inputs = [v1.Input(upload=server.upload(path)) for path in sorted((runs / NAME).glob("*.gz"))]
    (tmp_path / "bad.json").write_text("no trace")
    bad = v1.Input(upload=server.upload(tmp_path / "bad.json"))
    files = made(server, ask(server, diagnose=v1.DiagnoseSpec(inputs=inputs, name=NAME)))
    wanted = command("diagnose", runs / NAME, "--json")
    assert [json.loads(line) for line in files["diagnosis.jsonl"].splitlines()] == without_folders(wanted)
    text = command("diagnose", runs / NAME, "--markdown")
    assert files["diagnosis.md"] == text.replace(f"{runs / NAME}/", "")
    job = server.wait(ask(server, diagnose=v1.DiagnoseSpec(inputs=[bad, *inputs], name=NAME)).name)
    assert [(failure.index, failure.error.reason) for failure in job.failures] == [(0, "UNKNOWN_FORMAT")]
    assert server.read(job.artifacts[-1].name).decode() == files["diagnosis.jsonl"]
    job = server.wait(ask(server, diagnose=v1.DiagnoseSpec(inputs=[bad])).name)
    assert job.error.reason == "UNKNOWN_FORMAT"


def test_a_diagnosis_of_a_job(server: Server, runs: Path, whole: Whole, tmp_path: Path) -> None:
    inputs = [v1.Input(job=whole[NAME].name)]
    files = made(server, ask(server, diagnose=v1.DiagnoseSpec(inputs=inputs)))
    command("run", runs / NAME, "-o", tmp_path)
    wanted = without_folders(command("diagnose", tmp_path, "--json"))
    content = [json.loads(line) for line in files["diagnosis.jsonl"].splitlines()]
    assert without_folders(files["diagnosis.jsonl"]) == wanted
    assert content[0]["input"] == f"{whole[NAME].name}/artifacts/job.metrics.json"


def test_an_earlier_job_counts_with_each_of_its_traces(server: Server, whole: Whole) -> None:
    """Repeated a thousand times, it was expanded a thousand times before anything was refused."""
    most = SMALL.max_job_inputs
    given = v1.Input(job=whole[NAME].name)
    for kind in (
        {"diagnose": v1.DiagnoseSpec(inputs=[given] * (most // 2 + 1))},
        {"job": v1.WholeJobSpec(inputs=[given] * (most // 2 + 1))},
        {"diff": v1.DiffSpec(test=given, control=given, tests=[given] * (most // 2))},
    ):
        with refused("INVALID_REQUEST", "INVALID_ARGUMENT") as errors:
            ask(server, **kind)
        assert f"more than {most} traces" in errors[0].message
    spec = v1.JobSpec(diagnose=v1.DiagnoseSpec(inputs=[given] * (most // 2)))
    server.stub.CreateJob(calls.CreateJobRequest(spec=spec, validate_only=True))
    server.freeze()
    try:
        waiting = ask(server, diagnose=v1.DiagnoseSpec(inputs=[given, given]))
        query = "SELECT bytes, LENGTH(made) AS made FROM parts WHERE job = ?"
        rows = server.core._storage.rows(query, waiting.name.removeprefix("jobs/"))
        assert [row["bytes"] > row["made"] > 0 for row in rows] == [True, True]
        server.stub.CancelJob(calls.CancelJobRequest(name=waiting.name))
    finally:
        server.thaw()


def test_whole_runs_compared(server: Server, runs: Path, whole: Whole, tmp_path: Path) -> None:
    sides = {"control": v1.Input(job=whole["before"].name), "test": v1.Input(job=whole[NAME].name)}
    files = ask(server, diff=v1.DiffSpec(**sides, label="before", name=NAME))
    command("diff", runs / "before", runs / NAME, "-o", tmp_path, "--label", "before", "--quiet")
    wanted = {path.name: path.read_bytes().decode("utf-8", "replace") for path in tmp_path.iterdir()}
    assert made(server, files) == wanted
    job = ask(server, diff=v1.DiffSpec(**sides, label="before", name=NAME, control_rank=1, test_rank=0))
    out = tmp_path / "one"
    command("diff", runs / "before", runs / NAME, "-o", out, "--label", "before", "--quiet", "--control-rank", 1,
            "--test-rank", 0)  # fmt: skip
    wanted = {path.name: path.read_bytes().decode("utf-8", "replace") for path in out.iterdir()}
    assert made(server, job) == wanted


def test_an_earlier_job_augmented_again(server: Server, whole: Whole) -> None:
    """Of one trace: with other formats. Of several: that is another kind of job."""
    upload = next(iter(whole[NAME].spec.job.inputs))
    earlier = server.wait(server.create(upload.upload).name)
    spec = v1.AugmentSpec(input=v1.Input(job=earlier.name), formats=["chrome"])
    assert "rank0.augmented.json.gz" in made(server, ask(server, augment=spec))
    with pytest.raises(grpc.RpcError, match="use spec"):
        ask(server, augment=v1.AugmentSpec(input=v1.Input(job=whole[NAME].name)))
