"""Who converts: processes of this machine, or whoever else can be given work by ``concurrent.futures``."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Protocol

from augment.batch.convert import Settings, convert
from augment.batch.inputs import Input
from augment.batch.results import Result

Task = Callable[[], Result]  #: it can be pickled, for another process calls it: ``partial`` of what a module has


def convert_apart(one: Input, settings: Settings) -> Result:
    """:func:`convert` in a worker process, which can only tell of slowness itself."""
    return convert(one, settings, lambda text: print(f"augment: {text}", file=sys.stderr, flush=True))  # noqa: T201


class Workers(Protocol):
    """What :func:`augment.batch.pool.work_through` gives work to.

    ``lost`` is what a future raises whose worker died, and :meth:`submit` when nobody is left.
    """

    lost: type[Exception]

    def capacity(self) -> int:
        """How many inputs may be under way at once; at least 1, and may change."""

    def submit(self, task: Task) -> Future[Result]:
        """Have a task done."""

    def renew(self) -> None:
        """After a loss: be able to work again. Called when all that was under way has ended."""

    def stop(self) -> None:
        """End the work under way now; what it had begun to write vanishes."""

    def close(self) -> None:
        """The work is done."""


class Processes:
    """``size`` processes of this machine. One that dies takes the others down, as nobody can tell which it was."""

    lost: type[Exception] = BrokenProcessPool

    def __init__(self, size: int) -> None:
        self._size = size
        self._executor = _executor(size)

    def capacity(self) -> int:
        """The number of processes."""
        return self._size

    def submit(self, task: Task) -> Future[Result]:
        """In the next process that is free."""
        return self._executor.submit(_guarded, task)

    def renew(self) -> None:
        """With new processes."""
        self._executor.shutdown()
        self._executor = _executor(self._size)

    def stop(self) -> None:
        """By SIGTERM, which leads through every ``finally``."""
        for child in multiprocessing.active_children():
            child.terminate()
        self._executor.shutdown(cancel_futures=True)

    def close(self) -> None:
        """Let the processes go."""
        self._executor.shutdown()


def _executor(size: int) -> ProcessPoolExecutor:
    spawn = multiprocessing.get_context("spawn")  # on every system alike, and safe beside threads
    return ProcessPoolExecutor(size, mp_context=spawn, initializer=_begin)


class _Ended(BaseException):
    """The parent wants the worker to end."""


_working = False


def _begin() -> None:
    """In a worker: the parent decides what an interrupt means, and says so with SIGTERM; we end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _end(*_: object) -> None:
    if _working:
        raise _Ended  # by way of every ``finally``, so that half-written files are taken away
    os._exit(143)  # by way of none: the queues' locks stay taken, and no other worker reads half a message


def _guarded(task: Task) -> Result:
    """In a worker: a task, which SIGTERM ends in good order."""
    global _working
    try:
        _working = True
        result = task()
        _working = False
    except _Ended:
        os._exit(143)
    return result
