"""Limits of concurrent calls, of all clients and of each."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakValueDictionary

import grpc.aio
from google.protobuf.message import Message

from augment_server.base.errors import Refusal, refuse
from augment_server.base.interception import LARGE, Behaviour, Unread, wrapped
from augment_server.base.limits import Limits
from augment_server.base.security import HEALTH_CHECK

#: large requests of a client: how many are read at once, and how many may wait for that; as many large answers, unread
_LARGE_AT_ONCE, _MOST_LARGE = 2, 16


class Admission(grpc.aio.ServerInterceptor):
    """Refuses calls beyond the limits, except health checks.

    Streaming calls of a client and its other calls count apart, so that a client that watches many jobs can still make
    short calls. A call takes a place of ``max_calls`` once its request is there: until then, and until its answer is
    read, it counts for its client alone.

    Large requests are read when few others of the client are under way, because their messages take much memory; so do
    large answers that wait to be read, of which a client has as few.
    """

    def __init__(self, limits: Limits, client_of: Callable[[Any], str]) -> None:
        self._limits, self._client_of = limits, client_of
        self._under_way = 0
        self._streaming: Counter[str] = Counter()
        self._short: Counter[str] = Counter()
        self._large: Counter[str] = Counter()
        self._unread: Counter[str] = Counter()
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def intercept_service(self, continuation: Callable[..., Any], details: Any) -> Any:
        """The method's handler, with the limits."""
        handler = await continuation(details)
        if handler is None or details.method == HEALTH_CHECK:
            return handler
        streaming = handler.request_streaming or handler.response_streaming
        return wrapped(handler, lambda behaviour: self._bounded(behaviour, streaming=streaming))

    def _bounded(self, behaviour: Behaviour, *, streaming: bool) -> Behaviour:
        calls, what = (self._streaming, "streaming calls") if streaming else (self._short, "calls")

        @functools.wraps(behaviour)
        async def answer(request: Any, context: Any) -> Any:
            client, most = self._client_of(context), self._limits.max_client_calls
            counted = contextlib.ExitStack()
            context.add_done_callback(
                lambda _: counted.close()
            )  # when the answer is read, which takes memory till then
            async with contextlib.AsyncExitStack() as stack:
                if calls[client] >= most:
                    message = f"{most} of your {what} are running; end one first, or try again"
                    await refuse(context, Refusal("TOO_MANY_CALLS", message, retry_s=1, subject=client))
                counted.enter_context(_counted(calls, client))
                if hasattr(request, "__await__"):  # over HTTP the body is still to come
                    request = await request
                if isinstance(request, Unread):
                    if self._large[client] >= _MOST_LARGE:
                        message = f"{_MOST_LARGE} of your large requests are under way; wait for one, or try again"
                        await refuse(context, Refusal("TOO_MANY_CALLS", message, retry_s=1, subject=client))
                    stack.enter_context(_counted(self._large, client))
                    await stack.enter_async_context(self._turns.setdefault(client, asyncio.Semaphore(_LARGE_AT_ONCE)))
                    request = await request.read()
                if self._under_way >= self._limits.max_calls:
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
