"""Limits of concurrent calls, of all clients and of each."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio

from augment_server.errors import Refusal, refuse
from augment_server.interception import Behaviour, wrapped
from augment_server.limits import Limits
from augment_server.security import HEALTH_CHECK


class Admission(grpc.aio.ServerInterceptor):
    """Refuses calls beyond the limits, except health checks."""

    def __init__(self, limits: Limits, client_of: Callable[[Any], str]) -> None:
        self._limits, self._client_of = limits, client_of
        self.under_way = 0
        self._lasting: Counter[str] = Counter()

    async def intercept_service(self, continuation: Callable[..., Any], details: Any) -> Any:
        """The method's handler, with the limits."""
        handler = await continuation(details)
        if handler is None or details.method == HEALTH_CHECK:
            return handler
        lasting = handler.request_streaming or handler.response_streaming
        return wrapped(handler, lambda behaviour: self._bounded(behaviour, lasting=lasting))

    def _bounded(self, behaviour: Behaviour, *, lasting: bool) -> Behaviour:
        @functools.wraps(behaviour)
        async def answer(request: Any, context: Any) -> Any:
            async with self._place(context, lasting=lasting):
                return await behaviour(request, context)

        return answer

    @contextlib.asynccontextmanager
    async def _place(self, context: Any, *, lasting: bool) -> AsyncIterator[None]:
        """A place among the concurrent calls.

        Only streaming calls count per client, so that a client that watches many jobs can still make short calls.
        """
        client, limits = self._client_of(context), self._limits
        if self.under_way >= limits.max_calls:
            await refuse(context, Refusal("TOO_MANY_CALLS", "too many concurrent calls; try again", retry_s=1))
        if lasting and self._lasting[client] >= limits.max_client_calls:
            most = limits.max_client_calls
            what = f"{most} of your streaming calls are running; end one first, or try again"
            await refuse(context, Refusal("TOO_MANY_CALLS", what, retry_s=1, subject=client))
        self.under_way += 1
        self._lasting[client] += lasting
        try:
            yield
        finally:
            self.under_way -= 1
            self._lasting[client] -= lasting
            if not self._lasting[client]:
                del self._lasting[client]
