"""What surrounds every call: handlers of gRPC methods wrapped, the same way for each of the four kinds of method."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

Behaviour = Callable[[Any, Any], Any]  #: (request or iterator of them, context) → a coroutine, or an async generator


@dataclass
class Call:
    """One call; ``code`` is settled and the bytes are counted when it has ended."""

    method: str
    metadata: dict[str, str]
    code: str = "OK"
    received_bytes: int = 0
    sent_bytes: int = 0


Around = Callable[[Call], AbstractContextManager[object]]


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Runs every call inside the context managers that ``arounds`` make of it."""

    def __init__(self, arounds: Sequence[Around]) -> None:
        self._arounds = arounds

    async def intercept_service(self, continuation: Callable[..., Any], details: Any) -> Any:
        """The method's handler, surrounded."""
        handler = await continuation(details)
        metadata = {name: value for name, value in details.invocation_metadata if isinstance(value, str)}
        return wrapped(handler, lambda behaviour: self._surrounded(behaviour, details.method, metadata))

    def _surrounded(self, behaviour: Behaviour, method: str, metadata: dict[str, str]) -> Behaviour:
        if inspect.isasyncgenfunction(behaviour):

            @functools.wraps(behaviour)
            async def generate(request: Any, context: Any) -> AsyncIterator[Any]:
                with self._around(Call(method, metadata), context) as call:
                    async with contextlib.aclosing(behaviour(_counted(call, request), context)) as responses:
                        async for response in responses:
                            call.sent_bytes += response.ByteSize()
                            yield response

            return generate

        @functools.wraps(behaviour)
        async def answer(request: Any, context: Any) -> Any:
            with self._around(Call(method, metadata), context) as call:
                response = await behaviour(_counted(call, request), context)
                call.sent_bytes += response.ByteSize() if response is not None else 0
                return response

        return answer

    @contextlib.contextmanager
    def _around(self, call: Call, context: Any) -> Iterator[Call]:
        with contextlib.ExitStack() as stack:
            for around in self._arounds:
                stack.enter_context(around(call))
            try:
                yield call
            except (asyncio.CancelledError, GeneratorExit):
                call.code = grpc.StatusCode.CANCELLED.name
                raise
            except Exception:
                call.code = _code(context) or grpc.StatusCode.UNKNOWN.name
                raise
            call.code = _code(context) or call.code


def wrapped(handler: Any, wrap: Callable[[Behaviour], Behaviour]) -> Any:
    """``handler`` with ``wrap`` around what it does; None (no such method) stays None."""
    if handler is None:
        return None
    kind = f"{_word(handler.request_streaming)}_{_word(handler.response_streaming)}"
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    return make(
        wrap(getattr(handler, kind)),
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


def _counted(call: Call, request: Any) -> Any:
    """The request, or the stream of them, whose sizes are added up as it is read."""
    if hasattr(request, "ByteSize"):
        call.received_bytes += request.ByteSize()
        return request
    return _counted_stream(call, request)


async def _counted_stream(call: Call, requests: Any) -> AsyncIterator[Any]:
    async for request in requests:
        call.received_bytes += request.ByteSize()
        yield request


def _code(context: Any) -> str | None:
    """The name of the code that was set, None if that is none or OK."""
    code = context.code()
    if not code:
        return None
    return code.name if isinstance(code, grpc.StatusCode) else _NAMES.get(code)


_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}


def _word(streaming: bool) -> str:
    return "stream" if streaming else "unary"
