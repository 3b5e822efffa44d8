"""Decodes requests and writes responses: refuses malformed requests, and ends calls whose responses are not read.

A call whose client does not read its messages occupies a file, memory and a place among the concurrent calls. gRPC for
Python can abort it, but the status waits behind the unread message. If all calls of a connection are stuck in this way,
the connection is shut down. It is kept as long as another call progresses on it, which may belong to another client
behind the same proxy; the limits per client still apply.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import grpc.aio

from augment_server.base.errors import Refusal, refuse
from augment_server.base.interception import LARGE, Behaviour, Unread, count_received, count_sent, wrapped
from augment_server.base.sockets import hang_up

_NO_MESSAGE = "the bytes are not a message of this method; check the .proto files"


class Answers(grpc.aio.ServerInterceptor):
    """The innermost wrapper: turns every behaviour into a coroutine that receives and sends messages.

    Args:
        unread_s: how long a message may stay unread.
        hang_up: ends a peer's connection; blocks.
    """

    def __init__(self, unread_s: float, hang_up: Callable[[str], object] = hang_up) -> None:
        self._unread_s, self._hang_up = unread_s, hang_up
        self._under_way: Counter[str] = Counter()  # concurrent calls of each connection
        self._stuck: Counter[str] = Counter()
        self._ending: dict[str, asyncio.Future[object]] = {}

    async def intercept_service(self, continuation: Callable[..., Any], details: Any) -> Any:
        """The method's handler, as a coroutine."""
        handler = await continuation(details)
        if handler is None:
            return None
        read, write = _forgiving(handler.request_deserializer), handler.response_serializer
        read = read if handler.request_streaming else _later(read)
        # the sizes of streamed messages are counted here: ByteSize would serialize each once more
        if handler.request_streaming:
            read = _counting(read, count_received, given=True)
        if handler.response_streaming:
            write = _counting(write, count_sent, given=False)
        return wrapped(handler, self._answering, read, write)

    def _answering(self, behaviour: Callable[..., Any]) -> Behaviour:
        streams = inspect.isasyncgenfunction(behaviour)

        async def answer(request: Any, context: Any) -> Any:
            connection, ends = context.peer(), contextlib.ExitStack()
            context.add_done_callback(lambda _: ends.close())
            ends.enter_context(self._counted(self._under_way, connection))

            def unread() -> None:
                ends.enter_context(self._counted(self._stuck, connection))
                self._hang_up_if_stuck(connection)

            try:
                checked = _Expected(request) if hasattr(request, "__aiter__") else _expected(request)
                if streams:
                    await self._send(behaviour(checked, context), context)
                    return None
                response = await behaviour(checked, context)
                count_sent(response.ByteSize() if response is not None else 0)
                ends.callback(asyncio.get_running_loop().call_later(self._unread_s, unread).cancel)
                return response
            except Refusal as refusal:
                failure = refusal
            if failure.reason == "UNREAD":
                unread()
            with _until_it_ends():
                return await refuse(context, failure)

        return answer

    async def _send(self, responses: Any, context: Any) -> None:
        """Send each response.

        Raises:
            Refusal: the client does not read a response.
        """
        async with contextlib.aclosing(responses):
            async for response in responses:
                try:
                    with _until_it_ends():
                        await asyncio.wait_for(context.write(response), self._unread_s)
                except asyncio.TimeoutError as error:
                    what = f"the client read nothing for {self._unread_s:g} s; continue from there in a new call"
                    raise Refusal("UNREAD", what) from error

    @contextlib.contextmanager
    def _counted(self, calls: Counter[str], connection: str) -> Iterator[None]:
        calls[connection] += 1
        try:
            yield
        finally:
            calls[connection] -= 1
            if not calls[connection]:
                del calls[connection]
            self._hang_up_if_stuck(connection)  # another call may have kept the connection until now

    def _hang_up_if_stuck(self, connection: str) -> None:
        stuck = self._stuck.get(connection, 0)
        if stuck and stuck == self._under_way.get(connection) and connection not in self._ending:
            ending = asyncio.ensure_future(asyncio.to_thread(self._hang_up, connection))
            self._ending[connection] = ending
            ending.add_done_callback(lambda _: self._ending.pop(connection))


@contextlib.contextmanager
def _until_it_ends() -> Iterator[None]:
    """Suppress gRPC's exception for a call that ends while a message is sent: gRPC would log a traceback."""
    try:
        yield
    except grpc.aio.InternalError as error:
        raise asyncio.CancelledError from error


def _forgiving(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """A decoder that returns a refusal for invalid bytes: gRPC would log a traceback for each."""

    def tried(data: bytes) -> Any:
        try:
            return deserialize(data)
        except Exception:
            return Refusal("INVALID_REQUEST", _NO_MESSAGE)

    return tried


def _later(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """``read``, but what is large stays as it is until it has its turn."""

    async def in_turn(data: bytes) -> Any:
        return read(data)

    return lambda data: read(data) if len(data) <= LARGE else Unread(len(data), partial(in_turn, data))


def _counting(convert: Callable[[Any], Any], count: Callable[[int], None], *, given: bool) -> Callable[[Any], Any]:
    """``convert``, which also counts the bytes that it gets or returns."""

    def counted(data: Any) -> Any:
        converted = convert(data)
        count(len(data if given else converted))
        return converted

    return counted


def _expected(request: Any) -> Any:
    """The request, if it could be read."""
    if isinstance(request, Refusal):
        raise request
    return request


class _Expected:
    """The messages of a stream, if they could be read."""

    def __init__(self, messages: Any) -> None:
        self._messages = aiter(messages)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        return _expected(await anext(self._messages))
