"""Nothing that a client names leaves its folder: hostile texts in every field of every request, and each wall alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from curl import curl
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from in_process import Server, eventually, outputs, refused, serving, trace
from serving_process import ROOT
from serving_process import serving as serving_process

from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment_server.base import confinement
from augment_server.storage.roots import OutsideFolder, open_inside, place_inside, steps_of

SERVICE = calls.DESCRIPTOR.services_by_name["AugmentService"]
MARK = "hostile-name"
#: what a client may put into a text, by what it would reach; {outside} is a folder beside the server's
HOSTILE = {
    "up": f"../{MARK}",
    "far up": "../" * 20 + "{outside}" + f"/{MARK}.pth",
    "up within": f"a/../../../{MARK}",
    "absolute": "{outside}" + f"/{MARK}",
    "device": "/dev/null",
    "link": "/proc/self/cwd/" + MARK,
    "zero": f"{MARK}\0.json",
    "control": f"{MARK}\n\x1b[2J.json",
    "direction": f"{MARK}\u202egpj.json",
    "long": MARK * 417,
    "this": ".",
    "parent": "..",
    "windows": "..\\" + MARK,
}
NEVER_TAKEN = ("zero", "control", "direction", "long")
#: texts for people or for comparison, of which no path is ever made, and file names whose folders are removed
FREE = {"display_name", "labels", "label", "region", "request_id", "file_name", "content_type"}
CARD = {"display_name", "labels", "request_id"}  #: the same whatever the job does
REFUSALS = {"INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "FAILED_PRECONDITION", "ALREADY_EXISTS"}
Way = tuple[FieldDescriptor, ...]


def ways(message: Descriptor, before: Way = ()) -> Iterator[Way]:
    """The way to each text of a request, through the messages in it."""
    for field in message.fields:
        if field.type == field.TYPE_STRING:
            yield (*before, field)
        elif field.message_type and field.message_type not in (step.message_type for step in before):
            yield from ways(field.message_type, (*before, field))


WAYS = {method.name: list(ways(method.input_type)) for method in SERVICE.methods}
UNARY = [method.name for method in SERVICE.methods if not method.client_streaming]


def put(message: Any, way: Way, text: str) -> None:
    """Set a text of a message."""
    for at, field in enumerate(way):
        last = at == len(way) - 1
        value = getattr(message, field.name)
        if field.message_type and field.message_type.GetOptions().map_entry:
            plain = field.message_type.fields_by_name["value"].type != FieldDescriptor.TYPE_STRING
            value[text if way[at + 1].name == "key" else "key"] = 1 if plain else text
            return
        if last and isinstance(value, str):
            setattr(message, field.name, text)
        elif last:
            value.append(text)
        else:
            message = value if isinstance(value, Message) else (value[0] if len(value) else value.add())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("names")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    (folder / "outside").mkdir()
    (folder / "roots").mkdir()
    trace(folder / "roots" / "served.json")
    with serving(folder / "state", roots=(folder / "roots",), max_client_jobs=1000) as running:
        yield running


@pytest.fixture(scope="module")
def upload(server: Server, folder: Path) -> str:
    return server.upload(trace(folder / "given" / "rank0.json"))


@pytest.fixture(scope="module")
def earlier(server: Server, upload: str) -> str:
    job = server.wait(server.create(upload, only=["temporal_breakdown"], summaries=True).name)
    assert job.state == v1.Job.STATE_SUCCEEDED
    return job.name


@pytest.fixture(scope="module")
def bases(upload: str, earlier: str, folder: Path) -> dict[str, list[Message]]:
    """Requests without fault, for each method: what is hostile in them is the one text that a test puts in."""
    quick = v1.AugmentSpec(only=["temporal_breakdown"])
    sources = [v1.Input(upload=upload), v1.Input(job=earlier), v1.Input(uri=str(folder / "roots" / "served.json"))]
    specs = [v1.JobSpec(augment=v1.AugmentSpec(input=source, only=["temporal_breakdown"])) for source in sources]
    specs += [v1.JobSpec(job=v1.WholeJobSpec(augment=quick, inputs=[source])) for source in sources]
    specs += [v1.JobSpec(diff=v1.DiffSpec(control=sources[1], test=sources[0]))]
    specs += [v1.JobSpec(report=v1.ReportSpec(input=sources[1])), v1.JobSpec(diagnose=v1.DiagnoseSpec(inputs=sources))]
    creations = [calls.CreateJobRequest(spec=spec) for spec in specs]
    given: dict[str, list[Message]] = {
        "CreateJob": list(creations),
        "BatchCreateJobs": [calls.BatchCreateJobsRequest(requests=creations[:1])],
        "StartUpload": [calls.StartUploadRequest(file_name="a.json")],
        "GetMetrics": [calls.GetMetricsRequest(name=earlier)],
    }
    return {name: given.get(name) or [GetMessageClass(input_of(name))()] for name in WAYS}


def input_of(method: str) -> Descriptor:
    return SERVICE.methods_by_name[method].input_type


def violations(error: grpc.RpcError) -> list[str]:
    """The fields that a refusal names."""
    status, bad = rpc_status.from_call(error), error_details_pb2.BadRequest()
    for detail in status.details:
        if detail.Unpack(bad):
            return [violation.field for violation in bad.field_violations]
    return []


def expect_refusal(error: grpc.RpcError, kind: str, where: str) -> None:
    assert error.code().name in REFUSALS, f"{where}: {error}"
    wrong = kind in NEVER_TAKEN or error.code().name == "INVALID_ARGUMENT"
    assert not wrong or violations(error), f"{where}: names no field"


def outside(folder: Path) -> dict[str, int]:
    """All files but those of the server: their paths and sizes."""
    state = folder / "state"
    paths = (path for path in folder.rglob("*") if state not in path.parents)
    return {str(path): path.lstat().st_size for path in paths if not path.is_dir()}


@pytest.mark.parametrize("method", UNARY)
def test_no_text_of_a_request_leads_outside(
    server: Server, bases: dict[str, list[Message]], folder: Path, method: str
) -> None:
    before, accepted, asked = outside(folder), [], set[bytes]()
    for number, base in enumerate(bases[method]):
        for way in WAYS[method]:
            if number and {field.name for field in way} & CARD:
                continue
            for kind, pattern in HOSTILE.items():
                request = type(base)()
                request.CopyFrom(base)
                above = "/" if "../" in pattern else ""
                put(request, way, pattern.format(outside=str(folder / "outside").lstrip(above)))
                if (content := request.SerializeToString(deterministic=True)) in asked:
                    continue  # the text is of another kind of job, which replaces that of the base
                asked.add(content)
                where = f"{method}: {'.'.join(field.name for field in way)}, {kind}"
                try:
                    answer = getattr(server.stub, method)(request)
                    if SERVICE.methods_by_name[method].server_streaming:
                        answer = list(answer)[-1]
                except grpc.RpcError as error:
                    expect_refusal(error, kind, where)
                else:
                    assert kind not in NEVER_TAKEN, f"{where}: taken"
                    assert {field.name for field in way} & FREE, f"{where}: taken"
                    accepted += [job.name for job in jobs_of(answer)]
    for job in accepted:
        server.wait(job)
    assert outside(folder) == before
    state = folder / "state"
    stray = [path for path in state.rglob(f"*{MARK}*") if path.relative_to(state).parts[0] != "artifacts"]
    assert not stray
    assert all(not path.is_symlink() for path in (state / "artifacts").rglob("*"))


def jobs_of(answer: Any) -> list[v1.Job]:
    """The jobs that a call has made."""
    if isinstance(answer, calls.CreateJobResponse):
        return [answer.job]
    return list(answer.jobs) if isinstance(answer, calls.BatchCreateJobsResponse) else []


@pytest.mark.parametrize("method", sorted(set(WAYS) - set(UNARY)))
def test_no_text_of_a_stream_leads_outside(server: Server, folder: Path, method: str) -> None:
    before = outside(folder)
    for way in WAYS[method]:
        for kind, pattern in HOSTILE.items():
            request = GetMessageClass(input_of(method))()
            put(request, way, pattern.format(outside=str(folder / "outside").lstrip("/")))
            try:
                answer = getattr(server.stub, method)(iter([request]))
                if SERVICE.methods_by_name[method].server_streaming:
                    list(answer)
            except grpc.RpcError as error:
                expect_refusal(error, kind, f"{method}: {way[-1].name}, {kind}")
            else:
                assert kind not in NEVER_TAKEN
                assert {field.name for field in way} & FREE
    assert outside(folder) == before


def test_a_name_for_the_trace_of_an_earlier_job(server: Server, earlier: str, folder: Path) -> None:
    """The hole of 0.1.0: it led to links and copies of the client's bytes anywhere."""
    outer = "../" * 20 + str(folder / "outside").lstrip("/")
    given = v1.Input(job=earlier, file_name=f"{outer}/link.pth")
    with refused("INVALID_REQUEST", "INVALID_ARGUMENT") as answers:
        spec = v1.JobSpec(augment=v1.AugmentSpec(input=given))
        server.stub.CreateJob(calls.CreateJobRequest(spec=spec))
    assert "file_name" in answers[0].message
    with refused("INVALID_REQUEST", "INVALID_ARGUMENT"):
        given = v1.Input(job=earlier, file_name=f"{outer}/a/rank0.json")
        spec = v1.JobSpec(job=v1.WholeJobSpec(augment=v1.AugmentSpec(), inputs=[given]))
        server.stub.CreateJob(calls.CreateJobRequest(spec=spec))
    assert not list((folder / "outside").iterdir())


def test_a_name_that_an_earlier_version_took(server: Server, upload: str, folder: Path) -> None:
    """It waits in the database when the server is replaced: the job fails, and nothing is written."""
    pids = server.freeze()
    blocked = [server.create(upload, only=["temporal_breakdown"]).name for _ in pids]
    try:
        waiting = server.create(upload, only=["temporal_breakdown"]).name
        with server.core._storage.writing() as db:
            name = "../" * 20 + str(folder / "outside").lstrip("/") + f"/{MARK}.json"
            db.execute("UPDATE jobs SET file_name = ? WHERE id = ?", (name, waiting.removeprefix("jobs/")))
    finally:
        server.thaw()
    job = server.wait(waiting)
    assert (job.state, job.error.reason) == (v1.Job.STATE_FAILED, "OUTPUT_ERROR")
    assert [server.wait(name).state for name in blocked] == [v1.Job.STATE_SUCCEEDED] * len(blocked)
    assert not list((folder / "outside").iterdir())


@pytest.mark.embedded
def test_artifacts_are_read_below_their_job_alone(server: Server, earlier: str, folder: Path) -> None:
    """Even if the database named another file, and through no link."""
    artifact = server.get(earlier).artifacts[-1]
    path = outputs(folder / "state", earlier) / artifact.file_name
    moved = path.rename(folder / "moved")
    try:
        path.symlink_to(moved)
        with refused("NOT_FOUND", "NOT_FOUND"):
            server.read(artifact.name)
        with refused("NOT_FOUND", "NOT_FOUND"):
            list(server.stub.GetMetrics(calls.GetMetricsRequest(name=earlier)))
        path.unlink()
    finally:
        moved.rename(path)
    assert len(server.read(artifact.name)) == artifact.size_bytes


@pytest.mark.parametrize("path", ["", "/", "/a", "..", "a/../b", "a//b", "a/", "./a", "a\0b"])
def test_a_path_below_a_folder_stays_there(path: str, tmp_path: Path) -> None:
    with pytest.raises(OutsideFolder):
        steps_of(path)
    with pytest.raises(OutsideFolder):
        open_inside(tmp_path, path)


def test_nothing_is_placed_over_a_file_or_through_a_link(tmp_path: Path) -> None:
    origin, root, other = tmp_path / "origin", tmp_path / "root", tmp_path / "other"
    for each in (origin, root, other):
        each.mkdir()
    (origin / "made").write_text("made")
    place_inside(root, "rank0/x", origin, "made")
    assert (root / "rank0" / "x").read_text() == "made"
    with pytest.raises(FileExistsError):
        place_inside(root, "rank0/x", origin, "made")
    (root / "rank1").symlink_to(other)
    with pytest.raises(OSError, match="rank1"):
        place_inside(root, "rank1/x", origin, "made")
    (origin / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(OSError, match="link"):
        place_inside(root, "y", origin, "link")
    assert not list(other.iterdir())
    assert not (root / "y").exists()


ESCAPES = """
import os, sys
from pathlib import Path
sys.path[:0] = {paths!r}
from augment_server.base.confinement import confine
inside, outside = Path({inside!r}), Path({outside!r})
assert confine(inside)
(inside / "made").write_text("x")
with open(os.devnull, "w") as null:
    null.write("x")
tries = dict(
    write=lambda: (outside / "there").write_text("x"),
    truncate=lambda: os.truncate(outside / "there", 0),
    make=lambda: (outside / "new").write_text("x"),
    folder=lambda: (outside / "folder").mkdir(),
    link=lambda: os.symlink("x", outside / "link"),
    hard=lambda: os.link(inside / "made", outside / "hard"),
    rename=lambda: os.rename(inside / "made", outside / "made"),
    remove=lambda: os.unlink(outside / "there"),
    through=lambda: (inside / "out" / "new").write_text("x"),
)
os.symlink(outside, inside / "out")
for name, escape in tries.items():
    try:
        escape()
    except OSError:
        continue
    sys.exit(name + " was possible")
assert os.fork() or os._exit(0) is None
print((outside / "there").read_text())
"""


@pytest.mark.skipif(confinement.version() < 3, reason="this kernel has no Landlock that knows of truncation")
def test_a_confined_process_writes_below_its_folder_alone(tmp_path: Path) -> None:
    inside, beside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    beside.mkdir()
    (beside / "there").write_text("unharmed")
    code = ESCAPES.format(paths=[str(ROOT), str(ROOT / "server")], inside=str(inside), outside=str(beside))
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "unharmed\n"), ran.stderr
    assert [path.name for path in beside.iterdir()] == ["there"]


def test_workers_start_with_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No ``.pth`` of a user or a folder is run, and the environment is not handed on."""
    site = tmp_path / "home" / ".local" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    site.mkdir(parents=True)
    (site / "x.pth").write_text(f"import os; open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    monkeypatch.setenv("PYTHONSTARTUP", str(site / "x.pth"))
    with serving(tmp_path / "state", max_running_jobs=1) as server:
        job = server.wait(server.create(server.upload(trace(tmp_path / "a.json")), only=["temporal_breakdown"]).name)
        assert job.state == v1.Job.STATE_SUCCEEDED
        (pid,) = eventually(lambda: len(server.workers) == 1 and server.workers)
        if os.path.isdir("/proc"):
            assert b"SECRET_TOKEN" not in Path(f"/proc/{pid}/environ").read_bytes()
            if confinement.version():
                eventually(lambda: "NoNewPrivs:\t1" in Path(f"/proc/{pid}/status").read_text())
    assert not (tmp_path / "ran").exists()


def test_the_same_over_http(tmp_path: Path) -> None:
    given, beside = trace(tmp_path / "rank0.json"), tmp_path / "outside"
    beside.mkdir()
    with serving_process(tmp_path / "state", "--http", "127.0.0.1:0") as server:
        answered = curl(f"{server.http}/v1/uploads:bytes?fileName=rank0.json", "--data-binary", f"@{given}")
        only = {"only": ["temporal_breakdown"]}
        first = {"spec": {"augment": {"input": {"upload": answered.json["upload"]["name"]}, **only}}}
        job = curl(f"{server.http}/v1/jobs", "--json", json.dumps(first)).json["job"]["name"]
        done = curl(f"{server.http}/v1/{job}:watch").lines[-1]["result"]["job"]
        assert done["state"] == "STATE_SUCCEEDED"
        for pattern in HOSTILE.values():
            name = pattern.format(outside=str(beside).lstrip("/" if "../" in pattern else ""))
            specs = [
                v1.JobSpec(augment=v1.AugmentSpec(input=v1.Input(job=job, file_name=name))),
                v1.JobSpec(job=v1.WholeJobSpec(inputs=[v1.Input(job=job, file_name=name)])),
                v1.JobSpec(job=v1.WholeJobSpec(inputs=[v1.Input(job=job)], name=name)),
            ]
            for spec in specs:
                asked = json.dumps({"spec": MessageToDict(spec)})
                refusal = curl(f"{server.http}/v1/jobs", "--json", asked)
                assert refusal.status == 400, (name, refusal.body)
                assert "fieldViolations" in json.dumps(refusal.json), refusal.body
    assert not list(beside.iterdir())
