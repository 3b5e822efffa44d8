"""The way of a call from outside to the servicer: the same handlers and interceptors as over gRPC."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from augment_server.errors import status_of


@dataclass(frozen=True)
class Details:
    """What interceptors are told of a call before it begins."""

    method: str
    invocation_metadata: tuple[tuple[str, str], ...]


class Chain:
    """Stands in for a server: takes its handlers, and hands them out as its interceptors make them.

    ``add_…Servicer_to_server(servicer, chain)`` adds a service.
    """

    def __init__(self, interceptors: Sequence[grpc.aio.ServerInterceptor]) -> None:
        self._interceptors = tuple(interceptors)
        self._services: list[Any] = []

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """As of gRPC's server."""
        self._services += handlers

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """As of gRPC's server, to which generated code gives the handlers twice."""

    async def behaviour(self, details: Details) -> Callable[[Any, Any], Any]:
        """What answers a call: takes the request, or an iterator of them, and a context."""

        async def plain(details: Details) -> Any:
            return next((behaviour for each in self._services if (behaviour := each.service(details))), None)

        continuation: Callable[..., Any] = plain
        for interceptor in reversed(self._interceptors):
            continuation = functools.partial(interceptor.intercept_service, continuation)
        handler = await continuation(details)
        several = {False: "unary", True: "stream"}
        name = f"{several[handler.request_streaming]}_{several[handler.response_streaming]}"
        behaviour: Callable[[Any, Any], Any] = getattr(handler, name)
        return behaviour


class Aborted(Exception):
    """The call has ended with an error, of which its context tells."""


class Context:
    """What servicer and interceptors ask of gRPC's context, for a call that came otherwise.

    Args:
        peer: the caller, as gRPC names it.
        metadata: of the call.
        shown: what the caller's certificate says, as gRPC tells it.
        write: sends a message of a stream.
    """

    def __init__(
        self,
        peer: str,
        metadata: tuple[tuple[str, str], ...],
        shown: Mapping[str, list[bytes]],
        write: Callable[[Any], Any],
    ) -> None:
        self._peer, self._metadata, self._shown, self.write = peer, metadata, shown, write
        self._code: grpc.StatusCode | None = None
        self.status = status_of(grpc.StatusCode.UNKNOWN, "")  #: with which the call was aborted
        self.answered: dict[str, str] = {}  #: metadata of the answer
        self._callbacks: list[Callable[[Any], object]] = []

    def peer(self) -> str:
        """Who is connected."""
        return self._peer

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """As sent."""
        return self._metadata

    def auth_context(self) -> Mapping[str, list[bytes]]:
        """What was proved of the caller by a certificate."""
        return self._shown

    def code(self) -> grpc.StatusCode | None:
        """How the call ended; None as long as nobody said so."""
        return self._code

    async def send_initial_metadata(self, metadata: Sequence[tuple[str, str]]) -> None:
        """They become headers with the first bytes of the answer."""
        self.answered.update(metadata)

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Sequence[tuple[str, Any]] = ()
    ) -> None:
        """End the call.

        Raises:
            Aborted: always.
        """
        self._code = code
        self.status = status_of(code, details, dict(trailing_metadata))
        raise Aborted(details)

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """To be called when the call has ended."""
        self._callbacks.append(callback)

    def ended(self) -> None:
        """Call those who wanted to know."""
        for callback in self._callbacks:
            callback(self)
