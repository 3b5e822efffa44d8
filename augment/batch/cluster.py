"""A Dask cluster as workers (extra ``[dask]``)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from augment.batch.workers import T
from augment.errors import OutputError, UsageError

PATIENCE_S = 30  #: timeout for the scheduler's first answer
AHEAD = 2  #: inputs submitted per thread: none runs dry, and an adaptive cluster sees the demand
AT_LEAST = 8  #: inputs submitted while there is no thread yet


class Cluster:
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
        self._executor: Any = self._client.get_executor(pure=False)

    def capacity(self) -> int:
        """Twice the number of threads: an input that runs and the next, for each."""
        return max(AT_LEAST, AHEAD * sum(map(int, self._client.nthreads().values())))

    def submit(self, task: Callable[[], T]) -> Future[T]:
        """Submit a task to the cluster."""
        future: Future[T] = self._executor.submit(task)
        return future

    def renew(self) -> None:
        """Do nothing: the cluster replaces its workers itself."""

    def stop(self) -> None:
        """Cancel what has not begun. A thread cannot be stopped, so tasks under way are finished."""
        self._executor.shutdown(wait=False)
        self._client.close()

    def close(self) -> None:
        """Disconnect from the cluster, which keeps running."""
        self._client.close()
