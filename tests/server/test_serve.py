"""``augment serve`` as an operator sees it: flags, ports, health, figures, logs, spans, and how it ends."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families
from serving_process import PATIENCE_S, Server, augment, environment, serving

from augment.client import Client
from augment.client.connection import Deadline
from augment.v1 import resources_pb2, service_pb2
from augment_server.base.limits import Limits
from augment_server.ops.flags import flag_of, limits_from, shown
from augment_server.ops.main import serve as command
from augment_server.ops.metrics import Metrics
from traces import write_trace

SERVER_FLAGS = ("--metrics-listen", "127.0.0.1:0")

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
ROOT = Path(__file__).parents[2]


def parsed(*args: str) -> dict[str, Any]:
    return command.make_context("serve", list(args)).params


def test_every_limit_has_a_flag_of_its_own() -> None:
    import dataclasses

    fields = dataclasses.fields(Limits)
    flags = {flag_of(field) for field in fields}
    assert len(flags) == len(fields)
    assert flags <= {name for param in command.params for name in param.opts}
    assert limits_from(parsed()) == Limits()


@pytest.mark.parametrize(("args", "name", "value"), [
    (["--max-upload", "500MB"], "max_upload_bytes", 500_000_000),
    (["--max-upload", "1.5 GiB"], "max_upload_bytes", 3 << 29),
    (["--max-upload", "77"], "max_upload_bytes", 77),
    (["--job-deadline", "15m"], "job_deadline_s", 900.0),
    (["--job-deadline", "90"], "job_deadline_s", 90.0),
    (["--artifact-life", "7d"], "artifact_life_s", 604_800.0),
    (["--max-queued-jobs", "3"], "max_queued_jobs", 3),
    (["--max-job-memory", "6GiB"], "max_job_memory_bytes", 6 << 30),
])  # fmt: skip
def test_limits_are_set_by_flags(args: list[str], name: str, value: float) -> None:
    assert getattr(limits_from(parsed(*args)), name) == value


@pytest.mark.parametrize("args", [["--max-upload", "0"], ["--max-upload", "5q"], ["--job-deadline", "-1s"],
                                  ["--max-queued-jobs", "0"], ["--grace", "soon"]])  # fmt: skip
def test_values_that_are_none(tmp_path: Path, args: list[str]) -> None:
    ended = augment("serve", "--state-dir", tmp_path, *args)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert args[0] in ended.stderr


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(8 << 30, "bytes", "8GiB"), (1000, "bytes", "1000"), (3600.0, "s", "1h"), (90.0, "s", "90s"), (7, "count", "7")],
)
def test_defaults_are_shown_as_they_are_written(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text


def test_health(server: Server) -> None:
    with grpc.insecure_channel(server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", "augment.v1.AugmentService"):
            assert stub.Check(health_pb2.HealthCheckRequest(service=name)).status == SERVING
        with pytest.raises(grpc.RpcError) as caught:
            stub.Check(health_pb2.HealthCheckRequest(service="nothing"))
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND


def test_reflection_tells_the_whole_api(server: Server) -> None:
    asked = reflection_pb2.ServerReflectionRequest
    known = descriptor_pb2.DESCRIPTOR.name
    requests = [
        asked(list_services=""), asked(file_containing_symbol="augment.v1.AugmentService"),
        asked(file_by_filename=known),
    ]  # fmt: skip
    with grpc.insecure_channel(server.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        services, files, built_in = stub.ServerReflectionInfo(iter(requests))
    assert files.ByteSize() < 43_690, "grpcurl 1.8.6 then breaks off calls now and then (reflecting.py says why)"
    (file,) = built_in.file_descriptor_response.file_descriptor_proto
    assert descriptor_pb2.FileDescriptorProto.FromString(file).name == known
    names = {service.name for service in services.list_services_response.service}
    assert names == {
        "augment.v1.AugmentService", "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection",
        "grpc.reflection.v1.ServerReflection",
    }  # fmt: skip
    rows = [
        descriptor_pb2.FileDescriptorProto.FromString(file)
        for file in files.file_descriptor_response.file_descriptor_proto
    ]
    assert {name for row in rows for name in row.dependency} - {row.name for row in rows} == {known}
    methods = {method.name for file in rows for service in file.service for method in service.method}
    assert methods == {method.name for method in service_pb2.DESCRIPTOR.services_by_name["AugmentService"].methods}


def test_all_of_stderr_is_json(tmp_path: Path) -> None:
    """Whoever writes there: a worker, or the command when it cannot go on."""
    with serving(tmp_path / "state") as server, server.frozen():
        (worker, *_) = server.workers
        with open(f"/proc/{worker}/fd/2", "w") as stderr:
            stderr.write("one line\nhalf a")
            stderr.flush()
            stderr.write(" line\n\n")
        assert server.logged("half a line")["level"] == "warning"
        second = augment("serve", "--listen", server.address, "--state-dir", tmp_path / "other", "--log-format", "json")
    assert second.returncode == 1
    lines = [json.loads(line) for line in second.stderr.splitlines()]
    assert "the port is taken" in lines[-1]["message"]
    assert all(line.startswith("{") for line in server.errors.splitlines())


def test_figures(server: Server, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("no trace")
    with Client(server.address) as client:
        client.augment(write_trace(tmp_path / "a.json"))
        with pytest.raises(Exception, match="bad"):
            client.augment(bad)
    samples = scraped(server.metrics)
    service = "augment.v1.AugmentService"
    assert samples["augment_jobs", ("FAILED",)] >= 1
    assert samples["augment_jobs_finished_total", ("", "SUCCEEDED")] >= 1
    assert samples["augment_jobs_finished_total", ("UNKNOWN_FORMAT", "FAILED")] >= 1
    assert samples["augment_calls_total", ("OK", f"{service}/UploadTrace")] >= 2
    assert samples["augment_received_bytes_total", (f"{service}/UploadTrace",)] > (tmp_path / "a.json").stat().st_size
    written = sum(each.stat().st_size for each in tmp_path.glob("a.*") if each.name != "a.json")
    assert samples["augment_sent_bytes_total", (f"{service}/ReadArtifact",)] > written
    assert samples["augment_job_queue_seconds_count", ()] >= 2
    stages = {labels[0] for name, labels in samples if name == "augment_job_stage_seconds_count"}
    assert {"reading", "writing", "idle_time_breakdown"} <= stages
    assert samples["augment_job_seconds_count", ("SUCCEEDED",)] >= 1
    assert samples["augment_call_seconds_count", (f"{service}/CreateJob",)] >= 2
    assert samples["process_resident_memory_bytes", ()] > 1 << 20
    assert samples["augment_client_calls_total", ("host",)] >= 6
    assert samples["augment_calls_in_flight", ()] == 0
    assert samples["augment_stored_bytes", ("host",)] >= (tmp_path / "a.json").stat().st_size
    assert samples["augment_day_jobs", ("host",)] >= 2
    assert samples["augment_free_bytes", ()] > 1 << 20
    assert samples["augment_open_uploads", ()] == 0
    assert samples["augment_removed_total", ("job", "asked")] >= 1
    assert samples["augment_worker_deaths_total", ()] == 0
    assert samples["augment_worker_memory_bytes", ()] > 1 << 20


def test_stages_that_a_worker_makes_up_are_no_labels() -> None:
    """Each would stay in memory, and in every scrape, until a restart."""
    metrics = Metrics(lambda: pytest.fail("not asked"))
    for stage in ("reading", "idle_time_breakdown", "reading the test", *map(str, range(1000))):
        metrics.job_stage("1", stage, 0.5)
    (family,) = metrics._stage_s.collect()
    counts = {each.labels["stage"]: each.value for each in family.samples if each.name.endswith("_count")}
    assert counts == {"reading": 1, "idle_time_breakdown": 1, "reading the test": 1, "other": 1000}


def test_every_figure_stands_in_the_docs(server: Server) -> None:
    page = (ROOT / "docs" / "service.md").read_text()
    for name, _ in scraped(server.metrics):
        family = name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum")
        assert f"`{family}`" in page or family.startswith("process_"), name


def scraped(url: str) -> dict[tuple[str, tuple[str, ...]], float]:
    """Each sample by its name and the values of its labels, in the order of their names."""
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_logs_are_an_object_a_line_and_name_the_job(server: Server, tmp_path: Path) -> None:
    job: list[str] = []
    with Client(server.address) as client:
        forget = client._forget
        client._forget = lambda name: (job.append(name.partition("/")[2]), forget(name))[1]  # type: ignore[method-assign]
        client.augment(write_trace(tmp_path / "a.json"))
    server.logged("job finished", job_id=job[0])
    lines = [line for line in server.log if line.get("job_id") == job[0]]
    assert [line["message"] for line in lines] == ["job queued", "job started", "job finished"]
    assert lines[-1]["state"] == "SUCCEEDED"
    for line in server.errors.splitlines():
        assert line.startswith("{"), line
    assert all(line["time"].endswith("Z") and line["level"] for line in server.log)


def test_logs_for_people(tmp_path: Path) -> None:
    with serving(tmp_path / "state", "--log-format", "text") as server:
        server.terminate()
        assert server.wait() == 0
    assert "INFO serving address=127.0.0.1:" in server.errors


def test_a_second_server_on_the_directory_refuses(tmp_path: Path) -> None:
    with serving(tmp_path / "state"):
        ended = augment("serve", "--listen", "127.0.0.1:0", "--state-dir", tmp_path / "state")
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert str(tmp_path / "state") in ended.stderr


@pytest.mark.parametrize("option", ["--listen", "--metrics-listen", "--http"])
def test_a_port_that_is_taken(server: Server, tmp_path: Path, option: str) -> None:
    flags = {"--listen": "127.0.0.1:0", option: server.address}
    ended = augment("serve", "--state-dir", tmp_path / "state", *(word for pair in flags.items() for word in pair))
    assert ended.returncode == 1
    assert f"{option} {server.address}" in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_idle_server_at_once(tmp_path: Path, number: int) -> None:
    with serving(tmp_path / "state", "--grace", "1h") as server:
        server.process.send_signal(number)
        assert server.wait() == 0


@contextlib.contextmanager
def at_work(server: Server, client: Client, trace: Path) -> Iterator[str]:
    """A job that is running, and does not end within."""
    with server.frozen():
        upload = client._upload(str(trace), Deadline(None, ""), lambda *_: None)
        spec = resources_pb2.JobSpec(augment=resources_pb2.AugmentSpec(input=resources_pb2.Input(upload=upload)))
        job = client._stub.CreateJob(service_pb2.CreateJobRequest(spec=spec)).job.name
        server.logged("job started", job_id=job.partition("/")[2])
        yield job


def state_of(client: Client, job: str) -> str:
    result = client._stub.GetJob(service_pb2.GetJobRequest(name=job)).job
    return resources_pb2.Job.State.Name(result.state).removeprefix("STATE_")


def test_sigterm_lets_what_runs_finish_and_takes_on_nothing_new(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.json")
    with serving(tmp_path / "state", "--grace", "1h") as server, Client(server.address) as client:
        with at_work(server, client, path) as job:
            ending: list[Any] = []
            watch = client._stub.WatchJob(service_pb2.WatchJobRequest(name=job))
            watching = threading.Thread(target=lambda: ending.extend(watch))
            watching.start()
            server.terminate()
            server.logged("draining")
            with grpc.insecure_channel(server.address) as channel:
                probe = health_pb2_grpc.HealthStub(channel)
                assert probe.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S).status == NOT_SERVING
            with pytest.raises(grpc.RpcError) as caught:
                client._stub.CreateJob(service_pb2.CreateJobRequest(), timeout=PATIENCE_S)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert server.wait() == 0
        watching.join()
        assert ending[-1].job.state == resources_pb2.Job.STATE_SUCCEEDED
    with serving(tmp_path / "state") as server, Client(server.address) as client:
        assert state_of(client, job) == "SUCCEEDED"


def test_what_does_not_finish_within_the_grace_runs_again(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.json")
    with (
        serving(tmp_path / "state", "--grace", "0") as server,
        Client(server.address) as client,
        at_work(server, client, path) as job,
    ):
        server.terminate()
        assert server.wait() == 0
    with serving(tmp_path / "state") as server, Client(server.address) as client:
        assert list(client._stub.WatchJob(service_pb2.WatchJobRequest(name=job)))[-1].job.attempt_count == 2
        assert state_of(client, job) == "SUCCEEDED"


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.json")
    with (
        serving(tmp_path / "state", "--grace", "1h") as server,
        Client(server.address) as client,
        at_work(server, client, path),
    ):
        server.terminate()
        server.logged("draining")
        server.terminate()
        assert server.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_until_the_end_do_not_change_the_exit_code(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path / "state") as server:
        while server.process.poll() is None:
            server.process.send_signal(number)
            time.sleep(0.002)
        assert server.wait() == 0


def test_without_the_services_packages(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['prometheus_client'] = None\n")
    ended = augment("serve", PYTHONPATH=f"{tmp_path}:{ROOT}:{ROOT / 'server'}")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "pip install 'kineto-augment[service]'" in ended.stderr


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
