"""A channel to the server, and calls that are made again where that may help."""

from __future__ import annotations

import ipaddress
import random
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

import grpc

from augment.client.failures import Failure, failure_of
from augment.errors import ServiceError, UsageError
from augment.records import dataclass

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 10.0
CALL_S = 60.0  #: for the answer to a single question
_PING_S = 30
_LONGEST_MESSAGE = 16 << 20

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Tls:
    """PEM files: who signs the server's certificate (the system's authorities if not given); ours, if it wants one."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """For a channel.

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
            raise UsageError(f"{path}: is no PEM file")
        return text


def channel_to(address: str, tls: Tls | None) -> grpc.Channel:
    """A channel; it connects when it is used."""
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
    """A moment after which nothing more is tried.

    Args:
        timeout_s: from now on; None: never.
        what: that is to be done, as the error names it.
    """

    def __init__(self, timeout_s: float | None, what: str) -> None:
        self._timeout_s, self._what = timeout_s, what
        self._end = None if timeout_s is None else time.monotonic() + timeout_s

    def left_s(self, at_most: float | None = None) -> float | None:
        """Seconds that are left, ``at_most`` so many; None: no end.

        Raises:
            ServiceError: it is over.
        """
        if self._end is None:
            return at_most
        left = self._end - time.monotonic()
        if left <= 0:
            message = f"{self._what}: not done within {self._timeout_s:g} s; allow more time, or try again later"
            raise ServiceError(message, "DEADLINE_EXCEEDED", "")
        return left if at_most is None else min(left, at_most)


class Connection:
    """Makes calls with the token, and again where that may help.

    Args:
        address: of the server, for errors.
        token: sent with each call.
        patience_s: for how long a server that does not answer, or is full, is asked again.
        first_patience_s: the same as long as it has never answered: a wrong address is found out soon.
        waiting: told what is waited for, before each pause.
    """

    def __init__(
        self, address: str, token: str | None, patience_s: float, first_patience_s: float,
        waiting: Callable[[str], object] = lambda _: None,
    ) -> None:  # fmt: skip
        self.address, self._waiting = address, waiting
        self.metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._patience_s, self._first_patience_s = patience_s, first_patience_s
        self._answered = False

    def ask(
        self,
        method: Callable[..., Answer],
        request: object,
        deadline: Deadline,
        path: str = "",
    ) -> Answer:
        """The answer to a question that may be asked twice.

        Raises:
            AugmentError: the server says no, or cannot be reached.
        """

        def attempt(_: Patience) -> Answer:
            return method(request, timeout=deadline.left_s(CALL_S), metadata=self.metadata)

        return self.persist(attempt, deadline, path)

    def persist(
        self, attempt: Callable[[Patience], Answer], deadline: Deadline, path: str = "", passing: Collection[str] = ()
    ) -> Answer:
        """What ``attempt`` gives, which is not None, tried again after each failure that may pass.

        It says ``patience.heard()`` whenever it has got on. Reasons in ``passing`` may pass, too.
        """
        patience = Patience(self, deadline, passing)
        while (answer := self._tried(attempt, patience, path)) is None:
            pass
        self._answered = True
        return answer

    def _tried(self, attempt: Callable[[Patience], Answer], patience: Patience, path: str) -> Answer | None:
        """What ``attempt`` gives; None after a pause if it failed and may be tried again."""
        try:
            return attempt(patience)
        except grpc.RpcError as error:
            failure = failure_of(error)
            if patience.wait_after(failure):
                return None
            raise failure.error(self.address, path) from error

    def heard(self) -> None:
        """The server has answered."""
        self._answered = True

    def waiting(self, failure: Failure) -> None:
        """There is a pause for this reason."""
        if self._answered:  # else it may be none: that is an error soon
            self._waiting(failure.message if failure.reason else "the server does not answer any more")

    @property
    def patience_s(self) -> float:
        """For how long to ask a server again that does not answer, or says no for now."""
        return self._patience_s if self._answered else self._first_patience_s


class Patience:
    """How often, and for how long, to try again: pauses double up to a limit, and are uneven by chance."""

    def __init__(self, connection: Connection, deadline: Deadline, passing: Collection[str] = ()) -> None:
        self._connection, self._deadline, self._passing = connection, deadline, passing
        self._pause_s = _FIRST_PAUSE_S
        self._silent_since = time.monotonic()

    def heard(self) -> None:
        """The server has answered, and there is something new: begin anew."""
        self._connection.heard()
        self._pause_s, self._silent_since = _FIRST_PAUSE_S, time.monotonic()

    def wait_after(self, failure: Failure) -> bool:
        """Pause, and say that it may help to try again; or that it does not.

        Raises:
            ServiceError: the deadline is over.
        """
        pause_s = random.uniform(0.5, 1.0) * self._pause_s  # noqa: S311 # spreads clients, keeps no secret
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        if failure.retry_after_s is not None:  # a server that says so is alive
            self._connection.heard()
            pause_s = failure.retry_after_s * random.uniform(1.0, 1.25)  # noqa: S311
        elif failure.code == "DEADLINE_EXCEEDED" and not failure.reason:
            self._deadline.left_s()  # says so itself if it is over; else this one attempt took too long
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
