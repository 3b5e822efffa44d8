"""Decodes requests and writes responses: refuses malformed requests, and ends calls whose responses are not read.

A call whose client does not take its messages holds a file, memory and a place among the calls. gRPC for Python can
refuse it, but the refusal waits behind the message that is not read. If every call of a connection is stuck so, the
connection itself is shut down; as long as another one goes on there, which may be of somebody else behind a proxy, it
is kept, and the limits per client hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc.aio

from augment_server.errors import Refusal, refuse
from augment_server.interception import Behaviour, count_received, count_sent, wrapped
from augment_server.sockets import hang_up

_NO_MESSAGE = "the bytes are not a message of this method; check the .proto files"


class Answers(grpc.aio.ServerInterceptor):
    """The innermost wrapper: makes a coroutine of every behaviour, which takes and sends its messages.

    Args:
        unread_s: how long a message may wait for being read.
        hang_up: ends the connection from a peer; blocks.
    """

    def __init__(self, unread_s: float, hang_up: Callable[[str], object] = hang_up) -> None:
        self._unread_s, self._hang_up = unread_s, hang_up
        self._under_way: Counter[str] = Counter()  # calls, by connection
        self._stuck: Counter[str] = Counter()
        self._ending: dict[str, asyncio.Future[object]] = {}

    async def intercept_service(self, continuation: Callable[..., Any], details: Any) -> Any:
        """The method's handler, as a coroutine."""
        handler = await continuation(details)
        if handler is None:
            return None
        read, write = _forgiving(handler.request_deserializer), handler.response_serializer
        # the sizes of streamed messages are counted here: ByteSize would serialize each once more
        if handler.request_streaming:
            read = _counting(read, count_received, given=True)
        if handler.response_streaming:
            write = _counting(write, count_sent, given=False)
        return wrapped(handler, self._answering, read, write)

    def _answering(self, behaviour: Callable[..., Any]) -> Behaviour:
        streams = inspect.isasyncgenfunction(behaviour)

        @functools.wraps(behaviour)
        async def answer(request: Any, context: Any) -> Any:
            connection = context.peer()
            with self._counted(self._under_way, connection):
                try:
                    checked = _each_expected(request) if hasattr(request, "__aiter__") else await _expected(request)
                    if streams:
                        await self._send(behaviour(checked, context), context)
                        return None
                    response = await behaviour(checked, context)
                    count_sent(response.ByteSize() if response is not None else 0)
                    return response
                except Refusal as refusal:
                    failure = refusal
                with self._counted(self._stuck, connection, failure.reason == "UNREAD"), _until_it_ends():
                    self._hang_up_if_stuck(connection)
                    return await refuse(context, failure)

        return answer

    async def _send(self, responses: Any, context: Any) -> None:
        """Write each response.

        Raises:
            Refusal: one is not read.
        """
        async with contextlib.aclosing(responses):
            async for response in responses:
                try:
                    with _until_it_ends():
                        await asyncio.wait_for(context.write(response), self._unread_s)
                except asyncio.TimeoutError as error:
                    what = f"nothing was read for {self._unread_s:g} s; go on from there in a new call"
                    raise Refusal("UNREAD", what) from error

    @contextlib.contextmanager
    def _counted(self, calls: Counter[str], connection: str, applies: bool = True) -> Iterator[None]:
        calls[connection] += applies
        try:
            yield
        finally:
            calls[connection] -= applies
            if not calls[connection]:
                del calls[connection]
            self._hang_up_if_stuck(connection)  # another call may have been all that kept it

    def _hang_up_if_stuck(self, connection: str) -> None:
        stuck = self._stuck.get(connection, 0)
        if stuck and stuck == self._under_way.get(connection) and connection not in self._ending:
            ending = asyncio.ensure_future(asyncio.to_thread(self._hang_up, connection))
            self._ending[connection] = ending
            ending.add_done_callback(lambda _: self._ending.pop(connection))


@contextlib.contextmanager
def _until_it_ends() -> Iterator[None]:
    """What gRPC raises when a call ends while something is sent is no error, which it would log with a traceback."""
    try:
        yield
    except grpc.aio.InternalError as error:
        raise asyncio.CancelledError from error


def _forgiving(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Bytes that are no message are none of gRPC's business, which would log a traceback for each."""

    def tried(data: bytes) -> Any:
        try:
            return deserialize(data)
        except Exception:
            return Refusal("INVALID_REQUEST", _NO_MESSAGE)

    return tried


def _counting(convert: Callable[[Any], Any], count: Callable[[int], None], *, given: bool) -> Callable[[Any], Any]:
    """``convert``, with the bytes counted that it is given, or that it makes."""

    def counted(data: Any) -> Any:
        converted = convert(data)
        count(len(data if given else converted))
        return converted

    return counted


async def _expected(request: Any) -> Any:
    """A request, waited for if it is still to be read."""
    if hasattr(request, "__await__"):
        request = await request
    if isinstance(request, Refusal):
        raise request
    return request


async def _each_expected(requests: Any) -> AsyncIterator[Any]:
    async for request in requests:
        yield await _expected(request)
