"""The HTTP port: connections, checks of Host and Origin, and the dispatch of requests."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import logging
import os
import socket
import ssl
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from aiohttp import ClientError, web
from aiohttp.http_exceptions import HttpProcessingError
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2

from augment.errors import AugmentError
from augment.v1 import service_pb2
from augment_server.api.http.calls import FILE, HTTP_STATUS, JSON, Answer, Body, failure
from augment_server.api.http.chain import Aborted, Chain, Context, Details
from augment_server.api.http.messages import Found, Routes
from augment_server.api.http.page import VERDICT_WITH, of_failure, of_job, wants_page
from augment_server.base.errors import Refusal
from augment_server.base.limits import MOST_HEADER_BYTES, Limits
from augment_server.base.observer import Observer
from augment_server.base.security import HEALTH_CHECK, Address
from augment_server.base.threads import Apart

HEALTH_PATH = "/healthz"  #: the same path as in grpc-gateway
OPENAPI_PATH = "/openapi.json"
_GET_JOB, _GET_METRICS = (f"/augment.v1.AugmentService/{name}" for name in ("GetJob", "GetMetrics"))
_OPENAPI = Path(__file__).with_name("openapi.json")  #: made by proto/generate.py
_METADATA = ("authorization", "traceparent", "tracestate")  #: headers that become metadata
_PREFIX = "grpc-metadata-"  #: so do headers with this prefix, without it
_MOST_LEAVING, _LEAVING_S = 32, 2.0  #: how many connections at once are told that there are too many, and how long
_READING = "GET, HEAD, OPTIONS"  #: what web pages of other servers may do
_READING_HEADERS = "Authorization, If-None-Match, If-Range, Range"
_EXPOSED = "Accept-Ranges, Content-Disposition, Content-Length, Content-Range, ETag, Retry-After"
_HANDSHAKE_S = 10.0
_READ_BYTES = 256 << 10
_PAUSE_S = 1.0  #: pause when no connection can be accepted, such as without free descriptors


class HttpPort:
    """Serves the methods of ``services`` over HTTP.

    Args:
        where: the address to listen on.
        services: the services whose methods have HTTP options.
        chain: calls the methods.
        limits: the server's limits.
        contexts: returns the TLS context for the next connection; None without TLS.
        origins: web pages of other servers that may read, such as ``https://ui.perfetto.dev``.
        names_matter: whether ``Host`` must be an address or ``localhost``. Without tokens or certificates, a web page
            could otherwise make its own host name point to this port (DNS rebinding).
        observer: receives errors.
    """

    def __init__(
        self,
        where: Address,
        services: list[ServiceDescriptor],
        chain: Chain,
        limits: Limits,
        contexts: Callable[[], ssl.SSLContext] | None,
        observer: Observer,
        origins: Collection[str] = (),
        *,
        names_matter: bool,
    ) -> None:
        self._where, self.chain, self._limits, self._contexts = where, chain, limits, contexts
        self._observer, self._origins, self._names_matter = observer, origins, names_matter
        self._routes, self._incomplete, self._apart = Routes(services), Counter[str](), Apart()
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._leaving: deque[asyncio.Task[None]] = deque()  # connections beyond the limit, which are told so
        self.url = ""

    async def start(self) -> None:
        """Start to listen.

        Raises:
            AugmentError: the port is taken.
        """
        logging.getLogger("aiohttp.server").addFilter(lambda record: not _is_no_request(record))
        self._server = web.Server(
            self._handled,
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=self._limits.max_connection_idle_s,
            max_field_size=MOST_HEADER_BYTES,
            read_bufsize=_READ_BYTES,
            lingering_time=2.0,
        )
        try:
            self._sockets = await _listening(self._where)
        except OSError as error:
            reason = (os.strerror(error.errno) if error.errno else str(error)).lower()  # without the address
            raise AugmentError(f"--http {self._where}: {reason}; choose another port, or 0 for any") from error
        self._accepting = [asyncio.create_task(self._accept(listener)) for listener in self._sockets]
        port = self._sockets[0].getsockname()[1]
        self.url = f"http{'s' if self._contexts else ''}://{Address(self._where.host, port)}"

    async def close(self, grace_s: float = 0.0) -> None:
        """Accept no more connections. Running calls may continue for the given time."""
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for listener in self._sockets:
            listener.close()
        self._server.pre_shutdown()
        end = asyncio.get_running_loop().time() + grace_s
        while self._server.connections and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.05)
        await self._server.shutdown(0.1)
        self._apart.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
            except OSError as error:
                self._observer.log(logging.ERROR, f"no connection can be accepted: {error!r}")
                await asyncio.sleep(_PAUSE_S)
                continue
            if len(self._server.connections) + len(self._tasks) < self._limits.max_connections:
                task = asyncio.create_task(self._connect(connection))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif self._contexts:
                connection.close()  # nothing can be said before a handshake
            else:
                self._turn_away(connection)
            await asyncio.sleep(0)  # what is closed is closed before the next one comes

    def _turn_away(self, connection: socket.socket) -> None:
        """Refuse a connection beyond the limit. Of those that send no request, the oldest make room for others."""
        if len(self._leaving) >= _MOST_LEAVING:
            self._leaving.popleft().cancel()
        task = asyncio.create_task(asyncio.wait_for(_tell_to_leave(connection), _LEAVING_S))
        self._leaving.append(task)

        def left(task: asyncio.Task[None]) -> None:
            connection.close()
            with contextlib.suppress(asyncio.CancelledError):
                task.exception()
            with contextlib.suppress(ValueError):
                self._leaving.remove(task)

        task.add_done_callback(left)

    async def _connect(self, connection: socket.socket) -> None:
        """Accept a connection, with TLS from the current files."""
        context = self._contexts() if self._contexts else None
        handshake = {"ssl": context, "ssl_handshake_timeout": _HANDSHAKE_S} if context else {}
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(self._server, connection, **handshake)  # type: ignore[arg-type]
        except (OSError, asyncio.TimeoutError):  # a failed handshake is the client's error
            connection.close()

    async def _handled(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._sent(request, await self._answered(request))

    async def _sent(self, request: web.BaseRequest, response: web.StreamResponse) -> web.StreamResponse:
        """The response, once it is sent: aiohttp would wait for ever until it is read."""

        async def send() -> None:
            await response.prepare(request)
            await response.write_eof()

        try:
            await asyncio.wait_for(send(), self._limits.max_unread_s)
        except asyncio.TimeoutError:
            if request.transport:
                request.transport.abort()
        except (ConnectionError, ClientError):  # the client has gone
            pass
        return response

    async def _answered(self, request: web.BaseRequest) -> web.StreamResponse:
        if refused := self._refused(request):
            return refused
        path, verb = request.rel_url.raw_path, request.method
        if verb == "OPTIONS" and request.headers.get("Origin") in self._origins:
            asked = {"Access-Control-Allow-Methods": _READING, "Access-Control-Allow-Headers": _READING_HEADERS}
            return web.Response(status=204, headers={**self._shared(request), **asked, "Access-Control-Max-Age": "600"})
        if path == HEALTH_PATH and verb in ("GET", "HEAD"):
            return await self._call(request, HEALTH_CHECK, health_pb2.HealthCheckRequest(), streams=False)
        if path == OPENAPI_PATH and verb in ("GET", "HEAD"):
            return web.Response(body=_OPENAPI.read_bytes(), headers={**self._shared(request), "Content-Type": JSON})
        route = self._routes.find("GET" if verb == "HEAD" else verb, path)
        if route is None or (verb == "HEAD" and _streams(route) and not _is_file(route)):
            return self._nothing(verb, path, self._shared(request))
        if route.route.path == _GET_JOB and wants_page(request.headers.get("Accept", "")):
            return await self._page(request, route.fields["name"])
        most, idle_s = self._limits.max_message_bytes, self._limits.max_upload_idle_s
        with contextlib.closing(Body(request, route, most, idle_s, self._incomplete, self._apart)) as body:
            return await self._call(request, route.route.path, body.message, streams=_streams(route))

    def _refused(self, request: web.BaseRequest) -> web.Response | None:
        """The refusal of a request that may come from another server's web page in a visitor's browser; else None."""
        origin, host = request.headers.get("Origin"), request.headers.get("Host", "")
        if origin in self._origins and request.method not in _READING.split(", "):
            what = "web pages of other servers may read, and change nothing"
        elif origin is not None and origin not in self._origins and not _same_site(origin, host):
            what = "requests from web pages of other servers are refused; --allow-origin lets some read"
        elif self._names_matter and not _local(host):
            what = "Host must be an address of this server, or localhost"
        else:
            return None
        return failure(Refusal("ORIGIN_NOT_ALLOWED", what).status())

    def _shared(self, request: web.BaseRequest) -> dict[str, str]:
        """The headers that let an allowed page of another server read the response."""
        if not self._origins:
            return {}
        origin = request.headers.get("Origin", "")
        if origin not in self._origins:
            return {"Vary": "Origin"}
        return {"Vary": "Origin", "Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": _EXPOSED}

    def _nothing(self, verb: str, path: str, shared: Mapping[str, str]) -> web.Response:
        verbs = self._routes.verbs(path)
        if verbs:
            what = f"{path[:200]} does not support {verb[:20]}, but {', '.join(verbs)}"
            return failure(Refusal("INVALID_REQUEST", what).status(), 405, {**shared, "Allow": ", ".join(verbs)})
        what = f"{path[:200]}: there is no such path; docs/service.md has all"
        return failure(Refusal("NOT_FOUND", what).status(), headers=shared)

    async def _call(self, request: web.BaseRequest, method: str, body: Any, *, streams: bool) -> web.StreamResponse:
        """Answer a call."""
        metadata = tuple(_metadata(request.headers, request.method))
        answer = Answer(request, self._shared(request), self._apart, streams=streams)
        context = Context(_peer(request), metadata, _shown(request), answer.write, answer.part)
        answer.headers = context.answered
        try:
            behaviour = await self.chain.behaviour(Details(method, metadata))
            return await self._sent(request, await answer.finish(await behaviour(body, context)))
        except Aborted:
            return await self._sent(request, await answer.fail(context.status))
        except Exception as error:
            self._observer.log(logging.ERROR, f"{method}: {error!r}")
            return await answer.fail(Refusal("INTERNAL", "internal error; the server's log has more").status())
        finally:
            context.ended()

    async def _page(self, request: web.BaseRequest, name: str) -> web.Response:
        """The page of a job, or of why it is not shown."""
        got: list[Any] = []
        if status := await self._asked(request, _GET_JOB, service_pb2.GetJobRequest(name=name), got):
            return of_failure(status, HTTP_STATUS.get(status.code, 500))
        job, metrics = got.pop().job, list[Any]()
        if analysis := VERDICT_WITH.get(job.spec.WhichOneof("kind")):
            asked = service_pb2.GetMetricsRequest(name=name, analyses=[analysis])
            await self._asked(request, _GET_METRICS, asked, metrics)
        return of_job(job, [text for each in metrics for text in each.verdict])

    async def _asked(self, request: web.BaseRequest, method: str, message: Any, got: list[Any]) -> Any:
        """Add the messages of a method to ``got``; the status with which it failed, or None."""

        async def take(each: Any) -> None:
            got.append(each)

        metadata = tuple(_metadata(request.headers, request.method))
        context = Context(_peer(request), metadata, _shown(request), take, lambda size, _sha256: (0, size))
        try:
            answer = await (await self.chain.behaviour(Details(method, metadata)))(message, context)
            got += [answer] if answer is not None else []
        except Aborted:
            return context.status
        finally:
            context.ended()
        return None


async def _tell_to_leave(connection: socket.socket) -> None:
    """Answer a request that there are too many connections, and when to try again.

    Raises:
        OSError: the client has gone.
    """
    refusal = Refusal("TOO_MANY_CONNECTIONS", "too many connections; try again", retry_s=1)
    answer = failure(refusal.status())
    assert isinstance(answer.body, bytes)
    head = {**answer.headers, "Content-Length": str(len(answer.body)), "Connection": "close"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    text = f"HTTP/1.1 {answer.status} {answer.reason}\r\n{lines}\r\n".encode() + answer.body
    loop = asyncio.get_running_loop()
    await loop.sock_recv(connection, _READ_BYTES)  # with unread bytes, closing would take the answer back
    await loop.sock_sendall(connection, text)
    connection.shutdown(socket.SHUT_WR)
    await loop.sock_recv(connection, _READ_BYTES)


def _streams(route: Found) -> bool:
    return bool(route.route.method.server_streaming)


def _is_file(route: Found) -> bool:
    return bool(route.route.method.output_type.full_name == FILE)


async def _listening(where: Address) -> list[socket.socket]:
    """Sockets on all addresses of a host, with the same port."""
    loop, port = asyncio.get_running_loop(), where.port
    places = await loop.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    made: list[socket.socket] = []
    with contextlib.ExitStack() as stack:
        for family, _, _, _, place in dict.fromkeys(places):
            listener = stack.enter_context(socket.create_server((str(place[0]), port), family=family, backlog=1024))
            listener.setblocking(False)
            port = listener.getsockname()[1]
            made.append(listener)
        stack.pop_all()
    return made


def _metadata(headers: Mapping[str, str], verb: str) -> list[tuple[str, str]]:
    """The headers that are metadata. A browser, which knows no tokens, sends one as a password, and only to read."""
    entries = []
    for name, value in headers.items():
        lower = name.lower()
        if lower == "authorization" and verb in ("GET", "HEAD") and value[:6].lower() == "basic ":
            with contextlib.suppress(ValueError):
                value = f"Bearer {base64.b64decode(value[6:], validate=True).decode().partition(':')[2]}"
        if lower in _METADATA or lower.startswith(_PREFIX):
            entries.append((lower.removeprefix(_PREFIX), value))
    return entries


def _peer(request: web.BaseRequest) -> str:
    """The peer's address in gRPC's form."""
    name = request.transport.get_extra_info("peername") if request.transport else None
    if not name:
        return "unknown"
    address = ipaddress.ip_address(name[0].partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    if mapped or address.version == 4:
        return f"ipv4:{mapped or address}:{name[1]}"
    return f"ipv6:{quote(f'[{name[0]}]', safe='')}:{name[1]}"


def _shown(request: web.BaseRequest) -> dict[str, list[bytes]]:
    """The properties of the client's certificate, in gRPC's form."""
    tls = request.transport.get_extra_info("ssl_object") if request.transport else None
    encoded = tls.getpeercert(binary_form=True) if tls else None
    if not tls or not encoded:
        return {}
    certificate: dict[str, Any] = tls.getpeercert()
    names = [value for part in certificate.get("subject", ()) for name, value in part if name == "commonName"]
    names_of = {
        "x509_common_name": names[:1],
        "x509_subject_alternative_name": [value for _, value in certificate.get("subjectAltName", ())],
        "x509_pem_cert": [ssl.DER_cert_to_PEM_cert(encoded)],
    }
    return {name: [value.encode() for value in values] for name, values in names_of.items() if values}


def _local(host: str) -> bool:
    """Whether a ``Host`` is an address or ``localhost``."""
    with contextlib.suppress(ValueError):
        name = urlsplit(f"//{host}").hostname or ""
        if name == "localhost":
            return True
        ipaddress.ip_address(name)
        return True
    return False


def _same_site(origin: str, host: str) -> bool:
    """Whether the request's origin is this server."""
    with contextlib.suppress(ValueError):
        return urlsplit(origin).netloc == host
    return False


def _is_no_request(record: logging.LogRecord) -> bool:
    """Whether a log line reports bytes that are not HTTP. They are answered, and are no error of the server."""
    return bool(record.exc_info) and isinstance(record.exc_info[1], HttpProcessingError)  # type: ignore[index]
