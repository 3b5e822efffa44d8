"""Threads for blocking work (files, hashes, the database, pipes), so that the event loop never waits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from augment_server.base.interception import calling

P = ParamSpec("P")
T = TypeVar("T")
_COUNT = 16
_EACH = _COUNT // 2  #: of a client at most
_LINE_BYTES = 1 << 16


class Apart:
    """``await apart(function, …)`` calls it in a thread.

    Clients take turns: the next thread is for the one with the fewest, and none has more than half of them, however
    many of its calls and jobs wait for one. The server itself has turns as a client has.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_COUNT, thread_name_prefix="augment")
        self._running: Counter[str] = Counter()  # calls of each client
        self._waiting: dict[str, deque[tuple[Callable[[], Any], asyncio.Future[Any]]]] = {}  # not empty, in turn

    async def __call__(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """The result of ``function``, or its exception. Cancelling the caller does not interrupt it."""
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(calling(), deque()).append((lambda: function(*args, **options), result))
        self._begin()
        try:
            return await result
        finally:
            del result  # it refers to an exception, whose traceback would to it: large arguments would stay

    def _begin(self) -> None:
        """Begin calls as long as a thread is free for one."""
        while self._waiting and self._running.total() < _COUNT:
            client = min(self._waiting, key=self._running.__getitem__)
            if self._running[client] >= _EACH:
                return
            calls = self._waiting.pop(client)
            function, result = calls.popleft()
            if calls:
                self._waiting[client] = calls  # behind the others
            if result.cancelled():
                continue
            self._running[client] += 1
            self._threads.submit(function).add_done_callback(partial(self._end_soon, client, result))

    def _end_soon(self, client: str, result: asyncio.Future[Any], work: Future[Any]) -> None:
        """Called in the thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended
            result.get_loop().call_soon_threadsafe(self._end, client, result, work)

    def _end(self, client: str, result: asyncio.Future[Any], work: Future[Any]) -> None:
        self._running[client] -= 1
        if not self._running[client]:
            del self._running[client]
        if not result.cancelled():
            if error := work.exception():
                if not isinstance(error, Exception):  # a panic in obstore is none: who awaits this expects one
                    error, panic = RuntimeError(repr(error)), error
                    error.__cause__ = panic
                result.set_exception(error)
            else:
                result.set_result(work.result())
        self._begin()

    def close(self) -> None:
        """Wait until all calls have returned."""
        self._threads.shutdown()


def relay(take: Callable[[bytes], object]) -> tuple[int, threading.Thread]:
    """A pipe whose lines, or pieces of long ones, are given to ``take``.

    Returns:
        Its end to write to, and the thread, which ends with the last writer.
    """
    reading, writing = os.pipe()

    def read() -> None:
        with open(reading, "rb") as lines:
            while line := lines.readline(_LINE_BYTES):
                take(line)

    thread = threading.Thread(target=read, name="relay", daemon=True)
    thread.start()
    return writing, thread
