"""Passes calls from outside gRPC through the same interceptors and handlers as gRPC calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from augment_server.base.errors import status_of
from augment_server.base.interception import behaviour_of


@dataclass(frozen=True)
class Details:
    """The method and metadata of a call, for interceptors."""

    method: str
    invocation_metadata: tuple[tuple[str, str], ...]


class Chain:
    """Replaces a gRPC server: takes handlers, and returns them wrapped by the interceptors.

    ``add_…Servicer_to_server(servicer, chain)`` adds a service.
    """

    def __init__(self, interceptors: Sequence[grpc.aio.ServerInterceptor]) -> None:
        self._interceptors = tuple(interceptors)
        self._services: list[Any] = []

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """The method of gRPC's server."""
        self._services += handlers

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """The method of gRPC's server. Ignored: generated code passes the same handlers to the other method, too."""

    async def behaviour(self, details: Details) -> Callable[[Any, Any], Any]:
        """The function that answers a call, from the request (or an iterator of requests) and a context."""

        async def plain(details: Details) -> Any:
            return next((behaviour for each in self._services if (behaviour := each.service(details))), None)

        continuation: Callable[..., Any] = plain
        for interceptor in reversed(self._interceptors):
            continuation = functools.partial(interceptor.intercept_service, continuation)
        return behaviour_of(await continuation(details))


class Aborted(Exception):
    """The call has ended with an error; the context has its status."""


class Context:
    """The part of gRPC's context that servicer and interceptors use, for a call from outside gRPC.

    Args:
        peer: the caller, as gRPC names it.
        metadata: the call's metadata.
        shown: the properties of the caller's certificate, in gRPC's form.
        write: sends a message of a stream.
        part: returns which bytes of a file are asked for: the first, and how many, from its size and SHA-256.
    """

    def __init__(
        self,
        peer: str,
        metadata: tuple[tuple[str, str], ...],
        shown: Mapping[str, list[bytes]],
        write: Callable[[Any], Any],
        part: Callable[[int, str], tuple[int, int]],
    ) -> None:
        self._peer, self._metadata, self._shown, self.write, self.part = peer, metadata, shown, write, part
        self._code: grpc.StatusCode | None = None
        self.status = status_of(grpc.StatusCode.UNKNOWN, "")  #: the status with which the call was aborted
        self.answered: dict[str, str] = {}  #: metadata of the response
        self._callbacks: list[Callable[[Any], object]] = []

    def peer(self) -> str:
        """The caller's address."""
        return self._peer

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata as sent."""
        return self._metadata

    def auth_context(self) -> Mapping[str, list[bytes]]:
        """The verified properties of the caller's certificate."""
        return self._shown

    def code(self) -> grpc.StatusCode | None:
        """The code with which the call was aborted; None if it was not."""
        return self._code

    async def send_initial_metadata(self, metadata: Sequence[tuple[str, str]]) -> None:
        """Send the metadata as headers, with the first bytes of the response."""
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
        """Register a function to call when the call has ended."""
        self._callbacks.append(callback)

    def ended(self) -> None:
        """Call the registered functions."""
        for callback in self._callbacks:
            callback(self)
