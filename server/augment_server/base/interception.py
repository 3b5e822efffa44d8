"""Interceptors: wrap the handlers of all four kinds of gRPC methods in the same way.

The innermost wrapper is :class:`augment_server.api.reading.Answers`. It turns every behaviour into a coroutine, so that
the other wrappers need not distinguish streams from single responses.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

Behaviour = Callable[[Any, Any], Coroutine[Any, Any, Any]]  #: (request or iterator of them, context) → its answer


@dataclass
class Call:
    """One call; ``code`` and the byte counts are final when it has ended."""

    method: str
    metadata: dict[str, str]
    client: str
    code: str = "OK"
    received_bytes: int = 0
    sent_bytes: int = 0
    resource: str = ""  #: what it is about, as the client names it, or as it was created; cut off
    reason: str = ""  #: of its refusal


@dataclass(frozen=True)
class Unread:
    """A large request that is read in its turn (:mod:`admission`): the message takes up to fifty times as much memory.

    ``read`` returns it, or a refusal.
    """

    size: int  #: bytes
    read: Callable[[], Awaitable[Any]]

    def ByteSize(self) -> int:  # noqa: N802 - as of a message
        """The size."""
        return self.size


Around = Callable[[Call], AbstractContextManager[object]]
_MOST_RESOURCE = 300  #: characters
LARGE = 32 << 10  #: bytes of a request from which on it is large
_CURRENT: ContextVar[Call | None] = ContextVar("call", default=None)


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Runs every call inside context managers.

    Args:
        arounds: make a context manager from a call.
        client_of: returns the caller from a call's context.
    """

    def __init__(self, arounds: Sequence[Around], client_of: Callable[[Any], str]) -> None:
        self._arounds, self._client_of = arounds, client_of

    async def intercept_service(self, continuation: Callable[..., Any], details: Any) -> Any:
        """The method's handler, wrapped."""
        handler = await continuation(details)
        metadata = {name: value for name, value in details.invocation_metadata if isinstance(value, str)}
        return wrapped(handler, lambda behaviour: self._surrounded(behaviour, details.method, metadata))

    def _surrounded(self, behaviour: Behaviour, method: str, metadata: dict[str, str]) -> Behaviour:
        async def answer(request: Any, context: Any) -> Any:
            with self._around(Call(method, metadata, self._client_of(context)), context):
                return await behaviour(request, context)

        return answer

    @contextlib.contextmanager
    def _around(self, call: Call, context: Any) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for around in self._arounds:
                stack.enter_context(around(call))
            before = _CURRENT.set(call)
            try:
                yield
            except asyncio.CancelledError:
                call.code = _code(context) or grpc.StatusCode.CANCELLED.name
                raise
            except Exception:
                call.code = _code(context) or grpc.StatusCode.UNKNOWN.name
                raise
            finally:
                _CURRENT.reset(before)
            call.code = _code(context) or call.code


def calling() -> str:
    """The client for which the current task works; empty if it is the server itself."""
    call = _CURRENT.get()
    return call.client if call else ""


def work_for(client: str) -> None:
    """Let the current task work for a client."""
    _CURRENT.set(Call("", {}, client))


def concern(*names: str, reason: str = "") -> None:
    """Record what the current call is about, unless ``names`` are empty, and why it is refused."""
    call = _CURRENT.get()
    if call is not None:
        call.resource = ", ".join(filter(None, names))[:_MOST_RESOURCE] or call.resource
        call.reason = reason


def count_received(size: int) -> None:
    """Count received bytes of the current call."""
    call = _CURRENT.get()
    if call is not None:
        call.received_bytes += size


def count_sent(size: int) -> None:
    """Count sent bytes of the current call."""
    call = _CURRENT.get()
    if call is not None:
        call.sent_bytes += size


def wrapped(handler: Any, wrap: Callable[[Any], Behaviour], deserializer: Any = None, serializer: Any = None) -> Any:
    """``handler`` with its behaviour wrapped by ``wrap``, and optionally with other (de)serializers of messages.

    None, which means an unknown method, stays None.
    """
    if handler is None:
        return None
    make = getattr(grpc, f"{_kind(handler)}_rpc_method_handler")
    return make(
        wrap(behaviour_of(handler)),
        request_deserializer=deserializer or handler.request_deserializer,
        response_serializer=serializer or handler.response_serializer,
    )


def behaviour_of(handler: Any) -> Behaviour:
    """What a handler does."""
    behaviour: Behaviour = getattr(handler, _kind(handler))
    return behaviour


def _kind(handler: Any) -> str:
    """The kind of a handler, as gRPC names it: ``unary_stream`` and so on."""
    several = {False: "unary", True: "stream"}
    return f"{several[handler.request_streaming]}_{several[handler.response_streaming]}"


def _code(context: Any) -> str | None:
    """The name of the code that was set; None without one, or for OK."""
    code = context.code()
    if not code:
        return None
    return code.name if isinstance(code, grpc.StatusCode) else _NAMES.get(code)


_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}
