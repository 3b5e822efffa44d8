"""OpenTelemetry's spans, as a collector receives them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from serving_process import augment, environment, serving

from augment.client import Client
from traces import write_trace

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:
        for each in request.resource_spans:
            self.services |= {a.value.string_value for a in each.resource.attributes if a.key == "service.name"}
            self.spans += [span for scope in each.scope_spans for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


@pytest.fixture
def collector() -> Iterator[tuple[Collector, str]]:
    made = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(made, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield made, f"http://127.0.0.1:{port}"
    server.stop(0).wait()


def attributes(span: Any) -> dict[str, str]:
    return {attribute.key: attribute.value.string_value for attribute in span.attributes}


def test_a_job_belongs_to_the_trace_of_who_asked_for_it(collector: tuple[Collector, str], tmp_path: Path) -> None:
    kept, url = collector
    with serving(tmp_path / "state", "--otlp-endpoint", url) as server, Client(server.address) as client:
        client._connection.metadata = (("traceparent", f"00-{TRACE}-{SPAN}-01"),)
        client.augment(write_trace(tmp_path / "a.json"))
        bad = tmp_path / "bad.json"
        bad.write_text("no trace")
        with pytest.raises(Exception, match="bad"):
            client.augment(bad)
        server.terminate()  # sends what has not been sent
        assert server.wait() == 0
    assert kept.services == {"kineto-augment"}
    good, failed = sorted(kept.named("job"), key=lambda span: span.start_time_unix_nano)
    created = kept.named("augment.v1.AugmentService/CreateJob")
    assert {span.parent_span_id.hex() for span in created} == {SPAN}
    assert {attributes(span)["rpc.grpc.status_code"] for span in created} == {"OK"}
    assert good.trace_id.hex() == failed.trace_id.hex() == TRACE
    assert good.parent_span_id in {span.span_id for span in created}
    assert attributes(good)["state"] == "SUCCEEDED"
    assert (attributes(failed)["reason"], failed.status.code) == ("UNKNOWN_FORMAT", 2)
    stages = [span for span in kept.spans if span.parent_span_id == good.span_id]
    assert {"reading", "idle_time_breakdown", "writing"} <= {span.name for span in stages}
    for span in stages:
        assert good.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= good.end_time_unix_nano


def test_no_collector_is_no_harm(tmp_path: Path) -> None:
    with serving(tmp_path / "state", "--otlp-endpoint", "http://127.0.0.1:1") as server:
        with Client(server.address) as client:
            client.augment(write_trace(tmp_path / "a.json"))
        server.terminate()
        assert server.wait() == 0


def test_without_opentelemetry(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['opentelemetry.sdk.trace'] = None\n")
    path = f"{tmp_path}:{environment()['PYTHONPATH']}"
    flags = ("--state-dir", tmp_path / "state", "--listen", "127.0.0.1:0", "--otlp-endpoint", "http://127.0.0.1:1")
    ended = augment("serve", *flags, PYTHONPATH=path)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "pip install 'kineto-augment[otel]'" in ended.stderr
