"""OpenTelemetry's tracing: a span for each call, each job and each stage of a job. ``--otlp-endpoint`` switches it on.

A call with a ``traceparent`` continues its caller's trace, and so does the job that it creates.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from augment import __version__
from augment.errors import UsageError
from augment_server.base.interception import Call
from augment_server.base.observer import Observer

_EXPORT_S = 3  #: timeout of an export, so that a silent collector cannot delay the server's exit


class Tracing(Observer):
    """Makes spans.

    Args:
        provider: of OpenTelemetry's SDK.
    """

    def __init__(self, provider: Any) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider, self._api = provider, trace
        self._tracer = provider.get_tracer("kineto-augment", __version__)
        self._extract = TraceContextTextMapPropagator().extract
        self._jobs: dict[str, Any] = {}

    @contextlib.contextmanager
    def around(self, call: Call) -> Iterator[None]:
        """The span of a call."""
        parent = self._extract(call.metadata)
        kind = self._api.SpanKind.SERVER
        with self._tracer.start_as_current_span(call.method.strip("/"), context=parent, kind=kind) as span:
            try:
                yield
            finally:
                span.set_attributes({"rpc.system": "grpc", "rpc.grpc.status_code": call.code})

    def job_queued(self, job_id: str) -> None:
        """Begin the job's span, within that of the call that creates it."""
        if job_id not in self._jobs:
            self._jobs[job_id] = self._tracer.start_span("job", attributes={"job_id": job_id})

    def job_started(self, job_id: str, queued_s: float) -> None:
        """Add an event to the job's span. After a restart of the server the job gets a new span."""
        self.job_queued(job_id)
        self._jobs[job_id].add_event("started", {"queued_s": queued_s})

    def job_stage(self, job_id: str, stage: str, seconds: float) -> None:
        """Record the stage as a span."""
        if (job := self._jobs.get(job_id)) is not None:
            end = time.time_ns()
            within = self._api.set_span_in_context(job)
            self._tracer.start_span(stage, context=within, start_time=end - int(seconds * 1e9)).end(end)

    def job_finished(self, job_id: str, state: str, seconds: float, reason: str = "") -> None:
        """End the job's span."""
        if (job := self._jobs.pop(job_id, None)) is not None:
            job.set_attributes({"state": state, "reason": reason})
            if state == "FAILED":
                job.set_status(self._api.StatusCode.ERROR, reason)
            job.end()

    def close(self) -> None:
        """Export the remaining spans."""
        self._provider.shutdown()


def tracing_to(endpoint: str) -> Tracing:
    """Tracing to a collector by OTLP over gRPC. The environment variables ``OTEL_…`` apply.

    Raises:
        UsageError: OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise UsageError("--otlp-endpoint: tracing is not installed: pip install 'kineto-augment[otel]'") from error
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: "kineto-augment"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_S)))
    return Tracing(provider)
