"""Workers that convert: processes of this machine, or any other executor of ``concurrent.futures``."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any, Protocol, TypeVar

from augment.batch.convert import Settings, convert
from augment.batch.inputs import Input
from augment.batch.results import Result
from augment.core.heap import keep_freed_memory

T = TypeVar("T")
#: called in another process, so it must be picklable, as the ``partial`` of a module-level function is
Task = Callable[[], Result]


def convert_apart(item: Input, settings: Settings) -> Result:
    """:func:`convert` in a worker process; it prints warnings itself."""
    return convert(item, settings, lambda text: print(f"augment: {text}", file=sys.stderr, flush=True))  # noqa: T201


class Workers(Protocol):
    """The executor that :func:`augment.batch.pool.work_through` submits tasks to.

    ``lost`` is the exception of a future whose worker died, and of :meth:`submit` when no worker is left.
    """

    lost: type[Exception]

    def capacity(self) -> int:
        """How many inputs may be under way at once: at least 1; it may change."""

    def submit(self, task: Callable[[], T]) -> Future[T]:
        """Submit a task."""

    def renew(self) -> None:
        """Restore lost workers. Called when all tasks under way have ended."""

    def stop(self) -> None:
        """Stop the tasks under way now, and remove their partial outputs."""

    def close(self) -> None:
        """Release the workers after the work is done."""


class _Context(SpawnContext):
    """Spawns processes, which is the same on every system and safe with threads, and keeps them: the calling process
    may have other children."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[SpawnProcess] = []

    def Process(self, *args: Any, **keywords: Any) -> SpawnProcess:  # type: ignore[override]  # noqa: N802
        """A new process."""
        process = SpawnProcess(*args, **keywords)
        self.begun.append(process)
        return process


class Processes:
    """``size`` processes of this machine. If one dies all do, because the executor cannot tell which one died."""

    lost: type[Exception] = BrokenProcessPool

    def __init__(self, size: int) -> None:
        self._size, self._context = size, _Context()
        self._executor = self._new()

    def capacity(self) -> int:
        """The number of processes."""
        return self._size

    def submit(self, task: Callable[[], T]) -> Future[T]:
        """Submit a task to the next free process."""
        return self._executor.submit(_guarded, task)

    def renew(self) -> None:
        """Start new processes."""
        self._executor.shutdown()
        self._executor = self._new()

    def stop(self) -> None:
        """Send SIGTERM, which runs every ``finally`` block."""
        for process in self._context.begun:
            if process.is_alive():
                process.terminate()
        self._executor.shutdown(cancel_futures=True)

    def close(self) -> None:
        """Shut the processes down."""
        self._executor.shutdown()

    def _new(self) -> ProcessPoolExecutor:
        self._context.begun.clear()
        return ProcessPoolExecutor(self._size, mp_context=self._context, initializer=_begin)


class _WorkerEnded(BaseException):
    """The parent process stops the worker."""


_working = False


def _begin() -> None:
    """Set up a worker: the parent handles interrupts and sends SIGTERM; the worker ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    keep_freed_memory()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _end(*_: object) -> None:
    if _working:
        raise _WorkerEnded  # runs every ``finally`` block, which removes partial files
    os._exit(143)  # runs none: queue locks stay taken, so no other worker reads half a message


def _guarded(task: Callable[[], T]) -> T:
    """Run a task in a worker, and end cleanly on SIGTERM."""
    global _working
    try:
        _working = True
        try:
            return task()
        finally:
            _working = False
    except _WorkerEnded:
        os._exit(143)
