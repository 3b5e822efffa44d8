"""Many files, in this process or in several; results come in the order of the inputs."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool

from augment.batch.convert import Result, Settings, convert
from augment.batch.inputs import Input
from augment.writers.files import stem

Work = Callable[[Input, Settings], Result]  #: importable by name, for another process calls it


def convert_apart(one: Input, settings: Settings) -> Result:
    """:func:`convert` in a worker process, which can only tell of slowness itself."""
    return convert(one, settings, lambda text: print(f"augment: {text}", file=sys.stderr, flush=True))  # noqa: T201


def convert_in_processes(
    inputs: Sequence[Input], settings: Settings, jobs: int, work: Work = convert_apart
) -> Iterator[Result]:
    """Convert ``inputs`` in ``jobs`` processes.

    A process that dies takes its own input down, no other: as nobody can tell which of those under way killed it,
    each of them is tried once more, alone. On an interrupt the processes are ended and leave nothing behind.
    """
    crew = _Crew(min(jobs, len(inputs)), settings, work)
    waiting = deque(enumerate(inputs))
    finished: dict[int, Result] = {}
    following = 0
    try:
        while waiting or crew.running:
            suspects = crew.advance(waiting, finished)
            for index in suspects:
                finished[index] = crew.alone(inputs[index])
            while following in finished:
                yield finished.pop(following)
                following += 1
    except BaseException:
        crew.stop()
        raise
    crew.leave()


class _Crew:
    """The processes, and what they are working on: never more inputs than processes."""

    def __init__(self, size: int, settings: Settings, work: Work) -> None:
        self._size, self._settings, self._work = size, settings, work
        self._executor = _executor(size)
        self.running: dict[Future[Result], int] = {}

    def advance(self, waiting: deque[tuple[int, Input]], finished: dict[int, Result]) -> list[int]:
        """Give out work, wait for something to come back; the inputs under way when a process died, if one did."""
        broken = False
        while waiting and len(self.running) < self._size:
            index, one = waiting[0]
            try:
                self.running[self._executor.submit(_guarded, self._work, one, self._settings)] = index
            except BrokenProcessPool:
                broken = True
                break
            waiting.popleft()
        suspects: list[int] = []
        done = set(self.running) if broken else wait(self.running, return_when=FIRST_COMPLETED).done
        for future in sorted(done, key=self.running.__getitem__):
            self._take(future, finished, suspects)
        if not (suspects or broken):
            return []
        for future in sorted(self.running, key=self.running.__getitem__):  # they died, too, or came home just before
            self._take(future, finished, suspects)
        self._executor.shutdown()
        self._executor = _executor(self._size)
        return suspects

    def _take(self, future: Future[Result], finished: dict[int, Result], lost: list[int]) -> None:
        index = self.running.pop(future)
        try:
            finished[index] = future.result()
        except BrokenProcessPool:
            lost.append(index)

    def alone(self, one: Input) -> Result:
        """Convert ``one`` in a process of its own; if that dies, it is to blame."""
        _sweep(one)
        with _executor(1) as executor:
            try:
                return executor.submit(_guarded, self._work, one, self._settings).result()
            except BrokenProcessPool:
                pass
            except BaseException:
                _end_children()
                raise
        _sweep(one)
        because = "the process that worked on it died, perhaps for lack of memory; try it with fewer --jobs"
        return Result(one.path, "failed", message=f"{one.path}: {because}", exit_code=1)

    def stop(self) -> None:
        """End the processes now; what they had begun to write vanishes."""
        _end_children()
        self._executor.shutdown(cancel_futures=True)

    def leave(self) -> None:
        """Let the processes go, their work done."""
        self._executor.shutdown()


def _executor(size: int) -> ProcessPoolExecutor:
    spawn = multiprocessing.get_context("spawn")  # on every system alike, and safe beside threads
    return ProcessPoolExecutor(size, mp_context=spawn, initializer=_begin)


class _Ended(BaseException):
    """The parent wants the worker to end."""


_working = False


def _begin() -> None:
    """In a worker: the parent decides what an interrupt means, and says so with SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)


def _end(*_: object) -> None:
    if _working:
        raise _Ended  # by way of every ``finally``, so that half-written files are taken away
    os._exit(143)  # by way of none: the queues' locks stay taken, and no other worker reads half a message


def _guarded(work: Work, one: Input, settings: Settings) -> Result:
    """In a worker: ``work``, which SIGTERM ends in good order."""
    global _working
    try:
        _working = True
        result = work(one, settings)
        _working = False
    except _Ended:
        os._exit(143)
    return result


def _end_children() -> None:
    for child in multiprocessing.active_children():
        child.terminate()


def _sweep(one: Input) -> None:
    """Take away what a process that was killed had half written (see ``writers.files.replacing``)."""
    begun = re.compile(rf"\.{re.escape(stem(one.path))}\.(?:augmented|metrics)\.[a-z.]+\.[0-9a-f]{{12}}\.tmp")
    with contextlib.suppress(OSError):
        for name in os.listdir(one.folder):
            if begun.fullmatch(name):
                os.unlink(os.path.join(one.folder, name))
