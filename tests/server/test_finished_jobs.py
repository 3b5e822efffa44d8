"""What is asked of finished jobs: checks, histories, parts, timelines; the answers are those of the commands."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from in_process import Server, refused, serving, violated
from in_process import trace as small
from serving_process import augment

from augment.client import Client
from augment.compare.gate import limits_of
from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from simulator import JobOptions, simulate

SUCCEEDED, FAILED = v1.Job.STATE_SUCCEEDED, v1.Job.STATE_FAILED
ONLY = ["steps", "step_figures", "temporal_breakdown"]
FEW = ("--only", ",".join(ONLY))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "state") as running:
        yield running


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Path]]:
    """The traces of a job, each made once."""
    made: dict[str, list[Path]] = {}

    def of(name: str, **options: Any) -> list[Path]:
        if name not in made:
            folder = tmp_path_factory.mktemp("traces") / name
            simulate(JobOptions(**{"ranks": 1, "steps": 6, "layers": 1, **options}), folder)
            made[name] = sorted(folder.glob("*.json.gz"))
        return made[name]

    return of


def asked(server: Server, spec: v1.JobSpec, how: dict[str, Any] | None = None, **more: Any) -> v1.Job:
    """A job of this spec, once it has ended."""
    created = server.stub.CreateJob(calls.CreateJobRequest(spec=spec, **more), **(how or {})).job
    *_, last = server.stub.WatchJob(calls.WatchJobRequest(name=created.name), **(how or {}))
    return last.job


def done(server: Server, path: Path, **more: Any) -> str:
    """The name of a job that has converted a trace."""
    spec = v1.AugmentSpec(input=v1.Input(upload=server.upload(path)), only=ONLY)
    job = asked(server, v1.JobSpec(augment=spec), **more)
    assert job.state == SUCCEEDED, job.error
    return job.name


def files(server: Server, job: v1.Job) -> dict[str, bytes]:
    assert job.state == SUCCEEDED, job.error
    return {artifact.file_name: server.read(artifact.name) for artifact in job.artifacts}


def test_a_check_says_what_the_command_says(server: Server, traces: Callable[..., list[Path]], tmp_path: Path) -> None:
    """Of jobs, of uploaded metrics and of traces."""
    (before,), (after,) = traces("before"), traces("after", work=1.3)
    for path in (before, after):
        assert augment("run", path, "-o", tmp_path, "--quiet", *FEW).returncode == 0
    metrics = {path: tmp_path / f"{path.name.partition('.')[0]}.metrics.json" for path in (before, after)}
    if before.name == after.name:  # in different folders
        assert augment("run", before, "-o", tmp_path / "b", "--quiet", *FEW).returncode == 0
        metrics[before] = tmp_path / "b" / metrics[before].name
    wanted = augment("check", metrics[after], "--baseline", metrics[before], "--json")
    lines = list(map(json.loads, wanted.stdout.splitlines()))
    assert wanted.returncode == 1
    jobs = {path: done(server, path) for path in (before, after)}
    inputs = (
        (v1.Input(job=jobs[before]), v1.Input(job=jobs[after])),
        (v1.Input(upload=server.upload(metrics[before])), v1.Input(job=jobs[after])),
        (v1.Input(upload=server.upload(before)), v1.Input(upload=server.upload(after))),
    )
    for baseline, test in inputs:
        job = asked(server, v1.JobSpec(check=v1.CheckSpec(tests=[test], baselines=[baseline])))
        made = files(server, job)
        content = json.loads(made["check.json"])
        assert content["status"] == "fail"
        if not (baseline.upload and test.upload):
            assert content["figures"] == lines
        assert made["check.md"].startswith(b"### rank0 against rank0")
        assert b"<failure " in made["check.xml"]
        assert list(made)[-1] == "check.json"
    same = v1.CheckSpec(tests=[v1.Input(job=jobs[after])], baselines=[v1.Input(job=jobs[after])])
    assert json.loads(files(server, asked(server, v1.JobSpec(check=same)))["check.json"])["status"] == "pass"
    same.metrics["wall_ns"] = "1ns"
    assert json.loads(files(server, asked(server, v1.JobSpec(check=same)))["check.json"])["status"] == "fail"
    same.metrics["wall_ns"] = "off"
    assert json.loads(files(server, asked(server, v1.JobSpec(check=same)))["check.json"])["status"] == "pass"


def an_hour_later(path: Path, out: Path, hours: int) -> Path:
    text = gzip.decompress(path.read_bytes())
    later = re.sub(rb'("ts":\s*)(\d+)', lambda at: b"%s%d" % (at[1], int(at[2]) + hours * 3600 * 10**6), text)
    out.write_bytes(gzip.compress(later))
    return out


def test_a_history(server: Server, traces: Callable[..., list[Path]], tmp_path: Path) -> None:
    """The jobs with a label in order, with the figures and the changes; a run judged against them."""
    slow = {5, 6, 7}
    names = []
    for number in range(8):
        (path,) = traces(f"run{number}", seed=number, jitter=0.01, work=1.5 if number in slow else 1.0)
        path = an_hour_later(path, tmp_path / f"{number}.json.gz", number)
        names.append(done(server, path, labels={"suite": "nightly", "run": f"n{number}"}, display_name=f"d{number}"))
    done(server, traces("run0")[0], labels={"suite": "nightly2", "xsuite": "nightly"})
    spec = v1.JobSpec(history=v1.HistorySpec(labels={"suite": "nightly"}))
    content = json.loads(files(server, asked(server, spec))["history.json"])
    assert [run["job"] for run in content["runs"]] == names
    assert [run["name"] for run in content["runs"]] == [f"n{number}" for number in range(8)]
    assert [change["job"] for change in content["changes"] if change["figure"] == "wall_ns"] == [names[5]]
    assert all(run["figures"]["wall_ns"]["step_count"] == 6 for run in content["runs"])
    with Client(server.address) as client:
        runs, changes = client.history({"suite": "nightly"}, limit=3)
        assert {run["job"] for run in runs} == set(names[-3:])
        assert changes == []
        checked = client.check([names[4]], labels={"suite": "nightly"}, limits=limits_of({"max_regress": "20%"}))
        assert checked.baseline == "7 jobs of this server"
        assert checked.lines[0].reason == "3 runs since n5, where it changed; 5 make a baseline"
        server.stub.UpdateJob(calls.UpdateJobRequest(name=names[7], labels={"suite": "weekly"}))
        server.stub.DeleteJob(calls.DeleteJobRequest(name=names[6]))
        for labels, which in (({}, names[:6]), ({"run": "n3"}, names[3:4])):
            assert [run["job"] for run in client.history({"suite": "nightly", **labels})[0]] == which


def test_a_label_that_nobody_has(server: Server, traces: Callable[..., list[Path]]) -> None:
    job = v1.Input(job=done(server, traces("run0")[0], labels={"a": "b"}))
    check, history = v1.CheckSpec, v1.HistorySpec
    bad = {
        "spec.history.labels": v1.JobSpec(history=history(labels={"a": 'b","c":"d'})),
        "spec.history.limit": v1.JobSpec(history=history(labels={"a": "b"}, limit=2000)),
        "spec.check.history.labels": v1.JobSpec(check=check(tests=[job], history=history(labels={"b": "b"}))),
        "spec.check.baselines": v1.JobSpec(check=v1.CheckSpec(tests=[job])),
        "spec.check.tests": v1.JobSpec(check=v1.CheckSpec(baselines=[job])),
        "spec.check.baselines[0].job": v1.JobSpec(check=check(tests=[job], baselines=[v1.Input(job="jobs/nothing")])),
        "spec.check.max_regress": v1.JobSpec(check=v1.CheckSpec(tests=[job], baselines=[job], max_regress="80ms")),
        "spec.check.metrics": v1.JobSpec(check=v1.CheckSpec(tests=[job], baselines=[job], metrics={"no": ""})),
        "spec.check.alpha": v1.JobSpec(check=v1.CheckSpec(tests=[job], baselines=[job], alpha=1.5)),
        "spec.cut.steps": v1.JobSpec(cut=v1.CutSpec(input=job)),
        "spec.cut.period": v1.JobSpec(cut=v1.CutSpec(input=job, period=v1.Period())),
        "spec.cut.format": v1.JobSpec(cut=v1.CutSpec(input=job, drop=["kernel"], format="bundle")),
        "spec.cut.input": v1.JobSpec(cut=v1.CutSpec(drop=["kernel"])),
    }
    for field, spec in bad.items():
        with violated(field):
            server.stub.CreateJob(calls.CreateJobRequest(spec=spec))


@pytest.mark.usefixtures("both_catalogs")
def test_other_projects_stay_unseen(server: Server, traces: Callable[..., list[Path]]) -> None:
    """Neither by the name of a job, in whichever form, nor by a label."""
    path = traces("run0")[0]
    eve = {"metadata": (("client", "name:eve"), ("roles", json.dumps({"": "admin"})))}
    ours = done(server, path, labels={"suite": "nightly"})
    start = calls.StartUploadRequest(file_name=path.name)
    sent = iter([calls.UploadTraceRequest(start=start), calls.UploadTraceRequest(chunk=path.read_bytes(), finish=True)])
    upload = server.stub.UploadTrace(sent, **eve).upload.name
    spec = v1.JobSpec(augment=v1.AugmentSpec(input=v1.Input(upload=upload), only=ONLY))
    hers = asked(server, spec, eve)
    assert hers.state == SUCCEEDED
    for name in (ours, f"projects/team/{ours}"):
        given, test = v1.Input(job=name), v1.Input(job=hers.name)
        for spec in (
            v1.JobSpec(check=v1.CheckSpec(tests=[test], baselines=[given])),
            v1.JobSpec(check=v1.CheckSpec(tests=[given], baselines=[test])),
            v1.JobSpec(cut=v1.CutSpec(input=given, drop=["kernel"])),
            v1.JobSpec(job=v1.WholeJobSpec(inputs=[given], merge=v1.MergeSpec(only=True))),
        ):
            reason = ("NOT_FOUND", "NOT_FOUND") if name == ours else ("INVALID_REQUEST", "INVALID_ARGUMENT")
            with refused(*reason):
                server.stub.CreateJob(calls.CreateJobRequest(spec=spec), **eve)
    with violated("spec.history.labels"):
        spec = v1.JobSpec(history=v1.HistorySpec(labels={"suite": "nightly"}))
        server.stub.CreateJob(calls.CreateJobRequest(spec=spec), **eve)


def test_parts_of_traces(server: Server, traces: Callable[..., list[Path]], tmp_path: Path) -> None:
    """Byte for byte what the command writes."""
    path = traces("run0")[0]
    for suffix, flags, spec in (
        (".json.gz", ("--steps", "2-3"), v1.CutSpec(steps=v1.StepRange(first=2, last=3))),
        (".pftrace", ("--drop", "gpu_memcpy"), v1.CutSpec(drop=["gpu_memcpy"], format="perfetto")),
    ):
        wanted = tmp_path / f"wanted{suffix}"
        assert augment("cut", path, "-o", wanted, *flags).returncode == 0
        spec.input.job = done(server, path)
        made = files(server, asked(server, v1.JobSpec(cut=spec)))
        assert made == {f"rank0.cut{suffix}": wanted.read_bytes()}
    spec = v1.CutSpec(input=spec.input)
    spec.period.end.FromMilliseconds(3)
    (name,) = files(server, asked(server, v1.JobSpec(cut=spec)))
    assert name == "rank0.cut.json.gz"
    none = v1.CutSpec(input=spec.input, steps=v1.StepRange(first=900, last=901))
    failed = asked(server, v1.JobSpec(cut=none))
    assert (failed.state, failed.error.reason) == (FAILED, "USAGE")
    assert "/tmp" not in failed.error.message
    cut = asked(server, v1.JobSpec(cut=spec))
    with violated("spec.report.input.job"):
        server.stub.CreateJob(
            calls.CreateJobRequest(spec=v1.JobSpec(report=v1.ReportSpec(input=v1.Input(job=cut.name))))
        )


@pytest.mark.usefixtures("both_catalogs")
def test_one_timeline_of_finished_jobs(server: Server, traces: Callable[..., list[Path]], tmp_path: Path) -> None:
    """Byte for byte that of ``augment run --merge -o FILE``; nothing is converted again, nothing else is made."""
    paths = traces("ranks", ranks=2, steps=2)
    out, there = tmp_path / "wanted.pftrace", tmp_path / "there.pftrace"
    assert augment("run", paths[0].parent, "--merge", "-o", out, "--quiet", *FEW).returncode == 0
    jobs = [done(server, path) for path in paths]
    spec = v1.WholeJobSpec(
        inputs=[v1.Input(job=job) for job in jobs], augment=v1.AugmentSpec(only=ONLY), merge=v1.MergeSpec(only=True)
    )
    job = asked(server, v1.JobSpec(job=spec))
    assert files(server, job) == {"job.augmented.pftrace": out.read_bytes()}
    assert "converting" not in {stage.stage for stage in job.progress.stages}
    assert all(note.startswith("job.augmented.pftrace: ") for note in job.notes)
    sent = server.upload(paths[1], paths[0].name)  # ranks of one name
    alike = asked(server, v1.JobSpec(augment=v1.AugmentSpec(input=v1.Input(upload=sent), only=ONLY)))
    spec.inputs[1].job = alike.name
    assert b'["rank 1",' in files(server, asked(server, v1.JobSpec(job=spec)))["job.augmented.pftrace"]
    for inputs in (jobs, [paths[0].parent]):
        ended = augment("run", *inputs, "--merge", "-o", there, "--server", server.address, *FEW)
        assert (ended.returncode, ended.stdout) == (0, f"{there}\n"), ended.stderr
        assert there.read_bytes() == out.read_bytes()
        there.unlink()


def test_ranks_are_chosen(server: Server, traces: Callable[..., list[Path]], tmp_path: Path) -> None:
    """Of a job, of its timeline, and of a file with several: byte for byte what the command writes here."""
    folder = traces("ranks", ranks=2, steps=2)[0].parent
    timeline, several = tmp_path / "job.pftrace", tmp_path / "several.json"
    assert augment("run", folder, "--merge", "-o", timeline, "--quiet", *FEW).returncode == 0
    events = [
        {**event, "pid": f"[TP{rank:02}] {event['pid']}"}
        for rank, path in enumerate(sorted(folder.glob("*.json.gz")))
        for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        if "pid" in event
    ]
    several.write_text(json.dumps({"traceEvents": events}))
    inputs = [v1.Input(upload=server.upload(path)) for path in sorted(folder.glob("*.json.gz"))]
    spec = v1.WholeJobSpec(inputs=inputs, augment=v1.AugmentSpec(only=ONLY))
    whole = asked(server, v1.JobSpec(job=spec)).name

    def both(command: str, here: object, there: object, out: str, *flags: object) -> None:
        places = tmp_path / "here" / out, tmp_path / "there" / out
        for given, place, more in ((here, places[0], ()), (there, places[1], ("--server", server.address))):
            place.parent.mkdir(exist_ok=True)
            ended = augment(command, given, *flags, "-o", place, *more)
            assert ended.returncode == 0, ended.stderr
        made = [[path.read_bytes() for path in sorted((each, *each.rglob("*"))) if path.is_file()] for each in places]
        assert made[0] == made[1]

    both("cut", folder, whole, "one", "--ranks", "1")
    both("cut", folder, whole, "all", "--ranks", "0-1,7", "--steps", "1")
    both("cut", timeline, timeline, "rank1.pftrace", "--ranks", "1")
    both("cut", several, several, "parts", "--part")
    both("cut", several, several, "part", "--part", "--ranks", "1-99999999999")
    both("run", folder, whole, "one.pftrace", "--merge", "--ranks", "1", *FEW)
    assert len(os.listdir(tmp_path / "there" / "parts")) == 2
    for given, flags, why in (
        (whole, ("--ranks", "7"), "no trace of these ranks among 2 files of ranks 0-1"),
        (timeline, ("--ranks", "7"), "has none of these, only rank 0, rank 1"),
        (several, ("--part", "--ranks", "7"), "has none of these, only 0, 1"),
        (timeline, ("--steps", "1"), "is the timeline of a job"),
        (several, ("--ranks", "1"), "is the trace of one process"),
        (whole, ("--part",), "takes one file with several ranks; there are 2"),
    ):
        ended = augment("cut", given, "-o", tmp_path / "x.pftrace", *flags, "--server", server.address)
        assert ended.returncode in (2, 3), ended.stderr
        assert why in ended.stderr
        assert "/state/" not in ended.stderr
    bad = v1.CutSpec(input=inputs[0], ranks=[v1.RankRange(first=2, last=1)])
    merged = v1.WholeJobSpec(inputs=inputs, merge=v1.MergeSpec(ranks=[v1.RankRange()]))
    for field, each in (
        ("spec.cut.ranks", v1.JobSpec(cut=bad)),
        ("spec.cut.part", v1.JobSpec(cut=v1.CutSpec(input=inputs[0], part=True, drop=["kernel"]))),
        ("spec.job.merge.ranks", v1.JobSpec(job=merged)),
    ):
        with violated(field):
            server.stub.CreateJob(calls.CreateJobRequest(spec=each))


@pytest.mark.usefixtures("both_catalogs")
def test_the_commands_take_jobs(server: Server, traces: Callable[..., list[Path]], tmp_path: Path) -> None:
    (before,), (after,) = traces("before"), traces("after", work=1.3)
    jobs = [done(server, path, labels={"suite": "nightly"}) for path in (before, after)]
    there = ("--server", f"grpc://{server.address}")
    ended = augment("check", jobs[1], "--baseline", jobs[0], "--junit", tmp_path / "check.xml", *there)
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout.startswith("FAIL ")
    assert "<failure " in (tmp_path / "check.xml").read_text()
    assert augment("check", before, "--baseline", before, "--quiet", *there).returncode == 0
    ended = augment("check", after, "--label", "suite=nightly", *there)
    assert ended.returncode == 4, ended.stderr
    assert "5 make a baseline" in ended.stdout
    ended = augment("history", "show", "--label", "suite=nightly", "--json", *there)
    assert len(ended.stdout.splitlines()) == 2, ended.stderr
    assert "2 runs" in augment("history", "list", "--label", "suite=nightly", *there).stdout
    assert augment("history", "show").returncode == 2
    for sides, name in (((jobs[0], after), "rank0"), ((before, jobs[1]), jobs[1][5:]), (jobs, jobs[1][5:])):
        ended = augment("diff", *sides, "-o", tmp_path / "diff", "--quiet", *there)
        wanted = [str(tmp_path / "diff" / f"{name}.diff{suffix}") for suffix in (".pftrace", ".metrics.json")]
        assert ended.stdout.splitlines() == wanted, ended.stderr
    ended = augment("cut", jobs[0], "--steps", "1", "-o", tmp_path / "cut.json.gz", *there)
    assert (ended.returncode, ended.stdout) == (0, f"{tmp_path / 'cut.json.gz'}\n"), ended.stderr
    whole = asked(
        server,
        v1.JobSpec(job=v1.WholeJobSpec(inputs=[v1.Input(job=jobs[0], file_name="a/b.json")], augment={"only": ONLY})),  # type: ignore[arg-type]
    )
    ended = augment("cut", whole.name, "--steps", "1", "-o", tmp_path / "cut", *there)
    assert os.listdir(tmp_path / "cut" / "a") == ["b.cut.json.gz"], ended.stderr
    listed = server.stub.ListJobs(calls.ListJobsRequest()).jobs
    assert {job.spec.WhichOneof("kind") for job in listed} == {"augment", "job"}  # no other one is left


def test_a_hostile_metrics_file(server: Server, traces: Callable[..., list[Path]], tmp_path: Path) -> None:
    """It fails the check, and tells nothing of the server."""
    job = v1.Input(job=done(server, traces("run0")[0]))
    texts = (
        '{"schema_version": 1, "source": {}, "analyses": {"steps": {"rows": [{}]}}, "diagnostics": []}',
        '{"schema_version"' + "[" * 10_000,
        '{"schema_version": 1, "source": {"devices": 3}, "analyses": {"steps": {"rows": [{"step": "x"}]}}}',
    )
    for number, text in enumerate(texts):
        path = tmp_path / f"bad{number}.metrics.json"
        path.write_text(text)
        spec = v1.CheckSpec(tests=[job], baselines=[v1.Input(upload=server.upload(path))])
        failed = asked(server, v1.JobSpec(check=spec))
        assert (failed.state, failed.attempt_count) == (FAILED, 1)
        assert "/tmp" not in failed.error.message
        assert failed.error.reason != "INTERNAL", failed.error
    spec = v1.CheckSpec(tests=[job], baselines=[v1.Input(upload=server.upload(small(tmp_path / "small.json")))])
    assert asked(server, v1.JobSpec(check=spec)).state == SUCCEEDED
