"""Many tasks on several workers: processes of this machine, a Dask or a Ray cluster. Results are in order."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any, Protocol, TypeVar

from msgspec import Struct, field

from augment.batch.conversion import Progress, Result, RunPlan, convert, failure
from augment.batch.inputs import Input, sweep
from augment.core.threads import allow_files, keep_freed_memory
from augment.errors import OutputError, UsageError

T = TypeVar("T")
#: called in another process, so it must be picklable, as the ``partial`` of a module-level function is
Task = Callable[[], Result]

PATIENCE_S = 5  #: timeout for a scheduler's first answer
RETRIES = 2  #: how often Ray tries a task again whose process or node died
AHEAD = 2  #: inputs submitted per thread of a cluster: none runs dry, and an adaptive cluster sees the demand
AT_LEAST = 8  #: inputs submitted while there is no thread yet
_EACH, _BESIDE = 8, 128  #: files that this process has open for each of its processes, and for other things
_DISCONNECTED = "the cluster connection was lost; run the same command again to go on"


class Workers(Protocol):
    """The executor that :func:`work_through` submits tasks to.

    ``lost`` is the exception of a future whose worker died, and of :meth:`submit` when no worker is left. Workers that
    died are replaced.
    """

    lost: type[Exception]

    def capacity(self) -> int:
        """How many inputs may be under way at once: at least 1; it may change."""

    def submit(self, task: Callable[[], T]) -> Future[T]:
        """Submit a task."""

    def stop(self) -> None:
        """Release the workers. What is under way, as on an interrupt, ends now and removes its partial outputs."""


def work_through(
    inputs: Sequence[Input],
    task_of: Callable[[Input], Task],
    workers: Workers,
    finished: Callable[[Input, Result], None] = lambda _one, _result: None,
    needed: Callable[[Input], int] = lambda _: 0,
    budget: int = 0,
) -> Iterator[Result]:
    """Run the task of each of ``inputs``, and stop the workers.

    A worker that dies fails its own input only. Each input that may have killed it is tried once more while nothing
    else runs.

    Args:
        task_of: makes the task when a worker is free for it.
        finished: called at once with each result.
        needed: the bytes of memory that an input's task needs.
        budget: how many bytes all running tasks may need together (0: any); a task that needs more runs alone.
    """
    pool = _TaskPool(inputs, task_of, workers, needed, budget)
    results: dict[int, Result] = {}
    following = 0
    try:
        while pool.busy():
            for index, result in pool.advance():
                finished(inputs[index], result)
                results[index] = result
            while following in results:
                yield results.pop(following)
                following += 1
    finally:
        workers.stop()


def in_order(tasks: Sequence[Callable[[], T]], workers: Workers) -> Generator[T, None, None]:
    """The results of ``tasks``, each submitted when a worker will be free. What a dying worker leaves is done here.

    The workers are stopped at the end, also where the results are not all wanted, as on an interrupt.

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
    finally:
        workers.stop()


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


class _TaskPool(Struct):
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
        try:
            return index, self.workers.submit(self.task_of(item)).result()
        except self.workers.lost:
            pass
        sweep([item])
        because = "its worker process died, perhaps from lack of memory; try fewer --jobs"
        return index, Result(item.path, "failed", message=f"{item.path}: {because}", exit_code=1)


def convert_apart(item: Input, plan: RunPlan) -> Result:
    """:func:`convert` in a worker process; it prints warnings itself."""
    announce = Progress(announce=lambda text: print(f"augment: {text}", file=sys.stderr, flush=True))  # noqa: T201
    return convert(item, plan, announce)


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
    """``size`` processes of this machine. Each has an executor, so one that dies ends no other.

    An executor of several begins them one by one, and may lose sight of one that begins as another dies.
    """

    lost: type[Exception] = BrokenProcessPool

    def __init__(self, size: int) -> None:
        self._context, self._executors = _Context(), list[ProcessPoolExecutor]()
        self._latest: list[Future[Any]] = []  # of each executor
        files = allow_files(_BESIDE + _EACH * size)
        self._size = max(1, min(size, (files - _BESIDE) // _EACH))

    def capacity(self) -> int:
        """The number of processes: no more than may be with the open files that the system allows."""
        return self._size

    def submit(self, task: Callable[[], T]) -> Future[T]:
        """Submit a task to a free process, or begin it."""
        free = next((number for number, future in enumerate(self._latest) if future.done()), len(self._latest))
        if free == len(self._latest):
            self._executors.append(self._new())
        try:
            future = self._executors[free].submit(_guarded, task)
        except self.lost:
            self._executors[free].shutdown()
            self._executors[free] = self._new()
            future = self._executors[free].submit(_guarded, task)
        self._latest[free : free + 1] = [future]
        return future

    def stop(self) -> None:
        """Send SIGTERM, which runs every ``finally`` block."""
        for process in self._context.begun:
            if process.is_alive():
                process.terminate()
        for executor in self._executors:
            executor.shutdown(cancel_futures=True)

    def _new(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, mp_context=self._context, initializer=_begin)


class _WorkerEnded(BaseException):
    """The parent process stops the worker."""


_working = False


def _begin() -> None:
    """Set up a worker: the parent handles interrupts and sends SIGTERM; the worker ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    keep_freed_memory()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if sys.platform != "win32":
        woken, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker)
        threading.Thread(target=_end_idle, args=(woken,), daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _end_idle(woken: int) -> None:
    """End a worker that waits for a task: a signal that comes just before it waits does not interrupt that."""
    while os.read(woken, 1):
        if not _working:
            os._exit(143)


def _end(*_: object) -> None:
    if _working:
        raise _WorkerEnded  # runs every ``finally`` block, which removes partial files
    os._exit(143)


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


def cluster(address: str) -> Workers:
    """The workers of the cluster at ``address``: ``dask://10.0.0.1:8786`` (or ``tcp://…``), ``ray://10.0.0.1:10001``.

    Raises:
        UsageError: its package is not installed.
        OutputError: nothing answers there.
    """
    if address.startswith("ray://"):
        return RayCluster(address)
    return DaskCluster(address.replace("dask://", "tcp://", 1))


class DaskCluster:
    """The workers of the Dask scheduler at ``address``, such as ``tcp://10.0.0.1:8786``.

    They read the inputs and write the outputs themselves. When a worker dies, Dask gives its input to another, until
    the input has killed more than ``distributed.scheduler.allowed-failures`` workers.

    Raises:
        UsageError: Dask is not installed.
        OutputError: no scheduler answers at ``address``.
    """

    lost: type[Exception]

    def __init__(self, address: str) -> None:
        try:
            from distributed import Client
            from distributed.scheduler import KilledWorker
        except ImportError as error:
            because = f"needs Dask ({error}); pip install 'kineto-augment[dask]'"
            raise UsageError(f"--scheduler {address}: {because}") from error
        self.lost = KilledWorker
        try:
            self._client: Any = Client(address, timeout=PATIENCE_S)
        except (OSError, ValueError) as error:
            raise OutputError(f"--scheduler {address}: no Dask scheduler answers: {error}") from error
        self._under_way: dict[Future[Any], Any] = {}

    def capacity(self) -> int:
        """Twice the number of threads: an input that runs and the next, for each."""
        return max(AT_LEAST, AHEAD * sum(map(int, self._client.nthreads().values())))

    def submit(self, task: Callable[[], T]) -> Future[T]:
        """Submit a task to the cluster."""
        # The futures of Dask's own executor stay open for ever where a result is lost, and its worker then dies
        there = self._client.submit(_run, task, pure=False)
        result: Future[T] = Future()
        self._under_way[result] = there
        self._client.loop.add_callback(self._follow, result, there)
        return result

    async def _follow(self, result: Future[T], there: Any) -> None:
        try:
            result.set_result(await self._client.gather(there, asynchronous=True))
        except BaseException as error:  # whatever it is belongs to who waits for the result
            result.set_exception(CancelledError() if there.cancelled() else error)
        self._under_way.pop(result, None)

    def stop(self) -> None:
        """Cancel what has not begun, and disconnect. A thread cannot be stopped, so tasks under way are finished."""
        if left := list(self._under_way.values()):
            self._client.cancel(left)
        self._client.close()


class RayCluster:
    """The workers of the Ray cluster whose client server is at ``address``, such as ``ray://10.0.0.1:10001``.

    They read the inputs and write the outputs themselves. A task has a process of its own: one that dies ends no other.
    Ray tries it again, on another node if its own is gone.

    Raises:
        UsageError: Ray is not installed.
        OutputError: nothing answers at ``address``.
    """

    class Lost(Exception):
        """A process or node died."""

    lost: type[Exception] = Lost

    def __init__(self, address: str) -> None:
        import socket

        try:
            import ray
        except ImportError as error:
            because = f"needs Ray ({error}); pip install 'kineto-augment[ray]'"
            raise UsageError(f"--scheduler {address}: {because}") from error
        host, _, port = address.removeprefix("ray://").rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), PATIENCE_S).close()  # Ray itself waits for long
            self._ray: Any = ray
            _connect(ray, address)
        except (OSError, ValueError, RuntimeError) as error:
            because = (str(error).strip() or type(error).__name__).splitlines()[-1]
            raise OutputError(f"--scheduler {address}: no Ray cluster answers: {because}") from error
        self._run = ray.remote(num_cpus=1, max_retries=RETRIES)(_run)
        self._under_way: dict[Future[Any], Any] = {}

    def capacity(self) -> int:
        """Twice the number of CPUs: an input that runs and the next, for each."""
        return max(AT_LEAST, AHEAD * int(self._ray.cluster_resources().get("CPU", 0)))

    def submit(self, task: Callable[[], T]) -> Future[T]:
        """Submit a task to the cluster."""
        reference = self._run.remote(task)
        result: Future[T] = Future()
        self._under_way[result] = reference
        reference.future().add_done_callback(partial(self._take, result))
        return result

    def _take(self, result: Future[T], done: Future[T]) -> None:
        self._under_way.pop(result, None)
        error = done.exception()
        errors = self._ray.exceptions
        if error is None:
            result.set_result(done.result())
        elif isinstance(error, (errors.WorkerCrashedError, errors.OutOfMemoryError, errors.NodeDiedError)):
            result.set_exception(self.Lost(str(error)))
        else:
            result.set_exception(getattr(error, "cause", None) or error)

    def stop(self) -> None:
        """Cancel what has not ended, and disconnect from the cluster, which keeps running."""
        for reference in list(self._under_way.values()):
            with contextlib.suppress(Exception):
                self._ray.cancel(reference)
        self._ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    """Connect to a client server that listens; it may be too busy to serve one more client at once."""
    for _ in range(RETRIES):
        with contextlib.suppress(ConnectionError, RuntimeError):
            ray.init(address, logging_level="ERROR", log_to_driver=False)
            return
    ray.init(address, logging_level="ERROR", log_to_driver=False)


def _run(task: Callable[[], T]) -> T:
    """Run a task in a worker of a cluster."""
    return task()
