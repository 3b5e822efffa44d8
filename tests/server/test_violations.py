"""Each refusal of a field's value names the field, by its path in the request."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import duration_pb2
from in_process import Server, serving, told_by, trace, violated  # noqa: F401 - the fixture ``server`` calls ``serving``

import augment_server
from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment_server.base.errors import Refusal, invalid, within

SERVER_LIMITS = {"max_job_inputs": 3, "max_upload_bytes": 10_000}

#: refusals about a whole message or stream, by how they begin
OF_NO_FIELD = "the first message must", "after the first message", "the body must"
OF_NO_FIELD += "a line must", "Content-Encoding ", " does not support "


@pytest.fixture(scope="module")
def upload(server: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    return server.upload(trace(tmp_path_factory.mktemp("traces") / "a.json"))


def augment(**more: Any) -> v1.JobSpec:
    return v1.JobSpec(augment=v1.AugmentSpec(**more))


def diff(**more: Any) -> v1.JobSpec:
    return v1.JobSpec(diff=v1.DiffSpec(**more))


def whole(**more: Any) -> v1.JobSpec:
    return v1.JobSpec(job=v1.WholeJobSpec(**more))


def beside(kind: str, given: v1.Input, trace_index: int | None = None) -> v1.Attachment:
    return v1.Attachment(kind=kind, input=given, trace_index=trace_index)


DELAY = "idle_time_breakdown.consecutive_kernel_delay_ns"
GOOD, GONE = v1.Input(), v1.Input(upload="uploads/0")  #: GOOD gets the name of a complete upload
BAD = v1.Input(upload="x")
EARLIER, FAR = v1.Input(job="jobs/0"), v1.Input(upload="uploads/1", file_name="../nccl.log")
SPECS: list[tuple[str, v1.JobSpec]] = [
    ("spec", v1.JobSpec()),
    ("spec", augment(only=["x" * 4000] * 20)),
    ("spec.augment.formats[1]", augment(formats=["chrome", "x"])),
    ("spec.augment.formats", augment(formats=["chrome", "chrome"])),
    ("spec.augment.only[0]", augment(only=["x"])),
    ("spec.augment.skip[2]", augment(skip=["steps", "queue_length", "x"])),
    ("spec.augment.skip", augment(only=["queue_length"], skip=["queue_length"])),
    ("spec.augment.options[0]", augment(options=["x"])),
    ("spec.augment.options[1]", augment(options=[f"{DELAY}=9", f"{DELAY}=x"])),
    ("spec.augment.steps", augment(steps=v1.StepRange(first=5, last=1))),
    ("spec.augment.steps", augment(steps=v1.StepRange(first=-1, last=1))),
    ("spec.augment.input", augment()),
    ("spec.augment.input.upload", augment(input=BAD)),
    ("spec.augment.input.upload", augment(input=GONE)),
    ("spec.augment.input.job", augment(input=v1.Input(job="jobs/A"))),
    ("spec.augment.input.job", augment(input=v1.Input(job="jobs/0"))),
    ("spec.augment.input.uri", augment(input=v1.Input(uri="x"))),
    ("spec.augment.input.uri", augment(input=v1.Input(uri="/nowhere"))),
    ("spec.augment.input.uri", augment(input=v1.Input(uri="file:///"))),
    ("spec.augment.attachments[0].kind", augment(input=GOOD, attachments=[beside("x", GOOD)])),
    ("spec.augment.attachments[0].trace_index", augment(input=GOOD, attachments=[beside("nccl_log", GOOD, -1)])),
    ("spec.augment.attachments[1]", augment(input=GOOD, attachments=[beside("memory_snapshot", GOOD)] * 2)),
    ("spec.augment.attachments[0].input.upload", augment(input=GOOD, attachments=[beside("nccl_log", GONE)])),
    ("spec.augment.attachments[0].input.job", augment(input=GOOD, attachments=[beside("nccl_log", EARLIER)])),
    ("spec.augment.attachments[0].input", augment(input=GOOD, attachments=[v1.Attachment(kind="nccl_log")])),
    ("spec.augment.attachments[0].input.file_name", augment(input=GOOD, attachments=[beside("nccl_log", FAR)])),
    ("spec.augment", augment(input=GOOD, attachments=[beside("nccl_log", GOOD)] * 3)),
    ("spec.diff.formats[0]", diff(formats=["x"])),
    ("spec.diff.formats", diff(formats=["chrome", "chrome"])),
    ("spec.diff.min_delta_us", diff(min_delta_us=-1)),
    ("spec.diff.arrow_count", diff(arrow_count=10**9)),
    ("spec.diff.name", diff(name="a/b")),
    ("spec.diff.label", diff(label="a\nb")),
    ("spec.diff.label", diff(label="x" * 201)),
    ("spec.diff.test", diff(control=GOOD)),
    ("spec.diff.control", diff(test=GOOD)),
    ("spec.diff.tests[0].upload", diff(test=GOOD, control=GOOD, tests=[BAD])),
    ("spec.diff.controls[0].upload", diff(test=GOOD, control=GOOD, controls=[GONE])),
    ("spec.diff", diff(test=GOOD, control=GOOD, controls=[GOOD, GOOD])),
    ("spec.report.input.upload", v1.JobSpec(report=v1.ReportSpec(input=GONE))),
    ("spec.diagnose.name", v1.JobSpec(diagnose=v1.DiagnoseSpec(inputs=[GOOD], name=".."))),
    ("spec.diagnose.inputs", v1.JobSpec(diagnose=v1.DiagnoseSpec())),
    ("spec.diagnose.inputs[1].upload", v1.JobSpec(diagnose=v1.DiagnoseSpec(inputs=[GOOD, BAD]))),
    ("spec.job.augment.only[0]", whole(inputs=[GOOD], augment=v1.AugmentSpec(only=["x"]))),
    ("spec.job.augment.input", whole(inputs=[GOOD], augment=v1.AugmentSpec(input=GOOD))),
    (
        "spec.job.augment.attachments[1]",
        whole(
            inputs=[GOOD], augment=v1.AugmentSpec(attachments=[beside("nccl_log", GOOD, 0), beside("nccl_log", GOOD)])
        ),
    ),
    (
        "spec.job.augment.attachments[0].input.upload",
        whole(inputs=[GOOD], augment=v1.AugmentSpec(attachments=[beside("nccl_log", GONE, 0)])),
    ),
    ("spec.job.name", whole(inputs=[GOOD], name="/x")),
    ("spec.job.parallelism", whole(inputs=[GOOD], parallelism={"tp=1,dp": 2})),
    ("spec.job.parallelism", whole(inputs=[GOOD], parallelism={"tp": 0})),
    ("spec.job.parallelism", whole(inputs=[GOOD], parallelism={"no": 2})),
    ("spec.job.inputs", whole()),
    ("spec.job.inputs", whole(inputs=[GOOD] * 4)),
    ("spec.job.inputs[1].file_name", whole(inputs=[GOOD, GOOD])),
    ("spec.job.inputs[1].file_name", whole(inputs=[GOOD, v1.Input(file_name="a.json.gz")])),  # its outputs' names
    ("spec.job.inputs[1].file_name", whole(inputs=[GOOD, v1.Input(file_name="job.json")])),  # as job.metrics.json
    ("spec.job.inputs[0].file_name", whole(inputs=[v1.Input(file_name="../rank0.json")])),
    ("spec.job.inputs[0].file_name", whole(inputs=[v1.Input(file_name="/rank0.json")])),
    ("spec.job.inputs[0].job", whole(inputs=[EARLIER])),
    ("spec.job.inputs[1].upload", whole(inputs=[GOOD, GONE])),
]


def sent(spec: v1.JobSpec, upload: str, **more: Any) -> calls.CreateJobRequest:
    """The request for a job, in which the good inputs name an upload."""
    request = calls.CreateJobRequest(spec=spec, **more)
    if spec.WhichOneof("kind") is None:
        return request
    kind = getattr(request.spec, str(request.spec.WhichOneof("kind")))
    for attachment in (*request.spec.augment.attachments, *request.spec.job.augment.attachments):
        if attachment.input == GOOD and attachment.HasField("input"):
            attachment.input.upload = upload
    for field, value in kind.ListFields():
        if field.message_type and field.message_type.name == "Input":
            for given in value if hasattr(value, "append") else [value]:
                if given.WhichOneof("source") is None:
                    given.upload = upload
    return request


def good(upload: str, **more: Any) -> calls.CreateJobRequest:
    return calls.CreateJobRequest(spec=augment(input=v1.Input(upload=upload)), **more)


@pytest.mark.parametrize(("field", "spec"), SPECS, ids=[f"{number}-{field}" for number, (field, _) in enumerate(SPECS)])
@pytest.mark.parametrize("trial", [True, False])
def test_of_a_spec(server: Server, upload: str, field: str, spec: v1.JobSpec, trial: bool) -> None:
    request = sent(spec, upload, validate_only=trial)
    with violated(field):
        server.stub.CreateJob(request)
    with violated(f"requests[1].{field}"):
        batch = [good(upload, validate_only=trial), request]
        server.stub.BatchCreateJobs(calls.BatchCreateJobsRequest(requests=batch))


@pytest.mark.parametrize(("field", "more"), [
    ("display_name", {"display_name": "a\nb"}),
    ("display_name", {"display_name": "a" * 201}),
    ("labels", {"labels": {"Team": "x"}}),
    ("labels", {"labels": {"": "x"}}),
    ("labels", {"labels": {f"k{number}": "" for number in range(65)}}),
    ("labels.team", {"labels": {"team": "x" * 64}}),
    ("labels.team", {"labels": {"team": "\u202e"}}),
    ("priority", {"priority": 11}),
    ("priority", {"priority": -11}),
    ("deadline", {"deadline": duration_pb2.Duration()}),
    ("deadline", {"deadline": duration_pb2.Duration(seconds=10**9)}),
    ("request_id", {"request_id": "r" * 201}),
    ("validate_only", {"validate_only": True}),
])  # fmt: skip
def test_of_a_batch(server: Server, upload: str, field: str, more: dict[str, Any]) -> None:
    with violated(f"requests[2].{field}"):
        requests = [good(upload), good(upload), good(upload, **more)]
        server.stub.BatchCreateJobs(calls.BatchCreateJobsRequest(requests=requests))


def test_of_the_size_of_a_batch(server: Server) -> None:
    with violated("requests"):
        server.stub.BatchCreateJobs(calls.BatchCreateJobsRequest())


def test_of_a_request_id_in_a_batch(server: Server, upload: str) -> None:
    server.stub.CreateJob(good(upload, request_id="once"))
    with violated("requests[1].request_id"):
        requests = [good(upload), good(upload, request_id="once", priority=1)]
        server.stub.BatchCreateJobs(calls.BatchCreateJobsRequest(requests=requests))
    with violated("requests[2].request_id"):  # the answer would have the job as often
        requests = [good(upload), *[good(upload, request_id="once")] * 2]
        server.stub.BatchCreateJobs(calls.BatchCreateJobsRequest(requests=requests))


@pytest.mark.parametrize(("field", "more"), [
    ("file_name", {}),
    ("file_name", {"file_name": "a\0b"}),
    ("file_name", {"file_name": "x" * 200}),
    ("size_bytes", {"file_name": "a", "size_bytes": -1}),
    ("size_bytes", {"file_name": "a", "size_bytes": 10_001}),
    ("sha256", {"file_name": "a", "sha256": "0"}),
    ("request_id", {"file_name": "a", "request_id": "r" * 201}),
])  # fmt: skip
def test_of_an_announcement(server: Server, field: str, more: dict[str, Any]) -> None:
    start = calls.StartUploadRequest(**more)
    with violated(field):
        server.stub.StartUpload(start)
    with violated(field):
        server.stub.UploadBytes(iter([calls.UploadBytesRequest(**more)]))
    with violated(f"start.{field}"):
        server.stub.UploadTrace(iter([calls.UploadTraceRequest(start=start)]))
    with violated(f"start.file.{field}"):
        first = calls.AugmentStart(file=start, spec=v1.AugmentSpec(only=["queue_length"]))
        list(server.stub.Augment(iter([calls.AugmentRequest(start=first)])))


def test_of_what_augment_begins_with(server: Server) -> None:
    file = calls.StartUploadRequest(file_name="a.json")
    for field, start in (
        ("start.spec.only[0]", calls.AugmentStart(file=file, spec=v1.AugmentSpec(only=["x"]))),
        ("start.labels", calls.AugmentStart(file=file, labels={"": ""})),
        ("start.priority", calls.AugmentStart(file=file, priority=100)),
    ):
        with violated(field):
            parts = [calls.AugmentRequest(start=start), calls.AugmentRequest(chunk=b"{}", finish=True)]
            list(server.stub.Augment(iter(parts)))


def test_of_names_and_places(server: Server, upload: str) -> None:
    stub = server.stub
    job = server.wait(stub.CreateJob(good(upload)).job.name)
    begun = stub.StartUpload(calls.StartUploadRequest(file_name="b.json", size_bytes=5)).upload.name
    for method, request in (
        (stub.GetUpload, calls.GetUploadRequest(name="x")),
        (stub.DeleteUpload, calls.DeleteUploadRequest(name="jobs/0")),
        (stub.GetJob, calls.GetJobRequest(name="jobs/")),
        (stub.CancelJob, calls.CancelJobRequest(name="jobs/../x")),
        (stub.DeleteJob, calls.DeleteJobRequest(name="")),
    ):
        with violated("name"):
            method(request)
    with violated("parent"):
        stub.ListArtifacts(calls.ListArtifactsRequest(parent="x"))
    with violated("name"):
        list(stub.WatchJob(calls.WatchJobRequest(name="x")))
    with violated("name"):
        list(stub.ReadArtifact(calls.ReadArtifactRequest(name=job.name)))
    with violated("offset"):
        list(stub.ReadArtifact(calls.ReadArtifactRequest(name=job.artifacts[0].name, offset=-1)))
    with violated("analyses[1]"):
        list(stub.GetMetrics(calls.GetMetricsRequest(name=job.name, analyses=["queue_length", "x"])))
    with violated("artifact"):
        list(stub.GetMetrics(calls.GetMetricsRequest(name=job.name, artifact="x")))
    with violated("resume.name"):
        stub.UploadTrace(iter([calls.UploadTraceRequest(resume=calls.ResumeUpload(name="x"))]))
    with violated("resume.offset"):
        stub.UploadTrace(iter([calls.UploadTraceRequest(resume=calls.ResumeUpload(name=begun, offset=1))]))
    with violated("offset"):
        stub.UploadBytes(iter([calls.UploadBytesRequest(name=begun, offset=1)]))
    for method, kind in ((stub.ListJobs, calls.ListJobsRequest), (stub.ListUploads, calls.ListUploadsRequest)):
        for field, asked in (("page_size", -1), ("page_token", "x"), ("filter", "x"), ("order_by", "x")):
            with violated(field):
                method(kind(**{field: asked}))


def test_the_message_says_what_is_wrong(server: Server, upload: str) -> None:
    with pytest.raises(Exception, match="no analysis is called 'queue_lenght'; did you mean queue_length") as error:
        server.stub.CreateJob(sent(augment(input=GOOD, only=["queue_lenght"]), upload))
    assert told_by(error.value).reason == "USAGE"  # type: ignore[arg-type]


def test_paths_are_completed_on_the_way() -> None:
    with pytest.raises(Refusal) as refusal, within("requests[1]"), within("spec"), within(""):
        raise invalid("label", "too long")
    assert (refusal.value.field_path, str(refusal.value)) == ("requests[1].spec.label", "label: too long")
    with pytest.raises(Refusal) as refusal, within("requests[1]"):
        raise Refusal("QUEUE_FULL", "many jobs are waiting")
    assert refusal.value.field_path == ""


def test_no_refusal_leaves_its_field_unsaid() -> None:
    """In the code: every invalid argument names a field, but those of whole messages."""
    left = []
    for path in sorted(Path(augment_server.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Refusal"):
                continue
            reason, what = node.args[0], ast.unparse(node.args[1]) if len(node.args) > 1 else ""
            wrong = isinstance(reason, ast.Constant) and reason.value in ("INVALID_REQUEST", "USAGE")
            if wrong and not any(keyword.arg == "field_path" for keyword in node.keywords):
                left.append((path.name, what))
    untold = [(name, what) for name, what in left if not any(begins in what for begins in OF_NO_FIELD)]
    #: a failed job's error; a verb of HTTP; bytes that are no message, and none
    assert sorted(untold) == [
        ("admission.py", "'the call has no message'"),
        ("errors.py", "str(error)"),
        ("port.py", "what"),
        ("reading.py", "_NO_MESSAGE"),
    ]
