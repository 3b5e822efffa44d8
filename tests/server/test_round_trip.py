"""What a server makes, of a trace or of whole runs, is byte for byte what the commands make."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import grpc
import pytest
from in_process import SMALL, Server, chunks, refused, serving, trace
from serving_process import augment

from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from simulator import JobOptions, simulate


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


SUCCEEDED = v1.Job.STATE_SUCCEEDED
NAME = "training"
Whole = dict[str, v1.Job]


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
    named = f"augment open {runs / NAME}"  # which a server does not know
    assert files[f"{NAME}.report.html"] == (tmp_path / "page.html").read_text().replace(named, "augment open FOLDER")
    local = command("report", runs / NAME, "--markdown").replace(named, "augment open FOLDER")
    assert files[f"{NAME}.report.md"].strip() == local.strip()


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
    page = (tmp_path / "page.html").read_text()
    assert files == {"rank0.report.html": page.replace(str(path), path.name)}, "commands open what was named"
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


PAIR_NAME = "rank0.pt.trace.json.gz"  #: of both


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Control and test."""
    folder = tmp_path_factory.mktemp("traces")
    simulate(JobOptions(ranks=1, steps=2, layers=1, jitter=0.0), folder / "control")
    simulate(JobOptions(ranks=1, steps=2, layers=1, jitter=0.0, slow_kernel="nvjet"), folder / "test")
    return folder / "control" / PAIR_NAME, folder / "test" / PAIR_NAME


def compare(server: Server, control: v1.Input, test: v1.Input, **spec: Any) -> v1.Job:
    wanted = v1.JobSpec(diff=v1.DiffSpec(control=control, test=test, **spec))
    return server.stub.CreateJob(calls.CreateJobRequest(spec=wanted)).job


def input_of(server: Server, path: Path) -> v1.Input:
    return v1.Input(upload=server.upload(path))


def compared_by_the_command(pair: tuple[Path, Path], out: Path, *flags: object) -> dict[str, bytes]:
    ended = augment("diff", *pair, "-o", out, "--quiet", *flags)
    assert ended.returncode == 0, ended.stderr
    return {each.name: each.read_bytes() for each in out.iterdir()}


def test_comparisons_are_the_commands(server: Server, pair: tuple[Path, Path], tmp_path: Path) -> None:
    inputs = [input_of(server, path) for path in pair]
    plain = server.wait(compare(server, *inputs).name)
    made = {artifact.file_name: server.read(artifact.name) for artifact in plain.artifacts}
    assert list(made) == ["rank0.diff.pftrace", "rank0.diff.metrics.json"]
    assert made == compared_by_the_command(pair, tmp_path / "plain")
    asked = server.wait(compare(server, *inputs, steps=v1.StepPair(control=0, test=1), formats=["chrome"]).name)
    metrics = list(server.stub.GetMetrics(calls.GetMetricsRequest(name=asked.name, analyses=["diff_steps"])))
    assert '"control_step":0,"test_step":1' in metrics[0].metrics.json_rows[0]


def test_files_of_the_servers(pair: tuple[Path, Path], tmp_path: Path) -> None:
    wanted = compared_by_the_command(pair, tmp_path / "out")
    with serving(tmp_path / "state", roots=(pair[0].parents[1],)) as server:
        job = server.wait(compare(server, v1.Input(uri=str(pair[0])), input_of(server, pair[1])).name)
        assert {artifact.file_name: server.read(artifact.name) for artifact in job.artifacts} == wanted
        job = server.wait(compare(server, input_of(server, pair[0]), v1.Input(uri=pair[1].as_uri())).name)
        assert {artifact.file_name: server.read(artifact.name) for artifact in job.artifacts} == wanted


def test_a_control_that_is_needed_stays(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """What removes old uploads leaves the contents of both inputs alone as long as the job waits or runs."""
    control = trace(tmp_path / "control.json")
    with serving(tmp_path / "state") as server:
        frozen = server.freeze()
        job = compare(server, input_of(server, control), input_of(server, pair[1]))
        for upload in server.core._storage.rows("SELECT id, touched_ns FROM uploads"):
            server.core._retention.remove_upload(upload["id"])
        server.core._retention._drop_contents()
        assert len(server.stored("blobs")) == 2
        for pid in frozen:
            os.kill(pid, 18)  # SIGCONT
        assert server.wait(job.name).state == v1.Job.STATE_SUCCEEDED
        server.core._retention._drop_contents()
        assert not server.stored("blobs")
