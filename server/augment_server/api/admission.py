"""Limits of concurrent calls, of all clients and of each, and of the time until their messages come."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterator
from typing import Any
from weakref import WeakValueDictionary

import grpc
import grpc.aio
from google.protobuf.message import Message

from augment_server.base.errors import Refusal, refuse
from augment_server.base.interception import LARGE, Behaviour, Unread, behaviour_of, calling, count_received, wrapped
from augment_server.base.limits import Limits
from augment_server.base.security import HEALTH_CHECK

#: large requests of a client: how many are read at once, and how many may wait for that; as many large answers, unread
_LARGE_AT_ONCE, _MOST_LARGE = 2, 16
_MOST_ARRIVING = 32  #: first messages of a client that arrive at once: of each, gRPC keeps up to a whole one


class Arriving(grpc.aio.ServerInterceptor):
    """Lets the first message of each call over gRPC arrive in its client's turn, and within a time.

    gRPC itself waits for the message of a unary call for ever, and begins it only then: nothing could count or end it.
    So such a call is one of a stream here, and its request, as over HTTP, is awaited once its caller is known.

    Args:
        within_s: how long a message may take.
        client_of: returns the caller from a call's context.
    """

    def __init__(self, within_s: float, client_of: Callable[[Any], str]) -> None:
        self._within_s, self._client_of = within_s, client_of
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def intercept_service(self, continuation: Callable[..., Any], details: Any) -> Any:
        """The method's handler, as one of a stream of requests."""
        handler = await continuation(details)
        if handler is None:
            return None
        behaviour, streams = behaviour_of(handler), handler.request_streaming

        async def answer(_: Any, context: Any) -> Any:
            turn = self._turns.setdefault(self._client_of(context), asyncio.Semaphore(_MOST_ARRIVING))
            messages = _Messages(context.read, turn, self._within_s)
            return await behaviour(messages if streams else _Alone(messages), _Context(context))

        several = handler.response_streaming
        make = grpc.stream_stream_rpc_method_handler if several else grpc.stream_unary_rpc_method_handler
        return make(answer, handler.request_deserializer, handler.response_serializer)


class _Context:
    """gRPC's context of a call. Its own ``add_done_callback`` would keep the call in a cycle of references.

    Only the collection of garbage would end that: a pause for all calls, or megabytes of messages in memory.
    """

    def __init__(self, context: Any) -> None:
        self._context, self._task = context, asyncio.current_task()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Have ``callback`` called when the call has ended."""
        assert self._task
        self._task.add_done_callback(lambda _: callback(self))


class _Messages:
    """The messages of a call, or what is wrong with the first.

    No async generators: the event loop closes those that are left before their end in a task of its own.
    """

    def __init__(self, read: Callable[[], Awaitable[Any]], turn: asyncio.Semaphore, within_s: float) -> None:
        self._read, self._turn, self._within_s, self._begun = read, turn, within_s, False

    def __aiter__(self) -> _Messages:
        return self

    async def __anext__(self) -> Any:
        message = await self.next()
        if message is grpc.aio.EOF:
            raise StopAsyncIteration
        return message

    async def next(self) -> Any:
        """The next message; ``EOF`` after the last."""
        if self._begun:
            return await self._read()
        self._begun = True
        try:
            return await asyncio.wait_for(self._in_turn(), self._within_s)
        except asyncio.TimeoutError:
            return Refusal("UPLOAD_IDLE", f"the message did not come within {self._within_s:g} s; send it again")

    async def _in_turn(self) -> Any:
        async with self._turn:
            return await self._read()


class _Alone:
    """The message of a unary call, which is awaited; or what is wrong with it."""

    def __init__(self, messages: _Messages) -> None:
        self._messages = messages

    def __await__(self) -> Generator[Any, None, Any]:
        message = yield from self._messages.next().__await__()
        if message is grpc.aio.EOF:
            return Refusal("INVALID_REQUEST", "the call has no message")
        count_received(0 if isinstance(message, Refusal) else message.ByteSize())
        return message


class Admission(grpc.aio.ServerInterceptor):
    """Refuses calls beyond the limits. Health checks count apart, for their client alone.

    Streaming calls of a client and its other calls count apart, so that a client that watches many jobs can still make
    short calls. A call takes a place of ``max_calls`` once its request is there: until then, and until its answer is
    read, it counts for its client alone.

    Large requests are read when few others of the client are under way, because their messages take much memory; so do
    large answers that wait to be read, of which a client has as few.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._under_way = 0
        self._streaming: Counter[str] = Counter()
        self._short: Counter[str] = Counter()
        self._checks: Counter[str] = Counter()
        self._large: Counter[str] = Counter()
        self._unread: Counter[str] = Counter()
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._bounded_handlers: dict[str, Any] = {}  # by method: what surrounds a call from here on is the same for all

    async def intercept_service(self, continuation: Callable[..., Any], details: Any) -> Any:
        """The method's handler, with the limits."""
        if known := self._bounded_handlers.get(details.method):
            return known
        handler = await continuation(details)
        if handler is None:
            return None
        calls, what = self._short, "calls"
        if details.method == HEALTH_CHECK:
            calls, what = self._checks, "health checks"
        elif handler.request_streaming or handler.response_streaming:
            calls, what = self._streaming, "streaming calls"
        bounded = wrapped(handler, lambda behaviour: self._bounded(behaviour, calls, what))
        return self._bounded_handlers.setdefault(details.method, bounded)

    def _bounded(self, behaviour: Behaviour, calls: Counter[str], what: str) -> Behaviour:
        most_of_all = math.inf if calls is self._checks else self._limits.max_calls

        async def answer(request: Any, context: Any) -> Any:
            client, most = calling(), self._limits.max_client_calls
            counted = contextlib.ExitStack()
            context.add_done_callback(lambda _: counted.close())  # the answer takes memory until it is read
            async with contextlib.AsyncExitStack() as stack:
                if calls[client] >= most:
                    message = f"{most} of your {what} are running; end one first, or try again"
                    await refuse(context, Refusal("TOO_MANY_CALLS", message, retry_s=1, subject=client))
                counted.enter_context(_counted(calls, client))
                if hasattr(request, "__await__"):  # it is still to come
                    request = await request
                if isinstance(request, Unread):
                    if self._large[client] >= _MOST_LARGE:
                        message = f"{_MOST_LARGE} of your large requests are under way; wait for one, or try again"
                        await refuse(context, Refusal("TOO_MANY_CALLS", message, retry_s=1, subject=client))
                    stack.enter_context(_counted(self._large, client))
                    await stack.enter_async_context(self._turns.setdefault(client, asyncio.Semaphore(_LARGE_AT_ONCE)))
                    request = await request.read()
                if self._under_way >= most_of_all:
                    await refuse(context, Refusal("TOO_MANY_CALLS", "too many concurrent calls; try again", retry_s=1))
                self._under_way += 1
                try:
                    answered = await behaviour(request, context)
                finally:
                    self._under_way -= 1
                if isinstance(answered, Message) and answered.ByteSize() > LARGE:
                    if self._unread[client] >= _MOST_LARGE:
                        message = f"you have not read {_MOST_LARGE} large answers; read them, or try again"
                        await refuse(context, Refusal("TOO_MANY_CALLS", message, retry_s=1, subject=client))
                    counted.enter_context(_counted(self._unread, client))
                return answered

        return answer


@contextlib.contextmanager
def _counted(calls: Counter[str], client: str) -> Iterator[None]:
    calls[client] += 1
    try:
        yield
    finally:
        calls[client] -= 1
        if not calls[client]:
            del calls[client]
