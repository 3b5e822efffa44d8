"""Threads for blocking work (files, hashes, the database, pipes), so that the event loop never waits."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_COUNT = 16
_LINE_BYTES = 1 << 16


class Apart:
    """``await apart(function, …)`` calls it in a thread."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_COUNT, thread_name_prefix="augment")

    async def __call__(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """The result of ``function``, or its exception. Cancelling the caller does not interrupt it."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: function(*args, **options))

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
