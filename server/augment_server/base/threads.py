"""Threads for blocking work (files, hashes, the database, pipes), so that the event loop never waits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any, Generic, ParamSpec, TypeVar

from augment_server.base.interception import calling, work_for

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K")
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


class Together(Generic[K, T]):
    """``await together(what)`` reads it with all that others ask for meanwhile: one reading is under way at a time.

    A reading takes a thread and a query, and each costs more than a row more in the next one. Clients take turns in it.

    Args:
        apart: calls ``read`` in a thread.
        read: returns an answer for each of what is asked for.
        most: what one reading is of.
    """

    def __init__(self, apart: Apart, read: Callable[[Sequence[K]], Sequence[T]], most: int) -> None:
        self._apart, self._read, self._most = apart, read, most
        self._asked: dict[str, deque[tuple[K, asyncio.Future[T]]]] = {}  # of each client; not empty, in turn
        self._reader: asyncio.Task[None] | None = None

    async def __call__(self, what: K) -> T:
        """The answer, or what the whole reading raised."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._asked.setdefault(calling(), deque()).append((what, answer))
        if self._reader is None:
            self._reader = asyncio.create_task(self._read_all())
        try:
            return await answer
        finally:
            del answer  # as in Apart

    async def _read_all(self) -> None:
        work_for("together")  # a turn of its own at the threads, not that of a client or of the server's own work
        try:
            while batch := [*islice(self._next(), self._most)]:
                try:
                    answers = await self._apart(self._read, [what for what, _ in batch])
                except Exception as error:  # noqa: PERF203 - of its batch alone
                    for _, waiting in batch:
                        if not waiting.done():
                            waiting.set_exception(error)
                else:
                    for (_, waiting), answer in zip(batch, answers, strict=True):
                        if not waiting.done():
                            waiting.set_result(answer)
        finally:
            self._reader = None

    def _next(self) -> Iterator[tuple[K, asyncio.Future[T]]]:
        """Take what is asked for, one of each client in turn; without what nobody waits for any more."""
        while self._asked:
            client = next(iter(self._asked))
            asked = self._asked.pop(client)
            while asked and asked[0][1].done():
                asked.popleft()
            if asked:
                first = asked.popleft()
                if asked:
                    self._asked[client] = asked  # behind the others
                yield first


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
