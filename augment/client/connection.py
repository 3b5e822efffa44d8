"""A channel to the server, calls that are retried after failures that may pass, and failures of calls and jobs as
exceptions of ``augment.errors``.
"""

from __future__ import annotations

import ipaddress
import random
import re
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TypeVar, cast

import grpc
from google.rpc import code_pb2, error_details_pb2
from grpc_status import rpc_status
from msgspec import Struct, field

from augment.errors import (
    AugmentError,
    InputError,
    LimitExceeded,
    MalformedTrace,
    ServiceError,
    UnknownFormat,
    UsageError,
)
from augment.v1 import resources_pb2

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 10.0
CALL_S = 60.0  #: timeout of a single unary call
_PING_S = 30
_LONGEST_MESSAGE = 16 << 20

Answer = TypeVar("Answer")


class Tls(Struct, frozen=True):
    """PEM files: the authority of the server's certificate (default: the system's); a client certificate and key."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """The credentials of a channel.

        Raises:
            UsageError: a file cannot be read, or one of certificate and key is missing.
        """
        if bool(self.cert) != bool(self.key):
            raise UsageError("the client's TLS certificate and its key belong together")
        ca, key, cert = (self._read(path) for path in (self.ca, self.key, self.cert))
        return grpc.ssl_channel_credentials(ca, key, cert)

    @staticmethod
    def _read(path: Path | None) -> bytes | None:
        if path is None:
            return None
        try:
            text = path.read_bytes()
        except OSError as error:
            raise UsageError(f"{path}: {(error.strerror or str(error)).lower()}") from error
        if b"-----BEGIN " not in text:
            raise UsageError(f"{path}: is not a PEM file")
        return text


def channel_to(address: str, tls: Tls | None) -> grpc.Channel:
    """A channel; it connects on first use."""
    options: list[tuple[str, int]] = [
        ("grpc.max_receive_message_length", _LONGEST_MESSAGE),
        ("grpc.keepalive_time_ms", _PING_S * 1000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_reconnect_backoff_ms", round(_LONGEST_PAUSE_S * 1000)),
        ("grpc.initial_reconnect_backoff_ms", round(_FIRST_PAUSE_S * 1000)),
        ("grpc.min_reconnect_backoff_ms", 1000),
        ("grpc.enable_http_proxy", 0 if _loopback(address) else 1),
    ]
    if tls is None:
        return grpc.insecure_channel(address, options)
    return grpc.secure_channel(address, tls.credentials(), options)


class Deadline:
    """The time after which an operation gives up.

    Args:
        timeout_s: seconds from now; None: no limit.
        what: names the operation in the error.
    """

    def __init__(self, timeout_s: float | None, what: str) -> None:
        self._timeout_s, self._what = timeout_s, what
        self._end = None if timeout_s is None else time.monotonic() + timeout_s

    def left_s(self, at_most: float | None = None) -> float | None:
        """The seconds left, limited to ``at_most``; None: no limit.

        Raises:
            ServiceError: the deadline has passed.
        """
        if self._end is None:
            return at_most
        left = self._end - time.monotonic()
        if left <= 0:
            message = f"{self._what}: not done within {self._timeout_s:g} s; allow more time, or try again later"
            raise ServiceError(message, "DEADLINE_EXCEEDED", "")
        return left if at_most is None else min(left, at_most)


class Connection:
    """Makes calls with the token, and retries them after failures that may pass.

    Args:
        address: the server's address, for errors.
        token: sent with each call.
        patience_s: how long to retry while the server does not answer or is full.
        first_patience_s: the same until the server's first answer; short, so that a wrong address fails soon.
        waiting: called before each pause with the reason for it.
    """

    def __init__(
        self,
        address: str,
        token: str | None,
        patience_s: float,
        first_patience_s: float,
        waiting: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.address, self._waiting = address, waiting
        self.metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._patience_s, self._first_patience_s = patience_s, first_patience_s
        self._answered = False
        self.has_links = True  #: whether links into the server's store seem to work from here

    def ask(self, method: Callable[..., Answer], request: object, deadline: Deadline, path: str = "") -> Answer:
        """The response to an idempotent call.

        Raises:
            AugmentError: the server refuses the call, or cannot be reached.
        """

        def attempt(_: Patience) -> Answer:
            return method(request, timeout=deadline.left_s(CALL_S), metadata=self.metadata)

        return self.persist(attempt, deadline, path)

    def persist(
        self, attempt: Callable[[Patience], Answer], deadline: Deadline, path: str = "", passing: Collection[str] = ()
    ) -> Answer:
        """The result of ``attempt``, retried after each failure that may pass.

        ``attempt`` calls ``patience.heard()`` after each progress. ``passing`` are further reasons that may pass.
        """
        patience = Patience(self, deadline, passing)
        while True:
            try:
                answer = attempt(patience)
            except grpc.RpcError as error:  # noqa: PERF203 - the loop is of retries
                failure = failure_of(error)
                if not patience.wait_after(failure):
                    raise failure.error(self.address, path) from error
            else:
                self._answered = True
                return answer

    def heard(self) -> None:
        """Record that the server has answered."""
        self._answered = True

    def waiting(self, failure: Failure) -> None:
        """Report a pause and the failure that caused it."""
        if self._answered:  # before the first answer the address may be wrong; that fails soon
            self._waiting(failure.message if failure.reason else "the server does not answer any more")

    @property
    def patience_s(self) -> float:
        """How long to retry while the server does not answer or is full."""
        return self._patience_s if self._answered else self._first_patience_s


class Patience:
    """How often and how long to retry: exponential backoff up to a limit, with jitter."""

    def __init__(self, connection: Connection, deadline: Deadline, passing: Collection[str] = ()) -> None:
        self._connection, self._deadline, self._passing = connection, deadline, passing
        self._pause_s = _FIRST_PAUSE_S
        self._silent_since = time.monotonic()

    def heard(self) -> None:
        """Record progress: the backoff and the patience start anew."""
        self._connection.heard()
        self._pause_s, self._silent_since = _FIRST_PAUSE_S, time.monotonic()

    def wait_after(self, failure: Failure) -> bool:
        """Pause before a retry; False, without a pause, if a retry is pointless.

        Raises:
            ServiceError: the deadline has passed.
        """
        pause_s = random.uniform(0.5, 1.0) * self._pause_s  # noqa: S311 # spreads clients, keeps no secret
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        if failure.retry_after_s is not None:  # the server itself sent this
            self._connection.heard()
            pause_s = failure.retry_after_s * random.uniform(1.0, 1.25)  # noqa: S311
        elif failure.code == "DEADLINE_EXCEEDED" and not failure.reason:
            self._deadline.left_s()  # raises if the deadline has passed; else only this attempt timed out
        elif not failure.passing and failure.reason not in self._passing:
            return False
        if time.monotonic() - self._silent_since + pause_s > self._connection.patience_s:
            return False
        self._connection.waiting(failure)
        time.sleep(self._deadline.left_s(pause_s) or 0)
        return True


def _loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_INPUT_ERRORS: Mapping[str, type[InputError]] = {
    "UNKNOWN_FORMAT": UnknownFormat,
    "UNREADABLE_INPUT": InputError,
    "LIMIT_EXCEEDED": LimitExceeded,
}


class Failure(Struct, frozen=True):
    """Why a call or a job failed.

    ``code`` is the name of the canonical code; ``reason`` comes from the augment server and is empty if something else
    answered; ``retry_after_s`` is set if the server asks for a retry.
    """

    code: str
    reason: str
    message: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    retry_after_s: float | None = None

    @property
    def passing(self) -> bool:
        """Whether the failure may pass, so that a retry can help: the connection failed, or the server was busy."""
        if self.code in _OF_CUT_STREAMS:  # by a proxy, or a server that died or ended
            return not self.reason and _OF_CUT_STREAMS[self.code] in self.message
        full = self.code == "RESOURCE_EXHAUSTED" and "Concurrent RPC limit" in self.message
        dropped = self.code == self.message == "CANCELLED" and not self.reason  # from a server with too many calls
        return dropped or self.code == "UNAVAILABLE" or self.reason == "UPLOAD_TAKEN_OVER" or full

    def error(self, address: str, path: str) -> AugmentError:
        """The exception for this failure; for a bad trace the same as without a server."""
        because = self.metadata.get("because", self.message)
        if self.reason == "MALFORMED_TRACE" and self.metadata.get("offset", "").isdigit():
            offset = int(self.metadata["offset"])
            return MalformedTrace(path, offset, because.removeprefix(f"byte {offset}: "))
        if self.reason in _INPUT_ERRORS:
            return _INPUT_ERRORS[self.reason](path, because)
        if self.reason == "USAGE":
            return UsageError(because)
        proxied = None if self.reason else _OF_A_PROXY.search(self.message)
        if proxied and self.code != "UNAVAILABLE":
            spoken = _SPOKEN_BY_PROXIES.get(proxied[1], "a proxy before the server refuses the call; ask its operator")
        else:
            spoken = _SPOKEN.get(self.code, self.code.lower())
        reason = self.message if self.reason else f"{spoken} ({self.message})"
        return ServiceError(f"{path}: {address}: {reason}" if path else f"{address}: {reason}", self.code, self.reason)


#: what gRPC says, by code, of a stream that ends without the status that every answer of the server has
_OF_CUT_STREAMS = {"INTERNAL": "RST_STREAM", "UNKNOWN": "Stream removed"}
_SPOKEN = {
    "UNAVAILABLE": "the server cannot be reached; check its address, and that both sides use TLS or neither does",
    "DEADLINE_EXCEEDED": "not done in time",
    "UNIMPLEMENTED": "another service, or another version of this one, answers at this address",
}


#: what gRPC says of a response that is none of gRPC's: augment's server sends no such response
_OF_A_PROXY = re.compile(r"^Received http2 header with status: (\d{3})$")
_SPOKEN_BY_PROXIES = {
    "413": "a proxy before the server allows no upload of this size; its operator must allow more (nginx: "
    "client_max_body_size 0)"
}


def failure_of(error: grpc.RpcError) -> Failure:
    """The failure of a call."""
    call = cast("grpc.Call", error)  # errors of the channel are also calls
    code, message = call.code().name, call.details() or ""
    reason, metadata, retry_after_s = "", {}, None
    status = rpc_status.from_call(call)
    for detail in status.details if status else ():
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            reason, metadata = info.reason, dict(info.metadata)
        elif detail.Unpack(retry):
            retry_after_s = retry.retry_delay.ToTimedelta().total_seconds()
    return Failure(code, reason, message, metadata, retry_after_s)


def job_failure(error: resources_pb2.JobError) -> Failure:
    """The failure of a job."""
    return Failure(code_pb2.Code.Name(error.code), error.reason, error.message, dict(error.metadata))
