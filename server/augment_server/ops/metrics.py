"""Metrics for Prometheus, on a separate port."""

from __future__ import annotations

import collections
import contextlib
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import prometheus_client
from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from augment import __version__
from augment.errors import AugmentError
from augment_server.base.interception import Call
from augment_server.base.observer import Observer
from augment_server.base.security import Address, TlsFiles
from augment_server.jobs.scheduler import known_stages
from augment_server.ops.core import Figures

_REQUEST_S = 30.0  #: timeout of a scrape's connection
_CALL_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0)
_WORK_S = (0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


class Metrics(Observer):
    """Counts and measures calls and jobs.

    Args:
        figures: called at each scrape.
    """

    def __init__(self, figures: Callable[[], Figures]) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call] # twice the series, of no use
        self._stages = known_stages()
        self.registry = registry = prometheus_client.CollectorRegistry()
        prometheus_client.ProcessCollector(registry=registry)
        registry.register(_AtScrape(figures))
        self._calls = Counter("augment_calls", "Calls that ended.", ["method", "code"], registry=registry)
        self._client_calls = Counter("augment_client_calls", "Calls by client.", ["client"], registry=registry)
        self._in_flight = Gauge("augment_calls_in_flight", "Calls under way.", registry=registry)
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
        self._in_flight.inc()
        try:
            yield
        finally:
            self._in_flight.dec()
            self._client_calls.labels(_known(call.client)).inc()
            method = call.method.strip("/")
            self._calls.labels(method, call.code).inc()
            self._call_s.labels(method).observe(time.monotonic() - begin)
            self._received.labels(method).inc(call.received_bytes)
            self._sent.labels(method).inc(call.sent_bytes)

    def job_started(self, job_id: str, queued_s: float) -> None:
        """Record how long the job waited."""
        self._queue_s.observe(queued_s)

    def job_stage(self, job_id: str, stage: str, seconds: float) -> None:
        """Record how long the stage took."""
        self._stage_s.labels(stage if stage in self._stages else "other").observe(seconds)

    def job_finished(self, job_id: str, state: str, seconds: float, reason: str = "") -> None:
        """Record how the job ended, and how long it took."""
        self._finished.labels(state, reason).inc()
        self._job_s.labels(state).observe(seconds)


class _AtScrape(Collector):
    """Metrics that are computed at each scrape."""

    def __init__(self, figures: Callable[[], Figures]) -> None:
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        """The state of the server, and its version."""
        figures = self._figures()
        stored: collections.Counter[str] = collections.Counter()
        for client, size in figures.stored_bytes.items():
            stored[_known(client)] += size
        ended, cpu_s = collections.Counter[str](), dict[str, float]()
        for client, (count, seconds) in figures.spent.items():
            ended[_known(client)] += count
            cpu_s[_known(client)] = cpu_s.get(_known(client), 0.0) + seconds
        unfinished: collections.Counter[tuple[str, str]] = collections.Counter()
        for (client, state), count in figures.unfinished.items():
            unfinished[_known(client), state] += count
        jobs = GaugeMetricFamily("augment_client_jobs", "Waiting and running jobs.", labels=["client", "state"])
        for labels, count in unfinished.items():
            jobs.add_metric(labels, count)
        removed = CounterMetricFamily("augment_removed", "Jobs and uploads removed.", labels=["kind", "reason"])
        for (kind, reason), count in figures.removed.items():
            removed.add_metric([kind, reason], count)
        return [
            _gauges("augment_jobs", "Jobs that are kept.", "state", figures.jobs),
            _gauges("augment_stored_bytes", "Bytes of uploads and artifacts.", "client", stored),
            jobs,
            _gauges("augment_day_jobs", "Jobs that ended within a day.", "client", ended),
            _gauges("augment_day_cpu_seconds", "CPU time of jobs within a day.", "client", cpu_s),
            GaugeMetricFamily("augment_free_bytes", "Bytes that may still be stored.", figures.free_bytes),
            GaugeMetricFamily("augment_open_uploads", "Uploads that are not complete.", figures.open_uploads),
            removed,
            CounterMetricFamily("augment_worker_deaths", "Workers that died during a job.", figures.worker_deaths),
            GaugeMetricFamily("augment_worker_memory_bytes", "Memory of the workers.", figures.worker_bytes),
            InfoMetricFamily("augment_build", "The version of the server.", value={"version": __version__}),
        ]

    def describe(self) -> Iterable[Metric]:
        """No metric is known before the first scrape."""
        return []


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    made = GaugeMetricFamily(name, text, labels=[label])
    for value, number in values.items():
        made.add_metric([value], number)
    return made


def _known(client: str) -> str:
    """The label of a client. Those known only by their host share one, and those of identity providers, too, because
    their number is unbounded."""
    kind = client.partition(":")[0]
    return kind if kind in ("host", "oidc") else client


def _requests(
    accept: Callable[[], tuple[Any, Any]], contexts: Callable[[], ssl.SSLContext] | None
) -> Callable[[], tuple[Any, Any]]:
    """Accepts connections with a timeout, and with TLS from the current files."""

    def accepted() -> tuple[Any, Any]:
        connection, address = accept()
        connection.settimeout(_REQUEST_S)
        if contexts:  # the connection's thread makes the handshake when it first reads
            connection = contexts().wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    return accepted


class MetricsPort:
    """Serves the figures over HTTP, or HTTPS with the same certificate as the service's.

    Raises:
        AugmentError: the port is taken.
    """

    def __init__(self, where: Address, registry: prometheus_client.CollectorRegistry, tls: TlsFiles | None) -> None:
        try:
            self._server, self._thread = prometheus_client.start_http_server(where.port, where.host, registry)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise AugmentError(f"--metrics-listen {where}: {reason}; choose another port, or 0 for any") from error
        self._server.get_request = _requests(self._server.get_request, tls.contexts() if tls else None)  # type: ignore[method-assign]
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign] # of strangers; it would print them
        port = self._server.server_port
        self.url = f"http{'s' if tls else ''}://{Address(where.host, port)}/metrics"

    def close(self) -> None:
        """Free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
