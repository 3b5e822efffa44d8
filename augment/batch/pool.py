"""Many files by several workers; results come in the order of the inputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass, field

from augment.batch.inputs import Input, sweep
from augment.batch.results import Result, failure
from augment.batch.workers import Task, Workers
from augment.errors import OutputError

Finished = Callable[[Input, Result], None]  #: told at once of each input that is finished, in whatever order


def work_through(
    inputs: Sequence[Input],
    task_of: Callable[[Input], Task],
    workers: Workers,
    finished: Finished = lambda _one, _result: None,
    needed: Callable[[Input], int] = lambda _: 0,
    budget: int = 0,
) -> Iterator[Result]:
    """Have the task of each of ``inputs`` done.

    A worker that dies takes its own input down, no other: each input that may have killed it is tried once more when
    nothing else is under way. On an interrupt the workers are stopped.

    Args:
        task_of: makes the task when a worker is free for it.
        finished: told at once of each result.
        needed: the bytes of memory that an input's task will take.
        budget: how many bytes those under way may take together, 0: any; what needs more is done alone.
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


@dataclass
class _Crew:
    """What waits, what is under way, and what has to be tried alone."""

    inputs: Sequence[Input]
    task_of: Callable[[Input], Task]
    workers: Workers
    needed: Callable[[Input], int]
    budget: int
    waiting: deque[int] = field(init=False)
    suspects: deque[int] = field(default_factory=deque)
    running: dict[Future[Result], int] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.waiting = deque(range(len(self.inputs)))

    def busy(self) -> bool:
        """Whether anything is left to do."""
        return bool(self.waiting or self.running or self.suspects)

    def advance(self) -> Iterator[tuple[int, Result]]:
        """Give out work and wait for something to come back: what did."""
        if self.suspects and not self.running:
            yield self._alone(self.suspects.popleft())
            return
        self._give_out()
        if not self.running:
            self.workers.renew()  # they died with nothing to do
            return
        for future in sorted(wait(self.running, return_when=FIRST_COMPLETED).done, key=self.running.__getitem__):
            yield from self._take(future)

    def _give_out(self) -> None:
        """Give out as much as there is room for."""
        capacity = self.workers.capacity() if self.waiting else 0
        while self.waiting and len(self.running) < capacity:
            index = self.waiting[0]
            memory = self.needed(self.inputs[index]) if self.budget else 0
            if self.running and sum(self.taken.values()) + memory > self.budget:
                break
            try:
                self.running[self.workers.submit(self.task_of(self.inputs[index]))] = index
            except self.workers.lost:
                return  # what is under way will tell
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
            raise OutputError("the cluster went away; run the same command again to go on") from error
        except Exception as error:  # of the way to the worker and back: a task itself never raises
            yield index, failure(self.inputs[index].path, error)

    def _alone(self, index: int) -> tuple[int, Result]:
        """Do an input's task while nothing else is under way; if the worker dies again, it is to blame."""
        one = self.inputs[index]
        sweep([one])
        self.workers.renew()
        try:
            return index, self.workers.submit(self.task_of(one)).result()
        except self.workers.lost:
            pass
        sweep([one])
        self.workers.renew()
        because = "the process that worked on it died, perhaps for lack of memory; try it with fewer --jobs"
        return index, Result(one.path, "failed", message=f"{one.path}: {because}", exit_code=1)
