"""Runs many tasks on several workers; results come in the order of the inputs."""

from __future__ import annotations

import contextlib
import os
import pickle
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from functools import partial

from msgspec import Struct, field

from augment.batch.inputs import Input, sweep
from augment.batch.results import Result, failure
from augment.batch.workers import T, Task, Workers
from augment.errors import OutputError

Finished = Callable[[Input, Result], None]  #: called at once for each finished input, in any order
_DISCONNECTED = "the cluster connection was lost; run the same command again to go on"


def work_through(
    inputs: Sequence[Input],
    task_of: Callable[[Input], Task],
    workers: Workers,
    finished: Finished = lambda _one, _result: None,
    needed: Callable[[Input], int] = lambda _: 0,
    budget: int = 0,
) -> Iterator[Result]:
    """Run the task of each of ``inputs``.

    A worker that dies fails its own input only. Each input that may have killed it is tried once more while nothing
    else runs. On an interrupt the workers are stopped.

    Args:
        task_of: makes the task when a worker is free for it.
        finished: called at once with each result.
        needed: the bytes of memory that an input's task needs.
        budget: how many bytes all running tasks may need together (0: any); a task that needs more runs alone.
    """
    crew = _Crew(inputs, task_of, workers, needed, budget)
    results: dict[int, Result] = {}
    following = 0
    try:
        while crew.busy():
            for index, result in crew.advance():
                finished(inputs[index], result)
                results[index] = result
            while following in results:
                yield results.pop(following)
                following += 1
    except BaseException:
        workers.stop()
        raise
    workers.close()


def in_order(tasks: Sequence[Callable[[], T]], workers: Workers) -> Generator[T, None, None]:
    """The results of ``tasks``, each submitted when a worker will be free. What a dying worker leaves is done here.

    The workers are stopped where the results are not all wanted, as on an interrupt, and closed at the end.

    Raises:
        OutputError: the connection to the cluster was lost.
    """
    ahead: deque[tuple[Callable[[], T], Future[T] | None]] = deque()
    left = deque(tasks)
    try:
        while left or ahead:
            while left and len(ahead) < workers.capacity():
                task = left.popleft()
                try:
                    ahead.append((task, workers.submit(task)))
                except workers.lost:
                    ahead.append((task, None))
            task, future = ahead.popleft()
            try:
                result = task() if future is None else future.result()
            except workers.lost:
                result = task()
            except CancelledError as error:
                raise OutputError(_DISCONNECTED) from error
            yield result
    except BaseException:
        workers.stop()
        raise
    workers.close()


def in_order_by_files(tasks: Sequence[Callable[[], T]], workers: Workers) -> Generator[T, None, None]:
    """:func:`in_order` for processes of this machine and large results, which they leave in files.

    A process that dies while it sends a large result leaves a part of it in the executor's pipe, and the executor waits
    forever for the rest. The name of a file is sent whole.
    """
    with tempfile.TemporaryDirectory(prefix="augment-") as folder:
        saving = [partial(_saved, task, os.path.join(folder, str(number))) for number, task in enumerate(tasks)]
        with contextlib.closing(in_order(saving, workers)) as paths:
            for path in paths:
                with open(path, "rb") as file:
                    result: T = pickle.load(file)  # noqa: S301 - by a process of this one
                os.unlink(path)
                yield result


def _saved(task: Callable[[], T], path: str) -> str:
    """Write the result of a task to a file; returns its path, which differs from process to process."""
    result, path = task(), f"{path}.{os.getpid()}"
    with open(path, "wb") as file:
        pickle.dump(result, file, pickle.HIGHEST_PROTOCOL)
    return path


class _Crew(Struct):
    """The state of a run: inputs that wait, tasks under way, and inputs to try alone."""

    inputs: Sequence[Input]
    task_of: Callable[[Input], Task]
    workers: Workers
    needed: Callable[[Input], int]
    budget: int
    waiting: deque[int] = field(default_factory=deque)
    suspects: deque[int] = field(default_factory=deque)
    running: dict[Future[Result], int] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.waiting.extend(range(len(self.inputs)))

    def busy(self) -> bool:
        """Whether anything is left to do."""
        return bool(self.waiting or self.running or self.suspects)

    def advance(self) -> Iterator[tuple[int, Result]]:
        """Submit tasks, wait until at least one finishes, and yield its result."""
        if self.suspects and not self.running:
            yield self._alone(self.suspects.popleft())
            return
        self._give_out()
        if not self.running:
            self.workers.renew()  # the workers died while idle
            return
        for future in sorted(wait(self.running, return_when=FIRST_COMPLETED).done, key=self.running.__getitem__):
            yield from self._take(future)

    def _give_out(self) -> None:
        """Submit as many tasks as the budget allows."""
        capacity = self.workers.capacity() if self.waiting else 0
        while self.waiting and len(self.running) < capacity:
            index = self.waiting[0]
            memory = self.needed(self.inputs[index]) if self.budget else 0
            if self.running and sum(self.taken.values()) + memory > self.budget:
                break
            try:
                self.running[self.workers.submit(self.task_of(self.inputs[index]))] = index
            except self.workers.lost:
                return  # the futures under way report the loss
            self.taken[index] = memory
            self.waiting.popleft()

    def _take(self, future: Future[Result]) -> Iterator[tuple[int, Result]]:
        index = self.running.pop(future)
        self.taken.pop(index)
        try:
            yield index, future.result()
        except self.workers.lost:
            self.suspects.append(index)
        except CancelledError as error:
            raise OutputError(_DISCONNECTED) from error
        except Exception as error:  # from the transport: a task itself never raises
            yield index, failure(self.inputs[index].path, error)

    def _alone(self, index: int) -> tuple[int, Result]:
        """Run an input's task while nothing else runs; if the worker dies again, this input fails."""
        item = self.inputs[index]
        sweep([item])
        self.workers.renew()
        try:
            return index, self.workers.submit(self.task_of(item)).result()
        except self.workers.lost:
            pass
        sweep([item])
        self.workers.renew()
        because = "its worker process died, perhaps from lack of memory; try fewer --jobs"
        return index, Result(item.path, "failed", message=f"{item.path}: {because}", exit_code=1)
