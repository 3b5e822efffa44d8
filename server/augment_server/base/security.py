"""Who may call: bearer tokens, addresses to listen on, TLS.

Certificates and tokens are read again when their files change, so that they can be renewed without a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import re
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio

from augment.errors import UsageError
from augment_server.base.errors import Refusal, refuse
from augment_server.base.interception import Behaviour, wrapped
from augment_server.base.names import file_version
from augment_server.base.oidc import Issuers
from augment_server.base.people import OWN, PROJECT, ROLES, Person
from augment_server.base.sockets import hang_up

#: methods that need no token, because probes have none. Watch is not among them: it occupies a call for long
HEALTH_CHECK = "/grpc.health.v1.Health/Check"
_SCHEME = "bearer "
_LOOK_S = 1.0  #: how often the tokens of streams are looked up again
T = TypeVar("T")


@dataclass(frozen=True)
class Address:
    """An address to listen on."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address(text: str, option: str) -> Address:
    """``127.0.0.1:50051``, ``[::1]:50051``, ``localhost:0``.

    Raises:
        UsageError: the text has another form.
    """
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not bare or (":" in bare and bare == host) or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"{option} {text}: must be HOST:PORT, such as 127.0.0.1:50051 or [::1]:50051")
    return Address(bare, int(port))


def expect_safe(where: Address, option: str, *, tls: bool, insecure: bool) -> None:
    """Refuse unencrypted connections from other machines, unless the operator allows them.

    Raises:
        UsageError: other machines can reach ``where``, and neither TLS nor ``--insecure-listen`` is set.
    """
    if not (where.loopback or tls or insecure):
        advice = "give --tls-cert and --tls-key, or --insecure-listen if the network is protected otherwise"
        raise UsageError(f"{option} {where}: other machines could reach it without encryption; {advice}")


@dataclass(frozen=True)
class TlsFiles:
    """PEM files: the server's certificate and key, and the authorities of client certificates if these are required."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """The credentials of the server's port; changed files are read again.

        Raises:
            UsageError: a file cannot be read or used.
        """
        renewed = self._renewed(self._configuration)
        return grpc.dynamic_ssl_server_credentials(renewed(), renewed, self.client_ca is not None)

    def contexts(self) -> Callable[[], ssl.SSLContext]:
        """A function that returns the TLS context for the next connection; changed files are read again.

        Raises:
            UsageError: a file cannot be read or used.
        """
        return self._renewed(self._context)

    def _renewed(self, make: Callable[[], T]) -> Callable[[], T]:
        """A function that returns the result of ``make``, made again when the files have changed."""
        kept, known = make(), self._versions()

        def renewed() -> T:
            nonlocal known, kept
            versions = self._versions()
            if versions != known:
                with contextlib.suppress(UsageError):  # perhaps half written: the next connection tries again
                    kept, known = make(), versions
            return kept

        return renewed

    def _configuration(self) -> Any:
        self._context()
        pair = (self.key.read_bytes(), self.cert.read_bytes())
        roots = self.client_ca.read_bytes() if self.client_ca else None
        return grpc.ssl_server_certificate_configuration([pair], roots)

    def _context(self) -> ssl.SSLContext:
        """The context from OpenSSL, which reports unusable files at once; gRPC only fails each handshake later."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        _usable(f"--tls-cert {self.cert}, --tls-key {self.key}", lambda: context.load_cert_chain(self.cert, self.key))
        if self.client_ca:
            authority = self.client_ca
            _usable(f"--tls-client-ca {authority}", lambda: context.load_verify_locations(authority))
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _versions(self) -> list[object]:
        return [file_version(path) for path in (self.cert, self.key, self.client_ca) if path]


_NAMED = re.compile(
    rf"([A-Za-z0-9._-]{{1,64}}):(?:({'|'.join(ROLES)})@({PROJECT}):)?(?:(sha256):(?=[0-9a-fA-F]{{64}}$))?(\S+)"
)


class Tokens:
    """The tokens in a file, one per line; empty lines and those that begin with ``#`` are skipped.

    ``NAME:TOKEN`` names the client, ``NAME:sha256:HEX`` contains only the token's digest. A name may have several
    tokens; its jobs and uploads stay its own when these change. ``NAME:ROLE@PROJECT:…`` gives the token a role in a
    project, and more lines with it and the same name give it more roles; the first project is its own. Memory holds
    only digests. If the file becomes unreadable, every token is refused.

    Args:
        path: the file; None: there is none, only those of ``issuers``.
        issuers: identity providers, whose tokens count, too.

    Raises:
        UsageError: the file cannot be read, or contains no token.
    """

    def __init__(self, path: Path | None, issuers: Issuers | None = None) -> None:
        self._path, self._issuers = path, issuers
        self._people: dict[bytes, Person] = {}
        if path is None:
            return
        self._version = file_version(path)
        try:
            self._people = self._read(path)
        except OSError as error:
            raise UsageError(f"--token-file {path}: {(error.strerror or str(error)).lower()}") from error
        if not self._people:
            raise UsageError(f"--token-file {path}: contains no token; write one per line")

    def client(self, token: str) -> str | None:
        """The client with this token: ``name:…``, else ``token:…``; None if the token is unknown."""
        person = self.person(token)
        return person.client if person else None

    def person(self, token: str) -> Person | None:
        """The client with this token, and its roles; None if the token is unknown."""
        person = self._current().get(_digest(token))  # by digest: the duration reveals nothing about similar tokens
        return person if person or not self._issuers else self._issuers.person(token)

    async def learn(self, token: str) -> None:
        """Get ready to tell whose token it is.

        Raises:
            Refusal: its issuer does not answer.
        """
        if self._issuers:
            await self._issuers.learn(token)

    def _current(self) -> dict[bytes, Person]:
        if self._path is None:
            return self._people
        version = file_version(self._path)
        if version != self._version:
            try:
                self._people = self._read(self._path)
            except OSError:
                self._people = {}
            self._version = version
        return self._people

    def _read(self, path: Path) -> dict[bytes, Person]:
        people: dict[bytes, Person] = {}
        for digest, client, project, role in self._lines(path):
            known = people.get(digest)
            roles = dict(known.roles) if known and known.client == client else {}
            people[digest] = Person(client, {**roles, project: role})
        return people

    def _lines(self, path: Path) -> Iterator[tuple[bytes, str, str, str]]:
        """Of each line the token's digest, the client, a project, and the role in it."""
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            token = line.strip()
            if not token or line.startswith("#"):
                continue
            if named := _NAMED.fullmatch(token):
                name, role, project, hashed, token = named.groups()
                digest = bytes.fromhex(token) if hashed else _digest(token)
                yield digest, f"name:{name}", project or OWN, role or ROLES[-1]
            else:
                yield _digest(token), f"token:{_digest(token).hex()[:32]}", OWN, ROLES[-1]


class Gate(grpc.aio.ServerInterceptor):
    """Requires a token for all calls but health checks, and for streams until they end.

    Args:
        tokens: the known tokens.
        unread_s: how long the status of an ended stream may wait behind messages that its client does not read.
        hang_up: ends a peer's connection; blocks.
    """

    def __init__(self, tokens: Tokens, unread_s: float, hang_up: Callable[[str], object] = hang_up) -> None:
        self._tokens, self._unread_s, self._hang_up = tokens, unread_s, hang_up
        self._streams: dict[asyncio.Task[Any], tuple[str, Person]] = {}  # the token of each, and its client
        self._looking: asyncio.Task[None] | None = None

    async def intercept_service(self, continuation: Callable[..., Any], details: Any) -> Any:
        """The method's handler behind the check of the token."""
        handler = await continuation(details)
        if details.method == HEALTH_CHECK:
            return handler
        token = _bearer(details.invocation_metadata)
        if token is not None:
            try:
                await self._tokens.learn(token)
            except Refusal as refusal:
                away = refusal
                return wrapped(handler, lambda _: lambda _request, context: refuse(context, away))
        client = None if token is None else self._tokens.person(token)
        if token is None or client is None:
            return wrapped(handler, lambda _: _no_token if token is None else _bad_token)
        if handler is None or not (handler.request_streaming or handler.response_streaming):
            return handler
        return wrapped(handler, lambda behaviour: self._while_known(behaviour, token, client))

    def _while_known(self, behaviour: Behaviour, token: str, client: Person) -> Behaviour:
        """The behaviour of a stream, which is ended when the token is no longer that of ``client``, with its roles."""

        async def answer(request: Any, context: Any) -> Any:
            stream: asyncio.Task[Any] = asyncio.ensure_future(behaviour(request, context))
            self._streams[stream] = token, client
            if self._looking is None:
                self._looking = asyncio.create_task(self._look())
            try:
                return await stream  # is cancelled with this call
            except asyncio.CancelledError:
                if stream in self._streams:
                    raise
            finally:
                self._streams.pop(stream, None)
            telling = asyncio.ensure_future(_bad_token(request, context))
            try:
                read, _ = await asyncio.wait({telling}, timeout=self._unread_s)
                if not read:
                    await asyncio.to_thread(self._hang_up, context.peer())
                return await telling
            finally:
                telling.cancel()

        return answer

    async def _look(self) -> None:
        """End the streams of unknown tokens, as long as there are streams."""
        try:
            while self._streams:
                await asyncio.sleep(_LOOK_S)
                for stream, (token, client) in list(self._streams.items()):
                    if self._tokens.person(token) != client:
                        del self._streams[stream]
                        stream.cancel()
        finally:
            self._looking = None


async def _no_token(_request: object, context: Any) -> None:
    advice = "send the metadata 'authorization: Bearer TOKEN' (augment run: --token-file)"
    await refuse(context, Refusal("TOKEN_MISSING", f"this server requires a token: {advice}"))


async def _bad_token(_request: object, context: Any) -> None:
    advice = "get a new one, or ask its operator for one that is valid"
    await refuse(context, Refusal("TOKEN_UNKNOWN", f"this server does not know the token, or it has expired: {advice}"))


def client_of(context: Any, *, tokens: Tokens | None) -> str:
    """The name of :func:`person_of`."""
    return person_of(context, tokens=tokens).client


def person_of(context: Any, *, tokens: Tokens | None) -> Person:
    """The caller, with its roles: ``name:``, ``token:``, ``oidc:`` or ``certificate:…`` if verified, else ``host:…``.

    Args:
        context: the call's context.
        tokens: those of the :class:`Gate`.
    """
    token = _bearer(context.invocation_metadata()) if tokens else None
    if tokens and token is not None and (person := tokens.person(token)):
        return person
    shown = context.auth_context()
    for field in ("x509_common_name", "x509_subject_alternative_name"):
        if names := shown.get(field):
            return Person(f"certificate:{names[0].decode(errors='replace')}")
    if certificates := shown.get("x509_pem_cert"):
        return Person(f"certificate:{hashlib.sha256(certificates[0]).hexdigest()}")
    return Person(f"host:{context.peer().rpartition(':')[0]}")


def _bearer(metadata: Any) -> str | None:
    for name, value in metadata or ():
        if name == "authorization" and isinstance(value, str) and value[: len(_SCHEME)].lower() == _SCHEME:
            return value[len(_SCHEME) :].strip()
    return None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()


def _usable(what: str, load: Callable[[], None]) -> None:
    try:
        load()
    except ssl.SSLError as error:
        raise UsageError(f"{what}: no usable PEM files: {error.reason or error}") from error
    except OSError as error:
        raise UsageError(f"{what}: {(error.strerror or str(error)).lower()}") from error
