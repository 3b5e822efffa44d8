"""Figures for Prometheus, on a port of their own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import prometheus_client
from prometheus_client import Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from augment import __version__
from augment.errors import AugmentError
from augment_server.interception import Call
from augment_server.observer import Observer
from augment_server.security import Address, TlsFiles

_CALL_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0)
_WORK_S = (0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


class Metrics(Observer):
    """Counts what happens.

    Args:
        jobs_by_state: asked at each scrape.
    """

    def __init__(self, jobs_by_state: Callable[[], Mapping[str, int]]) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call] # twice the series, of no use
        self.registry = registry = prometheus_client.CollectorRegistry()
        prometheus_client.ProcessCollector(registry=registry)
        registry.register(_AtScrape(jobs_by_state))
        self._calls = Counter("augment_calls", "Calls that ended.", ["method", "code"], registry=registry)
        self._call_s = Histogram(
            "augment_call_seconds", "Duration of calls.", ["method"], buckets=_CALL_S, registry=registry
        )
        self._received = Counter("augment_received_bytes", "Messages received.", ["method"], registry=registry)
        self._sent = Counter("augment_sent_bytes", "Messages sent.", ["method"], registry=registry)
        self._queue_s = Histogram(
            "augment_job_queue_seconds", "From a job's queueing to its start.", buckets=_WORK_S, registry=registry
        )
        self._stage_s = Histogram(
            "augment_job_stage_seconds", "Duration of a stage.", ["stage"], buckets=_WORK_S, registry=registry
        )
        self._job_s = Histogram(
            "augment_job_seconds", "From a job's start to its end.", ["state"], buckets=_WORK_S, registry=registry
        )
        self._finished = Counter("augment_jobs_finished", "Jobs that ended.", ["state", "reason"], registry=registry)

    @contextlib.contextmanager
    def around(self, call: Call) -> Iterator[None]:
        """Measure a call."""
        begin = time.monotonic()
        try:
            yield
        finally:
            method = call.method.strip("/")
            self._calls.labels(method, call.code).inc()
            self._call_s.labels(method).observe(time.monotonic() - begin)
            self._received.labels(method).inc(call.received_bytes)
            self._sent.labels(method).inc(call.sent_bytes)

    def job_started(self, job_id: str, queued_s: float) -> None:
        """How long it waited."""
        self._queue_s.observe(queued_s)

    def job_stage(self, job_id: str, stage: str, seconds: float) -> None:
        """How long it took."""
        self._stage_s.labels(stage).observe(seconds)

    def job_finished(self, job_id: str, state: str, seconds: float, reason: str = "") -> None:
        """How it ended, and how long it took."""
        self._finished.labels(state, reason).inc()
        self._job_s.labels(state).observe(seconds)


class _AtScrape(Collector):
    """What is looked up when somebody asks."""

    def __init__(self, jobs_by_state: Callable[[], Mapping[str, int]]) -> None:
        self._jobs_by_state = jobs_by_state

    def collect(self) -> Iterable[Metric]:
        """The jobs that are kept, by state; the version."""
        jobs = GaugeMetricFamily("augment_jobs", "Jobs that are kept.", labels=["state"])
        for state, count in self._jobs_by_state().items():
            jobs.add_metric([state], count)
        return [jobs, InfoMetricFamily("augment_build", "What runs here.", value={"version": __version__})]

    def describe(self) -> Iterable[Metric]:
        """Nothing to ask before the first scrape."""
        return []


class MetricsPort:
    """Serves the figures over HTTP, or HTTPS with the same certificate as the service's.

    Raises:
        AugmentError: the port is taken.
    """

    def __init__(self, where: Address, registry: prometheus_client.CollectorRegistry, tls: TlsFiles | None) -> None:
        files: dict[str, Any] = {} if tls is None else {"certfile": str(tls.cert), "keyfile": str(tls.key)}
        if tls and tls.client_ca:
            files |= {"client_cafile": str(tls.client_ca), "client_auth_required": True}
        try:
            self._server, self._thread = prometheus_client.start_http_server(where.port, where.host, registry, **files)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise AugmentError(f"--metrics-listen {where}: {reason}; choose another port, or 0 for any") from error
        port = self._server.server_port
        self.url = f"http{'s' if tls else ''}://{Address(where.host, port)}/metrics"

    def close(self) -> None:
        """Free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
