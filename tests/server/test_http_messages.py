"""HTTP requests as messages of the API: routes from the .proto files, JSON as grpc-gateway has it."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import grpc
import pytest
from openapi_spec_validator import validate
from serving_process import ROOT

from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment_server.api.http.messages import Found, Routes, compiled, request_of, streamed, text_of
from augment_server.base.errors import REASONS, Refusal

SERVICE = calls.DESCRIPTOR.services_by_name["AugmentService"]
ROUTES = Routes([SERVICE])


def route_of(verb: str, path: str) -> Found:
    route = ROUTES.find(verb, path)
    assert route, path
    return route


def asked(verb: str, path: str, body: Any = None, **query: str) -> Any:
    text = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    return request_of(route_of(verb, path), list(query.items()), text)


def test_every_method_has_a_route() -> None:
    assert {route.method.name for route in ROUTES.all} == {method.name for method in SERVICE.methods}


def test_no_two_routes_are_the_same() -> None:
    assert len({(route.verb, route.pattern.pattern) for route in ROUTES.all}) == len(ROUTES.all)


@pytest.mark.parametrize(("template", "path", "values"), [
    ("/v1/jobs", "/v1/jobs", ()),
    ("/v1/{name=jobs/*}", "/v1/jobs/a", ("jobs/a",)),
    ("/v1/{name=jobs/*}:cancel", "/v1/jobs/a:cancel", ("jobs/a",)),
    ("/v1/{name=jobs/*/artifacts/*}:read", "/v1/jobs/a/artifacts/b:c:read", ("jobs/a/artifacts/b:c",)),
    ("/v1/{id}/x/{spec.label}", "/v1/a/x/b", ("a", "b")),
    ("/v1/{rest=**}", "/v1/a/b/c", ("a/b/c",)),
    ("/v1/*/{name}", "/v1/a/b", ("b",)),
    ("/v1/a.b", "/v1/a.b", ()),
])  # fmt: skip
def test_templates(template: str, path: str, values: tuple[str, ...]) -> None:
    match = compiled(template)[0].fullmatch(path)
    assert match
    assert match.groups() == values


@pytest.mark.parametrize(("template", "path"), [
    ("/v1/{name=jobs/*}", "/v1/jobs/a:cancel"),
    ("/v1/{name=jobs/*}", "/v1/jobs/a/b"),
    ("/v1/{name=jobs/*}", "/v1/jobs/"),
    ("/v1/{name=jobs/*}:cancel", "/v1/jobs/a"),
    ("/v1/a.b", "/v1/axb"),
])  # fmt: skip
def test_what_a_template_is_not(template: str, path: str) -> None:
    assert compiled(template)[0].fullmatch(path) is None


def test_paths_are_decoded() -> None:
    route = route_of("GET", "/v1/jobs/ab/artifacts/a%20b%3Ac%C3%A4.json:download")
    assert (route.route.method.name, route.fields) == ("DownloadArtifact", {"name": "jobs/ab/artifacts/a b:cä.json"})
    route = route_of(
        "GET", "/v1/jobs/ab/artifacts/rank0/a.json:download"
    )  # of a whole job, whose traces lie in folders
    assert route.fields == {"name": "jobs/ab/artifacts/rank0/a.json"}


def test_the_openapi_document_has_every_route() -> None:
    document = json.loads((ROOT / "server" / "augment_server" / "api" / "http" / "openapi.json").read_text())
    validate(document)
    operations = set()
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            filled = path.replace("{name}", "ab").replace("{parent}", "ab").replace("{file}", "rank0/a.json")
            route = route_of(verb.upper(), filled)
            assert operation["operationId"].rstrip("234") == route.route.method.name
            operations.add((verb.upper(), route.route.pattern))
    assert operations == {(route.verb, route.pattern) for route in ROUTES.all}


def test_verbs() -> None:
    assert ROUTES.verbs("/v1/jobs") == ["GET", "POST"]
    assert ROUTES.find("PUT", "/v1/jobs") is None
    assert ROUTES.verbs("/v2/jobs") == []


def test_a_query() -> None:
    request = asked("GET", "/v1/jobs", pageSize="7", page_token="x")
    assert request == calls.ListJobsRequest(page_size=7, page_token="x")
    route = route_of("GET", "/v1/jobs")
    states = [("states", "STATE_QUEUED"), ("states", "3")]
    assert list(request_of(route, states).states) == [v1.Job.STATE_QUEUED, v1.Job.STATE_SUCCEEDED]


def test_a_body() -> None:
    spec = {"augment": {"input": {"upload": "uploads/a"}, "steps": {"first": "3", "last": 4}}}
    request = asked("POST", "/v1/jobs", {"spec": spec, "requestId": "r"})
    assert request == asked("POST", "/v1/jobs", {"spec": spec, "request_id": "r"})
    assert (request.spec.augment.input.upload, request.spec.augment.steps.first) == ("uploads/a", 3)
    assert asked("POST", "/v1/jobs/ab:cancel").name == "jobs/ab"
    assert asked("POST", "/v1/jobs/ab:cancel", {"name": "jobs/other"}).name == "jobs/ab"


def test_a_body_that_is_a_file() -> None:
    request = asked("PUT", "/v1/uploads/ab:bytes", offset="12")
    assert request == calls.UploadBytesRequest(name="uploads/ab", offset=12)


@pytest.mark.parametrize(("verb", "path", "body", "query", "field"), [
    ("GET", "/v1/jobs", None, {"size": "1"}, "size"),
    ("GET", "/v1/jobs", None, {"pageSize": "many"}, "page_size"),
    ("GET", "/v1/jobs", None, {"pageSize": "99999999999"}, "page_size"),
    ("GET", "/v1/jobs", None, {"states": "STATE_NONE"}, "states[0]"),
    ("GET", "/v1/jobs", None, {"pageSize.x": "1"}, "pageSize.x"),
    ("POST", "/v1/jobs", {"spec": {"augment": {"onyl": []}}}, {}, "spec.augment.onyl"),
    ("POST", "/v1/jobs", {"spec": {"augment": {"only": "all"}}}, {}, "spec.augment.only"),
    ("POST", "/v1/jobs", {"spec": 3}, {}, "spec"),
    ("POST", "/v1/jobs", [1], {}, ""),
    ("POST", "/v1/jobs", b"{", {}, ""),
    ("POST", "/v1/jobs", b"\xff", {}, ""),
    ("POST", "/v1/jobs", b"[" * 100_000, {}, ""),
    ("POST", "/v1/jobs", b'{"requestId": NaN}', {}, ""),
    ("POST", "/v1/jobs", b'{"requestId": "a", "requestId": "b"}', {}, "requestId"),
    ("POST", "/v1/jobs", b'{"requestId": "a", "request_id": "a"}', {}, "request_id"),
    ("POST", "/v1/jobs", b'{"spec": {"augment": {"only": [], "only": []}}}', {}, "spec.augment.only"),
    (
        "POST",
        "/v1/jobs",
        b'{"spec": {"job": {"inputs": [{}, {"uri": "/a", "uri": "/b"}]}}}',
        {},
        "spec.job.inputs[1].uri",
    ),
    ("POST", "/v1/jobs", b'{"labels": {"a": "1", "a": "2"}}', {}, "labels.a"),
    ("POST", "/v1/jobs", b'{"nothing": {"a": 1, "a": 1}}', {}, "nothing.a"),
    ("POST", "/v1/jobs", {}, {"requestId": "r"}, "requestId"),
    ("PUT", "/v1/uploads/ab:bytes", None, {"content.data": "AAAA"}, "content.data"),
])  # fmt: skip
def test_what_is_no_request(verb: str, path: str, body: Any, query: dict[str, str], field: str) -> None:
    with pytest.raises(Refusal) as refusal:
        asked(verb, path, body, **query)
    assert refusal.value.reason == "INVALID_REQUEST"
    assert refusal.value.field_path == field
    assert not re.search(r"\n|Traceback|/tmp", refusal.value.message)


def test_a_parameter_may_not_be_given_twice() -> None:
    with pytest.raises(Refusal, match="pageSize: must not be given twice"):
        request_of(route_of("GET", "/v1/jobs"), [("pageSize", "1"), ("pageSize", "2")])


def test_a_line_of_a_stream() -> None:
    line = json.dumps({"chunk": base64.b64encode(b"abc").decode(), "finish": True}).encode()
    assert streamed(line, calls.UploadTraceRequest.DESCRIPTOR) == calls.UploadTraceRequest(chunk=b"abc", finish=True)


def test_a_line_of_a_stream_says_nothing_twice() -> None:
    with pytest.raises(Refusal, match=r"start\.fileName: is given twice"):
        streamed(b'{"start": {"fileName": "a", "fileName": "b"}}', calls.UploadTraceRequest.DESCRIPTOR)


def test_keys_of_a_map_are_no_names_of_fields() -> None:
    labels = {"run_id": "1", "runId": "2", "key": "3", "value": "4"}
    assert asked("POST", "/v1/jobs", {"labels": labels}).labels == labels


def test_answers() -> None:
    upload = v1.Upload(name="uploads/a", state=v1.Upload.STATE_ACTIVE, received_bytes=(1 << 62) + 1)
    upload.create_time.FromNanoseconds(1_500_000_000)
    output = json.loads(text_of(calls.GetUploadResponse(upload=upload)))["upload"]
    assert output["receivedBytes"] == str((1 << 62) + 1)
    assert (output["state"], output["sha256"], output["createTime"]) == ("STATE_ACTIVE", "", "1970-01-01T00:00:01.500Z")
    assert "sizeBytes" not in output


def test_every_reason_is_a_status() -> None:
    from augment_server.api.http.calls import HTTP_STATUS

    assert {grpc.StatusCode[code].value[0] for code, _ in REASONS.values()} <= HTTP_STATUS.keys()
