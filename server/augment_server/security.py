"""Who may call: bearer tokens, addresses to listen on, TLS.

Certificates and tokens are read again when their files change, so that they can be renewed without a restart.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import os
import re
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio

from augment.errors import UsageError
from augment_server.errors import Refusal, refuse
from augment_server.interception import wrapped

#: may be asked without a token, for probes have none; to watch takes a call for long
HEALTH_CHECK = "/grpc.health.v1.Health/Check"
_SCHEME = "bearer "
T = TypeVar("T")


@dataclass(frozen=True)
class Address:
    """Where to listen."""

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
        UsageError: it is none.
    """
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not bare or (":" in bare and bare == host) or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"{option} {text}: must be HOST:PORT, such as 127.0.0.1:50051 or [::1]:50051")
    return Address(bare, int(port))


def expect_safe(where: Address, option: str, *, tls: bool, insecure: bool) -> None:
    """Refuse to speak in clear to other machines, unless that is what the operator says.

    Raises:
        UsageError: ``where`` can be reached from elsewhere, with neither TLS nor ``--insecure-listen``.
    """
    if not (where.loopback or tls or insecure):
        advice = "give --tls-cert and --tls-key, or --insecure-listen where something else protects it"
        raise UsageError(f"{option} {where}: other machines could reach it in clear; {advice}")


@dataclass(frozen=True)
class TlsFiles:
    """PEM files: the server's certificate and key, and if clients must show certificates, who signs those."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """For the server's port; the files are read again when they have changed.

        Raises:
            UsageError: a file cannot be read or used.
        """
        renewed = self._renewed(self._configuration)
        return grpc.dynamic_ssl_server_credentials(renewed(), renewed, self.client_ca is not None)

    def contexts(self) -> Callable[[], ssl.SSLContext]:
        """Gives the context for the next connection, of the files as they are then.

        Raises:
            UsageError: a file cannot be read or used.
        """
        return self._renewed(self._context)

    def _renewed(self, make: Callable[[], T]) -> Callable[[], T]:
        """What ``make`` makes of the files, made again when they have changed."""
        kept, known = make(), self._versions()

        def renewed() -> T:
            nonlocal known, kept
            versions = self._versions()
            if versions != known:
                with contextlib.suppress(UsageError):  # half written, perhaps: the next connection looks again
                    kept, known = make(), versions
            return kept

        return renewed

    def _configuration(self) -> Any:
        self._context()
        pair = (self.key.read_bytes(), self.cert.read_bytes())
        roots = self.client_ca.read_bytes() if self.client_ca else None
        return grpc.ssl_server_certificate_configuration([pair], roots)

    def _context(self) -> ssl.SSLContext:
        """As OpenSSL sees the files: gRPC itself only says later that no handshake succeeds."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        _usable(f"--tls-cert {self.cert}, --tls-key {self.key}", lambda: context.load_cert_chain(self.cert, self.key))
        if self.client_ca:
            authority = self.client_ca
            _usable(f"--tls-client-ca {authority}", lambda: context.load_verify_locations(authority))
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _versions(self) -> list[object]:
        return [_version(path) for path in (self.cert, self.key, self.client_ca) if path]


_NAMED = re.compile(r"([A-Za-z0-9._-]{1,64}):(?:(sha256):(?=[0-9a-fA-F]{64}$))?(\S+)")


class Tokens:
    """The tokens of a file, one a line; empty lines and those that begin with ``#`` are none.

    ``NAME:TOKEN`` says whose it is, ``NAME:sha256:HEX`` does not tell the token itself. A name may have several, and
    keeps what is its own when they change. Only digests are kept. A file that has become unreadable lets nobody in.

    Raises:
        UsageError: the file cannot be read, or holds no token.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version = _version(path)
        try:
            self._clients = dict(self._read())
        except OSError as error:
            raise UsageError(f"--token-file {path}: {(error.strerror or str(error)).lower()}") from error
        if not self._clients:
            raise UsageError(f"--token-file {path}: holds no token; write one a line")

    def client(self, token: str) -> str | None:
        """Whose ``token`` is: ``name:…``, else ``token:…``; None if it is none of them."""
        return self._current().get(_digest(token))  # found by its digest, whose bytes tell nothing of what is near

    def _current(self) -> dict[bytes, str]:
        version = _version(self._path)
        if version != self._version:
            try:
                self._clients = dict(self._read())
            except OSError:
                self._clients = {}
            self._version = version
        return self._clients

    def _read(self) -> Iterator[tuple[bytes, str]]:
        for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
            token = line.strip()
            if not token or line.startswith("#"):
                continue
            if named := _NAMED.fullmatch(token):
                name, hashed, token = named.groups()
                yield bytes.fromhex(token) if hashed else _digest(token), f"name:{name}"
            else:
                yield _digest(token), f"token:{_digest(token).hex()[:32]}"


class Gate(grpc.aio.ServerInterceptor):
    """Lets nobody through without a token, but for the questions of a probe."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def intercept_service(self, continuation: Callable[..., Any], details: Any) -> Any:
        """The method's handler, or one that refuses."""
        handler = await continuation(details)
        if details.method == HEALTH_CHECK:
            return handler
        token = _bearer(details.invocation_metadata)
        if token is not None and self._tokens.client(token):
            return handler
        return wrapped(handler, lambda _: _no_token if token is None else _bad_token)


async def _no_token(_request: object, context: Any) -> None:
    advice = "send the metadata 'authorization: Bearer TOKEN' (augment run: --token-file)"
    await refuse(context, Refusal("TOKEN_MISSING", f"this server wants a token: {advice}"))


async def _bad_token(_request: object, context: Any) -> None:
    advice = "ask its operator for one that is valid"
    await refuse(context, Refusal("TOKEN_UNKNOWN", f"this server does not know the token: {advice}"))


def client_of(context: Any, *, tokens: Tokens | None) -> str:
    """Who calls: ``name:…``, ``token:…`` or ``certificate:…`` where that was proved, else ``host:…``.

    Args:
        context: of the call.
        tokens: by which a :class:`Gate` lets callers in.
    """
    token = _bearer(context.invocation_metadata()) if tokens else None
    if tokens and token is not None and (client := tokens.client(token)):
        return client
    shown = context.auth_context()
    for field in ("x509_common_name", "x509_subject_alternative_name"):
        if names := shown.get(field):
            return f"certificate:{names[0].decode(errors='replace')}"
    if certificates := shown.get("x509_pem_cert"):
        return f"certificate:{hashlib.sha256(certificates[0]).hexdigest()}"
    return f"host:{context.peer().rpartition(':')[0]}"


def _bearer(metadata: Any) -> str | None:
    for name, value in metadata or ():
        if name == "authorization" and isinstance(value, str) and value[: len(_SCHEME)].lower() == _SCHEME:
            return value[len(_SCHEME) :].strip()
    return None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()


def _version(path: Path) -> object:
    """Something that differs once the file, or what a link leads to, is another."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev


def _usable(what: str, load: Callable[[], None]) -> None:
    try:
        load()
    except ssl.SSLError as error:
        raise UsageError(f"{what}: no usable PEM files: {error.reason or error}") from error
    except OSError as error:
        raise UsageError(f"{what}: {(error.strerror or str(error)).lower()}") from error
