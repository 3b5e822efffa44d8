"""The life of a server: ports, services, signals, draining."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import gc
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from augment import __version__
from augment.cli.terminal import emit
from augment.core.threads import allow_files, share_freed_memory
from augment.errors import AugmentError, UsageError
from augment.v1 import service_pb2, service_pb2_grpc
from augment_server.api.admission import Admission, Arriving
from augment_server.api.http.chain import Chain
from augment_server.api.reading import Answers
from augment_server.api.reflecting import add_reflection
from augment_server.base.interception import Around, CallInterceptor
from augment_server.base.limits import MOST_HEADER_BYTES, Limits
from augment_server.base.observer import Observer, Observers
from augment_server.base.security import Address, Gate, TlsFiles, Tokens, client_of, person_of
from augment_server.ops.core import Core
from augment_server.ops.logs import Logs
from augment_server.ops.metrics import Metrics, MetricsPort
from augment_server.ops.tracing import tracing_to

if TYPE_CHECKING:
    from augment_server.api.http.port import HttpPort

SERVICE = service_pb2.DESCRIPTOR.services_by_name["AugmentService"].full_name
_LAST_CALLS_S = 5.0  #: how long calls may continue after the jobs have ended
_FILES = 65_536  #: maximum of open files; each connection is one
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_TURN_S = 0.0005  #: for so long a thread keeps the interpreter while the event loop, which a call needs often, waits
_PENDING = 20_000  #: maximum of calls that wait to begin
_PING_S = 10  #: the shortest interval of a client's keepalive pings


@dataclass(frozen=True)
class Settings:
    """The settings from the flags of ``augment serve`` and ``augment work``."""

    listen: Address
    role: str  #: ``both``; ``front``, without workers; or ``work``, without a port
    idle_exit_s: float  #: after how long without a job to end
    state: Path | None  #: None: a folder that is removed at the end
    catalog: str
    repair: bool
    network_state: bool
    store: str
    limits: Limits
    roots: tuple[Path, ...]
    prefixes: tuple[str, ...]
    outputs: tuple[str, ...]
    tls: TlsFiles | None
    tokens: Tokens | None
    metrics_listen: Address | None
    http: Address | None
    http_url: str
    origins: tuple[str, ...]
    otlp_endpoint: str | None
    log_format: str
    grace_s: float


def serve(settings: Settings) -> int:
    """Serve until a signal; returns the exit code.

    Raises:
        AugmentError: a port or the state directory is taken, or a file cannot be used; or another server has taken over
            the state directory.
    """
    share_freed_memory()
    sys.setswitchinterval(_TURN_S)
    try:
        return asyncio.run(_serve(settings))
    finally:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # a signal from now on must not change the exit code


async def _serve(settings: Settings) -> int:
    stop = _stop_signals()
    async with contextlib.AsyncExitStack() as stack:
        if settings.state is None:
            folder = stack.enter_context(TemporaryDirectory(prefix="augment-work-", ignore_cleanup_errors=True))
            settings = dataclasses.replace(settings, state=Path(folder))
        server = await stack.enter_async_context(_running(settings))
        emit(f"listening on {server.ports.address}" if server.ports else "working")
        if server.metrics_url:
            emit(f"metrics on {server.metrics_url}")
        if server.ports and server.ports.http:
            emit(f"http on {server.ports.http.url}")
        ends = [stop.wait(), server.core.lost.wait(), server.core.idle(settings.idle_exit_s)]
        waiting = [asyncio.ensure_future(end) for end in ends]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for each in waiting:
            each.cancel()
        if server.core.lost.is_set():
            why = "another server has taken it over, so this one has stopped; let only one server use it"
            raise AugmentError(f"--state-dir {settings.state}: {why}")
        await server.drain(settings.grace_s, stop)
    return 0


class _Stop:
    """Handles signals: the first asks for an orderly end, the second for an immediate one."""

    def __init__(self) -> None:
        self._asked, self.at_once = asyncio.Event(), asyncio.Event()

    def ask(self) -> None:
        """Handle a signal."""
        (self.at_once if self._asked.is_set() else self._asked).set()

    async def wait(self) -> None:
        """Wait for the first signal."""
        await self._asked.wait()


def _stop_signals() -> _Stop:
    """Install handlers. The event loop's own are unsuitable: when it ends, it restores those that end the process."""
    stop, loop = _Stop(), asyncio.get_running_loop()

    def asked(_number: int, _frame: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server is ending anyway
            loop.call_soon_threadsafe(stop.ask)

    for number in _SIGNALS:
        signal.signal(number, asked)
    return stop


@dataclass(frozen=True)
class _Ports:
    """What clients reach."""

    grpc: grpc.aio.Server
    probes: Any
    address: Address
    http: HttpPort | None

    async def close(self, last_s: float) -> None:
        """Free the ports; calls may continue for this long."""
        await asyncio.gather(self.grpc.stop(last_s), *([self.http.close(last_s)] if self.http else []))


@dataclass(frozen=True)
class _Server:
    """The running parts of a server."""

    core: Core
    observer: Observer
    ports: _Ports | None
    metrics_url: str | None

    async def drain(self, grace_s: float, stop: _Stop) -> None:
        """Accept nothing new; let jobs finish, then calls."""
        begin = time.monotonic()
        self.observer.log(logging.INFO, "draining", grace_s=grace_s)
        self.core.refuse()
        if self.ports:
            await self.ports.probes.enter_graceful_shutdown()
        drained = asyncio.ensure_future(self.core.drain(grace_s))
        hurried = asyncio.ensure_future(stop.at_once.wait())
        await asyncio.wait((drained, hurried), return_when=asyncio.FIRST_COMPLETED)
        if not drained.done():
            drained.cancel()
            await asyncio.gather(drained, return_exceptions=True)
            await self.core.drain(0)
        hurried.cancel()
        if self.ports:
            await self.ports.close(0 if stop.at_once.is_set() else _LAST_CALLS_S)
        self.observer.log(logging.INFO, "stopped", seconds=round(time.monotonic() - begin, 3))


@contextlib.asynccontextmanager
async def _running(settings: Settings) -> AsyncIterator[_Server]:
    """A started server; all its resources are freed at the end."""
    async with contextlib.AsyncExitStack() as stack:
        logs = Logs(settings.log_format)
        metrics = Metrics(lambda: core.figures())
        arounds: list[Around] = [metrics.around, logs.around]
        observers: list[Observer] = [metrics, logs]
        if settings.otlp_endpoint:
            tracing = tracing_to(settings.otlp_endpoint)
            stack.callback(tracing.close)
            arounds.append(tracing.around)
            observers.append(tracing)
        known_by = functools.partial(client_of, tokens=settings.tokens)
        observer = Observers(observers)
        wished, within = settings.limits, settings.limits.within(allow_files(_FILES))
        settings = dataclasses.replace(settings, limits=within)
        assert settings.state
        core = Core(
            settings.state,
            settings.limits,
            settings.roots,
            observer,
            functools.partial(person_of, tokens=settings.tokens),
            repair=settings.repair,
            network=settings.network_state,
            catalog=settings.catalog,
            store=settings.store,
            prefixes=settings.prefixes,
            outputs=settings.outputs,
            role=settings.role,
        )
        stack.push_async_callback(core.close)
        interceptors = _interceptors(settings, arounds, known_by)
        grpc_port = None if settings.role == "work" else await _grpc_port(settings, core, interceptors, known_by, stack)
        metrics_url = None
        if settings.metrics_listen:
            port = MetricsPort(settings.metrics_listen, metrics.registry, settings.tls)
            stack.callback(port.close)
            metrics_url = port.url
        await core.start()
        ports = None
        if grpc_port:
            server, probes, bound = grpc_port
            await server.start()
            http = None
            if settings.http:
                http = _http_port(settings, settings.http, interceptors, observer)
                _add_services(http.chain, core, probes)
                await http.start()
                stack.push_async_callback(http.close)
                core.servicer.http_url = settings.http_url or (http.url if settings.http.loopback else "")
            ports = _Ports(server, probes, bound, http)
        gc.collect()
        gc.freeze()  # what stays is not looked through again, whenever calls are collected
        where: dict[str, Any] = {"address": str(ports.address)} if ports else {}
        said = {**where, "version": __version__, "tls": bool(settings.tls)}
        logs.log(logging.INFO, "serving" if ports else "working", **said)
        if lower := _lowered(wished, settings.limits):
            level = logging.WARNING if "max_calls" in lower else logging.INFO
            logs.log(level, "limits are lower: the system allows few open files", **lower)
        yield _Server(core, observer, ports, metrics_url)


def _lowered(wished: Limits, limits: Limits) -> dict[str, Any]:
    """The limits that are lower than wished, by name."""
    names = ("max_connections", "max_calls", "max_client_calls")
    return {name: getattr(limits, name) for name in names if getattr(limits, name) < getattr(wished, name)}


def _interceptors(
    settings: Settings, arounds: list[Around], known_by: Callable[[Any], str]
) -> list[grpc.aio.ServerInterceptor]:
    """The interceptors of every call, over gRPC and HTTP, the outermost first."""
    interceptors: list[grpc.aio.ServerInterceptor] = [CallInterceptor(arounds, known_by)]
    if settings.tokens:
        interceptors.append(Gate(settings.tokens, settings.limits.max_unread_s))
    return [*interceptors, Admission(settings.limits), Answers(settings.limits.max_unread_s)]


def _grpc_server(limits: Limits, interceptors: list[grpc.aio.ServerInterceptor]) -> grpc.aio.Server:
    options = (
        ("grpc.so_reuseport", 0),  # a second server must not share the port
        ("grpc.max_receive_message_length", limits.max_message_bytes),
        # a provider has tokens of up to 8 KB; between its two limits, by default 8 and 16 KB, gRPC refuses at random
        ("grpc.max_metadata_size", MOST_HEADER_BYTES),
        ("grpc.absolute_max_metadata_size", MOST_HEADER_BYTES),
        # no compressed messages: gRPC before 1.84 inflates a megabyte to a gigabyte before it checks the size
        ("grpc.compression_enabled_algorithms_bitset", 1),
        ("grpc.max_allowed_incoming_connections", limits.max_connections),
        # beyond 1,000 waiting calls gRPC ends some at random without a reason; --max-calls refuses them with a reason
        ("grpc.server.max_pending_requests", _PENDING),
        ("grpc.server.max_pending_requests_hard_limit", 2 * _PENDING),
        # windows that grow would let each call keep megabytes of a message that nobody reads yet
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_connection_idle_ms", round(limits.max_connection_idle_s * 1000)),
        ("grpc.keepalive_time_ms", 60_000),  # detects clients that have vanished
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.min_ping_interval_without_data_ms", round(_PING_S * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
    )
    return grpc.aio.server(interceptors=interceptors, options=options)


async def _grpc_port(
    settings: Settings,
    core: Core,
    interceptors: list[grpc.aio.ServerInterceptor],
    known_by: Callable[[Any], str],
    stack: contextlib.AsyncExitStack,
) -> tuple[grpc.aio.Server, Any, Address]:
    """The port for the calls over gRPC, bound and not yet open; its health checks; and its address."""
    arriving = Arriving(settings.limits.max_upload_idle_s, known_by)
    server = _grpc_server(settings.limits, [arriving, *interceptors])
    stack.push_async_callback(server.stop, 0)
    probes = health.aio.HealthServicer()
    _add_services(server, core, probes)
    add_reflection((SERVICE, health.SERVICE_NAME), server)
    await probes.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
    return server, probes, _bind(server, settings)


def _http_port(
    settings: Settings, where: Address, interceptors: list[grpc.aio.ServerInterceptor], observer: Observer
) -> HttpPort:
    """The port for the calls over HTTP.

    Raises:
        UsageError: aiohttp is not installed.
    """
    try:
        from augment_server.api.http.port import HttpPort
    except ModuleNotFoundError as error:
        if error.name != "aiohttp":
            raise
        raise UsageError("--http needs aiohttp: pip install 'kineto-augment-server[http]'") from error
    proved = settings.tokens or (settings.tls and settings.tls.client_ca)
    return HttpPort(
        where,
        [service_pb2.DESCRIPTOR.services_by_name["AugmentService"]],
        Chain(interceptors),
        settings.limits,
        settings.tls.contexts() if settings.tls else None,
        observer,
        settings.origins,
        names_matter=where.loopback and not proved,
    )


def _add_services(server: Any, core: Core, probes: Any) -> None:
    """Add the service, and health checks."""
    service_pb2_grpc.add_AugmentServiceServicer_to_server(core.servicer, server)
    health_pb2_grpc.add_HealthServicer_to_server(probes, server)


def _bind(server: grpc.aio.Server, settings: Settings) -> Address:
    """Bind the port; returns the address, with the port that the system chose for port 0.

    Raises:
        AugmentError: the port is taken, or the address is not of this machine.
    """
    where = settings.listen
    try:
        if settings.tls:
            port = server.add_secure_port(str(where), settings.tls.credentials())
        else:
            port = server.add_insecure_port(str(where))
    except RuntimeError as error:
        advice = "the port is taken, or the address is not of this machine; choose another, or port 0 for any"
        raise AugmentError(f"--listen {where}: {advice}") from error
    return Address(where.host, port)
