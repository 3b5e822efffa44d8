"""Projects: every method with every role, in one's own and in a foreign project, over real sockets."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from in_process import Server, eventually, serving, told_by, trace
from serving_process import Server as Process
from serving_process import augment
from serving_process import serving as started

from augment.client import Client
from augment.errors import ServiceError
from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment.v1 import service_pb2_grpc
from augment_server.base.people import RIGHTS, ROLES
from augment_server.base.security import Tokens

SERVICE = calls.DESCRIPTOR.services_by_name["AugmentService"]
TEAM = "projects/team"


def as_(client: str, **roles: str) -> dict[str, Any]:
    """The metadata of a call by somebody who has these roles."""
    return {"metadata": (("client", f"name:{client}"), ("roles", json.dumps(roles)))}


@pytest.fixture
def server(tmp_path: Path, both_catalogs: str) -> Iterator[Server]:
    with serving(tmp_path / "state") as running:
        yield running


def upload(server: Server, path: Path, **how: Any) -> str:
    """The name of a file that was sent to the project ``team``."""
    start = calls.StartUploadRequest(file_name=path.name, parent=TEAM)
    messages = [calls.UploadTraceRequest(start=start), calls.UploadTraceRequest(chunk=path.read_bytes(), finish=True)]
    return server.stub.UploadTrace(iter(messages), **how).upload.name


def created(server: Server, name: str, **how: Any) -> v1.Job:
    """A job of the project ``team``."""
    spec = v1.JobSpec(augment=v1.AugmentSpec(input=v1.Input(upload=name), only=["kernel_type_breakdown"]))
    return server.stub.CreateJob(calls.CreateJobRequest(spec=spec, parent=TEAM), **how).job


def finished(server: Server, job: str, **how: Any) -> v1.Job:
    *_, last = server.stub.WatchJob(calls.WatchJobRequest(name=job), **how)
    assert last.job.state == v1.Job.STATE_SUCCEEDED, last.job.error
    return last.job


def request_of(method: Any, project: str) -> Any:
    """A request of a method that is about a project; of nothing that is there."""
    made = getattr(calls, method.input_type.name)()
    within, kind = f"{project}/" if project else "", "uploads" if "Upload" in method.name else "jobs"
    if method.name == "UploadTrace":
        made.start.parent, made.start.file_name = project, "a.json"
    elif method.name == "Augment":
        made.start.file.parent, made.start.file.file_name = project, "a.json"
    elif method.name.startswith(("Start", "BatchStart", "List", "Create", "BatchCreate", "UploadBytes", "WatchJobs")):
        if "parent" in made.DESCRIPTOR.fields_by_name:
            made.parent = f"{within}jobs/x" if method.name == "ListArtifacts" else project
        if method.name.startswith("Batch"):
            made.requests.add()
        if method.name == "WatchJobs":
            made.filter = "nothing = 1"  # else it would not end
    elif "name" in made.DESCRIPTOR.fields_by_name:
        made.name = f"{within}{kind}/x" + ("/artifacts/x" if "Artifact" in method.name else "")
    return made


def reason_of(server: Server, method: Any, request: Any, **how: Any) -> str:
    """Why a call is refused; empty if it is not."""
    call = getattr(server.stub, method.name)
    try:
        answer = call(iter([request]) if method.client_streaming else request, timeout=60, **how)
        if method.server_streaming:
            list(answer)
    except grpc.RpcError as error:
        return told_by(error).reason
    return ""


def test_every_method_is_in_the_table_of_rights() -> None:
    assert set(RIGHTS) == {method.name for method in SERVICE.methods}


def test_every_method_asks_for_its_role_in_the_project_that_it_is_about(server: Server) -> None:
    for method in SERVICE.methods:
        needed = RIGHTS[method.name]
        for role in ROLES:
            allowed = needed is None or ROLES.index(role) >= ROLES.index(needed)
            for project in (TEAM, ""):  # the own project of who has a role in no other
                reason = reason_of(server, method, request_of(method, project), **as_("a", team=role))
                assert (reason != "NOT_PERMITTED") == allowed, (method.name, role, project, reason)
        for project in ("projects/other", TEAM):
            for roles in ({"third": "admin"}, {"": "admin"}):
                reason = reason_of(server, method, request_of(method, project), **as_("b", **roles))
                assert (reason == "NOT_PERMITTED") == (needed is not None), (method.name, project, reason)


def test_a_colleague_opens_what_another_made(server: Server, tmp_path: Path) -> None:
    ci, colleague = as_("ci", team="writer"), as_("eve", **{"": "admin", "team": "viewer"})
    path = trace(tmp_path / "a.json")
    name = upload(server, path, **ci)
    job = created(server, name, **ci)
    assert name.startswith(f"{TEAM}/uploads/")
    assert job.name.startswith(f"{TEAM}/jobs/")
    assert job.creator == "name:ci"
    done = finished(server, job.name, **colleague)
    assert all(artifact.name.startswith(f"{job.name}/artifacts/") for artifact in done.artifacts)
    read = server.stub.ReadArtifact(calls.ReadArtifactRequest(name=done.artifacts[-1].name), **colleague)
    assert json.loads(b"".join(message.chunk for message in read))
    listed = server.stub.ListJobs(calls.ListJobsRequest(parent=TEAM), **colleague).jobs
    assert [each.name for each in listed] == [job.name]
    assert not server.stub.ListJobs(calls.ListJobsRequest(), **colleague).jobs  # her own project has none
    flat = job.name.removeprefix(f"{TEAM}/")
    method = SERVICE.methods_by_name["GetJob"]
    assert reason_of(server, method, calls.GetJobRequest(name=flat), **colleague) == "NOT_FOUND"
    assert server.stub.GetJob(calls.GetJobRequest(name=flat), **ci).job.name == job.name  # it is his own


def test_a_writer_removes_what_is_its_own_and_an_admin_everything(server: Server, tmp_path: Path) -> None:
    path = trace(tmp_path / "a.json")
    writer, other, admin = as_("a", team="writer"), as_("b", team="writer"), as_("c", team="admin")
    name = upload(server, path, **writer)
    jobs = [finished(server, created(server, name, **writer).name, **writer).name for _ in range(2)]
    method = SERVICE.methods_by_name["DeleteJob"]
    asked = [calls.DeleteJobRequest(name=job) for job in jobs]
    assert reason_of(server, method, asked[0], **other) == "NOT_PERMITTED"
    assert [reason_of(server, method, asked[0], **writer), reason_of(server, method, asked[1], **admin)] == ["", ""]


def test_inputs_are_those_of_the_jobs_own_project(server: Server, tmp_path: Path) -> None:
    name = upload(server, trace(tmp_path / "a.json"), **as_("a", team="writer"))
    both = as_("a", other="writer", team="writer")
    spec = v1.JobSpec(augment=v1.AugmentSpec(input=v1.Input(upload=name)))
    method = SERVICE.methods_by_name["CreateJob"]
    assert reason_of(server, method, calls.CreateJobRequest(spec=spec), **both) == "INVALID_REQUEST"
    spec.augment.input.upload = name.removeprefix(f"{TEAM}/")
    assert reason_of(server, method, calls.CreateJobRequest(spec=spec), **both) == "NOT_FOUND"
    assert reason_of(server, method, calls.CreateJobRequest(spec=spec, parent=TEAM), **both) == ""


def test_what_a_project_stores_counts_for_it(server: Server, tmp_path: Path) -> None:
    path = trace(tmp_path / "a.json")
    finished(server, created(server, upload(server, path, **as_("a", team="writer")), **as_("b", team="writer")).name,
             **as_("c", team="viewer"))  # fmt: skip
    assert server.core.figures().stored_bytes.keys() == {"project:team"}
    assert server.core.figures().stored_bytes["project:team"] > path.stat().st_size


@pytest.mark.usefixtures("both_catalogs")
def test_the_cpu_time_of_a_project_is_counted_and_bounded(tmp_path: Path) -> None:
    path, how = trace(tmp_path / "a.json"), as_("a", team="writer")
    with serving(tmp_path / "state", max_client_cpu_s=0.01) as server:
        name = upload(server, path, **how)
        finished(server, created(server, name, **how).name, **how)
        spent = eventually(lambda: {client: of for client, of in server.core.figures().spent.items() if of[1]})
        assert spent.keys() == {"project:team"}
        assert (spent["project:team"][0], 0.01 <= spent["project:team"][1] < 60) == (1, True)
        with pytest.raises(grpc.RpcError) as error:
            created(server, name, **as_("b", team="writer"))
        assert (told_by(error.value).reason, "took" in error.value.details()) == ("TOO_MUCH_CPU", True)
        assert server.core.figures().unfinished == {}
        with serving(tmp_path / "other") as without:
            assert without.core.figures().spent in ({}, spent)


def test_a_tokens_lines_add_up_to_its_roles(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("a:viewer@x:one-token\na:writer@y:one-token\na:one-token\nb:plain\nc:root@x:odd\nd:admin@X:odd2\n")
    tokens = Tokens(path)
    person = tokens.person("one-token")
    assert (person.client, list(person.roles.items())) == ("name:a", [("x", "viewer"), ("y", "writer"), ("", "admin")])
    plain = tokens.person("plain")
    assert dict(plain.roles) == {"": "admin"}
    assert tokens.person("odd") is None  # no such role: all of it is a token
    assert tokens.client("root@x:odd") == "name:c"
    assert tokens.person("odd2") is None  # no such project


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("people")
    (folder / "tokens").write_text("ci:writer@team:write\neve:viewer@team:read\n")
    with started(folder / "state", "--token-file", folder / "tokens", "--http", "127.0.0.1:0") as server:
        yield server


def test_tokens_of_a_project_work_with_the_client_and_leave_lines_in_the_log(process: Process, tmp_path: Path) -> None:
    path = trace(tmp_path / "a.json")
    with Client(process.address, token="write") as client:
        assert client.augment(path, only=["kernel_type_breakdown"]).files[-1].exists()
    with Client(process.address, token="read", patience_s=1) as client, pytest.raises(ServiceError) as error:
        client.augment(path)
    assert (error.value.code, error.value.reason) == ("PERMISSION_DENIED", "NOT_PERMITTED")
    line = process.logged("call", method="CreateJob", client="name:ci", code="OK")
    assert line["resource"].startswith(f"{TEAM}/jobs/")
    process.logged("call", method="StartUpload", client="name:eve", code="PERMISSION_DENIED", reason="NOT_PERMITTED")


def test_a_colleague_follows_a_link_over_http(process: Process, tmp_path: Path) -> None:
    def asked(path: str, token: str, body: bytes | None = None) -> Any:
        request = urllib.request.Request(f"{process.http}/v1/{path}", body, {"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    sent = trace(tmp_path / "a.json").read_bytes()
    upload = asked(f"{TEAM}/uploads:bytes?fileName=a.json", "write", sent)["upload"]["name"]
    spec = {"augment": {"input": {"upload": upload}, "only": ["kernel_type_breakdown"]}}
    job = asked(f"{TEAM}/jobs", "write", json.dumps({"spec": spec}).encode())["job"]["name"]
    assert asked(job, "read")["job"]["creator"] == "name:ci"
    assert job in [each["name"] for each in asked(f"{TEAM}/jobs", "read")["jobs"]]
    assert asked("serverInfo", "read")["roles"] == [{"project": TEAM, "role": "viewer"}]
    with pytest.raises(urllib.error.HTTPError) as error:
        asked(f"{job}:cancel", "read", b"{}")
    error.value.close()
    assert error.value.code == 403


def test_the_command_leaves_its_job_to_the_members_of_a_project(process: Process, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("write")
    path = trace(tmp_path / "kept.json")
    of_ci = {"AUGMENT_TOKEN_FILE": str(tmp_path / "token"), "AUGMENT_PROJECT": "team"}
    ended = augment("run", path, "--server", f"grpc://{process.address}", **of_ci)
    assert ended.returncode == 0, ended.stderr
    asked, token = calls.ListJobsRequest(parent=TEAM, page_size=1), ("authorization", "Bearer read")
    with grpc.insecure_channel(process.address) as channel:
        (job,) = service_pb2_grpc.AugmentServiceStub(channel).ListJobs(asked, metadata=(token,)).jobs
    assert (job.state, job.creator) == (v1.Job.STATE_SUCCEEDED, "name:ci")
    (link,) = re.findall(r"for members of the project: (\S+)\n", ended.stderr)
    assert link == f"{process.http}/v1/{job.name}"
    request = urllib.request.Request(link, headers={"Authorization": "Bearer read"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer)["job"]["name"] == job.name
    quiet = augment("run", path, "--quiet", "--server", f"grpc://{process.address}", **of_ci)
    assert "for members" not in quiet.stderr
    del of_ci["AUGMENT_PROJECT"]
    assert "for members" not in augment("run", path, "--server", f"grpc://{process.address}", **of_ci).stderr
    assert job.spec.augment.input.upload.startswith(f"{TEAM}/uploads/")


def test_where_people_reach_the_server(tmp_path: Path) -> None:
    flags = ("--http", "127.0.0.1:0", "--http-url", "https://traces.example.com/a/")
    with (
        started(tmp_path / "state", *flags) as process,
        urllib.request.urlopen(f"{process.http}/v1/serverInfo") as info,
    ):
        assert json.load(info)["info"]["httpUrl"] == "https://traces.example.com/a"
    for args in (("--http-url", "https://a.example"), ("--http", "127.0.0.1:0", "--http-url", "javascript:alert(1)")):
        assert augment("serve", "--state-dir", tmp_path / "other", *args).returncode == 2
